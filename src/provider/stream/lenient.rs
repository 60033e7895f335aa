//! Deserializes JSON that deviates from the type of its dialect's field. Borrows from the event where possible.
//!
//! Owns the variants of texts, numbers, lists and empty values that gateways send. Must not know any dialect.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use serde::Deserialize;
use serde::de::value::{BorrowedStrDeserializer, MapAccessDeserializer, SeqAccessDeserializer, StringDeserializer};
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Unexpected, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::support::json::mend_surrogates;
use crate::support::text::{storable, storable_json};

/// `serde_json` represents a number that fits no integer as a map with this key. The map's value is the number as text.
const NUMBER_KEY: &str = "$serde_json::private::Number";

/// A map, or a number that `serde_json` represents as a map.
enum MapOrNumber<'de, A> {
    Number(String),
    Map(UnreadMap<'de, A>),
}

struct UnreadMap<'de, A> {
    first: Option<Key<'de>>,
    rest: A,
}

#[derive(Deserialize)]
#[serde(transparent)]
struct Key<'a>(#[serde(borrow)] Cow<'a, str>);

/// Distinguishes a number from a map, because a visitor gets both as a map.
fn map_or_number<'de, A: MapAccess<'de>>(mut map: A) -> Result<MapOrNumber<'de, A>, A::Error> {
    let first = map.next_key::<Key<'de>>()?;
    match &first {
        Some(Key(key)) if key == NUMBER_KEY => Ok(MapOrNumber::Number(map.next_value()?)),
        Some(_) | None => Ok(MapOrNumber::Map(UnreadMap { first, rest: map })),
    }
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for UnreadMap<'de, A> {
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

/// A type that also accepts JSON of other types than its dialect requires, because gateways deviate. `null` gives the default.
pub(in crate::provider) trait Lenient<'de>: Default {
    /// The type that the dialect requires, for errors.
    const EXPECTED: &'static str;

    fn from_text<E: Error>(text: Cow<'de, str>) -> Result<Self, E>;

    fn from_bool<E: Error>(_truth: bool) -> Result<Self, E> {
        Ok(Self::default())
    }

    fn from_number<E: Error>(number: String) -> Result<Self, E> {
        Self::from_text(Cow::Owned(number))
    }

    fn from_list<A: SeqAccess<'de>>(items: A) -> Result<Self, A::Error>;

    fn from_object<A: MapAccess<'de>>(fields: A) -> Result<Self, A::Error>;

    /// Returns the default for an empty value, else an error.
    fn default_if<E: Error>(is_empty: bool, found: Unexpected<'_>) -> Result<Self, E> {
        if is_empty { Ok(Self::default()) } else { Err(E::invalid_type(found, &Self::EXPECTED)) }
    }
}

pub(in crate::provider) fn lenient<'de, D: Deserializer<'de>, T: Lenient<'de>>(deserializer: D) -> Result<T, D::Error> {
    struct LenientVisitor<T>(PhantomData<T>);

    impl<'de, T: Lenient<'de>> Visitor<'de> for LenientVisitor<T> {
        type Value = T;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(T::EXPECTED)
        }

        fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<T, E> {
            T::from_text(Cow::Borrowed(text))
        }

        fn visit_str<E: Error>(self, text: &str) -> Result<T, E> {
            T::from_text(Cow::Owned(text.to_owned()))
        }

        fn visit_unit<E: Error>(self) -> Result<T, E> {
            Ok(T::default())
        }

        fn visit_bool<E: Error>(self, value: bool) -> Result<T, E> {
            T::from_bool(value)
        }

        fn visit_i64<E: Error>(self, number: i64) -> Result<T, E> {
            T::from_number(number.to_string())
        }

        fn visit_u64<E: Error>(self, number: u64) -> Result<T, E> {
            T::from_number(number.to_string())
        }

        fn visit_f64<E: Error>(self, number: f64) -> Result<T, E> {
            T::from_number(number.to_string())
        }

        fn visit_seq<A: SeqAccess<'de>>(self, items: A) -> Result<T, A::Error> {
            T::from_list(items)
        }

        fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<T, A::Error> {
            match map_or_number(map)? {
                MapOrNumber::Number(text) => T::from_number(text),
                MapOrNumber::Map(map) => T::from_object(map),
            }
        }
    }
    deserializer.deserialize_any(LenientVisitor(PhantomData))
}

