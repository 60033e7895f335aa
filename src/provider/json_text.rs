//! JSON within JSON, and JSON that is almost right.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use serde::Deserialize;
use serde::de::value::{BorrowedStrDeserializer, MapAccessDeserializer, SeqAccessDeserializer, StringDeserializer};
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Unexpected, Visitor};
use serde_json::Value;

use crate::support::json::mend_surrogates;

/// The key of the map with one entry, its text, that `serde_json` makes of a number which fits no integer.
const NUMBER: &str = "$serde_json::private::Number";

/// A map, or a number in the form of one.
pub(super) enum Entries<'de, A> {
    /// The text of the number.
    Number(String),
    Map(Replayed<'de, A>),
}

/// A map whose first key was read.
pub(super) struct Replayed<'de, A> {
    first: Option<Key<'de>>,
    rest: A,
}

#[derive(Deserialize)]
#[serde(transparent)]
struct Key<'a>(#[serde(borrow)] Cow<'a, str>);

/// Tells a number from a map. A visitor is given both in the same way.
pub(super) fn entries<'de, A: MapAccess<'de>>(mut map: A) -> Result<Entries<'de, A>, A::Error> {
    let first = map.next_key::<Key<'de>>()?;
    match &first {
        Some(Key(key)) if key == NUMBER => Ok(Entries::Number(map.next_value()?)),
        Some(_) | None => Ok(Entries::Map(Replayed { first, rest: map })),
    }
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for Replayed<'de, A> {
    type Error = A::Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, A::Error> {
        match self.first.take() {
            Some(Key(Cow::Borrowed(key))) => seed.deserialize(BorrowedStrDeserializer::new(key)).map(Some),
            Some(Key(Cow::Owned(key))) => seed.deserialize(StringDeserializer::new(key)).map(Some),
            None => self.rest.next_key_seed(seed),
        }
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, A::Error> {
        self.rest.next_value_seed(seed)
    }
}

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

/// An object, or nothing, in one of the forms of it that gateways know. Anything else would be words that are lost.
pub(super) fn object<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<Option<T>, D::Error> {
    struct Given<T>(PhantomData<T>);

    impl<T> Given<T> {
        fn nothing<E: Error>(self, is_nothing: bool, found: Unexpected<'_>) -> Result<Option<T>, E> {
            if is_nothing { Ok(None) } else { Err(E::invalid_type(found, &"an object")) }
        }
    }

    impl<'de, T: Deserialize<'de>> Visitor<'de> for Given<T> {
        type Value = Option<T>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object")
        }

        fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
            match entries(map)? {
                Entries::Number(text) => self.nothing(text.parse() == Ok(0.0), Unexpected::Other("a number")),
                Entries::Map(map) => T::deserialize(MapAccessDeserializer::new(map)).map(Some),
            }
        }

        fn visit_unit<E>(self) -> Result<Self::Value, E> {
            Ok(None)
        }

        fn visit_bool<E: Error>(self, truth: bool) -> Result<Self::Value, E> {
            self.nothing(!truth, Unexpected::Bool(truth))
        }

        fn visit_i64<E: Error>(self, number: i64) -> Result<Self::Value, E> {
            self.nothing(number == 0, Unexpected::Signed(number))
        }

        fn visit_u64<E: Error>(self, number: u64) -> Result<Self::Value, E> {
            self.nothing(number == 0, Unexpected::Unsigned(number))
        }

        fn visit_f64<E: Error>(self, number: f64) -> Result<Self::Value, E> {
            self.nothing(number == 0.0, Unexpected::Float(number))
        }

        fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
            self.nothing(text.is_empty(), Unexpected::Str(text))
        }

        // Gateways written in Lua know no empty object.
        fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Self::Value, A::Error> {
            let is_empty = items.next_element::<IgnoredAny>()?.is_none();
            self.nothing(is_empty, Unexpected::Seq)
        }
    }
    deserializer.deserialize_any(Given(PhantomData))
}

/// A list, what stands alone in place of a list of one, or nothing. Nothing within a list is overlooked.
pub(super) fn many<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<Vec<T>, D::Error> {
    struct Given<T>(PhantomData<T>);

    impl<'de, T: Deserialize<'de>> Visitor<'de> for Given<T> {
        type Value = Vec<T>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object or a list of them")
        }

        fn visit_unit<E>(self) -> Result<Self::Value, E> {
            Ok(Vec::new())
        }

        fn visit_bool<E: Error>(self, truth: bool) -> Result<Self::Value, E> {
            if truth { Err(E::invalid_type(Unexpected::Bool(truth), &self)) } else { Ok(Vec::new()) }
        }

        fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
            if text.is_empty() { Ok(Vec::new()) } else { Err(E::invalid_type(Unexpected::Str(text), &self)) }
        }

        fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
            match entries(map)? {
                Entries::Number(_) => Err(A::Error::invalid_type(Unexpected::Other("a number"), &self)),
                Entries::Map(map) => Ok(vec![T::deserialize(MapAccessDeserializer::new(map))?]),
            }
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Self::Value, A::Error> {
            let mut all = Vec::new();
            while let Some(item) = items.next_element::<Option<T>>()? {
                all.extend(item);
            }
            Ok(all)
        }
    }
    deserializer.deserialize_any(Given(PhantomData))
}

