//! Undo rules: a tool call that undoes another call, if its server has a tool for that.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use crate::domain::conversation::ToolContent;
use crate::domain::tool::{MAX_NESTING, ToolCall};
use crate::support::json::{self, is_deeper_than};
use crate::support::redact::is_redacted;

/// The first character of a reference in the arguments. `$$` is a literal `$`.
const SIGN: char = '$';

/// References that an author may expect to work inside a longer text.
const REFERENCES: [&str; 4] = ["$arguments.", "$result.", "$result ", "$key "];

/// The rule for the undo of a call. It calls a tool of the same server, with values from the first call or its answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct UndoRule {
    /// The tool's name at the server. It may be the same tool.
    pub tool: String,
    /// The arguments of the undo call. `$arguments.NAME` stands for an argument of the original call. `$result.NAME` stands for a
    /// field of its answer, and `$result` for the text of its answer. `$key` stands for the key of the original call. A
    /// literal text that begins with `$` is written with `$$`.
    #[schema(value_type = Object)]
    pub arguments: Map<String, Value>,
}

/// The limit of the arguments as JSON, in bytes, because models read them in every later request.
const MAX_BYTES: usize = 64 * 1024;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UndoError {
    #[error("{0:?} is not a reference: write $arguments.NAME, $result, $result.NAME or $key, or $$ for a text that begins with $")]
    Unknown(String),
    #[error("{0:?} contains a reference inside a longer text, where it is not replaced: make the reference the complete text")]
    Inside(String),
    /// The call's value was redacted before it was stored.
    #[error("what the call has at {0} is not stored as it was, because a secret was in it")]
    Masked(String),
    #[error("the call has nothing at {0}")]
    Missing(String),
    #[error("the arguments have more than {MAX_BYTES} bytes")]
    TooLarge,
    #[error("the arguments are nested more than {MAX_NESTING} levels deep")]
    TooDeep,
}

