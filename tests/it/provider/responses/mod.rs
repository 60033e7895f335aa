//! The OpenAI Responses dialect.

mod requests;
mod stream;

use capstan::provider::responses::client;
use serde_json::{Value, json};

use super::drive::{Outcome, ask_through, options, question};
use super::mutants;
use support::wire::{Answer, Wire};

/// Returns the events as sent, with sequence numbers.
fn events(events: &[Value]) -> String {
    let numbered = (0..).zip(events).map(|(number, event)| {
        let mut event = event.clone();
        event["sequence_number"] = json!(number);
        format!("event: {}\ndata: {event}\n\n", event["type"].as_str().unwrap_or_default())
    });
    numbered.collect()
}

async fn said(body: &[Value]) -> Outcome {
    mutants::outcome_of(client, events(body)).await
}

/// Returns the outcome of an answer in one document.
async fn document(body: &Value) -> Outcome {
    let wire = Wire::play(vec![Answer::json(200, &body.to_string())]).await;
    let options = capstan::provider::ClientOptions { is_streaming: false, ..options(&wire) };
    ask_through(client(options).unwrap().as_ref(), question()).await
}

fn created() -> Value {
    json!({"type": "response.created", "response": {"id": "resp_1", "object": "response", "status": "in_progress", "output": []}})
}

fn completed(output: Value) -> Value {
    json!({"type": "response.completed", "response": {
        "id": "resp_1", "object": "response", "status": "completed", "error": null, "incomplete_details": null, "output": output,
        "usage": {"input_tokens": 30, "input_tokens_details": {"cached_tokens": 8},
            "output_tokens": 20, "output_tokens_details": {"reasoning_tokens": 12}, "total_tokens": 50}}})
}

fn added(index: u32, item: Value) -> Value {
    json!({"type": "response.output_item.added", "output_index": index, "item": item})
}

fn done(index: u32, item: Value) -> Value {
    json!({"type": "response.output_item.done", "output_index": index, "item": item})
}

fn message(id: &str, text: &str) -> Value {
    json!({"id": id, "type": "message", "status": "completed", "role": "assistant",
        "content": [{"type": "output_text", "annotations": [], "text": text}]})
}

fn text_delta(index: u32, id: &str, delta: &str) -> Value {
    json!({"type": "response.output_text.delta", "output_index": index, "content_index": 0, "item_id": id, "delta": delta,
        "logprobs": [], "obfuscation": "x9"})
}

fn reasoning(id: &str, words: &str, encrypted: &str) -> Value {
    json!({"id": id, "type": "reasoning", "summary": [{"type": "summary_text", "text": words}], "encrypted_content": encrypted})
}

fn call(id: &str, call_id: &str, name: &str, arguments: &str) -> Value {
    json!({"id": id, "type": "function_call", "status": "completed", "call_id": call_id, "name": name, "arguments": arguments})
}

fn arguments_delta(index: u32, id: &str, delta: &str) -> Value {
    json!({"type": "response.function_call_arguments.delta", "output_index": index, "item_id": id, "delta": delta})
}

fn arguments_done(index: u32, id: &str, arguments: &str) -> Value {
    json!({"type": "response.function_call_arguments.done", "output_index": index, "item_id": id, "arguments": arguments})
}

