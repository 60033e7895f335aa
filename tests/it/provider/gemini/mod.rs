//! The Gemini `generateContent` dialect, against a mock that plays recorded bytes.

mod framing;
mod requests;
mod stream;

use capstan::provider::gemini::client;
use serde_json::{Value, json};

use super::drive::Outcome;
use super::mutants::{outcome_of, outcomes_of};
use support::wire::Answer;

fn parts(parts: &Value) -> String {
    chunk(&json!({"candidates": [{"content": {"parts": parts, "role": "model"}, "index": 0}], "modelVersion": "gemini-x"}))
}

fn text(text: &str) -> String {
    parts(&json!([{"text": text}]))
}

/// Returns the event with the finish reason and the usage.
fn finish(reason: &str) -> String {
    chunk(&json!({
        "candidates": [{"content": {"parts": [{"text": ""}], "role": "model"}, "finishReason": reason, "index": 0}],
        "usageMetadata": {"promptTokenCount": 10, "candidatesTokenCount": 4, "totalTokenCount": 20, "thoughtsTokenCount": 6,
            "cachedContentTokenCount": 3, "promptTokensDetails": [{"modality": "TEXT", "tokenCount": 10}]},
    }))
}

fn chunk(chunk: &Value) -> String {
    format!("data: {chunk}\n\n")
}

/// Returns the outcome of a stream with these events.
async fn said(events: &[String]) -> Outcome {
    outcome_of(client, events.concat()).await
}

async fn said_by(answer: Answer) -> Outcome {
    outcomes_of(client, vec![answer]).await.remove(0)
}
