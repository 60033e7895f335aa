//! Helpers for JSON: the canonical form, in which equal values have equal bytes, escapes in strings, and limits of nesting.

use std::collections::BTreeSet;
use std::fmt;

use serde::de::value::Error;
use serde::de::{Deserialize, DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

use crate::support::number;

/// Returns the value at a path of names and positions, such as `items.0.id`.
pub fn at<'v>(value: &'v Value, path: &str) -> Option<&'v Value> {
    path.split('.').try_fold(value, |value, name| match value {
        Value::Array(items) => items.get(name.parse::<usize>().ok()?),
        _ => value.get(name),
    })
}

/// Returns `value` with the keys of every object sorted and one spelling for equal numbers. Hashes and comparisons use this form. All other
/// JSON keeps the order and spelling of its author.
pub fn canonical(value: &Value) -> Value {
    match value {
        Value::Object(map) => {
            let mut keys: Vec<&String> = map.keys().collect();
            keys.sort();
            Value::Object(keys.into_iter().map(|key| (key.clone(), canonical(&map[key]))).collect())
        }
        Value::Array(items) => Value::Array(items.iter().map(canonical).collect()),
        Value::Number(number) => Value::Number(number::canonical(number)),
        Value::Null | Value::Bool(_) | Value::String(_) => value.clone(),
    }
}

/// Returns whether two values are equal. The order of keys and the spelling of numbers do not count.
pub fn is_same(one: &Value, other: &Value) -> bool {
    one == other || canonical(one) == canonical(other)
}

/// Returns the SHA-256 of the canonical form, as 64 hexadecimal digits.
pub fn hash(value: &Value) -> String {
    hash_bytes(canonical(value).to_string().as_bytes())
}

/// Returns the SHA-256 of bytes, as 64 hexadecimal digits.
pub fn hash_bytes(bytes: &[u8]) -> String {
    use sha2::Digest as _;
    let digits = sha2::Sha256::digest(bytes).into_iter().flat_map(|byte| [byte >> 4, byte & 0xf]);
    digits.filter_map(|digit| char::from_digit(u32::from(digit), 16)).collect()
}

/// Replaces each escape of an unpaired surrogate in JSON text by U+FFFD, because parsers refuse such escapes. Returns `None` if the
/// text has none.
pub fn mend_surrogates(json: &str) -> Option<String> {
    let unit_at = |at: usize| utf16_unit(json.get(at..)?);
    let bytes = json.as_bytes();
    let mut mended = String::new();
    let (mut at, mut copied_to) = (0, 0);
    while at < bytes.len() {
        if bytes[at] != b'\\' {
            at += 1;
            continue;
        }
        let pair = (unit_at(at), unit_at(at + 6));
        match pair {
            (Some(0xd800..=0xdbff), Some(0xdc00..=0xdfff)) => at += 12,
            (Some(0xd800..=0xdfff), _) => {
                mended.push_str(&json[copied_to..at]);
                mended.push_str("\\ufffd");
                at += 6;
                copied_to = at;
            }
            // Skips the backslash together with the character that it escapes.
            (_, _) => at += 2,
        }
    }
    if copied_to == 0 {
        return None;
    }
    mended.push_str(&json[copied_to..]);
    Some(mended)
}

/// Returns the character of the escape at the beginning of `json`, and the length of the escape in bytes. Characters that cannot be
/// stored (U+0000, unpaired surrogates) become U+FFFD. `None` for an incomplete or invalid escape.
pub fn decode_escape(json: &str) -> Option<(char, usize)> {
    let simple = match json.as_bytes().get(1)? {
        b'"' => '"',
        b'\\' => '\\',
        b'/' => '/',
        b'b' => '\u{8}',
        b'f' => '\u{c}',
        b'n' => '\n',
        b'r' => '\r',
        b't' => '\t',
        b'u' => return decode_unicode_escape(json),
        _ => return None,
    };
    Some((simple, 2))
}

fn decode_unicode_escape(json: &str) -> Option<(char, usize)> {
    let high = utf16_unit(json)?;
    let follows = json.get(6..).unwrap_or_default();
    let is_high = (0xd800..=0xdbff).contains(&high);
    // The other half of a pair may still arrive.
    if is_high && follows.len() < 6 && "\\u".starts_with(follows.get(..2).unwrap_or(follows)) {
        return None;
    }
    let low = utf16_unit(follows).filter(|low| is_high && (0xdc00..=0xdfff).contains(low));
    let units = [high, low.unwrap_or_default()];
    let decoded = char::decode_utf16(units).next()?.ok().filter(|c| *c != '\0');
    Some((decoded.unwrap_or(char::REPLACEMENT_CHARACTER), if low.is_some() { 12 } else { 6 }))
}

/// Returns the UTF-16 code unit of an escape such as `\u00e9` at the beginning of `json`.
fn utf16_unit(json: &str) -> Option<u16> {
    let digits = json.get(..6)?.strip_prefix("\\u")?;
    u16::from_str_radix(digits, 16).ok().filter(|_| !digits.starts_with('+'))
}

