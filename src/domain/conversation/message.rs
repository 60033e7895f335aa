//! Messages and their parts, as they are stored, sent to clients and built into requests for models.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

pub use crate::domain::conversation::content::{BinaryContent, SentContent, ToolContent};
use crate::domain::conversation::file::content_url;
use crate::domain::conversation::{Feedback, StoredFile};
use crate::domain::enum_names::named_enum;
use crate::domain::ids::{CallId, ConversationId, MessageId, PartId, RunId};
use crate::domain::model::Usage;
use crate::domain::run::FinishReason;
use crate::support::text;

named_enum! {
    /// The author of a message.
    pub enum Role {
        /// A person. In an `internal` message, the server.
        User = "user",
        /// The model.
        Assistant = "assistant",
        /// The tools: the message contains results of tool calls.
        Tool = "tool",
    }
}

/// Whether a message is complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum MessageStatus {
    /// The run was cancelled while the message was being written.
    Partial,
    /// The message is complete.
    Complete,
}

/// One message of a conversation.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Message {
    /// The id of the message.
    pub id: MessageId,
    /// The conversation of the message.
    pub conversation_id: ConversationId,
    /// The run of the message.
    pub run_id: RunId,
    /// The author of the message.
    pub role: Role,
    /// Whether the message is complete.
    pub status: MessageStatus,
    /// The parts of the message, in order.
    pub parts: Vec<Part>,
    /// Why the model stopped. Present on assistant messages.
    pub finish_reason: Option<FinishReason>,
    /// The model that wrote the message, as `provider/name`.
    pub model: Option<String>,
    /// Tokens that the model call used.
    pub usage: Option<Usage>,
    /// Whether the message is a hint from the server to the model. Clients hide such messages.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub internal: bool,
    /// The user's feedback on the answer. It is stored beside the message and shown in lists of messages. Events and requests to
    /// models do not contain it.
    pub feedback: Option<Box<Feedback>>,
    /// When the message was stored, RFC 3339.
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

    /// Returns an internal message that exists only in a request and is never stored.
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

    /// Returns whether the message shows anything to a reader: text, a picture or a file.
    pub fn shows_something(&self) -> bool {
        self.parts.iter().any(|part| match part {
            Part::Text(text) => !text.text.trim().is_empty(),
            Part::Image(_) | Part::File(_) => true,
            Part::Reasoning(_) | Part::ToolCall(_) | Part::ToolResult(_) | Part::Source(_) => false,
        })
    }

    /// Returns whether a user wrote the message, which begins a turn. A hint of the engine belongs to the user message before it.
    pub fn is_from_user(&self) -> bool {
        self.role == Role::User && !self.internal
    }

    pub fn tool_calls(&self) -> impl Iterator<Item = &ToolCallPart> {
        self.parts.iter().filter_map(|part| if let Part::ToolCall(call) = part { Some(call) } else { None })
    }

    pub fn tool_results(&self) -> impl Iterator<Item = &ToolResultPart> {
        self.parts.iter().filter_map(|part| if let Part::ToolResult(result) = part { Some(result) } else { None })
    }

    /// Adds a message to a request. If the last message has the same role, only adds the parts to it.
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
    /// The reasoning of the model.
    Reasoning(ReasoningPart),
    /// A tool call of the model.
    ToolCall(ToolCallPart),
    /// The result of a tool call.
    ToolResult(ToolResultPart),
    /// A picture.
    Image(FilePart),
    /// A file.
    File(FilePart),
    /// A source that the model or its provider names for the answer.
    Source(SourcePart),
}

impl Part {
    pub fn id(&self) -> &PartId {
        match self {
            Self::Text(part) => &part.id,
            Self::Reasoning(part) => &part.id,
            Self::ToolCall(part) => &part.id,
            Self::ToolResult(part) => &part.id,
            Self::Image(part) | Self::File(part) => &part.id,
            Self::Source(part) => &part.id,
        }
    }

    pub fn set_id(&mut self, id: PartId) {
        match self {
            Self::Text(part) => part.id = id,
            Self::Reasoning(part) => part.id = id,
            Self::ToolCall(part) => part.id = id,
            Self::ToolResult(part) => part.id = id,
            Self::Image(part) | Self::File(part) => part.id = id,
            Self::Source(part) => part.id = id,
        }
    }

    pub fn file_id(&self) -> Option<&str> {
        match self {
            Self::Image(part) | Self::File(part) => part.file_id.as_deref(),
            Self::Text(_) | Self::Reasoning(_) | Self::ToolCall(_) | Self::ToolResult(_) | Self::Source(_) => None,
        }
    }
}

