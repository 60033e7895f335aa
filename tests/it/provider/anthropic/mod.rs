//! The Anthropic Messages dialect, against a mock that plays recorded bytes.

mod blocks;
mod framing;
mod requests;
mod stream;

use capstan::provider::anthropic::client;
use serde_json::{Value, json};

use super::drive::{Outcome, ask_through, question};
use super::mutants::{outcome_of, outcomes_of};
use support::wire::{Answer, Wire};

/// Returns an event as the provider writes it.
fn event(value: &Value) -> String {
    format!("event: {}\ndata: {value}\n\n", value["type"].as_str().unwrap())
}

fn begin() -> String {
    event(&json!({"type": "message_start", "message": {
        "id": "msg_1", "type": "message", "role": "assistant", "model": "claude-x", "content": [], "stop_reason": null,
        "stop_sequence": null, "usage": {"input_tokens": 25, "output_tokens": 1}}}))
}

fn start(index: u64, block: Value) -> String {
    event(&json!({"type": "content_block_start", "index": index, "content_block": block}))
}

fn delta(index: u64, delta: Value) -> String {
    event(&json!({"type": "content_block_delta", "index": index, "delta": delta}))
}

fn stop(index: u64) -> String {
    event(&json!({"type": "content_block_stop", "index": index}))
}

/// Returns a complete text block.
fn text(index: u64, text: &str) -> String {
    [start(index, json!({"type": "text", "text": ""})), delta(index, json!({"type": "text_delta", "text": text})), stop(index)]
        .concat()
}

/// Returns a complete call with its arguments in pieces.
fn call(index: u64, id: &str, name: &str, pieces: &[&str]) -> String {
    let begin = start(index, json!({"type": "tool_use", "id": id, "name": name, "input": {}}));
    let pieces: String =
        pieces.iter().map(|piece| delta(index, json!({"type": "input_json_delta", "partial_json": piece}))).collect();
    [begin, pieces, stop(index)].concat()
}

fn finish(reason: &str) -> String {
    let delta = json!({"stop_reason": reason, "stop_sequence": null});
    event(&json!({"type": "message_delta", "delta": delta, "usage": {"output_tokens": 15}}))
}

fn end() -> String {
    event(&json!({"type": "message_stop"}))
}

/// Returns the outcome of a stream with these events.
async fn said(events: &[String]) -> Outcome {
    outcome_of(client, events.concat()).await
}

async fn said_by(answer: Answer) -> Outcome {
    outcomes_of(client, vec![answer]).await.remove(0)
}

/// Returns the outcome of an answer, read by a client with these options.
async fn said_to(options: impl FnOnce(&Wire) -> capstan::provider::ClientOptions, answer: Answer) -> Outcome {
    let wire = Wire::play(vec![answer]).await;
    ask_through(client(options(&wire)).expect("usable options").as_ref(), question()).await
}
