//! Estimates sizes of requests, in bytes of text.

use std::ops::Add;

use serde_json::Value;

use crate::domain::conversation::{FilePart, Message, Part, ReasoningPart, TextLimit, ToolContent};
use crate::domain::model::ModelRequest;
use crate::support::json::children;

/// The size of an image, independent of its data: providers count its tiles. A document sent as a file costs at least as much; its pages
/// are not counted.
pub const IMAGE: usize = 6_000;

/// The assumed bytes per character of uncounted text: the maximum of common scripts, because an underestimated text would not be cut.
const BYTES_OF_CHAR: usize = 3;

const PDF: &str = "application/pdf";

/// The length of a text in bytes and in characters, for either kind of budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Length {
    pub bytes: usize,
    pub chars: usize,
}

impl Length {
    fn of_ascii(length: usize) -> Self {
        Self { bytes: length, chars: length }
    }
}

impl Add for Length {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { bytes: self.bytes + other.bytes, chars: self.chars + other.chars }
    }
}

pub fn tokens(bytes: usize) -> u64 {
    bytes.div_ceil(4) as u64
}

pub fn request(request: &ModelRequest) -> usize {
    let tools = request.tools.iter().map(|tool| tool.name.len() + tool.description.len() + json(&tool.parameters).bytes);
    request.system.len() + messages(&request.messages) + tools.sum::<usize>()
}

pub fn messages(messages: &[Message]) -> usize {
    messages.iter().map(message).sum()
}

pub fn message(message: &Message) -> usize {
    message.parts.iter().map(part).sum()
}

fn part(part: &Part) -> usize {
    match part {
        Part::Text(text) => text.text.len(),
        Part::Reasoning(reasoning) => text_beside(reasoning).len() + provider_data(reasoning.raw.as_ref()).bytes,
        Part::ToolCall(call) => json(&call.arguments).bytes + provider_data(call.raw.as_ref()).bytes,
        Part::ToolResult(result) => result.content.iter().map(content).sum(),
        Part::Image(file) | Part::File(file) => self::file(file).bytes,
        Part::Source(_) => 0,
    }
}

/// Returns the length of provider data: signatures and encrypted reasoning. A request contains it only for the model that wrote it.
/// The dialect may omit some of it in later turns.
pub fn provider_data(raw: Option<&Value>) -> Length {
    raw.map(json).unwrap_or_default()
}

/// Returns the reasoning text that is not part of the provider data: some providers require the data alone, others text and signature.
pub fn text_beside(reasoning: &ReasoningPart) -> &str {
    let mut rest = reasoning.text.as_str();
    // Each search starts after the previous piece, so that a long text with many pieces is read once.
    let mut find = |part: &str| {
        let part = part.trim();
        if let Some(after) = rest.trim_start().strip_prefix(part).filter(|_| !part.is_empty()) {
            rest = after;
        }
    };
    if let Some(raw) = &reasoning.raw {
        each_string(raw, &mut find);
    }
    rest
}

/// Visits all strings of a JSON value. The recursion is bounded, because the nesting of parsed answers is bounded.
fn each_string(value: &Value, visit: &mut impl FnMut(&str)) {
    if let Value::String(text) = value {
        visit(text);
    }
    children(value).for_each(|inner| each_string(inner, visit));
}

/// Returns the size of an image or file: its text with a description. If a model may get the file itself, the size is at least that
/// of an image.
pub fn file(file: &FilePart) -> Length {
    let (text, around) = (text_of(file).unwrap_or_default(), file.words_around());
    let least = if is_shown(file) { IMAGE } else { 0 };
    let length = |text: usize| text.saturating_add(around).max(least);
    Length { bytes: length(text.bytes), chars: length(text.chars) }
}

/// Returns whether a model may get the file itself, instead of its text or a note.
pub fn is_shown(file: &FilePart) -> bool {
    let is_elsewhere = file.file_id.is_none() && file.url.is_some();
    file.text_limit.is_none() && (is_elsewhere || file.media_type.starts_with("image/") || file.media_type == PDF)
}

/// Returns the length of a file's text, as far as it is sent; `None` if it is unknown.
pub fn text_of(file: &FilePart) -> Option<Length> {
    let size = |counted: u64| usize::try_from(counted).unwrap_or(usize::MAX);
    let chars = size(file.text_chars?);
    let whole = Length { bytes: file.text_bytes.map_or(chars.saturating_mul(BYTES_OF_CHAR), size), chars };
    let left = |limit: TextLimit| Length { bytes: whole.bytes.min(limit.bytes), chars: whole.chars.min(limit.chars) };
    Some(file.text_limit.map_or(whole, left))
}

