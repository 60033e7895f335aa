//! Messages and their parts, as they are stored, sent to clients and built into requests for models.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

pub use crate::domain::conversation::content::{BinaryContent, SentContent, ToolContent};
use crate::domain::conversation::feedback::Feedback;
use crate::domain::conversation::file::{StoredFile, content_url};
use crate::domain::ids::{CallId, ConversationId, MessageId, PartId, RunId};
use crate::domain::model::cost::Usage;
use crate::domain::run::FinishReason;
use crate::domain::words::words;
use crate::support::text;

/// Who speaks in a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// A person, or a hint of the server (then the message is `internal`).
    User,
    /// The model.
    Assistant,
    /// The results of tool calls.
    Tool,
}

words!(Role { User = "user", Assistant = "assistant", Tool = "tool" });

/// Whether a message is whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum MessageStatus {
    /// The turn was cancelled while the message was being written.
    Partial,
    /// The message is whole.
    Complete,
}

/// One message of a conversation.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Message {
    /// Its id.
    pub id: MessageId,
    /// The conversation it belongs to.
    pub conversation_id: ConversationId,
    /// The run it belongs to.
    pub run_id: RunId,
    /// Who speaks.
    pub role: Role,
    /// Whether it is whole.
    pub status: MessageStatus,
    /// What it says, in order.
    pub parts: Vec<Part>,
    /// Why the model stopped, on assistant messages.
    pub finish_reason: Option<FinishReason>,
    /// The model that wrote it, as `provider/name`.
    pub model: Option<String>,
    /// Tokens that the model call used.
    pub usage: Option<Usage>,
    /// A hint of the server to the model, which clients hide.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub internal: bool,
    /// What its user thinks of the answer. Kept beside the message and shown where messages are listed; neither the log nor a model
    /// has it.
    pub feedback: Option<Box<Feedback>>,
    /// When it was stored, RFC 3339.
    pub created_at: String,
}

impl Message {
    /// Returns a complete message without the facts of a model call.
    pub fn new(id: MessageId, (run_id, conversation_id): (RunId, ConversationId), role: Role, parts: Vec<Part>) -> Self {
        Self {
            id,
            conversation_id,
            run_id,
            role,
            status: MessageStatus::Complete,
            parts,
            finish_reason: None,
            model: None,
            usage: None,
            internal: false,
            feedback: None,
            created_at: String::new(),
        }
    }

    /// Returns a message of a request, which is never stored.
    pub fn of_request(id: MessageId, of: (RunId, ConversationId), role: Role, text: TextPart) -> Self {
        Self { internal: true, ..Self::new(id, of, role, vec![Part::Text(text)]) }
    }

    /// Joins all text parts.
    pub fn text(&self) -> String {
        self.parts.iter().filter_map(|part| if let Part::Text(text) = part { Some(text.text.as_str()) } else { None }).collect()
    }

    /// Copies the message without its parts.
    pub fn head(&self) -> Self {
        Self {
            id: self.id.clone(),
            conversation_id: self.conversation_id.clone(),
            run_id: self.run_id.clone(),
            role: self.role,
            status: self.status,
            parts: Vec::new(),
            finish_reason: self.finish_reason,
            model: self.model.clone(),
            usage: self.usage,
            internal: self.internal,
            feedback: self.feedback.clone(),
            created_at: self.created_at.clone(),
        }
    }

    pub fn tool_calls(&self) -> impl Iterator<Item = &ToolCallPart> {
        self.parts.iter().filter_map(|part| if let Part::ToolCall(call) = part { Some(call) } else { None })
    }

    pub fn tool_results(&self) -> impl Iterator<Item = &ToolResultPart> {
        self.parts.iter().filter_map(|part| if let Part::ToolResult(result) = part { Some(result) } else { None })
    }

    /// Adds a message to a request, or its parts to the message before if that has the same role.
    pub fn append_to(self, messages: &mut Vec<Self>) {
        match messages.last_mut() {
            Some(last) if last.role == self.role => last.parts.extend(self.parts),
            Some(_) | None => messages.push(self),
        }
    }
}

/// A piece of a message.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Part {
    /// Text.
    Text(TextPart),
    /// What the model thought aloud.
    Reasoning(ReasoningPart),
    /// The model asks for a tool.
    ToolCall(ToolCallPart),
    /// The answer of a tool.
    ToolResult(ToolResultPart),
    /// A picture.
    Image(FilePart),
    /// A file.
    File(FilePart),
}

impl Part {
    pub fn id(&self) -> &PartId {
        match self {
            Self::Text(part) => &part.id,
            Self::Reasoning(part) => &part.id,
            Self::ToolCall(part) => &part.id,
            Self::ToolResult(part) => &part.id,
            Self::Image(part) | Self::File(part) => &part.id,
        }
    }

