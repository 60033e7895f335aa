//! Limits of frames (one SSE event or one WebSocket message), and the shortened form of larger JSON.
//!
//! Common WebSocket clients close the connection at 1 MiB, reconnect, and receive the same frame again. [`fit`] bounds every frame.
//! It edits the JSON text, so that numbers, escapes and the order of keys do not change.

use std::fmt::Write as _;
use std::iter::Peekable;
use std::ops::Range;

/// The limit of one SSE event or WebSocket message in bytes, framing included.
pub const MAX_FRAME_BYTES: usize = 512 * 1024;

/// The limit of the JSON in a frame, in bytes. The rest is for the `id:` and `data:` lines of SSE.
pub const MAX_FRAME_JSON: usize = MAX_FRAME_BYTES - 1024;

/// Strings up to this size in bytes are never cut: ids, names, types.
const SHORT_STRING: usize = 256;

/// Shortens a JSON object to at most `max` bytes.
///
/// First, `size` and `url` replace base64 in `data` and `url` of images and files. Then the longest strings are cut. Last, one
/// array or object loses its last elements. Each step does only what is necessary. The object then has `shortened: {bytes, url}`:
/// its complete size, and the URL that `whole` returns. An object whose outermost names and short strings exceed `max` stays
/// larger.
pub fn fit(json: String, max: usize, whole: impl FnOnce() -> Option<String>) -> String {
    if json.len() <= max {
        return json;
    }
    let whole = whole();
    let note = note(json.len(), whole.as_deref());
    let room = max.saturating_sub(note.len());
    let mut text = without_base64(&json, whole.as_deref());
    text = with_cut_strings(text, room);
    while text.len() > room {
        match without_tail(&text, text.len() - room) {
            Some(shorter) => text = shorter,
            None => break,
        }
    }
    // The note replaces the closing brace.
    text.pop();
    text + &note
}

/// Returns the `shortened` member and the closing brace.
fn note(bytes: usize, whole: Option<&str>) -> String {
    let url = whole.map_or_else(String::new, |url| format!(",\"url\":\"{url}\""));
    format!(",\"shortened\":{{\"bytes\":{bytes}{url}}}}}")
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Open,
    Close,
    Comma,
    Colon,
    String,
    /// A number, `true`, `false` or `null`.
    Other,
}

struct Token {
    kind: Kind,
    range: Range<usize>,
}

/// Reads the tokens of valid JSON, without white space.
struct Tokens<'a> {
    bytes: &'a [u8],
    at: usize,
}

fn tokens(json: &str) -> Peekable<Tokens<'_>> {
    Tokens { bytes: json.as_bytes(), at: 0 }.peekable()
}

impl Iterator for Tokens<'_> {
    type Item = Token;

    fn next(&mut self) -> Option<Token> {
        let rest = self.bytes.get(self.at..)?;
        let start = self.at + rest.iter().position(|byte| !byte.is_ascii_whitespace())?;
        let rest = self.bytes.get(start..)?;
        let (kind, len) = match rest.first()? {
            b'{' | b'[' => (Kind::Open, 1),
            b'}' | b']' => (Kind::Close, 1),
            b',' => (Kind::Comma, 1),
            b':' => (Kind::Colon, 1),
            b'"' => (Kind::String, string_len(rest)),
            _ => {
                let ends = |byte: &u8| byte.is_ascii_whitespace() || b",:]}".contains(byte);
                (Kind::Other, rest.iter().position(ends).unwrap_or(rest.len()))
            }
        };
        self.at = start + len;
        Some(Token { kind, range: start..self.at })
    }
}

/// Counts the bytes of the string at the start of `bytes`, quotes included.
fn string_len(bytes: &[u8]) -> usize {
    let mut is_escaped = false;
    let end = bytes.iter().skip(1).position(|byte| match byte {
        _ if is_escaped => {
            is_escaped = false;
            false
        }
        b'\\' => {
            is_escaped = true;
            false
        }
        byte => *byte == b'"',
    });
    end.map_or(bytes.len(), |end| end + 2)
}