fn content(content: &ToolContent) -> usize {
    match content {
        ToolContent::Text { text } => text.len(),
        ToolContent::Image(_) => IMAGE,
        ToolContent::File(file) => file.note("file").len(),
    }
}

/// Returns the length of the JSON without serializing it, at most a little too high.
pub fn json(value: &Value) -> Length {
    match value {
        Value::Null | Value::Bool(_) => Length::of_ascii(5),
        Value::Number(number) => Length::of_ascii(number.to_string().len()),
        Value::String(text) => quoted(text),
        Value::Array(items) => items.iter().fold(Length::of_ascii(2), |sum, item| sum + json(item) + Length::of_ascii(1)),
        Value::Object(fields) => fields.iter().fold(Length::of_ascii(2), |sum, (name, value)| {
            // Adds a colon and a comma.
            sum + quoted(name) + json(value) + Length::of_ascii(2)
        }),
    }
}

/// Returns the length of a quoted and escaped text.
fn quoted(text: &str) -> Length {
    let escapes = text.bytes().map(|byte| match byte {
        b'"' | b'\\' | b'\n' | b'\r' | b'\t' | 0x08 | 0x0c => 1,
        0..0x20 => 5,
        _ => 0,
    });
    let around = escapes.sum::<usize>() + 2;
    Length { bytes: text.len() + around, chars: text.chars().count() + around }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::ids::PartId;
    use proptest::prelude::*;
    use rstest::rstest;

    fn values() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            any::<String>().prop_map(Value::from),
            "[\\x00-\\x1f\"\\\\é€]{0,20}".prop_map(Value::from),
        ];
        leaf.prop_recursive(3, 40, 6, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
                prop::collection::hash_map(any::<String>(), inner, 0..6)
                    .prop_map(|fields| Value::Object(fields.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn json_is_never_taken_for_shorter_than_it_is_written(value in values()) {
            let written = value.to_string();
            let Length { bytes, chars } = json(&value);
            prop_assert!(bytes >= written.len() && chars >= written.chars().count(), "{bytes} {chars} {written}");
            prop_assert!(bytes <= written.len() * 3 + 2, "{bytes} {written}");
        }
    }

    fn thought(text: &str, raw: Value) -> ReasoningPart {
        ReasoningPart { id: PartId::from_stored("part_1".to_owned()), text: text.to_owned(), raw: Some(raw) }
    }

    #[rstest]
    #[case::sealed("", serde_json::json!({ "type": "reasoning", "encrypted_content": "gAAA", "summary": [] }), "")]
    #[case::summed_up("One.\n\nTwo.", serde_json::json!({ "type": "reasoning", "encrypted_content": "gAAA",
        "summary": [{ "type": "summary_text", "text": "One." }, { "type": "summary_text", "text": "Two." }] }), "")]
    #[case::in_pieces("Let me see", serde_json::json!({ "reasoning_details": [{ "type": "reasoning.text", "text": "Let me", "index": 0 },
        { "type": "reasoning.text", "text": " see", "index": 1 }, { "type": "reasoning.encrypted", "data": "AA==" }] }), "")]
    #[case::in_blocks("Let me", serde_json::json!({ "thinking_blocks": [{ "type": "thinking", "thinking": "Let me", "signature": "s" }] }), "")]
    #[case::signed("Let me", serde_json::json!({ "signature": "Let us" }), "Let me")]
    #[case::in_its_place("Let me", serde_json::json!({ "thoughtSignature": "s", "on": "thought", "bytes": 6 }), "Let me")]
    #[case::nothing("  Let me", serde_json::json!({ "data": "" }), "  Let me")]
    fn words_that_stand_in_what_is_signed_are_counted_there(#[case] text: &str, #[case] raw: Value, #[case] beside: &str) {
        let thought = thought(text, raw.clone());
        assert_eq!(text_beside(&thought), beside);
        assert_eq!(part(&Part::Reasoning(thought)), beside.len() + json(&raw).bytes);
    }

    #[test]
    fn a_text_of_many_pieces_is_read_once() {
        let pieces: Vec<Value> =
            (0..20_000).map(|at| serde_json::json!({ "type": "reasoning.text", "text": format!("{at}, ") })).collect();
        let text: String = (0..20_000).map(|at| format!("{at}, ")).collect();
        assert_eq!(text_beside(&thought(&text, serde_json::json!({ "reasoning_details": pieces }))).trim(), "");
    }

    #[test]
    fn json_is_as_long_as_it_is_written() {
        let value = serde_json::json!({ "at": [-122.419_415_5, 7], "text": "a \"line\"\nof \u{e9}" });
        let Length { bytes, chars } = json(&value);
        // Two commas are counted too many.
        assert_eq!((bytes, chars), (value.to_string().len() + 2, value.to_string().chars().count() + 2));
    }
}
