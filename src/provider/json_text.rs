//! JSON within JSON, and JSON that is almost right.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer};
use serde::de::{Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

use crate::support::json::mend_surrogates;

/// Arguments as text: most providers send a text of JSON, some the JSON itself.
#[derive(Debug, Default)]
pub(super) struct Arguments<'a>(pub(super) Cow<'a, str>);

impl<'de: 'a, 'a> Deserialize<'de> for Arguments<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Given;
        impl<'de> Visitor<'de> for Given {
            type Value = Arguments<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("arguments as a text of JSON or as an object")
            }

            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
                Ok(Arguments(Cow::Borrowed(text)))
            }

            fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
                Ok(Arguments(Cow::Owned(text.to_owned())))
            }

            fn visit_string<E>(self, text: String) -> Result<Self::Value, E> {
                Ok(Arguments(Cow::Owned(text)))
            }

            fn visit_unit<E>(self) -> Result<Self::Value, E> {
                Ok(Arguments::default())
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
                let object = Value::deserialize(MapAccessDeserializer::new(map))?;
                Ok(Arguments(Cow::Owned(object.to_string())))
            }

            // What is no object is no reason to lose the answer: the loop tells the model.
            fn visit_seq<A: SeqAccess<'de>>(self, items: A) -> Result<Self::Value, A::Error> {
                let list = Value::deserialize(SeqAccessDeserializer::new(items))?;
                Ok(Arguments(Cow::Owned(list.to_string())))
            }

            fn visit_bool<E>(self, truth: bool) -> Result<Self::Value, E> {
                Ok(Arguments(Cow::Owned(truth.to_string())))
            }

            fn visit_u64<E>(self, number: u64) -> Result<Self::Value, E> {
                Ok(Arguments(Cow::Owned(number.to_string())))
            }

            fn visit_i64<E>(self, number: i64) -> Result<Self::Value, E> {
                Ok(Arguments(Cow::Owned(number.to_string())))
            }

            fn visit_f64<E>(self, number: f64) -> Result<Self::Value, E> {
                Ok(Arguments(Cow::Owned(number.to_string())))
            }
        }
        deserializer.deserialize_any(Given)
    }
}

/// JSON text without escapes of half a character, which no parser takes and which are no reason to lose an answer.
pub(super) fn whole_characters(json: &str) -> Cow<'_, str> {
    let may_hold_halves = json.contains("\\ud") || json.contains("\\uD");
    match may_hold_halves.then(|| mend_surrogates(json)).flatten() {
        Some(mended) => Cow::Owned(mended),
        None => Cow::Borrowed(json),
    }
}