/// Returns whether the string before the next token is the name of a member.
fn is_name(rest: &mut Peekable<Tokens<'_>>) -> bool {
    rest.peek().is_some_and(|next| next.kind == Kind::Colon)
}

/// Replaces base64 in `data` or `url` of an image or a file by its `size` and the URL of the complete content.
fn without_base64(json: &str, whole: Option<&str>) -> String {
    let mut out = String::with_capacity(json.len().min(MAX_FRAME_BYTES));
    let mut copied = 0;
    // For each open object or array: whether its `type` is `image` or `file`.
    let mut are_files = Vec::new();
    let mut name = 0..0;
    let mut rest = tokens(json);
    while let Some(Token { kind, range }) = rest.next() {
        match kind {
            Kind::Open => are_files.push(false),
            Kind::Close => {
                are_files.pop();
            }
            Kind::String if is_name(&mut rest) => name = range,
            Kind::String => {
                let (Some(is_file), Some(value)) = (are_files.last_mut(), json.get(range.clone())) else { continue };
                let of = json.get(name.clone()).unwrap_or_default();
                *is_file |= of == "\"type\"" && matches!(value, "\"image\"" | "\"file\"");
                let Some(size) = base64_size(of, value).filter(|_| *is_file && value.len() > SHORT_STRING) else { continue };
                out.push_str(json.get(copied..name.start).unwrap_or_default());
                // Writing to a String cannot fail.
                let _ = write!(out, "\"size\":{size}");
                if let Some(url) = whole {
                    let _ = write!(out, ",\"url\":\"{url}\"");
                }
                copied = range.end;
            }
            Kind::Comma | Kind::Colon | Kind::Other => {}
        }
    }
    out.push_str(json.get(copied..).unwrap_or_default());
    out
}

/// Returns the decoded size of a member's base64; `None` if its value is not base64.
fn base64_size(name: &str, value: &str) -> Option<usize> {
    let inner = value.trim_matches('"');
    let base64 = match name {
        "\"data\"" => inner,
        "\"url\"" if inner.starts_with("data:") => inner.split_once(";base64,")?.1,
        _ => return None,
    };
    let is_base64 = |byte: u8| byte.is_ascii_alphanumeric() || b"+/=-_".contains(&byte);
    base64.bytes().all(is_base64).then(|| base64.trim_end_matches('=').len() * 3 / 4)
}

/// Cuts the longest strings so that the text has at most `room` bytes, or is as short as such cuts can make it.
fn with_cut_strings(json: String, room: usize) -> String {
    let Some(excess) = json.len().checked_sub(room).filter(|excess| *excess > 0) else { return json };
    let mut long = Vec::new();
    let mut rest = tokens(&json);
    while let Some(Token { kind, range }) = rest.next() {
        let inner = range.start + 1..range.end.saturating_sub(1);
        if kind == Kind::String && inner.len() > SHORT_STRING && !is_name(&mut rest) {
            long.push(inner);
        }
    }
    let most = longest_string(long.iter().map(Range::len).collect(), excess);
    let mut out = String::with_capacity(room);
    let mut copied = 0;
    for inner in long.into_iter().filter(|inner| inner.len() > most) {
        let text = json.get(inner.clone()).unwrap_or_default();
        out.push_str(json.get(copied..inner.start + safe_cut(text, most)).unwrap_or_default());
        copied = inner.end;
    }
    out.push_str(json.get(copied..).unwrap_or_default());
    out
}

/// Finds the length to which strings of these lengths are cut, so that `excess` bytes are removed.
fn longest_string(mut lengths: Vec<usize>, excess: usize) -> usize {
    lengths.sort_unstable_by(|a, b| b.cmp(a));
    let mut sum = 0;
    for (count, length) in (1..).zip(&lengths) {
        sum += length;
        let next = lengths.get(count).copied().unwrap_or(SHORT_STRING);
        let most = usize::saturating_sub(sum, excess) / count;
        if most >= next {
            return most;
        }
    }
    SHORT_STRING
}

