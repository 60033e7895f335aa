//! Forms: JSON Schemas of flat objects with plain values, as in the Model Context Protocol.

use serde_json::{Map, Value};

/// The limit of a form's schema, in bytes of JSON.
pub const MAX_FORM: usize = 16 * 1024;

/// Checks that clients can display this form.
pub fn check(form: &Value) -> Result<(), String> {
    if form.to_string().len() > MAX_FORM {
        return Err(format!("a form has at most {MAX_FORM} bytes"));
    }
    let fields = form.get("properties").and_then(Value::as_object).filter(|fields| !fields.is_empty());
    let Some(fields) = fields.filter(|_| form.get("type").is_some_and(|kind| kind == "object")) else {
        return Err("a form is a JSON Schema with \"type\": \"object\" and \"properties\"".to_owned());
    };
    match fields.iter().find(|(_, field)| !field.as_object().is_some_and(is_plain)) {
        Some((name, _)) => Err(format!(
            "the field {name} of the form must be a string, number, integer, boolean, or an array of strings with an enum"
        )),
        None => Ok(()),
    }
}

/// Returns whether a field has a plain value, or an array of listed texts.
fn is_plain(field: &Map<String, Value>) -> bool {
    let is_nested = ["properties", "$ref", "allOf", "if"].iter().any(|key| field.contains_key(*key));
    match field.get("type").and_then(Value::as_str) {
        Some("string" | "number" | "integer" | "boolean") => !is_nested,
        Some("array") => {
            let items = field.get("items").and_then(Value::as_object);
            !is_nested && items.is_some_and(|items| ["enum", "anyOf", "oneOf"].iter().any(|key| items.contains_key(*key)))
        }
        Some(_) | None => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_form_is_flat_and_small() {
        let form = |field: Value| json!({"type": "object", "properties": {"x": field}, "required": ["x"]});
        for field in [
            json!({"type": "string", "format": "date", "title": "Day"}),
            json!({"type": "string", "oneOf": [{"const": "a", "title": "A"}]}),
            json!({"type": "integer", "minimum": 1}),
            json!({"type": "number"}),
            json!({"type": "boolean", "default": true}),
            json!({"type": "array", "items": {"type": "string", "enum": ["a", "b"]}}),
            json!({"type": "array", "items": {"anyOf": [{"const": "a", "title": "A"}]}}),
        ] {
            assert_eq!(check(&form(field.clone())), Ok(()), "{field}");
        }
        for field in [
            json!({"type": "object", "properties": {}}),
            json!({"type": "array", "items": {"type": "object"}}),
            json!({"type": ["string", "null"]}),
            json!({"$ref": "#/x"}),
            json!("string"),
        ] {
            assert!(check(&form(field.clone())).is_err_and(|reason| reason.contains("the field x")), "{field}");
        }
        for other in [json!({"type": "object", "properties": {}}), json!({"properties": {"x": {"type": "string"}}}), json!([])] {
            assert!(check(&other).is_err_and(|reason| reason.contains("JSON Schema")), "{other}");
        }
        assert!(check(&form(json!({"type": "string", "title": "x".repeat(MAX_FORM)}))).is_err());
    }
}
