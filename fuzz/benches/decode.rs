//! Measures the cost of decoding, compared to parsing the same payloads with `serde_json` alone, and the allocations of one token.
//!
//! Fails if a dialect is slower than [`GOAL`] times, or if a token of a long answer allocates more than one of a short answer.

use std::hint::black_box;
use std::time::{Duration, Instant};

use capstan::provider::fuzzing::{Chunking, Wire, decode_each, payloads};
use serde_json::{Value, json};

/// The most that decoding may cost, as a multiple of parsing alone.
const GOAL: f64 = 3.0;
/// Tokens of the answer that is timed.
const TOKENS: usize = 2_000;
/// Rounds of which the fastest counts: everything else is the machine's.
const ROUNDS: usize = 200;
/// How the bytes come in: as much as one read of a socket gives.
const READ_BYTES: usize = 8 * 1024;

/// An answer as providers stream it: text, and the arguments of one call, token by token.
fn answer(wire: Wire, tokens: usize) -> Vec<u8> {
    let words = (0..tokens).map(|n| if n % 7 == 0 { "\"größer\"\n".to_owned() } else { format!(" token{}", n % 100) });
    let mut lines: Vec<Value> = Vec::with_capacity(tokens + 8);
    match wire {
        Wire::ChatCompletions => {
            let chunk = |delta: Value, finish: Value| {
                json!({"id": "chatcmpl-BhZ2T6dZ", "object": "chat.completion.chunk", "created": 1_749_000_000,
                "model": "gpt-5-mini-2025-08-07", "service_tier": "default", "system_fingerprint": null,
                "choices": [{"index": 0, "delta": delta, "logprobs": null, "finish_reason": finish}]})
            };
            lines.push(chunk(json!({"role": "assistant", "content": ""}), Value::Null));
            lines.extend(words.map(|word| chunk(json!({"content": word}), Value::Null)));
            lines.push(chunk(json!({}), json!("stop")));
        }
        Wire::Anthropic => {
            lines.push(
                json!({"type": "message_start", "message": {"id": "msg_1", "type": "message", "role": "assistant", "content": [],
                "model": "claude-sonnet-4-5", "stop_reason": null, "usage": {"input_tokens": 10, "output_tokens": 1}}}),
            );
            lines.push(json!({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}));
            lines.extend(
                words.map(|word| json!({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": word}})),
            );
            lines.push(json!({"type": "content_block_stop", "index": 0}));
            lines.push(json!({"type": "message_delta", "delta": {"stop_reason": "end_turn", "stop_sequence": null},
                "usage": {"output_tokens": tokens}}));
            lines.push(json!({"type": "message_stop"}));
        }
        Wire::Gemini => {
            let chunk = |word: &str, finish: Option<&str>| {
                let mut candidate = json!({"content": {"parts": [{"text": word}], "role": "model"}, "index": 0});
                if let Some(finish) = finish {
                    candidate["finishReason"] = finish.into();
                }
                json!({"candidates": [candidate], "usageMetadata": {"promptTokenCount": 10, "candidatesTokenCount": 5, "totalTokenCount": 15,
                    "promptTokensDetails": [{"modality": "TEXT", "tokenCount": 10}]}, "modelVersion": "gemini-2.5-flash", "responseId": "xYz"})
            };
            lines.extend(words.map(|word| chunk(&word, None)));
            lines.push(chunk("", Some("STOP")));
        }
        Wire::Responses => {
            let item = |text: &str| {
                json!({"id": "msg_1", "type": "message", "status": "completed", "role": "assistant",
                "content": [{"type": "output_text", "text": text, "annotations": []}]})
            };
            lines.push(json!({"type": "response.created", "response": {"id": "resp_1", "status": "in_progress", "output": []}}));
            lines.push(json!({"type": "response.output_item.added", "output_index": 0, "item": {"id": "msg_1", "type": "message",
                "status": "in_progress", "role": "assistant", "content": []}}));
            let mut text = String::new();
            for word in words {
                text.push_str(&word);
                lines.push(json!({"type": "response.output_text.delta", "sequence_number": lines.len(), "item_id": "msg_1", "output_index": 0,
                    "content_index": 0, "delta": word, "logprobs": [], "obfuscation": "a1b2c3"}));
            }
            lines.push(json!({"type": "response.output_item.done", "output_index": 0, "item": item(&text)}));
            lines.push(
                json!({"type": "response.completed", "response": {"id": "resp_1", "status": "completed", "output": [item(&text)],
                "usage": {"input_tokens": 10, "output_tokens": tokens}}}),
            );
        }
        Wire::Ollama => {
            lines.extend(words.map(|word| {
                json!({"model": "qwen3:8b", "created_at": "2025-06-01T10:00:00.123456Z",
                "message": {"role": "assistant", "content": word}, "done": false})
            }));
            lines.push(json!({"model": "qwen3:8b", "created_at": "2025-06-01T10:00:00.123456Z", "message": {"role": "assistant", "content": ""},
                "done": true, "done_reason": "stop", "prompt_eval_count": 10, "eval_count": tokens}));
        }
    }
    let framed = lines.iter().map(|line| match wire {
        Wire::ChatCompletions | Wire::Gemini => format!("data: {line}\n\n"),
        Wire::Anthropic | Wire::Responses => format!("event: {}\ndata: {line}\n\n", line["type"].as_str().unwrap_or_default()),
        Wire::Ollama => format!("{line}\n"),
    });
    let mut body: String = framed.collect();
    if wire == Wire::ChatCompletions {
        body.push_str("data: [DONE]\n\n");
    }
    body.into_bytes()
}

fn fastest(mut act: impl FnMut()) -> Duration {
    let rounds = (0..ROUNDS).map(|_| {
        let begun = Instant::now();
        act();
        begun.elapsed()
    });
    rounds.min().unwrap_or_default()
}

fn decoded(wire: Wire, body: &[u8], chunking: &Chunking) {
    decode_each(wire, body, chunking, |item| {
        black_box(item.expect("a whole answer"));
    });
}

/// Allocations, and bytes in them, of one token more, in an answer of so many.
fn per_token(wire: Wire, tokens: usize) -> (f64, f64) {
    let chunking = Chunking::sizes(vec![READ_BYTES]);
    let all = |tokens: usize| {
        let body = answer(wire, tokens);
        allocation_counter::measure(|| decoded(wire, &body, &chunking))
    };
    // The difference of two answers removes the constant cost of an answer.
    let (short, long) = (all(tokens / 2), all(tokens));
    let more = (tokens - tokens / 2) as f64;
    (
        long.count_total.saturating_sub(short.count_total) as f64 / more,
        long.bytes_total.saturating_sub(short.bytes_total) as f64 / more,
    )
}

fn main() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    let _within = runtime.enter();
    let mut missed = Vec::new();
    println!("{TOKENS} tokens, the fastest of {ROUNDS} rounds; allocations per token in answers of 1,000 and of 100,000 tokens\n");
    println!("| wire | KiB | `serde_json` alone | decoded | times | allocations | bytes |");
    println!("| --- | --- | --- | --- | --- | --- | --- |");
    for wire in Wire::ALL {
        let body = answer(wire, TOKENS);
        let chunking = Chunking::sizes(vec![READ_BYTES]);
        let texts = payloads(wire, &body);
        let parsed = fastest(|| {
            for text in &texts {
                black_box(serde_json::from_str::<Value>(text).ok());
            }
        });
        let whole = fastest(|| decoded(wire, &body, &chunking));
        let times = whole.as_secs_f64() / parsed.as_secs_f64();
        let (short, long) = (per_token(wire, 1_000), per_token(wire, 100_000));
        println!(
            "| {} | {} | {:.0} µs | {:.0} µs | {times:.2} | {:.2}, {:.2} | {:.0}, {:.0} |",
            wire.name(),
            body.len() / 1_024,
            parsed.as_secs_f64() * 1e6,
            whole.as_secs_f64() * 1e6,
            short.0,
            long.0,
            short.1,
            long.1
        );
        if times > GOAL {
            missed.push(format!("{}: {times:.2} times of parsing alone, more than {GOAL}", wire.name()));
        }
        if long.0 > short.0 + 0.5 || long.1 > 1.25 * short.1 {
            missed.push(format!("{}: a token of a long answer allocates more than one of a short one", wire.name()));
        }
    }
    assert!(missed.is_empty(), "{missed:#?}");
}