/// Finds the last position up to `most` at which a JSON string may be cut: between two characters, and not inside an escape or a
/// surrogate pair.
fn safe_cut(inner: &str, most: usize) -> usize {
    let mut at = 0;
    let mut rest = inner;
    loop {
        let len = match rest.as_bytes() {
            [b'\\', b'u', b'd' | b'D', b'8' | b'9' | b'a' | b'b' | b'A' | b'B', _, _, b'\\', b'u', ..] => 12,
            [b'\\', b'u', ..] => 6,
            [b'\\', ..] => 2,
            _ => rest.chars().next().map_or(0, char::len_utf8),
        };
        match rest.get(len..) {
            Some(after) if len > 0 && at + len <= most => {
                at += len;
                rest = after;
            }
            Some(_) | None => return at,
        }
    }
}

/// Removes the last elements of one array or object, so that `excess` bytes are removed. It selects the smallest one with at least
/// that many bytes, or else the largest one. The outermost object keeps its members. `None` if nothing can be removed.
fn without_tail(json: &str, excess: usize) -> Option<String> {
    let mut open = Vec::new();
    let mut best: Option<Range<usize>> = None;
    for Token { kind, range } in tokens(json) {
        match kind {
            Kind::Open => open.push(range.end),
            Kind::Close => {
                let inner = open.pop()?..range.start;
                let is_better = |best: &Range<usize>| match (best.len() >= excess, inner.len() >= excess) {
                    (true, is_enough) => is_enough && inner.len() < best.len(),
                    (false, is_enough) => is_enough || inner.len() > best.len(),
                };
                if !open.is_empty() && !inner.is_empty() && best.as_ref().is_none_or(is_better) {
                    best = Some(inner);
                }
            }
            Kind::Comma | Kind::Colon | Kind::String | Kind::Other => {}
        }
    }
    let inner = best?;
    let cut = inner.start + last_cut(json.get(inner.clone())?, excess);
    Some(json.get(..cut)?.to_owned() + json.get(inner.end..)?)
}