/// Deserializes a type by its [`Lenient`] conversions.
macro_rules! deserialize_leniently {
    ($type:ident) => {
        impl<'de: 'a, 'a> serde::Deserialize<'de> for $type<'a> {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                $crate::provider::stream::lenient::lenient::<D, $type<'de>>(deserializer)
            }
        }
    };
}
pub(in crate::provider) use deserialize_leniently;

/// A text. A list of content parts gives their concatenated texts; an object or a boolean gives the empty text.
#[derive(Debug, Default)]
pub(in crate::provider) struct Text<'a>(pub(in crate::provider) Cow<'a, str>);

deserialize_leniently!(Text);

impl<'de> Lenient<'de> for Text<'de> {
    const EXPECTED: &'static str = "a text";

    fn from_text<E: Error>(text: Cow<'de, str>) -> Result<Self, E> {
        Ok(Self(text))
    }

    fn from_list<A: SeqAccess<'de>>(mut parts: A) -> Result<Self, A::Error> {
        #[derive(Deserialize)]
        struct ContentPart<'a> {
            #[serde(borrow, default)]
            text: Text<'a>,
        }

        let mut text = String::new();
        while let Some(part) = parts.next_element::<ContentPart<'de>>()? {
            text.push_str(&part.text.0);
        }
        Ok(Self(Cow::Owned(text)))
    }

    fn from_object<A: MapAccess<'de>>(mut fields: A) -> Result<Self, A::Error> {
        while fields.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Self::default())
    }
}

/// Tool arguments as JSON text: most providers send a string that contains JSON, some the JSON itself.
///
/// JSON other than an object does not fail the answer here: the engine reports it to the model.
#[derive(Debug, Default)]
pub(in crate::provider) struct Arguments<'a>(pub(in crate::provider) Cow<'a, str>);

deserialize_leniently!(Arguments);

impl<'de> Lenient<'de> for Arguments<'de> {
    const EXPECTED: &'static str = "arguments as a text of JSON or as an object";

    fn from_text<E: Error>(text: Cow<'de, str>) -> Result<Self, E> {
        Ok(Self(text))
    }

    fn from_bool<E: Error>(value: bool) -> Result<Self, E> {
        Ok(Self(Cow::Owned(value.to_string())))
    }

    fn from_list<A: SeqAccess<'de>>(items: A) -> Result<Self, A::Error> {
        let list = Value::deserialize(SeqAccessDeserializer::new(items))?;
        Ok(Self(Cow::Owned(list.to_string())))
    }

    fn from_object<A: MapAccess<'de>>(fields: A) -> Result<Self, A::Error> {
        let object = Value::deserialize(MapAccessDeserializer::new(fields))?;
        Ok(Self(Cow::Owned(object.to_string())))
    }
}

/// The called function in chat completions and Ollama chat.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(in crate::provider) struct Function<'a> {
    #[serde(borrow)]
    pub(in crate::provider) name: Text<'a>,
    pub(in crate::provider) arguments: Arguments<'a>,
}

/// Returns arguments as storable JSON text. A JSON string is replaced by its content.
pub(in crate::provider) fn json_text(raw: &RawValue) -> String {
    let raw = without_unpaired_surrogates(raw.get());
    let written = if raw.starts_with('"') { serde_json::from_str(&raw).ok() } else { None };
    storable_json(written.unwrap_or_else(|| raw.into_owned()))
}

/// Returns a text in storable form, without a copy if it is owned and unchanged.
pub(in crate::provider) fn storable_text(text: Cow<'_, str>) -> String {
    match storable(&text) {
        Cow::Borrowed(_) => text.into_owned(),
        Cow::Owned(changed) => changed,
    }
}

/// Reads an object; an empty value of any type gives `None`. Every other value is an error, because its content would be lost.
pub(in crate::provider) fn object<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<Option<T>, D::Error> {
    lenient(deserializer)
}

