//! Framing of Gemini streams: it does not change an answer, and a truncated stream is never complete.

use serde_json::json;

use super::super::mutants::{self, outcome_of};
use super::{client, finish, parts};

/// Returns an answer with every kind of part.
fn recorded() -> String {
    [
        parts(&json!([{"text": "let me see", "thought": true}])),
        parts(&json!([{"text": "Grüße \u{85}\u{2028}\u{2029} 你好"}])),
        parts(&json!([{"text": " 👩‍🚀", "thoughtSignature": "c2ln"}])),
        parts(&json!([{"functionCall": {"name": "get_time", "args": {"zone": "Europe/Zürich"}}, "thoughtSignature": "c2lnMg=="}])),
        parts(&json!([{"functionCall": {"name": "get_weather", "args": {}, "id": "b"}}])),
        finish("STOP"),
    ]
    .concat()
}

// L-08, L-09
#[tokio::test]
async fn framing_does_not_matter() {
    mutants::greeting_has_any_framing(client, &recorded()).await;
}

// L-03, L-38
#[tokio::test]
async fn a_cut_stream_is_never_whole() {
    let recorded = recorded();
    let expected = outcome_of(client, &recorded).await;
    mutants::a_cut_is_never_whole(client, &recorded, recorded.len(), &expected).await;
}