enum Reference<'a> {
    Itself(&'a str),
    Arguments(&'a str),
    Result(&'a str),
    Text,
    Key,
}

impl UndoRule {
    /// Checks that every reference in the arguments can be resolved.
    pub fn check(&self) -> Result<(), UndoError> {
        let arguments = Value::Object(self.arguments.clone());
        if is_deeper_than(&arguments, MAX_NESTING) {
            return Err(UndoError::TooDeep);
        }
        let known = |text: &str| match reference(text)? {
            Reference::Itself(text) if REFERENCES.iter().any(|word| text.contains(word)) => Err(UndoError::Inside(text.to_owned())),
            _ => Ok(Value::Null),
        };
        replace_references(&arguments, &known).map(|_| ())
    }

    /// Returns the arguments that undo `call`, or an error that names the missing value.
    pub fn arguments_for(&self, call: &ToolCall) -> Result<Value, UndoError> {
        let text = call.outcome.as_ref().map(|outcome| ToolContent::joined_text(&outcome.content));
        let answer = || call.outcome.as_ref().and_then(|outcome| structured_content(&outcome.content));
        let stands_for = |word: &str| {
            let found = match reference(word)? {
                Reference::Itself(text) => Some(Value::String(text.to_owned())),
                Reference::Arguments(path) => json::at(&call.arguments, path).cloned(),
                Reference::Result(path) => answer().and_then(|answer| json::at(&answer, path).cloned()),
                Reference::Text => text.clone().map(Value::String),
                Reference::Key => Some(Value::String(call.key().to_string())),
            };
            let found = found.filter(|value| !value.is_null()).ok_or_else(|| UndoError::Missing(word.to_owned()))?;
            if is_redacted(&found.to_string()) { Err(UndoError::Masked(word.to_owned())) } else { Ok(found) }
        };
        let arguments = replace_references(&Value::Object(self.arguments.clone()), &stands_for)?;
        if arguments.to_string().len() > MAX_BYTES { Err(UndoError::TooLarge) } else { Ok(arguments) }
    }
}

fn reference(text: &str) -> Result<Reference<'_>, UndoError> {
    let Some(rest) = text.strip_prefix(SIGN) else { return Ok(Reference::Itself(text)) };
    let (name, path) = rest.split_once('.').map_or((rest, None), |(name, path)| (name, Some(path)));
    match (name, path) {
        _ if rest.starts_with(SIGN) => Ok(Reference::Itself(rest)),
        ("arguments", Some(path)) if !path.is_empty() => Ok(Reference::Arguments(path)),
        ("result", Some(path)) if !path.is_empty() => Ok(Reference::Result(path)),
        ("result", None) => Ok(Reference::Text),
        ("key", None) => Ok(Reference::Key),
        _ => Err(UndoError::Unknown(text.to_owned())),
    }
}

fn replace_references(value: &Value, stands_for: &impl Fn(&str) -> Result<Value, UndoError>) -> Result<Value, UndoError> {
    Ok(match value {
        Value::String(text) => stands_for(text)?,
        Value::Array(items) => {
            Value::Array(items.iter().map(|item| replace_references(item, stands_for)).collect::<Result<_, _>>()?)
        }
        Value::Object(fields) => {
            let fields = fields.iter().map(|(name, value)| Ok((name.clone(), replace_references(value, stands_for)?)));
            Value::Object(fields.collect::<Result<_, UndoError>>()?)
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => value.clone(),
    })
}

/// Parses the answer as JSON: its complete text, or its last piece that is an object or an array. Servers often add a text
/// description.
fn structured_content(content: &[ToolContent]) -> Option<Value> {
    let whole = serde_json::from_str(&ToolContent::joined_text(content)).ok();
    let read = |text: &str| serde_json::from_str::<Value>(text).ok().filter(|value| value.is_object() || value.is_array());
    whole.or_else(|| content.iter().filter_map(ToolContent::as_text).rev().find_map(read))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::ids::{CallId, MessageId, RunId};
    use crate::domain::tool::{ReplayClass, ToolCallState, ToolDefinition, ToolOutcome};
    use crate::support::ids::SequentialIds;
    use rstest::rstest;
    use serde_json::json;

    fn rule(arguments: Value) -> UndoRule {
        serde_json::from_value(json!({"tool": "cancel", "arguments": arguments})).unwrap()
    }

    fn call(answer: &str) -> ToolCall {
        let ids = SequentialIds::default();
        let content = vec![ToolContent::text(answer)];
        let arguments = json!({"item": "7", "to": {"city": "Bern", "lines": ["a", "b"]}, "note": null});
        let (id, of) = (CallId::generate(&ids), (RunId::generate(&ids), MessageId::generate(&ids)));
        let order = ToolDefinition::new("order", "", Value::Null, ReplayClass::Unsafe);
        ToolCall {
            state: ToolCallState::Done,
            outcome: Some(ToolOutcome { state: ToolCallState::Done, content, is_error: false, duration_ms: 1 }),
            ..ToolCall::planned(id, of, &order, arguments)
        }
    }

    #[test]
    fn a_result_that_is_said_in_words_too_is_read() {
        let rule = rule(json!({"id": "$result.order.id"}));
        let order = r#"{"order": {"id": 7}}"#;
        for said in [vec!["Order made", order], vec!["Order made", order, "It does not fit its schema."], vec!["3", order]] {
            let mut call = call("");
            let content = said.iter().map(|text| ToolContent::text(*text)).collect();
            call.outcome = Some(ToolOutcome { state: ToolCallState::Done, content, is_error: false, duration_ms: 1 });
            assert_eq!(rule.arguments_for(&call).unwrap(), json!({"id": 7}), "{said:?}");
        }
        assert!(rule.arguments_for(&call("Order made")).is_err());
    }

    #[test]
    fn arguments_come_from_the_call_and_its_answer() {
        let call = call(r#"{"id": 17, "lines": [{"n": 1}]}"#);
        let rule = rule(json!({
            "id": "$result.id", "first": "$result.lines.0.n", "item": "$arguments.item", "city": "$arguments.to.city",
            "all": ["$arguments.to.lines", "$arguments.to.lines.1"], "key": "$key", "price": "$$5", "plain": "x", "n": 3, "text": "$result"
        }));
        assert_eq!(rule.check(), Ok(()));
        assert_eq!(
            rule.arguments_for(&call).unwrap(),
            json!({
                "id": 17, "first": 1, "item": "7", "city": "Bern", "all": [["a", "b"], "b"], "key": call.id.as_str(), "price": "$5",
                "plain": "x", "n": 3, "text": r#"{"id": 17, "lines": [{"n": 1}]}"#
            })
        );
    }

    #[test]
    fn a_long_answer_is_no_argument() {
        let call = call(&"x".repeat(MAX_BYTES));
        assert_eq!(rule(json!({"text": "$result"})).arguments_for(&call), Err(UndoError::TooLarge));
    }

    #[rstest]
    #[case("$arguments.none")]
    #[case("$arguments.note")]
    #[case("$arguments.item.x")]
    #[case("$result.id")]
    fn missing_call_value_is_named(#[case] word: &str) {
        let missing = UndoError::Missing(word.to_owned());
        assert_eq!(rule(json!({"x": [word]})).arguments_for(&call("done")), Err(missing));
    }

    #[rstest]
    #[case("order $result.id")]
    #[case("the $key of $arguments.item")]
    fn reference_inside_a_text_is_reported(#[case] text: &str) {
        assert_eq!(rule(json!({"x": [text, 1]})).check(), Err(UndoError::Inside(text.to_owned())));
        assert_eq!(rule(json!({"x": "costs 5$ or $7, key or result"})).check(), Ok(()));
    }

    #[test]
    fn redacted_value_is_not_sent_back() {
        let call = call(r#"{"id": "for [redacted]"}"#);
        assert_eq!(rule(json!({"x": "$result.id"})).arguments_for(&call), Err(UndoError::Masked("$result.id".to_owned())));
        assert!(rule(json!({"x": "$arguments.item"})).arguments_for(&call).is_ok());
    }

    #[rstest]
    #[case("$")]
    #[case("$argument.x")]
    #[case("$arguments")]
    #[case("$arguments.")]
    #[case("$result.")]
    #[case("$key.x")]
    #[case("$5")]
    fn misspelt_reference_is_reported(#[case] word: &str) {
        assert_eq!(rule(json!({"x": {"y": word}})).check(), Err(UndoError::Unknown(word.to_owned())));
    }
}
