//! Texts of a wire, read without copying.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use super::json_text::{Entries, entries};
use crate::support::{json, text};

/// A text. Nothing is the empty text; of a list of content parts the text parts count.
#[derive(Debug, Default)]
pub(super) struct Text<'a>(pub(super) Cow<'a, str>);

impl<'de: 'a, 'a> Deserialize<'de> for Text<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct ContentPart<'a> {
            #[serde(borrow, default)]
            text: Text<'a>,
        }

        struct Said;
        impl<'de> Visitor<'de> for Said {
            type Value = Text<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text")
            }

            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
                Ok(Text(Cow::Borrowed(text)))
            }

            fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
                Ok(Text(Cow::Owned(text.to_owned())))
            }

            fn visit_string<E>(self, text: String) -> Result<Self::Value, E> {
                Ok(Text(Cow::Owned(text)))
            }

            fn visit_unit<E>(self) -> Result<Self::Value, E> {
                Ok(Text::default())
            }

            fn visit_bool<E>(self, _: bool) -> Result<Self::Value, E> {
                Ok(Text::default())
            }

            fn visit_i64<E>(self, number: i64) -> Result<Self::Value, E> {
                Ok(Text(Cow::Owned(number.to_string())))
            }

            fn visit_f64<E>(self, number: f64) -> Result<Self::Value, E> {
                Ok(Text(Cow::Owned(number.to_string())))
            }

            fn visit_u64<E>(self, number: u64) -> Result<Self::Value, E> {
                Ok(Text(Cow::Owned(number.to_string())))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut parts: A) -> Result<Self::Value, A::Error> {
                let mut text = String::new();
                while let Some(part) = parts.next_element::<ContentPart<'de>>()? {
                    text.push_str(&part.text.0);
                }
                Ok(Text(Cow::Owned(text)))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
                let mut map = match entries(map)? {
                    Entries::Number(text) => return Ok(Text(Cow::Owned(text))),
                    Entries::Map(map) => map,
                };
                while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                Ok(Text::default())
            }
        }
        deserializer.deserialize_any(Said)
    }
}

/// Arguments that stand as JSON on the wire, as text that may be stored. What is a text of JSON instead is that text.
pub(super) fn json_text(raw: &RawValue) -> String {
    let raw = json::mend_surrogates(raw.get()).map_or(Cow::Borrowed(raw.get()), Cow::Owned);
    let written = if raw.starts_with('"') { serde_json::from_str(&raw).ok() } else { None };
    text::storable_json(written.unwrap_or_else(|| raw.into_owned()))
}