impl<'de, T: Deserialize<'de>> Lenient<'de> for Option<T> {
    const EXPECTED: &'static str = "an object";

    fn from_text<E: Error>(text: Cow<'de, str>) -> Result<Self, E> {
        Self::default_if(text.is_empty(), Unexpected::Str(&text))
    }

    fn from_bool<E: Error>(value: bool) -> Result<Self, E> {
        Self::default_if(!value, Unexpected::Bool(value))
    }

    fn from_number<E: Error>(number: String) -> Result<Self, E> {
        Self::default_if(number.parse() == Ok(0.0), Unexpected::Other("a number"))
    }

    // Lua has no empty object: gateways written in Lua send `[]`.
    fn from_list<A: SeqAccess<'de>>(mut items: A) -> Result<Self, A::Error> {
        let is_empty = items.next_element::<IgnoredAny>()?.is_none();
        Self::default_if(is_empty, Unexpected::Seq)
    }

    fn from_object<A: MapAccess<'de>>(fields: A) -> Result<Self, A::Error> {
        T::deserialize(MapAccessDeserializer::new(fields)).map(Some)
    }
}

/// Reads a list. A single object gives a list of one, an empty value an empty list. Nulls in the list are skipped.
pub(in crate::provider) fn many<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<Vec<T>, D::Error> {
    lenient(deserializer)
}

impl<'de, T: Deserialize<'de>> Lenient<'de> for Vec<T> {
    const EXPECTED: &'static str = "an object or a list of them";

    fn from_text<E: Error>(text: Cow<'de, str>) -> Result<Self, E> {
        Self::default_if(text.is_empty(), Unexpected::Str(&text))
    }

    fn from_bool<E: Error>(value: bool) -> Result<Self, E> {
        Self::default_if(!value, Unexpected::Bool(value))
    }

    fn from_number<E: Error>(_number: String) -> Result<Self, E> {
        Self::default_if(false, Unexpected::Other("a number"))
    }

    fn from_list<A: SeqAccess<'de>>(mut items: A) -> Result<Self, A::Error> {
        let mut all = Vec::new();
        while let Some(item) = items.next_element::<Option<T>>()? {
            all.extend(item);
        }
        Ok(all)
    }

    fn from_object<A: MapAccess<'de>>(fields: A) -> Result<Self, A::Error> {
        Ok(vec![T::deserialize(MapAccessDeserializer::new(fields))?])
    }
}

/// Reads a list; `null` and an object give an empty list, because gateways written in Lua send `{}`. Every other value is an error.
pub(in crate::provider) fn list<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<Vec<T>, D::Error> {
    lenient(deserializer).map(|StrictList(items)| items)
}

struct StrictList<T>(Vec<T>);

impl<T> Default for StrictList<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<'de, T: Deserialize<'de>> Lenient<'de> for StrictList<T> {
    const EXPECTED: &'static str = "a list of objects";

    fn from_text<E: Error>(text: Cow<'de, str>) -> Result<Self, E> {
        Self::default_if(false, Unexpected::Str(&text))
    }

    fn from_bool<E: Error>(value: bool) -> Result<Self, E> {
        Self::default_if(false, Unexpected::Bool(value))
    }

    fn from_list<A: SeqAccess<'de>>(items: A) -> Result<Self, A::Error> {
        Vec::from_list(items).map(Self)
    }

    fn from_object<A: MapAccess<'de>>(mut fields: A) -> Result<Self, A::Error> {
        while fields.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Self::default())
    }
}

/// Reads an integer, also as a string without escapes or a float without fraction. Other numbers and strings, booleans and `null` give
/// `None`.
pub(in crate::provider) fn whole_number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<i64>, D::Error> {
    let rounded = |float: f64| (float.fract() == 0.0 && float.abs() < i64::MAX as f64).then_some(float as i64);
    // Most events have such a number. Its JSON is borrowed, and any other form of it is a copy.
    let json = <&RawValue>::deserialize(deserializer)?.get();
    match json.as_bytes().first() {
        Some(b'[') => Err(D::Error::invalid_type(Unexpected::Seq, &"a whole number")),
        Some(b'{') => Err(D::Error::invalid_type(Unexpected::Map, &"a whole number")),
        Some(b'"') => Ok(json.trim_matches('"').trim().parse().ok()),
        // Text such as `null` is no number for Rust either.
        _ => Ok(json.parse().ok().or_else(|| rounded(json.parse().ok()?))),
    }
}