    pub fn file_id(&self) -> Option<&str> {
        match self {
            Self::Image(part) | Self::File(part) => part.file_id.as_deref(),
            Self::Text(_) | Self::Reasoning(_) | Self::ToolCall(_) | Self::ToolResult(_) => None,
        }
    }
}

/// Text.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TextPart {
    /// The part's id.
    pub id: PartId,
    /// The text.
    pub text: String,
}

/// What the model thought aloud.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ReasoningPart {
    /// The part's id.
    pub id: PartId,
    /// The text.
    pub text: String,
    /// The provider's own block, kept byte for byte so that it can be sent back.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    #[schema(value_type = Option<Object>)]
    pub raw: Option<Value>,
}

/// The model asks for a tool.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ToolCallPart {
    /// The part's id.
    pub id: PartId,
    /// Our id of the call.
    pub call_id: CallId,
    /// The name that the model used.
    pub name: String,
    /// The arguments: an object, or `{"_raw": "..."}` when the model's text was no JSON object.
    #[schema(value_type = Object)]
    pub arguments: Value,
    /// The provider's own id of the call, echoed back to it.
    pub provider_call_id: Option<String>,
    /// What the provider wants back with the call, such as a signature, kept byte for byte.
    #[schema(value_type = Option<Object>)]
    pub raw: Option<Value>,
    /// The call that it takes back. Not the model has made it, but the user.
    pub undoes: Option<CallId>,
}

impl ToolCallPart {
    /// Returns a part without the provider's facts.
    pub fn new(id: PartId, call_id: CallId, name: String, arguments: Value) -> Self {
        Self { id, call_id, name, arguments, provider_call_id: None, raw: None, undoes: None }
    }
}

/// The answer of a tool.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ToolResultPart {
    /// The part's id.
    pub id: PartId,
    /// The call that it answers.
    pub call_id: CallId,
    /// The tool's name.
    pub name: String,
    /// What the model reads.
    pub content: Vec<ToolContent>,
    /// Whether the tool failed.
    pub is_error: bool,
    /// How the call ended.
    pub state: crate::domain::tool::ToolCallState,
    /// Whether the call can be taken back, with `undo_tool_call`.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub undoable: bool,
}

/// A picture or a file.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct FilePart {
    /// The part's id.
    pub id: PartId,
    /// Its media type, such as `image/png`.
    pub media_type: String,
    /// Where it is: the path of a stored file's bytes, or an `https:` URL. Messages of older versions may hold a `data:` URL.
    pub url: Option<String>,
    /// A stored file.
    pub file_id: Option<String>,
    /// The size of a stored file in bytes. Messages of older versions do not say it.
    pub size: Option<u64>,
    /// A name to show.
    pub name: Option<String>,
    /// Characters of the text of an uploaded file, which it costs in a request.
    pub text_chars: Option<u64>,
    /// Bytes of that text in UTF-8, by which its tokens are estimated. Messages of older versions do not say it.
    pub text_bytes: Option<u64>,
    /// How much of its text a request holds that would otherwise be too large, instead of the file itself. Never stored: made for a
    /// request.
    #[serde(skip)]
    pub text_limit: Option<TextLimit>,
    /// What a model reads that does not get the bytes of an uploaded file. Never stored: made for a request.
    #[serde(skip)]
    pub text: Option<String>,
}

impl FilePart {
    /// Returns a part of which only the media type is known. The caller sets where the content is.
    pub fn of(id: PartId, media_type: impl Into<String>) -> Self {
        Self {
            id,
            media_type: media_type.into(),
            url: None,
            file_id: None,
            size: None,
            name: None,
            text_chars: None,
            text_bytes: None,
            text_limit: None,
            text: None,
        }
    }

    /// Returns a reference to a stored file.
    pub fn stored(id: PartId, file: &StoredFile) -> Self {
        let mut part = Self::of(id, "");
        part.describe(file);
        part.name = Some(file.name.clone());
        part
    }

    /// Copies from a stored file all that the part says of it, except its name.
    pub fn describe(&mut self, file: &StoredFile) {
        self.media_type.clone_from(&file.media_type);
        (self.file_id, self.size) = (Some(file.id.as_str().to_owned()), Some(file.size));
        self.url = Some(content_url(&file.id));
        (self.text_chars, self.text_bytes) = (file.text_chars, file.text_bytes);
    }

    pub fn shown_name(&self) -> &str {
        self.name.as_deref().unwrap_or("without a name")
    }

    /// Returns the most bytes of a request around the text: the description, and the notice that it is cut.
    pub fn words_around(&self) -> usize {
        2 * self.shown_name().len() + self.media_type.len() + 160
    }
}

/// The part of a text that stays. Both bounds hold, because some budgets count characters and others bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TextLimit {
    pub chars: usize,
    pub bytes: usize,
}

impl TextLimit {
    /// Returns the beginning of a text that is within the limit. It ends between two characters.
    pub fn cut<'t>(&self, text: &'t str) -> &'t str {
        text::prefix_chars(text::prefix(text, self.bytes), self.chars)
    }
}
