//! Framing of Anthropic streams: it does not change an answer, and a truncated stream is never complete.

use serde_json::json;

use super::super::mutants::{self, outcome_of};
use super::{begin, call, client, delta, end, event, finish, start, stop};

/// Returns an answer with every kind of block.
fn recorded() -> String {
    [
        begin(),
        event(&json!({"type": "ping"})),
        start(0, json!({"type": "thinking", "thinking": "", "signature": ""})),
        delta(0, json!({"type": "thinking_delta", "thinking": "let me see"})),
        delta(0, json!({"type": "signature_delta", "signature": "c2ln"})),
        stop(0),
        start(1, json!({"type": "text", "text": ""})),
        delta(1, json!({"type": "text_delta", "text": "Grüße \u{85}\u{2028}\u{2029} 你好 👩‍🚀"})),
        stop(1),
        call(2, "toolu_a", "get_time", &["", "{\"zone\":", "\"Europe/Zürich\"}"]),
        call(3, "toolu_b", "get_weather", &["{}"]),
        finish("tool_use"),
        end(),
    ]
    .concat()
}

// L-08, L-09
#[tokio::test]
async fn framing_does_not_matter() {
    let recorded = recorded();
    let expected = mutants::greeting_has_any_framing(client, &recorded).await;
    // The `event:` lines repeat the type in the data, so they may be missing.
    let nameless: String = recorded.split_inclusive('\n').filter(|line| !line.starts_with("event:")).collect();
    assert_eq!(outcome_of(client, nameless).await, expected);
}

// L-03, L-38
#[tokio::test]
async fn a_cut_stream_is_never_whole() {
    let recorded = recorded();
    let expected = outcome_of(client, &recorded).await;
    let said_why = recorded.find("\"stop_reason\":\"tool_use\"").unwrap();
    let whole_from = said_why + recorded[said_why..].find("\n\n").unwrap() + 2;
    mutants::a_cut_is_never_whole(client, &recorded, whole_from, &expected).await;
}
