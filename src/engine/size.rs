//! Roughly what a request costs its model, in bytes of text.

use serde_json::Value;

use crate::domain::message::{FilePart, Message, Part, ToolContent};
use crate::domain::model::ModelRequest;

/// What a picture costs, whatever the length of its data: providers count its tiles.
pub(super) const PICTURE: usize = 6_000;

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
        Part::Image(file) | Part::File(file) => self::file(file),
    }
}

/// What a picture or a file costs: its text, where that is known to be longer than pages are.
pub(super) fn file(file: &FilePart) -> usize {
    let text = file.text_chars.and_then(|chars| usize::try_from(chars).ok());
    text.unwrap_or(0).max(PICTURE)
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
