//! Writes messages as content blocks.

use std::borrow::Cow;

use serde::Serialize;
use serde_json::Value;

use crate::domain::conversation::{FilePart, Message, Part, ReasoningPart, Role, SentContent, ToolContent, ToolResultPart};
use crate::provider::request::shared_parts::{CallIds, NO_OUTPUT, Source, arguments_object, not_sent, tool_results};

const IMAGES: [&str; 4] = ["image/jpeg", "image/png", "image/gif", "image/webp"];
const PDF: &str = "application/pdf";

#[derive(Serialize)]
pub(super) struct WireMessage<'a> {
    pub(super) role: &'static str,
    pub(super) content: Vec<Block<'a>>,
}

/// A content block, which may be the last block that the provider should cache.
#[serde_with::skip_serializing_none]
#[derive(Serialize)]
pub(super) struct Block<'a> {
    #[serde(flatten)]
    pub(super) kind: Kind<'a>,
    pub(super) cache_control: Option<CacheControl>,
}

/// Asks the provider to cache everything up to here for the next request.
#[derive(Clone, Copy, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(super) enum CacheControl {
    Ephemeral,
}

#[serde_with::skip_serializing_none]
#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(super) enum Kind<'a> {
    Text { text: Cow<'a, str> },
    Image { source: WireSource<'a> },
    Document { source: WireSource<'a>, title: Option<&'a str> },
    Thinking { thinking: &'a str, signature: &'a str },
    RedactedThinking { data: &'a str },
    ToolUse { id: &'a str, name: &'a str, input: Cow<'a, Value> },
    ToolResult { tool_use_id: &'a str, content: Vec<Block<'a>>, is_error: Option<bool> },
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(super) enum WireSource<'a> {
    Base64 { media_type: &'a str, data: &'a str },
    Url { url: &'a str },
}

impl<'a> From<Kind<'a>> for Block<'a> {
    fn from(kind: Kind<'a>) -> Self {
        Self { kind, cache_control: None }
    }
}

/// Writes the messages without blank texts, which the provider refuses. Adjacent messages of one role are joined, so tool results precede
/// the text of the next user message.
pub(super) fn messages(messages: &[Message]) -> Vec<WireMessage<'_>> {
    let mut wire: Vec<WireMessage<'_>> = Vec::with_capacity(messages.len());
    let mut ids = CallIds::default();
    for message in messages {
        let (role, content) = match message.role {
            Role::User => ("user", message.parts.iter().filter_map(assistant_block).map(Block::from).collect::<Vec<_>>()),
            Role::Assistant => ("assistant", message.parts.iter().filter_map(|part| answered(part, &mut ids)).collect()),
            Role::Tool => ("user", tool_results(message).map(|answer| result(answer, &ids)).collect()),
        };
        match wire.last_mut() {
            _ if content.is_empty() => {}
            Some(last) if last.role == role => last.content.extend(content),
            Some(_) | None => wire.push(WireMessage { role, content }),
        }
    }
    wire
}

fn assistant_block(part: &Part) -> Option<Kind<'_>> {
    match part {
        Part::Text(text) if text.text.trim().is_empty() => None,
        Part::Text(text) => Some(Kind::Text { text: Cow::Borrowed(&text.text) }),
        Part::Image(image) => Some(picture(image)),
        Part::File(file) => Some(document(file)),
        Part::Reasoning(_) | Part::ToolCall(_) | Part::ToolResult(_) | Part::Source(_) => None,
    }
}

fn picture(image: &FilePart) -> Kind<'_> {
    match Source::of(image) {
        Source::Inline { media_type, data } if IMAGES.contains(&media_type) => {
            Kind::Image { source: WireSource::Base64 { media_type, data } }
        }
        Source::Remote(url) => Kind::Image { source: WireSource::Url { url } },
        Source::Inline { .. } | Source::Unusable => Kind::Text { text: Cow::Owned(not_sent("image", image)) },
    }
}

fn document(file: &FilePart) -> Kind<'_> {
    let title = file.name.as_deref();
    match Source::of(file) {
        Source::Inline { media_type: PDF, data } => Kind::Document { source: WireSource::Base64 { media_type: PDF, data }, title },
        Source::Remote(url) if file.media_type == PDF => Kind::Document { source: WireSource::Url { url }, title },
        Source::Inline { media_type, .. } if media_type.starts_with("image/") => picture(file),
        Source::Inline { .. } | Source::Remote(_) | Source::Unusable => Kind::Text { text: Cow::Owned(not_sent("file", file)) },
    }
}

fn answered<'a>(part: &'a Part, ids: &mut CallIds<'a>) -> Option<Block<'a>> {
    let kind = match part {
        Part::Text(text) if text.text.trim().is_empty() => return None,
        Part::Text(text) => Kind::Text { text: Cow::Borrowed(&text.text) },
        Part::Reasoning(reasoning) => signed(reasoning)?,
        Part::ToolCall(call) => Kind::ToolUse { id: ids.id(call), name: &call.name, input: arguments_object(call) },
        Part::ToolResult(_) | Part::Image(_) | Part::File(_) | Part::Source(_) => return None,
    };
    Some(kind.into())
}

/// Returns signed or redacted reasoning as the provider sent it. Unsigned reasoning is omitted, because the provider refuses it.
pub(super) fn signed(reasoning: &ReasoningPart) -> Option<Kind<'_>> {
    let raw = reasoning.raw.as_ref()?;
    let text = |name: &str| raw.get(name).and_then(Value::as_str).filter(|text| !text.is_empty());
    if let Some(signature) = text("signature") {
        return Some(Kind::Thinking { thinking: &reasoning.text, signature });
    }
    text("data").map(|data| Kind::RedactedThinking { data })
}

fn result<'a>(result: &'a ToolResultPart, ids: &CallIds<'a>) -> Block<'a> {
    let mut content: Vec<Block<'_>> = result.content.iter().filter_map(tool_content_block).map(Block::from).collect();
    if content.is_empty() {
        content.push(Kind::Text { text: NO_OUTPUT.into() }.into());
    }
    Kind::ToolResult { tool_use_id: ids.sent_call_id(result), content, is_error: result.is_error.then_some(true) }.into()
}

fn tool_content_block(content: &ToolContent) -> Option<Kind<'_>> {
    match content.as_sent() {
        SentContent::Text(text) if text.trim().is_empty() => None,
        SentContent::Text(text) => Some(Kind::Text { text }),
        SentContent::Image { media_type, data } if IMAGES.contains(&media_type) => {
            Some(Kind::Image { source: WireSource::Base64 { media_type, data } })
        }
        SentContent::Image { media_type, .. } => {
            Some(Kind::Text { text: Cow::Owned(format!("[image, {media_type}: not sent to the model]")) })
        }
    }
}
