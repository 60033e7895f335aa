//! Schemas of arguments: normalised for models, and used to validate their calls. Must not know which tool they belong to.

mod cost;

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use crate::support::locks::lock;
use jsonschema::Validator;
use serde_json::{Value, json};

const MAX_VIOLATIONS: usize = 5;
/// The longest violation, in characters, because some quote the complete instance.
const MAX_VIOLATION: usize = 300;

/// Why arguments are rejected, as a text with which a model can correct its call.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ArgumentError {
    #[error("the schema of this tool is not usable: {0}; the tool cannot be called, use another one")]
    BrokenSchema(String),
    #[error("the arguments violate the schema of the tool: {0}")]
    Violations(String),
}

/// Returns `schema` as an object schema, because models accept no other type. It accepts the same objects as before.
pub fn normalise(schema: &Value) -> Value {
    let mut object = schema.as_object().cloned().unwrap_or_default();
    object.insert("type".to_owned(), json!("object"));
    if !object.get("properties").is_some_and(Value::is_object) {
        object.insert("properties".to_owned(), json!({}));
    }
    Value::Object(object)
}

const MAX_KEPT: usize = 256;

/// A schema with its validator, by the schema's address. The entry owns the schema, so its address cannot be reused.
type Compiled = (Arc<Value>, Arc<Validator>);

/// Checks arguments with cached validators: compiling a schema costs far more than using it.
#[derive(Default)]
pub struct Validators {
    compiled: Mutex<HashMap<usize, Compiled>>,
}

impl Validators {
    /// Checks `arguments` against `schema`. References to other documents are never fetched: such a schema is broken.
    pub fn check(&self, schema: &Arc<Value>, arguments: &Value) -> Result<(), ArgumentError> {
        let address = Arc::as_ptr(schema).addr();
        let known = lock(&self.compiled).get(&address).map(|(_, validator)| Arc::clone(validator));
        let validator = match known {
            Some(validator) => validator,
            None => {
                let validator = Arc::new(validator(schema)?);
                let mut compiled = lock(&self.compiled);
                if compiled.len() >= MAX_KEPT {
                    compiled.clear();
                }
                compiled.insert(address, (Arc::clone(schema), Arc::clone(&validator)));
                validator
            }
        };
        violations(&validator, schema, arguments)
    }
}

pub fn check_once(schema: &Value, arguments: &Value) -> Result<(), ArgumentError> {
    violations(&validator(schema)?, schema, arguments)
}

fn validator(schema: &Value) -> Result<Validator, ArgumentError> {
    cost::check_references(schema).map_err(ArgumentError::BrokenSchema)?;
    let built = jsonschema::options().offline().build(schema);
    built.map_err(|error| ArgumentError::BrokenSchema(shortened(&error.to_string())))
}

fn violations(validator: &Validator, schema: &Value, arguments: &Value) -> Result<(), ArgumentError> {
    cost::check_cost(schema, arguments).map_err(ArgumentError::BrokenSchema)?;
    if validator.is_valid(arguments) {
        return Ok(());
    }
    let mut violations = Vec::new();
    for error in validator.iter_errors(arguments).take(MAX_VIOLATIONS) {
        let pointer = error.instance_path().to_string();
        let location = if pointer.is_empty() { "(top level)" } else { &pointer };
        violations.push(format!("{location}: {}", shortened(&error.to_string())));
    }
    Err(ArgumentError::Violations(violations.join("; ")))
}

