//! Arguments of tool calls: a model's text that should be a JSON object.

use serde_json::{Map, Value, json};

use crate::domain::tool::MAX_NESTING;
use crate::support::json::nesting;
use crate::support::number;
use crate::support::text::storable_json;

/// Parsed arguments.
#[derive(Debug, Clone, PartialEq)]
pub struct Arguments {
    /// Always an object: the model's, or `{"_raw": text}`.
    pub value: Value,
    /// Why the call cannot be executed.
    pub fault: Option<String>,
}

/// Parses a model's text. No text and `null` mean no arguments; everything else must be one JSON object. Repairs nothing: see
/// [`crate::engine::calls::json_repair`].
pub fn parse(raw: &str) -> Arguments {
    let text = raw.trim();
    if text.is_empty() {
        return Arguments { value: Value::Object(Map::new()), fault: None };
    }
    if nesting(text) > MAX_NESTING {
        return unusable(raw, &format!("they are nested more than {MAX_NESTING} levels deep"));
    }
    if let Err(error) = number::check_text(text.as_bytes()) {
        return unusable(raw, &error.to_string());
    }
    // Parses the text as it is stored and shown.
    match serde_json::from_str::<Value>(&storable_json(text.to_owned())) {
        Ok(Value::Object(map)) => Arguments { value: Value::Object(map), fault: None },
        Ok(Value::Null) => Arguments { value: Value::Object(Map::new()), fault: None },
        Ok(Value::Array(_)) => unusable(raw, "they are an array"),
        Ok(Value::String(_)) => unusable(raw, "they are a string"),
        Ok(Value::Number(_) | Value::Bool(_)) => unusable(raw, "they are a single value"),
        Err(error) => unusable(raw, &error.to_string()),
    }
}

fn unusable(raw: &str, reason: &str) -> Arguments {
    Arguments { value: json!({ "_raw": raw }), fault: Some(reason.to_owned()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("", json!({}))]
    #[case(r#"{"a\u0000":"b\u0000 \\u0000"}"#, json!({"a\u{fffd}": "b\u{fffd} \\u0000"}))]
    #[case("  \n", json!({}))]
    #[case("null", json!({}))]
    #[case("{}", json!({}))]
    #[case(r#" {"a": [1, null]} "#, json!({"a": [1, null]}))]
    fn accepts(#[case] raw: &str, #[case] value: Value) {
        assert_eq!(parse(raw), Arguments { value, fault: None });
    }

    #[test]
    fn depth_is_bounded() {
        let nested = |levels: usize| format!("{}1{}", r#"{"a":"#.repeat(levels), "}".repeat(levels));
        assert_eq!(parse(&nested(MAX_NESTING)).fault, None);
        let too_deep = nested(MAX_NESTING + 1);
        let arguments = parse(&too_deep);
        assert_eq!(arguments.value, json!({ "_raw": too_deep }));
        assert!(arguments.fault.is_some_and(|reason| reason.contains("64 levels")));
    }

    #[test]
    fn arguments_keep_numbers_and_order_as_written() {
        let raw = r#"{"z":20000000000000000001,"a":1.10,"m":{"y":1,"b":0.1}}"#;
        assert_eq!(parse(raw).value.to_string(), raw);
        let long = format!(r#"{{"n":{}}}"#, "9".repeat(number::MAX_NUMBER_CHARS + 1));
        let arguments = parse(&long);
        assert_eq!(arguments.value, json!({ "_raw": long }));
        assert!(arguments.fault.is_some_and(|reason| reason.contains("a number has 1001 characters")));
    }

    #[rstest]
    #[case(r#"{"n": NaN}"#)]
    #[case(r#"{"n": -Infinity}"#)]
    #[case(r#"{"n": 1.}"#)]
    #[case(r#"{"n": 007}"#)]
    #[case("[1]")]
    #[case("\"{}\"")]
    #[case("7")]
    #[case("{\"a\":1} and so on")]
    #[case("{\"a\":1")]
    #[case("{'a':1}")]
    fn refuses_and_keeps_the_text(#[case] raw: &str) {
        let arguments = parse(raw);
        assert_eq!(arguments.value, json!({ "_raw": raw }));
        assert!(arguments.fault.is_some_and(|reason| !reason.is_empty()));
    }
}
