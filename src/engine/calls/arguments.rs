//! Arguments of tool calls: a text of the model that should be one JSON object.

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

/// Parses the text of a model. Empty text and `null` mean no arguments; everything else must be one JSON object. Repairs nothing: see
/// [`crate::engine::calls::json_repair`].
pub fn parse(raw: &str) -> Arguments {
    let text = raw.trim();
    if text.is_empty() {
        return Arguments { value: Value::Object(Map::new()), fault: None };
    }
    if nesting(text) > MAX_NESTING {
        return unusable_arguments(raw, &format!("they are nested more than {MAX_NESTING} levels deep"));
    }
    if let Err(error) = number::check_text(text.as_bytes()) {
        return unusable_arguments(raw, &error.to_string());
    }
    // The tool gets the arguments that are stored and shown, so the text is made storable before it is parsed.
    match serde_json::from_str::<Value>(&storable_json(text.to_owned())) {
        Ok(Value::Object(map)) => Arguments { value: Value::Object(map), fault: None },
        Ok(Value::Null) => Arguments { value: Value::Object(Map::new()), fault: None },
        Ok(Value::Array(_)) => unusable_arguments(raw, "they are an array"),
        Ok(Value::String(_)) => unusable_arguments(raw, "they are a string"),
        Ok(Value::Number(_) | Value::Bool(_)) => unusable_arguments(raw, "they are a single value"),
        Err(error) => unusable_arguments(raw, &error.to_string()),
    }
}

fn unusable_arguments(raw: &str, reason: &str) -> Arguments {
    Arguments { value: json!({ "_raw": raw }), fault: Some(reason.to_owned()) }
}

/// The name of the repair that removes nulls.
pub const NULL: &str = "null";

/// The maximum number of `$ref` references that are followed from a property to its schema.
const MAX_REFERENCES: u32 = 16;

/// Removes each null of an optional property whose schema does not accept null. Returns whether it removed one. Models write such a
/// null for an argument that they do not want to give.
pub fn leave_out_nulls(value: &mut Value, schema: &Value) -> bool {
    leave_out(value, schema, schema)
}

fn leave_out(value: &mut Value, schema: &Value, root: &Value) -> bool {
    let mut is_changed = false;
    match value {
        Value::Object(fields) => {
            let Some(properties) = schema.get("properties").and_then(Value::as_object) else { return false };
            let is_required = |name: &str| {
                schema.get("required").and_then(Value::as_array).is_some_and(|names| names.iter().any(|known| known == name))
            };
            fields.retain(|name, field| match properties.get(name) {
                Some(property) if field.is_null() => {
                    let is_kept = is_required(name) || takes_null(property, root, 0);
                    is_changed |= !is_kept;
                    is_kept
                }
                Some(property) => {
                    is_changed |= leave_out(field, property, root);
                    true
                }
                None => true,
            });
        }
        Value::Array(items) => {
            if let Some(schema) = schema.get("items") {
                items.iter_mut().for_each(|item| is_changed |= leave_out(item, schema, root));
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
    is_changed
}

/// Returns whether a schema may accept null. Keywords that are not checked here count as accepting null.
fn takes_null(schema: &Value, root: &Value, references: u32) -> bool {
    let Value::Object(keywords) = schema else { return *schema != Value::Bool(false) };
    let inner = |part: &Value| takes_null(part, root, references);
    keywords.iter().all(|(keyword, given)| match (keyword.as_str(), given) {
        ("type", Value::String(name)) => name == "null",
        ("type", Value::Array(names)) => names.iter().any(|name| name == "null"),
        ("enum", Value::Array(values)) => values.contains(&Value::Null),
        ("const", value) => value.is_null(),
        ("anyOf" | "oneOf", Value::Array(parts)) => parts.iter().any(inner),
        ("allOf", Value::Array(parts)) => parts.iter().all(inner),
        ("$ref", Value::String(reference)) if references < MAX_REFERENCES => {
            let target = reference.strip_prefix('#').and_then(|pointer| root.pointer(pointer));
            target.is_none_or(|target| takes_null(target, root, references + 1))
        }
        _ => true,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case(json!({"type": "integer"}), false)]
    #[case(json!({"type": ["integer", "null"]}), true)]
    #[case(json!({"enum": ["a", "b"]}), false)]
    #[case(json!({"enum": ["a", null]}), true)]
    #[case(json!({"anyOf": [{"type": "integer"}, {"type": "null"}], "default": null}), true)]
    #[case(json!({"anyOf": [{"type": "integer"}, {"type": "string"}]}), false)]
    #[case(json!({"$ref": "#/$defs/limit"}), false)]
    #[case(json!({"$ref": "#/$defs/none"}), true)]
    #[case(json!({"$ref": "#/$defs/endless"}), true)]
    #[case(json!({}), true)]
    #[case(json!(true), true)]
    fn null_of_an_optional_property_is_left_out(#[case] limit: Value, #[case] is_kept: bool) {
        let schema = json!({"type": "object", "properties": {"query": {"type": "string"}, "limit": limit},
            "required": ["query"], "$defs": {"limit": {"type": "integer"}, "endless": {"$ref": "#/$defs/endless"}}});
        let mut value = json!({"query": "x", "limit": null, "other": null});
        assert_eq!(leave_out_nulls(&mut value, &schema), !is_kept);
        assert_eq!(value.get("limit").is_some(), is_kept, "{value}");
        assert_eq!((&value["query"], value.get("other")), (&json!("x"), Some(&Value::Null)));
    }

    #[test]
    fn null_of_a_required_property_stays() {
        let schema = json!({"properties": {"a": {"type": "string"}, "b": {"items": {"properties": {"c": {"type": "string"}}}}},
            "required": ["a"]});
        let mut value = json!({"a": null, "b": [{"c": null}, {"c": "d"}]});
        assert!(leave_out_nulls(&mut value, &schema));
        assert_eq!(value, json!({"a": null, "b": [{}, {"c": "d"}]}));
    }

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
