//! Reconciliation: asks a server whether a call with an unknown outcome took effect.
//!
//! The operator configures a tool of the same server, and this tool answers. `docs/guides/tool-replay.md` defines its
//! arguments and its answer: it gets `{"key", "tool", "arguments"}` and answers `{"happened": true, "result": ...}` or `{"happened": false}`.

use serde_json::{Value, json};

use super::mcp::McpAnswer;
use crate::domain::conversation::ToolContent;
use crate::domain::tool::{Reconciled, ToolCall, ToolCallState, ToolDefinition, ToolOutcome};
use crate::support::text::prefix_chars;

/// The field of `_meta` with the idempotency key.
pub(super) const KEY_FIELD: &str = "capstan/key";

/// The result of a call that took effect, if the server sends no result.
const NO_RESULT: &str = "the call took effect; its result is not known";

/// How much of an unclear answer is quoted, in characters.
const QUOTED: usize = 200;

pub(super) fn arguments(definition: &ToolDefinition, call: &ToolCall) -> Value {
    json!({"key": call.key(), "tool": definition.tool, "arguments": call.arguments})
}

/// Parses the answer. All answers but the two documented ones are unclear.
pub(super) fn read(answer: McpAnswer) -> Reconciled {
    let text = ToolContent::joined_text(&answer.content);
    let unclear = |reason: &str| Reconciled::Unclear(format!("{reason}: {}", prefix_chars(&text, QUOTED)));
    if answer.state != ToolCallState::Done {
        return unclear("the tool reported an error");
    }
    let body = answer.structured.or_else(|| serde_json::from_str(&text).ok()).unwrap_or(Value::Null);
    match body.get("happened") {
        Some(Value::Bool(true)) => Reconciled::Happened(outcome(&body)),
        Some(Value::Bool(false)) => Reconciled::DidNotHappen,
        Some(_) | None => unclear("its answer has no boolean `happened`"),
    }
}

fn outcome(answer: &Value) -> ToolOutcome {
    let text = match answer.get("result") {
        None | Some(Value::Null) => NO_RESULT.to_owned(),
        Some(Value::String(text)) => text.clone(),
        Some(value) => value.to_string(),
    };
    let is_error = answer.get("is_error").and_then(Value::as_bool).unwrap_or(false);
    let state = if is_error { ToolCallState::Failed } else { ToolCallState::Done };
    ToolOutcome { state, content: vec![ToolContent::text(text)], is_error, duration_ms: 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(state: ToolCallState, text: &str, structured: Option<Value>) -> McpAnswer {
        McpAnswer { state, content: vec![ToolContent::text(text)], is_error: state != ToolCallState::Done, structured }
    }

    fn happened(answer: &Reconciled) -> (ToolCallState, String) {
        let Reconciled::Happened(outcome) = answer else { panic!("not said to have happened: {answer:?}") };
        (outcome.state, ToolContent::joined_text(&outcome.content))
    }

    #[test]
    fn only_the_two_documented_answers_are_believed() {
        let done = |text: &str, structured| read(answer(ToolCallState::Done, text, structured));
        let yes = done("", Some(json!({"happened": true, "result": "paid 5"})));
        assert_eq!(happened(&yes), (ToolCallState::Done, "paid 5".to_owned()));
        let yes = done(r#"{"happened": true, "result": {"id": 7}}"#, None);
        assert_eq!(happened(&yes), (ToolCallState::Done, r#"{"id":7}"#.to_owned()));
        assert_eq!(happened(&done(r#"{"happened": true}"#, None)), (ToolCallState::Done, NO_RESULT.to_owned()));
        let refused = done("", Some(json!({"happened": true, "result": "no funds", "is_error": true})));
        assert_eq!(happened(&refused), (ToolCallState::Failed, "no funds".to_owned()));
        assert_eq!(done("", Some(json!({"happened": false}))), Reconciled::DidNotHappen);
        for (text, structured) in [
            ("no", None),
            ("false", None),
            ("[]", None),
            (r#"{"happened": "yes"}"#, None),
            (r#"{"happened": null}"#, None),
            (r#"{"happened": false}"#, Some(json!({}))),
        ] {
            assert!(matches!(done(text, structured), Reconciled::Unclear(_)), "{text}");
        }
        for state in [ToolCallState::Failed, ToolCallState::Unknown, ToolCallState::Cancelled] {
            let answer = read(answer(state, r#"{"happened": false}"#, Some(json!({"happened": false}))));
            assert!(matches!(answer, Reconciled::Unclear(_)), "{state:?}");
        }
    }
}