/// Returns an answer with every kind of item.
fn recorded() -> Vec<Value> {
    let part = json!({"type": "summary_text", "text": ""});
    let summary = |event: &str, index: u32| json!({"type": event, "item_id": "rs_1", "output_index": 0, "summary_index": index});
    let with = |mut event: Value, name: &str, value: Value| {
        event[name] = value;
        event
    };
    let mut thought = reasoning("rs_1", "Let me see.", "gAAA/+==");
    thought["summary"] = json!([{"type": "summary_text", "text": "Let me see."}, {"type": "summary_text", "text": "Oh."}]);
    let weather = call("fc_2", "call_b", "get_weather", "{\"city\":\"Zürich\"}");
    let output = json!([thought, message("msg_1", "Grüße \u{85}\u{2028} 👩‍🚀"), call("fc_1", "call_a", "get_time", "{}"), weather]);
    vec![
        created(),
        json!({"type": "response.in_progress", "response": {"status": "in_progress"}}),
        added(0, json!({"id": "rs_1", "type": "reasoning", "summary": [], "encrypted_content": "early"})),
        with(summary("response.reasoning_summary_part.added", 0), "part", part.clone()),
        with(summary("response.reasoning_summary_text.delta", 0), "delta", json!("Let me ")),
        with(summary("response.reasoning_summary_text.delta", 0), "delta", json!("see.")),
        with(summary("response.reasoning_summary_text.done", 0), "text", json!("Let me see.")),
        with(summary("response.reasoning_summary_part.done", 0), "part", json!({"type": "summary_text", "text": "Let me see."})),
        with(summary("response.reasoning_summary_part.added", 1), "part", part),
        with(summary("response.reasoning_summary_text.delta", 1), "delta", json!("Oh.")),
        done(0, thought),
        added(1, json!({"id": "msg_1", "type": "message", "status": "in_progress", "role": "assistant", "content": []})),
        json!({"type": "response.content_part.added", "item_id": "msg_1", "output_index": 1, "content_index": 0,
            "part": {"type": "output_text", "text": "", "annotations": []}}),
        text_delta(1, "msg_1", "Grüße \u{85}\u{2028} "),
        json!({"type": "response.output_text.annotation.added", "item_id": "msg_1", "output_index": 1, "annotation": {}}),
        text_delta(1, "msg_1", "👩‍🚀"),
        json!({"type": "response.output_text.done", "item_id": "msg_1", "output_index": 1, "content_index": 0, "text": "Grüße \u{85}\u{2028} 👩‍🚀"}),
        json!({"type": "response.content_part.done", "item_id": "msg_1", "output_index": 1, "content_index": 0,
            "part": {"type": "output_text", "text": "Grüße \u{85}\u{2028} 👩‍🚀"}}),
        done(1, message("msg_1", "Grüße \u{85}\u{2028} 👩‍🚀")),
        added(
            2,
            json!({"id": "fc_1", "type": "function_call", "status": "in_progress", "call_id": "call_a", "name": "get_time", "arguments": ""}),
        ),
        added(
            3,
            json!({"id": "fc_2", "type": "function_call", "status": "in_progress", "call_id": "call_b", "name": "get_weather", "arguments": ""}),
        ),
        arguments_delta(3, "fc_2", "{\"city\":"),
        arguments_delta(2, "fc_1", "{}"),
        arguments_delta(3, "fc_2", "\"Zürich\"}"),
        arguments_done(2, "fc_1", "{}"),
        done(2, call("fc_1", "call_a", "get_time", "{}")),
        arguments_done(3, "fc_2", "{\"city\":\"Zürich\"}"),
        json!({"type": "response.something.new", "delta": true, "part": [1], "output_index": "x", "item": null}),
        done(3, call("fc_2", "call_b", "get_weather", "{\"city\":\"Zürich\"}")),
        completed(output),
    ]
}

/// Returns the same answer without repeated content, for tests that split it at every byte.
fn brief() -> Vec<Value> {
    const AGAIN: [&str; 9] = [
        "response.in_progress",
        "response.reasoning_summary_part.added",
        "response.reasoning_summary_part.done",
        "response.reasoning_summary_text.done",
        "response.content_part.added",
        "response.content_part.done",
        "response.output_text.annotation.added",
        "response.output_text.done",
        "response.something.new",
    ];
    let mut events = recorded();
    events.retain(|event| event["type"].as_str().is_some_and(|kind| !AGAIN.contains(&kind)) && event["item"]["type"] != "message");
    if let Some(last) = events.last_mut() {
        last["response"]["output"] = json!([]);
    }
    events
}