/// Returns JSON with unpaired surrogate escapes replaced. Parsers refuse such escapes, but they need not fail an answer.
pub(in crate::provider) fn without_unpaired_surrogates(json: &str) -> Cow<'_, str> {
    // Most events have no escape at all.
    let may_have_surrogates = json.contains('\\') && (json.contains("\\ud") || json.contains("\\uD"));
    match may_have_surrogates.then(|| mend_surrogates(json)).flatten() {
        Some(repaired) => Cow::Owned(repaired),
        None => Cow::Borrowed(json),
    }
}

/// The parts of a token count.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(default)]
pub(in crate::provider) struct TokenDetails {
    pub(in crate::provider) cached_tokens: Count,
    pub(in crate::provider) cache_write_tokens: Count,
    pub(in crate::provider) reasoning_tokens: Count,
}

/// A token count. Other values and implausible counts are ignored, because they must not fail the answer.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(from = "Value")]
pub(in crate::provider) struct Count(pub(in crate::provider) Option<u64>);

/// A limit above the tokens of any model call.
const IMPLAUSIBLE_TOKENS: u64 = 1_000_000_000;

impl From<Value> for Count {
    fn from(number: Value) -> Self {
        let count = number.as_u64().or_else(|| number.as_f64().filter(|float| *float >= 0.0).map(|float| float as u64));
        let count = count.or_else(|| number.as_str()?.parse().ok());
        Self(count.filter(|count| *count < IMPLAUSIBLE_TOKENS))
    }
}

#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(from = "Value")]
pub(in crate::provider) struct Flag(pub(in crate::provider) bool);

impl From<Value> for Flag {
    fn from(value: Value) -> Self {
        Self(value == true)
    }
}

/// US dollars: a number, or an object with the total (Perplexity) or the upstream cost (OpenRouter).
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(from = "Value")]
pub(in crate::provider) struct Dollars(pub(in crate::provider) Option<f64>);

impl From<Value> for Dollars {
    fn from(value: Value) -> Self {
        let field = || ["total_cost", "upstream_inference_cost"].iter().find_map(|name| value.get(name)?.as_f64());
        Self(value.as_f64().or_else(field))
    }
}

/// A cost in the unit of xAI: <https://docs.x.ai/developers/cost-tracking>.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(from = "Value")]
pub(in crate::provider) struct Ticks(Option<f64>);

impl Ticks {
    const PER_DOLLAR: f64 = 1e10;

    pub(in crate::provider) fn dollars(self) -> Option<f64> {
        self.0.map(|ticks| ticks / Self::PER_DOLLAR)
    }
}

impl From<Value> for Ticks {
    fn from(value: Value) -> Self {
        Self(value.as_f64())
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
        #[serde(default, deserialize_with = "list")]
        list: Vec<Inner>,
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

    #[rstest]
    #[case("null", Some(0), Some(0))]
    #[case("{}", Some(1), Some(0))]
    #[case("[{},null]", Some(1), Some(1))]
    #[case("false", Some(0), None)]
    #[case("\"\"", Some(0), None)]
    #[case("true", None, None)]
    fn list_takes_fewer_forms_of_nothing(#[case] written: &str, #[case] many: Option<usize>, #[case] list: Option<usize>) {
        let count = |field: &str, items: fn(&Wire<'_>) -> usize| {
            let wire = format!(r#"{{"{field}":{written}}}"#);
            serde_json::from_str::<Wire<'_>>(&wire).ok().map(|wire| items(&wire))
        };
        assert_eq!((count("many", |wire| wire.many.len()), count("list", |wire| wire.list.len())), (many, list));
    }

    #[test]
    fn numbers_are_distinguished_from_objects() {
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
        let numbers = [("5", Some(5)), ("5.0", Some(5)), ("5e0", Some(5)), ("-0", Some(0)), ("\" 7 \"", Some(7))];
        let others = ["5.5", "99999999999999999999.5", "9223372036854775808", "1e400", "\"x\"", "\"\"", "null", "true"];
        for (wire, whole) in numbers.into_iter().chain(others.map(|wire| (wire, None))) {
            let text = format!(r#"{{"whole":{wire}}}"#);
            assert_eq!(read(&text).unwrap().whole, whole, "{wire}");
        }
        assert!(read(r#"{"whole":{}}"#).is_err() && read(r#"{"whole":[]}"#).is_err());
    }
}
