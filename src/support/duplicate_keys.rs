//! Duplicate keys in one object of a JSON text. Parsers keep the last value and silently drop the others.

use std::collections::BTreeSet;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};

/// Returns the first duplicate key; `None` also for a text that is not JSON.
pub fn duplicate_key(text: &str) -> Option<String> {
    let mut found = None;
    let mut deserializer = serde_json::Deserializer::from_str(text);
    Walk(&mut found).deserialize(&mut deserializer).ok()?;
    found
}

struct Walk<'f>(&'f mut Option<String>);

impl<'de> DeserializeSeed<'de> for Walk<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Walk<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        while items.next_element_seed(Walk(self.0))?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let mut seen = BTreeSet::new();
        while let Some(key) = map.next_key::<String>()? {
            map.next_value_seed(Walk(self.0))?;
            if !seen.insert(key.clone()) {
                self.0.get_or_insert(key);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case(r#"{"a": 1, "b": {"a": [1.5, "x", null, true, -1]}}"#, None)]
    #[case(r#"{"a": 1, "a": 2}"#, Some("a"))]
    #[case(r#"[{"x": {"b": {}, "c": 1, "b": {}}}]"#, Some("b"))]
    #[case(r#"{"a": 12345678901234567890123, "b": 1e999, "c": 0.1}"#, None)]
    #[case("{", None)]
    fn key_that_stands_twice_is_found(#[case] text: &str, #[case] expected: Option<&str>) {
        assert_eq!(duplicate_key(text).as_deref(), expected);
    }
}