/// Returns how deep objects and arrays are nested in JSON text: 0 for a single value. It only counts brackets, so it accepts any text and
/// needs no stack.
pub fn nesting(json: &str) -> usize {
    let (mut depth, mut deepest) = (0_usize, 0);
    for byte in outside_strings(json.as_bytes()) {
        match byte {
            b'{' | b'[' => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            b'}' | b']' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    deepest
}

/// Returns the bytes of JSON text that are outside of strings, and the first quote of each string.
pub(super) fn outside_strings(json: &[u8]) -> impl Iterator<Item = u8> {
    let (mut in_string, mut escaped) = (false, false);
    json.iter().copied().filter(move |byte| {
        let is_outside = !in_string;
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            _ => {}
        }
        is_outside
    })
}

/// Returns the items of an array, or the values of an object. Other values contain none.
pub fn children(value: &Value) -> impl Iterator<Item = &Value> {
    let fields = value.as_object().into_iter().flat_map(Map::values);
    value.as_array().into_iter().flatten().chain(fields)
}

/// Returns whether objects and arrays are nested more than `levels` deep. Stops at that depth.
pub fn is_deeper_than(value: &Value, levels: usize) -> bool {
    (value.is_object() || value.is_array()) && (levels == 0 || children(value).any(|inner| is_deeper_than(inner, levels - 1)))
}

/// Removes the keys of an object that the struct `T` has no field for, so that `T` can be deserialized with `deny_unknown_fields`.
pub fn keep_fields<'de, T: Deserialize<'de>>(object: Option<&mut Value>) {
    let Some(Value::Object(map)) = object else { return };
    let mut fields: &[&str] = &[];
    // Fails on purpose as soon as the fields are recorded.
    let _ = T::deserialize(Probe { fields: &mut fields });
    map.retain(|key, _| fields.contains(&key.as_str()));
}

/// A deserializer that only records the fields of a struct.
struct Probe<'a> {
    fields: &'a mut &'static [&'static str],
}

impl<'de> Deserializer<'de> for Probe<'_> {
    type Error = Error;

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        fields: &'static [&'static str],
        _visitor: V,
    ) -> Result<V::Value, Error> {
        *self.fields = fields;
        Err(Error::custom("the probe has no value"))
    }

    fn deserialize_any<V: Visitor<'de>>(self, _visitor: V) -> Result<V::Value, Error> {
        Err(Error::custom("only a struct has fields"))
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

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
    use serde_json::json;

    #[test]
    fn only_known_fields_are_kept() {
        #[derive(serde::Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Known {
            one: u8,
            #[serde(rename = "two")]
            other: Option<String>,
        }
        let mut value = json!({"one": 1, "two": "2", "three": {"one": 3}});
        keep_fields::<Known>(Some(&mut value));
        assert_eq!(value, json!({"one": 1, "two": "2"}));
        let known: Known = serde_json::from_value(value).unwrap();
        assert_eq!((known.one, known.other.as_deref()), (1, Some("2")));
        keep_fields::<Known>(None);
        let mut list = json!([1]);
        keep_fields::<Known>(Some(&mut list));
        assert_eq!(list, json!([1]));
    }

    #[test]
    fn order_of_keys_does_not_matter() {
        let one: Value = serde_json::from_str(r#"{"b":1,"a":{"y":2,"x":[1]}}"#).unwrap();
        assert_eq!(hash(&one), hash(&json!({"a": {"x": [1], "y": 2}, "b": 1})));
        assert_ne!(hash(&json!({"a": 1})), hash(&json!({"a": "1"})));
        // The spelling that older versions stored.
        assert_eq!(
            hash(&serde_json::from_str(r#"{"b":[1,2.5,1e21],"a":{"z":0.1,"y":-3}}"#).unwrap()),
            hash_bytes(br#"{"a":{"y":-3,"z":0.1},"b":[1,2.5,1e+21]}"#)
        );
    }

    #[test]
    fn equal_numbers_are_the_same_however_they_are_spelled() {
        let value = |text: &str| serde_json::from_str::<Value>(text).unwrap();
        assert!(is_same(&value(r#"{"a":1.10,"b":[1e2]}"#), &value(r#"{"b":[100.0],"a":1.1}"#)));
        assert!(!is_same(&value(r#"{"a":20000000000000000001}"#), &value(r#"{"a":20000000000000000000}"#)));
    }

    #[test]
    fn nesting_counts_brackets_outside_of_strings() {
        assert_eq!(nesting(""), 0);
        assert_eq!(nesting("7"), 0);
        assert_eq!(nesting(r#"{"a":[{}],"b":[]}"#), 3);
        assert_eq!(nesting(r#"["[[[\"[[","{\\",[]]"#), 2);
        assert_eq!(nesting("]]]["), 1);
        let value = json!({"a": [{}], "b": []});
        assert!(is_deeper_than(&value, 2) && !is_deeper_than(&value, 3) && !is_deeper_than(&json!(1), 0));
    }

    #[test]
    fn half_a_pair_is_mended() {
        assert_eq!(mend_surrogates(r#"{"a":"\ud83d\ude00 \\ud800 \n"}"#), None);
        assert_eq!(
            mend_surrogates(r#"["\ud83dx\ude00","\ud83d\ud83d\ude00"]"#).unwrap(),
            r#"["\ufffdx\ufffd","\ufffd\ud83d\ude00"]"#
        );
        assert_eq!(mend_surrogates(r#""ä\udc00"#).unwrap(), r#""ä\ufffd"#);
        assert_eq!(mend_surrogates("\\"), None);
    }

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