/// Text.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TextPart {
    /// The id of the part.
    pub id: PartId,
    /// The text.
    pub text: String,
}

/// The reasoning of the model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ReasoningPart {
    /// The id of the part.
    pub id: PartId,
    /// The text.
    pub text: String,
    /// The provider's own block. The server keeps it byte for byte and sends it back to the provider.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    #[schema(value_type = Option<Object>)]
    pub raw: Option<Value>,
}

/// A tool call of the model.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ToolCallPart {
    /// The id of the part.
    pub id: PartId,
    /// The server's id of the call.
    pub call_id: CallId,
    /// The name that the model used.
    pub name: String,
    /// The arguments: an object, or `{"_raw": "..."}` if the model's text was not a JSON object.
    #[schema(value_type = Object)]
    pub arguments: Value,
    /// The provider's own id of the call, or that of the client which has sent the call. The server sends it back to the provider.
    pub provider_call_id: Option<String>,
    /// Provider data that is sent back with the call, such as a signature. The server keeps it byte for byte.
    #[schema(value_type = Option<Object>)]
    pub raw: Option<Value>,
    /// The id of the call that this call undoes. Such a call comes from the user, not from the model.
    pub undoes: Option<CallId>,
}

impl ToolCallPart {
    /// Returns a part without the provider's facts.
    pub fn new(id: PartId, call_id: CallId, name: String, arguments: Value) -> Self {
        Self { id, call_id, name, arguments, provider_call_id: None, raw: None, undoes: None }
    }
}

/// The result of a tool call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ToolResultPart {
    /// The id of the part.
    pub id: PartId,
    /// The id of the call.
    pub call_id: CallId,
    /// The tool's name.
    pub name: String,
    /// The content that the model reads.
    pub content: Vec<ToolContent>,
    /// Whether the tool failed.
    pub is_error: bool,
    /// The state in which the call ended.
    pub state: crate::domain::tool::ToolCallState,
    /// Whether `undo_tool_call` can undo the call.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub undoable: bool,
}

/// A source of an answer, such as a web page. Requests to models do not contain it.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SourcePart {
    /// The id of the part.
    pub id: PartId,
    /// The address, `http:` or `https:`.
    pub url: Option<String>,
    /// The title.
    pub title: Option<String>,
    /// The cited passage.
    pub text: Option<String>,
}

/// A picture or a file.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct FilePart {
    /// The id of the part.
    pub id: PartId,
    /// The media type, such as `image/png`.
    pub media_type: String,
    /// The location: the path of a stored file's bytes, or an `https:` URL.
    pub url: Option<String>,
    /// The id of a stored file.
    pub file_id: Option<String>,
    /// The size of a stored file in bytes. Absent in messages of older versions.
    pub size: Option<u64>,
    /// The name to display.
    pub name: Option<String>,
    /// Number of characters of an uploaded file's text. The text counts towards the size of a request.
    pub text_chars: Option<u64>,
    /// Number of bytes of the extracted text in UTF-8, from which its tokens are estimated. Absent in messages of older versions.
    pub text_bytes: Option<u64>,
    /// Limit of the extracted text that replaces the file in a request that would be too large. It exists only in a request and is
    /// never stored.
    #[serde(skip)]
    pub text_limit: Option<TextLimit>,
    /// Text for a model that does not receive the bytes of an uploaded file. It exists only in a request and is never stored.
    #[serde(skip)]
    pub text: Option<String>,
}

impl FilePart {
    /// Returns a part with only its media type. The caller sets the content's location.
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

    /// Copies the fields of a stored file, except its name.
    pub fn describe(&mut self, file: &StoredFile) {
        self.media_type.clone_from(&file.media_type);
        (self.file_id, self.size) = (Some(file.id.as_str().to_owned()), Some(file.size));
        self.url = Some(content_url(&file.id));
        (self.text_chars, self.text_bytes) = (file.text_chars, file.text_bytes);
    }

    pub fn shown_name(&self) -> &str {
        self.name.as_deref().unwrap_or("without a name")
    }

    /// Estimates the size of the description and the cut notice around the text, in bytes.
    pub fn words_around(&self) -> usize {
        2 * self.shown_name().len() + self.media_type.len() + 160
    }
}

/// The kept length of a text. Both limits apply, because some budgets count characters and others bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TextLimit {
    pub chars: usize,
    pub bytes: usize,
}

impl TextLimit {
    /// Returns the beginning of a text within the limit, cut between two characters.
    pub fn cut<'t>(&self, text: &'t str) -> &'t str {
        text::prefix_chars(text::prefix(text, self.bytes), self.chars)
    }
}
