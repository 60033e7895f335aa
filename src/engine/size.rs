//! Roughly what a request costs its model, in bytes of text.

use serde_json::Value;

use crate::domain::message::{FilePart, Message, Part, TextLimit, ToolContent};
use crate::domain::model::ModelRequest;

/// What a picture costs, whatever the length of its data: providers count its tiles. A document that is shown costs at least as much; how
/// many pages it has is not known here.
pub(super) const PICTURE: usize = 6_000;

/// Bytes of a character where nobody has counted them: as many as one of any script that is in use, since a text that is taken for
/// shorter than it is would not be cut and then not fit.
const BYTES_OF_CHAR: usize = 3;

/// The documents that models are shown as they are.
const PDF: &str = "application/pdf";

/// How long something is for those who count bytes, and for those who count characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Length {
    /// Bytes.
    pub(super) bytes: usize,
    /// Characters.
    pub(super) chars: usize,
}

/// Tokens, at four bytes each.
pub(super) fn tokens(bytes: usize) -> u64 {
    bytes.div_ceil(4) as u64
}

/// A whole request: instructions, history and tools.
pub(super) fn request(request: &ModelRequest) -> usize {
    let tools = request.tools.iter().map(|tool| tool.name.len() + tool.description.len() + json(&tool.parameters));
    request.system.len() + messages(&request.messages) + tools.sum::<usize>()
}

/// A history.
pub(super) fn messages(messages: &[Message]) -> usize {
    messages.iter().map(message).sum()
}

/// A message.
pub(super) fn message(message: &Message) -> usize {
    message.parts.iter().map(part).sum()
}

fn part(part: &Part) -> usize {
    match part {
        Part::Text(text) => text.text.len(),
        Part::Reasoning(reasoning) => reasoning.text.len(),
        Part::ToolCall(call) => json(&call.arguments),
        Part::ToolResult(result) => result.content.iter().map(content).sum(),
        Part::Image(file) | Part::File(file) => self::file(file).bytes,
    }
}

/// What a picture or a file costs: its text, with the words that say what it is, and as much as a picture where it may be shown.
pub(super) fn file(file: &FilePart) -> Length {
    let (text, around) = (text_of(file).unwrap_or_default(), file.words_around());
    let least = if is_shown(file) { PICTURE } else { 0 };
    let length = |text: usize| text.saturating_add(around).max(least);
    Length { bytes: length(text.bytes), chars: length(text.chars) }
}

/// Whether a model may be shown it, instead of reading its text or a note.
pub(super) fn is_shown(file: &FilePart) -> bool {
    let is_elsewhere = file.url.is_some() && inline_text(file).is_none();
    file.text_limit.is_none() && (is_elsewhere || file.media_type.starts_with("image/") || file.media_type == PDF)
}

/// The text of a file, or the part of it that is left; `None` if none is known.
pub(super) fn text_of(file: &FilePart) -> Option<Length> {
    let whole = match &file.file_id {
        Some(_) => uploaded_text(file)?,
        None => inline_text(file)?,
    };
    let left = |limit: TextLimit| Length { bytes: whole.bytes.min(limit.bytes), chars: whole.chars.min(limit.chars) };
    Some(file.text_limit.map_or(whole, left))
}

fn uploaded_text(file: &FilePart) -> Option<Length> {
    let size = |counted: u64| usize::try_from(counted).unwrap_or(usize::MAX);
    let chars = size(file.text_chars?);
    Some(Length { bytes: file.text_bytes.map_or(chars.saturating_mul(BYTES_OF_CHAR), size), chars })
}

/// What is sent of a file of text that is in its own URL: all of it, once it is no base64 any more. Servers of before have stored such
/// files in messages.
fn inline_text(file: &FilePart) -> Option<Length> {
    let (kind, data) = file.url.as_deref()?.strip_prefix("data:")?.split_once(";base64,")?;
    let is_text = |kind: &str| kind.starts_with("text/") || kind.starts_with("application/json");
    if !is_text(&file.media_type) && !is_text(kind) {
        return None;
    }
    let bytes = data.trim_end_matches('=').len() / 4 * 3 + 3;
    Some(Length { bytes, chars: bytes })
}

fn content(content: &ToolContent) -> usize {
    match content {
        ToolContent::Text { text } => text.len(),
        ToolContent::Image { .. } => PICTURE,
    }
}

/// About as long as it is written, without writing it.
pub(super) fn json(value: &Value) -> usize {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => 4,
        Value::String(text) => text.len() + 2,
        Value::Array(items) => items.iter().map(|item| json(item) + 1).sum::<usize>() + 2,
        Value::Object(fields) => fields.iter().map(|(name, value)| name.len() + json(value) + 4).sum::<usize>() + 2,
    }
}
