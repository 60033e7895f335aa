//! Writes messages as content blocks.

use std::borrow::Cow;

use serde::Serialize;
use serde_json::Value;

use crate::domain::message::{
    FilePart, Message, Part, ReasoningPart, Role, SentContent, ToolCallPart, ToolContent, ToolResultPart,
};
use crate::provider::project::{CallIds, Source, not_sent};

/// The pictures that the wire takes.
const IMAGES: [&str; 4] = ["image/jpeg", "image/png", "image/gif", "image/webp"];
const PDF: &str = "application/pdf";

#[derive(Serialize)]
pub(super) struct WireMessage<'a> {
    pub(super) role: &'static str,
    pub(super) content: Vec<Block<'a>>,
}

/// A content block, perhaps the last one of what the provider should cache.
#[derive(Serialize)]
pub(super) struct Block<'a> {
    #[serde(flatten)]
    pub(super) kind: Kind<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) cache_control: Option<CacheControl>,
}

#[derive(Clone, Copy, Serialize)]
pub(super) struct CacheControl {
    #[serde(rename = "type")]
    kind: &'static str,
}

/// Everything up to here is worth keeping for the next request.
pub(super) const CACHE: CacheControl = CacheControl { kind: "ephemeral" };

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(super) enum Kind<'a> {
    Text {
        text: Cow<'a, str>,
    },
    Image {
        source: WireSource<'a>,
    },
    Document {
        source: WireSource<'a>,
        #[serde(skip_serializing_if = "Option::is_none")]
        title: Option<&'a str>,
    },
    Thinking {
        thinking: &'a str,
        signature: &'a str,
    },
    RedactedThinking {
        data: &'a str,
    },
    ToolUse {
        id: Cow<'a, str>,
        name: &'a str,
        input: Cow<'a, Value>,
    },
    ToolResult {
        tool_use_id: Cow<'a, str>,
        content: Vec<Block<'a>>,
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        is_error: bool,
    },
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(super) enum WireSource<'a> {
    Base64 { media_type: &'a str, data: &'a str },
    Url { url: &'a str },
    Text { media_type: &'static str, data: String },
}

impl<'a> From<Kind<'a>> for Block<'a> {
    fn from(kind: Kind<'a>) -> Self {
        Self { kind, cache_control: None }
    }
}

/// The messages of a request. Blank texts, which are refused, are left out. One side never speaks twice in a row, so results stand before what the user says after them.
pub(super) fn messages(messages: &[Message]) -> Vec<WireMessage<'_>> {
    let mut wire: Vec<WireMessage<'_>> = Vec::with_capacity(messages.len());
    let mut ids = CallIds::default();
    for message in messages {
        let (role, content) = match message.role {
            Role::User => ("user", message.parts.iter().filter_map(said).map(Block::from).collect::<Vec<_>>()),
            Role::Assistant => ("assistant", message.parts.iter().filter_map(|part| answered(part, &mut ids)).collect()),
            Role::Tool => ("user", message.parts.iter().filter_map(|part| result(part, &ids)).collect()),
        };
        match wire.last_mut() {
            _ if content.is_empty() => {}
            Some(last) if last.role == role => last.content.extend(content),
            Some(_) | None => wire.push(WireMessage { role, content }),
        }
    }
    wire
}

fn said(part: &Part) -> Option<Kind<'_>> {
    match part {
        Part::Text(text) if text.text.trim().is_empty() => None,
        Part::Text(text) => Some(Kind::Text { text: Cow::Borrowed(&text.text) }),
        Part::Image(image) => Some(picture(image)),
        Part::File(file) => Some(document(file)),
        Part::Reasoning(_) | Part::ToolCall(_) | Part::ToolResult(_) => None,
    }
}

fn picture(image: &FilePart) -> Kind<'_> {
    match Source::of(image) {
        Source::Inline { media_type, data } if IMAGES.contains(&media_type) => {
            Kind::Image { source: WireSource::Base64 { media_type, data } }
        }
        Source::Remote(url) => Kind::Image { source: WireSource::Url { url } },
        Source::Inline { .. } | Source::Nowhere => Kind::Text { text: Cow::Owned(not_sent("image", image)) },
    }
}

fn document(file: &FilePart) -> Kind<'_> {
    let title = file.name.as_deref();
    let source = Source::of(file);
    match source {
        Source::Inline { media_type: PDF, data } => Kind::Document { source: WireSource::Base64 { media_type: PDF, data }, title },
        Source::Remote(url) if file.media_type == PDF => Kind::Document { source: WireSource::Url { url }, title },
        Source::Inline { media_type, .. } if media_type.starts_with("text/") || media_type == "application/json" => {
            match source.text() {
                Some(data) => Kind::Document { source: WireSource::Text { media_type: "text/plain", data }, title },
                None => Kind::Text { text: Cow::Owned(not_sent("file", file)) },
            }
        }
        Source::Inline { media_type, .. } if media_type.starts_with("image/") => picture(file),
        Source::Inline { .. } | Source::Remote(_) | Source::Nowhere => Kind::Text { text: Cow::Owned(not_sent("file", file)) },
    }
}

fn answered<'a>(part: &'a Part, ids: &mut CallIds<'a>) -> Option<Block<'a>> {
    let kind = match part {
        Part::Text(text) if text.text.trim().is_empty() => return None,
        Part::Text(text) => Kind::Text { text: Cow::Borrowed(&text.text) },
        Part::Reasoning(reasoning) => signed(reasoning)?,
        Part::ToolCall(call) => {
            Kind::ToolUse { id: ids.mint(&call.call_id, call.provider_call_id.as_deref()), name: &call.name, input: input(call) }
        }
        Part::ToolResult(_) | Part::Image(_) | Part::File(_) => return None,
    };
    Some(kind.into())
}

/// Reasoning as the provider gave it: with its signature, or hidden. Unsigned reasoning is refused, so it is never sent.
pub(super) fn signed(reasoning: &ReasoningPart) -> Option<Kind<'_>> {
    let raw = reasoning.raw.as_ref()?;
    let text = |name: &str| raw.get(name).and_then(Value::as_str).filter(|text| !text.is_empty());
    if let Some(signature) = text("signature") {
        return Some(Kind::Thinking { thinking: &reasoning.text, signature });
    }
    text("data").map(|data| Kind::RedactedThinking { data })
}

fn input(call: &ToolCallPart) -> Cow<'_, Value> {
    if call.arguments.is_object() {
        Cow::Borrowed(&call.arguments)
    } else {
        Cow::Owned(serde_json::json!({ "_raw": call.arguments }))
    }
}

fn result<'a>(part: &'a Part, ids: &CallIds<'a>) -> Option<Block<'a>> {
    let Part::ToolResult(result) = part else { return None };
    let tool_use_id = ids.of(&result.call_id);
    Some(Kind::ToolResult { tool_use_id, content: output(result), is_error: result.is_error }.into())
}

fn output(result: &ToolResultPart) -> Vec<Block<'_>> {
    let mut blocks: Vec<Block<'_>> = result.content.iter().filter_map(shown).map(Block::from).collect();
    if blocks.is_empty() {
        blocks.push(Kind::Text { text: Cow::Borrowed("(no output)") }.into());
    }
    blocks
}

fn shown(content: &ToolContent) -> Option<Kind<'_>> {
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