/// A whole number, also as a text or with a point. What is none counts as absent.
pub(super) fn whole_number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<i64>, D::Error> {
    struct Given;
    impl<'de> Visitor<'de> for Given {
        type Value = Option<i64>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a whole number")
        }

        fn visit_unit<E>(self) -> Result<Self::Value, E> {
            Ok(None)
        }

        fn visit_bool<E>(self, _: bool) -> Result<Self::Value, E> {
            Ok(None)
        }

        fn visit_i64<E>(self, number: i64) -> Result<Self::Value, E> {
            Ok(Some(number))
        }

        fn visit_u64<E>(self, number: u64) -> Result<Self::Value, E> {
            Ok(i64::try_from(number).ok())
        }

        fn visit_f64<E>(self, number: f64) -> Result<Self::Value, E> {
            Ok((number.fract() == 0.0 && number.abs() < i64::MAX as f64).then_some(number as i64))
        }

        fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
            match entries(map)? {
                Entries::Number(text) => self.visit_f64(text.parse().unwrap_or(f64::NAN)),
                Entries::Map(_) => Err(A::Error::invalid_type(Unexpected::Map, &self)),
            }
        }

        fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
            Ok(text.trim().parse().ok())
        }
    }
    deserializer.deserialize_any(Given)
}

/// JSON text without escapes of half a character, which no parser takes and which are no reason to lose an answer.
pub(super) fn whole_characters(json: &str) -> Cow<'_, str> {
    let may_hold_halves = json.contains("\\ud") || json.contains("\\uD");
    match may_hold_halves.then(|| mend_surrogates(json)).flatten() {
        Some(mended) => Cow::Owned(mended),
        None => Cow::Borrowed(json),
    }
}

/// How far a text is on its way to one JSON object. Counts brackets only: whether it parses is asked when it counts.
#[derive(Debug, Default)]
pub(super) struct Shape {
    depth: u32,
    begun: bool,
    in_text: bool,
    escaped: bool,
    complete: bool,
}

impl Shape {
    pub(super) fn has_begun(&self) -> bool {
        self.begun
    }

    pub(super) fn is_complete(&self) -> bool {
        self.complete
    }

    pub(super) fn is_partial(&self) -> bool {
        self.begun && !self.complete
    }

    pub(super) fn feed(&mut self, text: &[u8]) {
        for byte in text.iter().copied() {
            if self.complete {
                return;
            }
            self.begun |= !byte.is_ascii_whitespace();
            match byte {
                _ if self.escaped => self.escaped = false,
                b'\\' if self.in_text => self.escaped = true,
                b'"' => self.in_text = !self.in_text,
                _ if self.in_text => {}
                b'{' | b'[' => self.depth += 1,
                b'}' | b']' => {
                    self.depth = self.depth.saturating_sub(1);
                    self.complete = self.depth == 0;
                }
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::value::RawValue;

    use super::*;

    #[derive(Debug, Deserialize)]
    struct Wire<'a> {
        #[serde(borrow, default)]
        arguments: Arguments<'a>,
        #[serde(default, deserialize_with = "object")]
        object: Option<Inner>,
        #[serde(default, deserialize_with = "many")]
        many: Vec<Inner>,
        #[serde(default, deserialize_with = "whole_number")]
        whole: Option<i64>,
    }

    #[derive(Debug, Default, Deserialize)]
    #[serde(default)]
    struct Inner {
        n: Option<f64>,
        raw: Option<Box<RawValue>>,
    }

    #[rstest]
    #[case(r#"{"z":20000000000000000001,"a":1.10,"b":0.1}"#)]
    #[case("[1.10,{\"z\":1,\"a\":20000000000000000001}]")]
    #[case("1.10")]
    #[case("20000000000000000001")]
    fn arguments_as_json_keep_numbers_and_order(#[case] written: &str) {
        let wire = format!(r#"{{"arguments":{written}}}"#);
        assert_eq!(serde_json::from_str::<Wire<'_>>(&wire).unwrap().arguments.0, written);
    }

    #[test]
    fn numbers_are_told_from_objects() {
        fn read(wire: &str) -> Result<Wire<'_>, String> {
            serde_json::from_str(wire).map_err(|error| error.to_string())
        }
        let inner = |wire: &str| read(wire).map(|wire| wire.object);
        assert!(inner(r#"{"object":0.0}"#).unwrap().is_none());
        assert!(inner(r#"{"object":1.5}"#).unwrap_err().contains("expected an object"));
        assert_eq!(inner(r#"{"object":{"n":0.5}}"#).unwrap().unwrap().n, Some(0.5));
        let raw = inner(r#"{"object":{"raw":{"b":1.10}}}"#).unwrap().unwrap().raw.unwrap();
        assert_eq!(raw.get(), r#"{"b":1.10}"#);
        assert!(read(r#"{"many":1.5}"#).is_err());
        assert_eq!(read(r#"{"many":{"n":2.50}}"#).unwrap().many.len(), 1);
        for (wire, whole) in [("5.0", Some(5)), ("5e0", Some(5)), ("5.5", None), ("99999999999999999999.5", None)] {
            let text = format!(r#"{{"whole":{wire}}}"#);
            assert_eq!(read(&text).unwrap().whole, whole, "{wire}");
        }
        assert!(read(r#"{"whole":{}}"#).is_err());
    }
}
