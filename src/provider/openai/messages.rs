//! Writes the history as messages of chat completions.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;

use super::{provider_fields, signed_reasoning};
use crate::domain::conversation::{FilePart, Message, Part, ReasoningPart, Role, SentContent, ToolResultPart};
use crate::domain::model::ModelRequest;
use crate::provider::request::quirk_values::{
    CallIdRule, FileForm, FillerSpan, ReasoningForm, ReasoningSpan, SystemPromptRole, ToolImages,
};
use crate::provider::request::quirks::Quirks;
use crate::provider::request::shared_parts::{
    CallIds, NO_OUTPUT, arguments_object, current_turn_start, not_sent, takes_system, tool_results,
};
use crate::support::json;

/// An assistant message between tool results and a user message, for providers that refuse the two in a row.
const BETWEEN: &str = "(The tools have answered.)";

#[serde_with::skip_serializing_none]
#[derive(Serialize)]
#[serde(tag = "role", rename_all = "snake_case")]
pub(super) enum WireMessage<'a> {
    System { content: String },
    Developer { content: String },
    User { content: Content<'a> },
    Assistant(Assistant<'a>),
    Tool { tool_call_id: Cow<'a, str>, name: Option<&'a str>, content: Content<'a> },
}

#[serde_with::skip_serializing_none]
#[derive(Serialize, Default)]
pub(super) struct Assistant<'a> {
    #[serialize_always]
    content: Option<Content<'a>>,
    reasoning_content: Option<String>,
    reasoning: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    reasoning_details: Vec<&'a Value>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    thinking_blocks: Vec<&'a Value>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<WireCall<'a>>,
    #[serde(flatten)]
    own: BTreeMap<&'a str, &'a Value>,
}

/// A single text is written without a list, because not every server accepts lists.
#[derive(Serialize)]
#[serde(untagged)]
pub(super) enum Content<'a> {
    Text(Cow<'a, str>),
    List(Vec<ContentPart<'a>>),
}

impl<'a> Content<'a> {
    fn of(mut parts: Vec<ContentPart<'a>>) -> Self {
        match (parts.pop(), parts.is_empty()) {
            (Some(ContentPart::Text { text }), true) => Self::Text(text),
            (Some(last), _) => {
                parts.push(last);
                Self::List(parts)
            }
            (None, _) => Self::Text(Cow::Borrowed("")),
        }
    }
}

#[serde_with::skip_serializing_none]
#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(super) enum ContentPart<'a> {
    Text { text: Cow<'a, str> },
    ImageUrl { image_url: ImageUrl<'a> },
    File { file: WireFile<'a> },
    DocumentUrl { document_url: &'a str, document_name: Option<&'a str> },
    Thinking { thinking: Vec<ContentPart<'a>> },
}

#[derive(Serialize)]
pub(super) struct ImageUrl<'a> {
    url: Cow<'a, str>,
}

#[derive(Serialize)]
pub(super) struct WireFile<'a> {
    filename: &'a str,
    file_data: &'a str,
}

#[serde_with::skip_serializing_none]
#[derive(Serialize)]
struct WireCall<'a> {
    id: Cow<'a, str>,
    #[serde(rename = "type")]
    kind: &'static str,
    function: WireFunction<'a>,
    /// Gemini's signatures.
    extra_content: Option<&'a Value>,
    /// Gemini's signatures, in the field name of a gateway.
    provider_specific_fields: Option<&'a Value>,
}

#[derive(Serialize)]
struct WireFunction<'a> {
    name: &'a str,
    arguments: String,
}

fn text<'a>(text: impl Into<Cow<'a, str>>) -> ContentPart<'a> {
    ContentPart::Text { text: text.into() }
}

pub(super) fn messages<'a>(request: &'a ModelRequest, system: &str, quirks: &Quirks) -> Vec<WireMessage<'a>> {
    let mut wire = Vec::with_capacity(request.messages.len() + 1);
    let mut pending_system = None;
    if !system.is_empty() {
        let content = system.to_owned();
        match if takes_system(&request.model) { quirks.system } else { SystemPromptRole::User } {
            SystemPromptRole::System => wire.push(WireMessage::System { content }),
            SystemPromptRole::Developer => wire.push(WireMessage::Developer { content }),
            SystemPromptRole::User => pending_system = Some(content),
        }
    }
    let mut writer = Writer { quirks, ids: CallIds::default(), images: Vec::new(), pending_system, wire };
    let turn = current_turn_start(&request.messages);
    for (at, message) in request.messages.iter().enumerate() {
        match message.role {
            Role::User => writer.user(message),
            Role::Assistant => writer.assistant(message, quirks.reasoning_of == ReasoningSpan::All || at >= turn),
            Role::Tool => writer.results(message),
        }
    }
    writer.finish()
}