/// Finds the last comma between elements that has at least `excess` bytes after it; 0 if there is none.
fn last_cut(elements: &str, excess: usize) -> usize {
    let mut depth = 0_usize;
    let mut cut = 0;
    for Token { kind, range } in tokens(elements) {
        match kind {
            Kind::Open => depth += 1,
            Kind::Close => depth = depth.saturating_sub(1),
            Kind::Comma if depth == 0 && elements.len() - range.start >= excess => cut = range.start,
            Kind::Comma | Kind::Colon | Kind::String | Kind::Other => {}
        }
    }
    cut
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    fn url() -> Option<String> {
        Some("/whole".to_owned())
    }

    fn fitted(value: &Value, max: usize) -> Value {
        let text = fit(value.to_string(), max, url);
        assert!(text.len() <= max, "{} bytes", text.len());
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
    }

    #[test]
    fn small_object_stays_as_it_is() {
        let json = r#"{ "a" : 1.50, "b":"x" }"#;
        assert_eq!(fit(json.to_owned(), json.len(), || panic!("not asked")), json);
    }

    #[test]
    fn longest_string_is_cut_between_characters() {
        let long = "é".repeat(3_000);
        let value = json!({"seq": 7, "data": {"id": "msg_1", "text": long, "usage": {"input_tokens": 3}, "note": "n".repeat(300)}});
        let shown = fitted(&value, 2_001);
        let text = shown["data"]["text"].as_str().unwrap();
        assert!(long.starts_with(text) && text.len() > 1_000, "{}", text.len());
        assert_eq!(shown["shortened"], json!({"bytes": value.to_string().len(), "url": "/whole"}));
        for kept in ["/seq", "/data/id", "/data/usage", "/data/note"] {
            assert_eq!(shown.pointer(kept), value.pointer(kept), "{kept}");
        }
    }

    #[test]
    fn numbers_and_order_stay_as_written() {
        let json = format!(r#"{{"z":1.0,"a":12345678901234567890123,"t":"{}"}}"#, "x".repeat(5_000));
        let text = fit(json, 1_000, || None);
        assert!(text.starts_with(r#"{"z":1.0,"a":12345678901234567890123,"t":"xxx"#), "{text}");
        assert!(text.ends_with(r#"x","shortened":{"bytes":5044}}"#), "{text}");
    }

    #[test]
    fn inline_base64_gives_way_to_its_size() {
        let data = "QUJD".repeat(1_000);
        let part = |rest: String| format!("{{\"type\":\"image\",\"media_type\":\"image/png\",{rest}}}");
        let parts = [
            part(format!("\"data\":\"{data}QQ==\"")),
            part(format!("\"url\":\"data:image/png;base64,{data}\"")),
            part("\"url\":\"https://example.com/a.png\"".to_owned()),
            "{\"type\":\"text\",\"text\":\"a screenshot\"}".to_owned(),
        ];
        let shown: Value = serde_json::from_str(&fit(format!("{{\"content\":[{}]}}", parts.join(",")), 2_000, url)).unwrap();
        assert_eq!(shown["content"][0], json!({"type": "image", "media_type": "image/png", "size": 3_001, "url": "/whole"}));
        assert_eq!(shown["content"][1]["size"], 3_000);
        assert_eq!(shown["content"][1]["url"], "/whole");
        assert_eq!(shown["content"][2]["url"], "https://example.com/a.png");
        assert_eq!(shown["content"][3]["text"], "a screenshot");
    }

    #[test]
    fn long_array_loses_its_last_elements() {
        let value = json!({"seq": 7, "data": {"arguments": {"numbers": (0..10_000).collect::<Vec<_>>()}, "call_id": "call_1"}});
        let shown = fitted(&value, 5_000);
        let numbers = shown["data"]["arguments"]["numbers"].as_array().unwrap();
        assert!(numbers.len() > 800 && numbers.iter().zip(0..).all(|(number, n)| *number == n), "{}", numbers.len());
        assert_eq!(shown["data"]["call_id"], "call_1");
    }

    #[test]
    fn escape_and_surrogate_pair_are_not_torn() {
        for (inner, most, cut) in [
            (r"a\n", 2, 1),
            (r"a\n", 3, 3),
            (r"\u00e9x", 5, 0),
            (r"\u00e9x", 6, 6),
            (r"\ud83d\ude00", 11, 0),
            ("aé", 2, 1),
            ("", 9, 0),
        ] {
            assert_eq!(safe_cut(inner, most), cut, "{inner} {most}");
        }
    }

    fn any_json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<String>().prop_map(Value::from),
            "[a-z\"\\\\\n é😀]{200,2000}".prop_map(Value::from),
        ];
        leaf.prop_recursive(5, 200, 20, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..20).prop_map(Value::from),
                prop::collection::btree_map("[a-z]{1,8}", inner, 0..20).prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    /// Returns whether `short` is a shortened form of `whole`: the same types, prefixes of strings and arrays, and a subset of the
    /// members.
    fn is_abridged_form_of(short: &Value, whole: &Value) -> bool {
        match (short, whole) {
            (Value::String(short), Value::String(whole)) => whole.starts_with(short.as_str()),
            (Value::Array(short), Value::Array(whole)) => {
                short.len() <= whole.len() && short.iter().zip(whole).all(|(short, whole)| is_abridged_form_of(short, whole))
            }
            (Value::Object(short), Value::Object(whole)) => {
                short.iter().all(|(name, short)| whole.get(name).is_some_and(|whole| is_abridged_form_of(short, whole)))
            }
            (short, whole) => short == whole,
        }
    }

    proptest! {
        #[test]
        fn any_object_fits_and_is_a_beginning(data in any_json(), max in 600..4_000_usize) {
            let value = json!({"seq": 1, "type": "part.completed", "data": {"value": data}});
            let text = fit(value.to_string(), max, url);
            prop_assert!(text.len() <= max);
            let mut shown: Value = serde_json::from_str(&text).unwrap();
            let note = shown.as_object_mut().unwrap().remove("shortened");
            prop_assert_eq!(note.is_some(), value.to_string().len() > max);
            prop_assert!(is_abridged_form_of(&shown, &value), "{} {}", shown, value);
        }
    }
}
