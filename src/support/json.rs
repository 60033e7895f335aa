//! JSON in one stable form, so that equal values have equal bytes.

use serde_json::Value;

/// `value` with the keys of every object in order: what hashes and comparisons are made of.
///
/// `serde_json` keeps object keys sorted unless its `preserve_order` feature is on; a dependency may switch that on for the
/// whole build, so the order is made here.
#[must_use]
pub fn canonical(value: &Value) -> Value {
    match value {
        Value::Object(map) => {
            let mut keys: Vec<&String> = map.keys().collect();
            keys.sort();
            Value::Object(keys.into_iter().map(|key| (key.clone(), canonical(&map[key]))).collect())
        }
        Value::Array(items) => Value::Array(items.iter().map(canonical).collect()),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => value.clone(),
    }
}

/// SHA-256 of the canonical form, as 64 hexadecimal digits.
#[must_use]
pub fn hash(value: &Value) -> String {
    hash_bytes(canonical(value).to_string().as_bytes())
}

/// SHA-256 of some bytes, as 64 hexadecimal digits.
#[must_use]
pub fn hash_bytes(bytes: &[u8]) -> String {
    use sha2::Digest as _;
    use std::fmt::Write as _;
    sha2::Sha256::digest(bytes).iter().fold(String::with_capacity(64), |mut hex, byte| {
        // Writing to a String cannot fail.
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn order_of_keys_does_not_matter() {
        let one: Value = serde_json::from_str(r#"{"b":1,"a":{"y":2,"x":[1]}}"#).unwrap();
        assert_eq!(hash(&one), hash(&json!({"a": {"x": [1], "y": 2}, "b": 1})));
        assert_ne!(hash(&json!({"a": 1})), hash(&json!({"a": "1"})));
    }
}