struct Writer<'a, 'b> {
    quirks: &'b Quirks,
    ids: CallIds<'a>,
    /// Images of tool results that wait for the next user message.
    images: Vec<ContentPart<'a>>,
    /// The system prompt, which waits for the first user message.
    pending_system: Option<String>,
    wire: Vec<WireMessage<'a>>,
}

impl<'a> Writer<'a, '_> {
    fn finish(mut self) -> Vec<WireMessage<'a>> {
        if !self.images.is_empty() || self.pending_system.is_some() {
            self.push_user(Vec::new());
        }
        self.wire
    }

    fn user(&mut self, message: &'a Message) {
        let parts = message.parts.iter().filter_map(|part| match part {
            Part::Text(answer_text) => Some(text(answer_text.text.as_str())),
            Part::Image(image) => Some(self.picture(image)),
            Part::File(file) => Some(self.file(file)),
            Part::Reasoning(_) | Part::ToolCall(_) | Part::ToolResult(_) | Part::Source(_) => None,
        });
        let parts = parts.collect();
        self.push_user(parts);
    }

    /// Adds a user message with the waiting images and the waiting system prompt.
    fn push_user(&mut self, parts: Vec<ContentPart<'a>>) {
        if !self.quirks.user_after_tools && matches!(self.wire.last(), Some(WireMessage::Tool { .. })) {
            let content = Some(Content::Text(Cow::Borrowed(BETWEEN)));
            self.wire.push(WireMessage::Assistant(Assistant { content, ..Assistant::default() }));
        }
        let mut all = std::mem::take(&mut self.images);
        all.extend(parts);
        if let Some(pending_system) = self.pending_system.take() {
            match all.first_mut() {
                Some(ContentPart::Text { text }) => *text = Cow::Owned(format!("{pending_system}\n\n{text}")),
                Some(_) | None => all.insert(0, text(pending_system)),
            }
        }
        self.wire.push(WireMessage::User { content: Content::of(all) });
    }

    fn picture(&self, image: &'a FilePart) -> ContentPart<'a> {
        match image.url.as_deref().filter(|_| self.quirks.images) {
            Some(url) => ContentPart::ImageUrl { image_url: ImageUrl { url: Cow::Borrowed(url) } },
            None => text(not_sent("image", image)),
        }
    }

    fn file(&self, file: &'a FilePart) -> ContentPart<'a> {
        match (self.quirks.files, file.url.as_deref().filter(|_| file.media_type == "application/pdf")) {
            (FileForm::FileData, Some(url)) if url.starts_with("data:") => {
                let filename = file.name.as_deref().unwrap_or("file.pdf");
                ContentPart::File { file: WireFile { filename, file_data: url } }
            }
            (FileForm::DocumentUrl, Some(url)) => {
                ContentPart::DocumentUrl { document_url: url, document_name: file.name.as_deref() }
            }
            (FileForm::FileData | FileForm::DocumentUrl | FileForm::None, _) => text(not_sent("file", file)),
        }
    }

    /// Adds no message without sendable content, such as reasoning alone.
    fn assistant(&mut self, message: &'a Message, with_reasoning: bool) {
        let answer_text = message.text();
        let tool_calls: Vec<WireCall<'a>> = message
            .tool_calls()
            .map(|call| {
                let id = self.ids.id(call);
                let own = |name: &str| call.raw.as_ref().and_then(|raw| raw.get(name));
                WireCall {
                    id: accepted_id(id, self.quirks.call_ids),
                    kind: "function",
                    function: WireFunction { name: &call.name, arguments: arguments_object(call).to_string() },
                    extra_content: own("extra_content"),
                    provider_specific_fields: own("provider_specific_fields"),
                }
            })
            .collect();
        if answer_text.is_empty() && tool_calls.is_empty() {
            return;
        }
        if !self.images.is_empty() {
            self.push_user(Vec::new());
        }
        let mut wire = Assistant { tool_calls, own: provider_fields::of(thoughts_of(message)), ..Assistant::default() };
        let mut content: Vec<ContentPart<'a>> = Vec::new();
        let mut answer_text = Cow::Owned(answer_text);
        if with_reasoning {
            self.reasoning(message, &mut wire, &mut content, &mut answer_text);
        }
        if !answer_text.is_empty() {
            content.push(text(answer_text));
        }
        wire.content = match content.is_empty() {
            false => Some(Content::of(content)),
            true if self.quirks.null_content => None,
            true => Some(Content::Text(Cow::Borrowed(""))),
        };
        self.wire.push(WireMessage::Assistant(wire));
    }

    fn reasoning(
        &self,
        message: &'a Message,
        wire: &mut Assistant<'a>,
        content: &mut Vec<ContentPart<'a>>,
        answer_text: &mut Cow<'a, str>,
    ) {
        let reasoning = || thoughts_of(message);
        let thoughts = || reasoning().map(|part| part.text.as_str()).collect::<String>();
        let or_filler = || -> Option<String> {
            let is_filled = self.quirks.filler_of == FillerSpan::All || !wire.tool_calls.is_empty();
            let thoughts = thoughts();
            if thoughts.is_empty() { self.quirks.reasoning_filler.clone().filter(|_| is_filled) } else { Some(thoughts) }
        };
        let raw = |form: signed_reasoning::Form| {
            reasoning().filter_map(move |part| part.raw.as_ref()?.get(form.field)?.as_array()).flatten().collect::<Vec<_>>()
        };
        match self.quirks.reasoning {
            ReasoningForm::None => {}
            ReasoningForm::ReasoningContent => wire.reasoning_content = or_filler(),
            ReasoningForm::Reasoning => wire.reasoning = or_filler(),
            ReasoningForm::ReasoningDetails => wire.reasoning_details = raw(signed_reasoning::OPENROUTER),
            ReasoningForm::ThinkingBlocks => wire.thinking_blocks = raw(signed_reasoning::LITELLM),
            ReasoningForm::ThinkTags => {
                let thoughts = thoughts();
                if !thoughts.is_empty() {
                    *answer_text = Cow::Owned(format!("<think>\n{thoughts}\n</think>\n\n{answer_text}"));
                }
            }
            ReasoningForm::ThinkingChunks => {
                let chunks = reasoning().filter(|part| !part.text.is_empty());
                content.extend(chunks.map(|part| ContentPart::Thinking { thinking: vec![text(part.text.as_str())] }));
            }
        }
    }

    fn results(&mut self, message: &'a Message) {
        for result in tool_results(message) {
            let id = accepted_id(self.ids.sent_call_id(result), self.quirks.call_ids);
            let name = self.quirks.result_names.then_some(result.name.as_str());
            let content = self.result(result);
            self.wire.push(WireMessage::Tool { tool_call_id: id, name, content });
        }
    }

    fn result(&mut self, result: &'a ToolResultPart) -> Content<'a> {
        let mut lines: Vec<Cow<'a, str>> = Vec::new();
        let mut images: Vec<ContentPart<'a>> = Vec::new();
        for content in &result.content {
            match content.as_sent() {
                SentContent::Text(text) => lines.push(text),
                SentContent::Image { media_type, .. } if !self.quirks.images => {
                    lines.push(Cow::Owned(format!("[image, {media_type}: not sent to the model]")));
                }
                SentContent::Image { media_type, data } => {
                    if self.quirks.tool_images == ToolImages::UserMessage {
                        lines.push(Cow::Owned(format!("[image, {media_type}: shown in the next message]")));
                    }
                    let url = Cow::Owned(format!("data:{media_type};base64,{data}"));
                    images.push(ContentPart::ImageUrl { image_url: ImageUrl { url } });
                }
            }
        }
        let has_words = lines.iter().any(|line| !line.is_empty());
        match self.quirks.tool_images {
            ToolImages::Result if !images.is_empty() => {
                if has_words {
                    images.insert(0, text(lines.join("\n")));
                }
                return Content::List(images);
            }
            ToolImages::UserMessage if !images.is_empty() => {
                self.images.push(text(format!("[images of the result of {}]", result.name)));
                self.images.extend(images);
            }
            ToolImages::Result | ToolImages::UserMessage => {}
        }
        Content::Text(if has_words { Cow::Owned(lines.join("\n")) } else { Cow::Borrowed(NO_OUTPUT) })
    }
}

fn thoughts_of(message: &Message) -> impl Iterator<Item = &ReasoningPart> {
    message.parts.iter().filter_map(|part| if let Part::Reasoning(part) = part { Some(part) } else { None })
}

/// Returns an id that the provider accepts: the id itself, or a hash of it.
fn accepted_id(id: &str, rule: CallIdRule) -> Cow<'_, str> {
    let fits = match rule {
        CallIdRule::Any => true,
        CallIdRule::NineAlphanumerics => id.len() == 9 && id.bytes().all(|byte| byte.is_ascii_alphanumeric()),
    };
    if fits { Cow::Borrowed(id) } else { Cow::Owned(json::hash_bytes(id.as_bytes()).chars().take(9).collect()) }
}
