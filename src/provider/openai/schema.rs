//! Reduces schemas of tools to the keywords that a chat completions provider accepts. The original schema still validates the arguments.

use std::borrow::Cow;

use serde_json::{Map, Value};

use crate::provider::request::quirk_values::SchemaRules;
use crate::provider::request::schema::plain_object;

/// The deepest nesting up to which references are resolved. Deeper parts accept anything.
const MAX_DEPTH: usize = 16;
/// The most parts of a schema after its references are resolved: nested references grow without bounds.
const MAX_PARTS: usize = 5_000;

/// Returns the parameters of a tool, as an object with properties.
pub(in crate::provider) fn parameters<'a>(schema: &'a Value, rules: &SchemaRules) -> Cow<'a, Value> {
    let mut object = match supported_schema(schema, rules) {
        projected if rules.top_unions => projected,
        Cow::Borrowed(projected) => plain_object(projected),
        Cow::Owned(projected) => Cow::Owned(plain_object(&projected).into_owned()),
    };
    let is_refused = |keyword: &str| !rules.top_unions && matches!(keyword, "enum" | "not");
    let has_properties = object.get("properties").is_some_and(Value::is_object);
    let is_object = object.get("type").is_some_and(|kind| kind == "object");
    if is_object && has_properties && !["enum", "not"].iter().any(|keyword| is_refused(keyword) && object.get(keyword).is_some()) {
        return object;
    }
    if !object.is_object() {
        object = Cow::Owned(Value::Object(Map::new()));
    }
    if let Some(fields) = object.to_mut().as_object_mut() {
        fields.retain(|keyword, _| !is_refused(keyword));
        fields.insert("type".to_owned(), "object".into());
        if !has_properties {
            fields.insert("properties".to_owned(), Value::Object(Map::new()));
        }
    }
    object
}

/// Returns a schema without the keywords that the provider refuses.
pub(in crate::provider) fn supported_schema<'a>(schema: &'a Value, rules: &SchemaRules) -> Cow<'a, Value> {
    if rules.drop.is_empty() && rules.refs {
        return Cow::Borrowed(schema);
    }
    Cow::Owned(Walk { root: schema, rules, parts: 0 }.schema(schema, 0))
}

struct Walk<'a> {
    root: &'a Value,
    rules: &'a SchemaRules,
    parts: usize,
}

impl Walk<'_> {
    fn schema(&mut self, schema: &Value, depth: usize) -> Value {
        self.parts += 1;
        let Value::Object(object) = schema else { return schema.clone() };
        if depth > MAX_DEPTH || self.parts > MAX_PARTS {
            return Value::Object(Map::new());
        }
        let target = object.get("$ref").and_then(Value::as_str).and_then(|name| self.root.pointer(name.strip_prefix('#')?));
        let mut out = match target {
            Some(target) if !self.rules.refs => match self.schema(target, depth + 1) {
                Value::Object(target) => target,
                Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => Map::new(),
            },
            Some(_) | None => Map::new(),
        };
        for (keyword, value) in object {
            let goes = self.rules.drop.contains(keyword)
                || (!self.rules.refs && matches!(keyword.as_str(), "$ref" | "$defs" | "definitions"));
            if goes {
                continue;
            }
            let value = match (keyword.as_str(), value) {
                // The keys of these objects are names, not keywords.
                ("properties" | "patternProperties" | "$defs" | "definitions" | "dependentSchemas", Value::Object(named)) => {
                    named.iter().map(|(name, schema)| (name.clone(), self.schema(schema, depth + 1))).collect()
                }
                ("anyOf" | "oneOf" | "allOf" | "prefixItems", Value::Array(schemas)) => {
                    schemas.iter().map(|schema| self.schema(schema, depth + 1)).collect()
                }
                ("items" | "additionalProperties" | "not" | "contains" | "propertyNames" | "if" | "then" | "else", schema) => {
                    self.schema(schema, depth + 1)
                }
                (_, value) => value.clone(),
            };
            out.insert(keyword.clone(), value);
        }
        Value::Object(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_object_at_the_top() {
        let rules = SchemaRules::default();
        let plain = json!({"type": "object", "properties": {"a": {"anyOf": [{"type": "string"}]}}});
        assert!(matches!(parameters(&plain, &rules), Cow::Borrowed(_)));
        assert_eq!(*parameters(&json!({}), &rules), json!({"type": "object", "properties": {}}));
        assert_eq!(*parameters(&json!(true), &rules), json!({"type": "object", "properties": {}}));
        let union = json!({"type": "object", "not": {}, "anyOf": [{"properties": {"a": {}}}, {"properties": {"b": {}}}]});
        assert_eq!(*parameters(&union, &rules), json!({"type": "object", "properties": {"a": {}, "b": {}}, "required": []}));
        let lenient = SchemaRules { top_unions: true, ..SchemaRules::default() };
        assert_eq!(parameters(&union, &lenient)["anyOf"], union["anyOf"]);
    }

    #[test]
    fn refused_schema_keyword_is_left_out() {
        let rules = SchemaRules { drop: vec!["minLength".to_owned()], refs: false, top_unions: false };
        let schema = json!({"type": "object", "$defs": {"p": {"type": "string", "minLength": 1}},
            "properties": {"minLength": {"type": "integer"}, "x": {"$ref": "#/$defs/p", "description": "d"},
                "l": {"type": "array", "items": {"oneOf": [{"minLength": 2}, {"$ref": "https://host/x"}]}}}});
        assert_eq!(
            *parameters(&schema, &rules),
            json!({"type": "object", "properties": {"minLength": {"type": "integer"}, "x": {"type": "string", "description": "d"},
                "l": {"type": "array", "items": {"oneOf": [{}, {}]}}}})
        );
        let endless = json!({"type": "object", "properties": {"a": {"$ref": "#"}, "b": {"$ref": "#"}}});
        assert!(parameters(&endless, &rules).to_string().len() < 1_000_000);
    }
}