fn shortened(message: &str) -> String {
    let cut = crate::support::text::prefix_chars(message, MAX_VIOLATION);
    if cut.len() == message.len() { message.to_owned() } else { format!("{cut}...") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::Map;

    fn check(schema: &Value, arguments: &Value) -> Result<(), ArgumentError> {
        Validators::default().check(&Arc::new(schema.clone()), arguments)
    }

    #[rstest]
    #[case(json!({}), json!({"type": "object", "properties": {}}))]
    #[case(json!(true), json!({"type": "object", "properties": {}}))]
    #[case(json!({"type": ["object", "null"]}), json!({"type": "object", "properties": {}}))]
    #[case(json!({"anyOf": [{"required": ["a"]}]}), json!({"anyOf": [{"required": ["a"]}], "type": "object", "properties": {}}))]
    #[case(
        json!({"type": "object", "properties": {"a": {"$ref": "#/$defs/x"}}, "$defs": {"x": {"type": "string"}}}),
        json!({"type": "object", "properties": {"a": {"$ref": "#/$defs/x"}}, "$defs": {"x": {"type": "string"}}})
    )]
    fn every_schema_becomes_an_object_schema(#[case] raw: Value, #[case] expected: Value) {
        assert_eq!(normalise(&raw), expected);
    }

    #[test]
    fn violations_name_place_and_reason() {
        let schema = json!({
            "type": "object", "required": ["a"], "properties": {"a": {"type": "object", "properties": {"b/c": {"type": "number"}}}}
        });
        assert_eq!(check(&schema, &json!({"a": {"b/c": 1}})), Ok(()));
        let error = check(&schema, &json!({"a": {"b/c": "one"}})).unwrap_err().to_string();
        assert!(error.contains(r#"/a/b~1c: "one" is not of type "number""#), "{error}");
        let error = check(&schema, &json!({})).unwrap_err().to_string();
        assert!(error.contains(r#"(top level): "a" is a required property"#), "{error}");
    }

    /// M-15.
    #[rstest]
    #[case(json!({"type": "object", "properties": {"a": {"$ref": "https://example.com/schema.json"}}}))]
    #[case(json!({"type": "object", "properties": {"a": {"$ref": "file:///etc/passwd"}}}))]
    #[case(json!({"type": "object", "properties": {"a": {"type": "nothing"}}}))]
    #[case(json!({"type": "object", "properties": {"a": {"$ref": "#/$defs/missing"}}}))]
    fn unusable_schema_is_reported(#[case] schema: Value) {
        assert!(matches!(check(&schema, &json!({"a": 1})), Err(ArgumentError::BrokenSchema(_))));
    }

    #[test]
    fn compiled_schema_is_cached_for_a_time() {
        let validators = Validators::default();
        let schema = |kind: &str| Arc::new(json!({"type": "object", "properties": {"a": {"type": kind}}}));
        let text = schema("string");
        for _ in 0..3 {
            assert_eq!(validators.check(&text, &json!({"a": "x"})), Ok(()));
            assert!(validators.check(&text, &json!({"a": 1})).is_err());
        }
        assert_eq!(validators.compiled.lock().unwrap().len(), 1);
        for _ in 0..3 * MAX_KEPT {
            assert_eq!(validators.check(&schema("integer"), &json!({"a": 1})), Ok(()));
        }
        assert!(validators.compiled.lock().unwrap().len() <= MAX_KEPT);
    }

    /// A schema of 2 KB whose check would take longer than a human lifetime.
    #[test]
    fn schema_too_costly_to_check_is_refused() {
        let level = |level: u32| match level {
            0 => json!(false),
            level => json!({"allOf": [{"$ref": format!("#/$defs/a{}", level - 1)}, {"$ref": format!("#/$defs/a{}", level - 1)}]}),
        };
        let definitions: Map<String, Value> = (0..=40).map(|number| (format!("a{number}"), level(number))).collect();
        let schema = json!({"type": "object", "properties": {"x": {"$ref": "#/$defs/a40"}}, "$defs": definitions});
        assert!(matches!(check(&schema, &json!({"x": 1})), Err(ArgumentError::BrokenSchema(_))));
        assert_eq!(check(&schema, &json!({})), Ok(()), "what is not asked for costs nothing");
    }

    #[test]
    fn a_long_chain_of_references_is_no_danger() {
        let length = 3_000;
        let level = |level: u32| match level {
            0 => json!(true),
            level => json!({"$ref": format!("#/$defs/a{}", level - 1)}),
        };
        let definitions: Map<String, Value> = (0..=length).map(|number| (format!("a{number}"), level(number))).collect();
        let schema = json!({"type": "object", "properties": {"x": {"$ref": format!("#/$defs/a{length}")}}, "$defs": definitions});
        assert_eq!(check(&schema, &json!({})), Ok(()));
        assert!(matches!(check(&schema, &json!({"x": 1})), Err(ArgumentError::BrokenSchema(_))));
    }

    /// M-15.
    #[test]
    fn recursive_schemas_work() {
        let schema = json!({"type": "object", "properties": {"child": {"$ref": "#"}, "n": {"type": "integer"}}});
        assert_eq!(check(&schema, &json!({"child": {"child": {"n": 1}}})), Ok(()));
        assert!(check(&schema, &json!({"child": {"child": {"n": "1"}}})).is_err());
    }
}
