//! Bodies of requests and responses that are not domain values.

use std::borrow::Cow;
use std::sync::Arc;

use serde::de::value::SeqAccessDeserializer;
use serde::de::{SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use utoipa::openapi::schema::{ArrayBuilder, ObjectBuilder, OneOfBuilder, Schema, Type};
use utoipa::openapi::{Ref, RefOr};
use utoipa::{PartialSchema, ToSchema};

use crate::domain::agent::agent_record::RunLimits;
use crate::domain::conversation::eviction_summary::section;
use crate::domain::conversation::message::Message;
use crate::domain::ids::{CallId, ConversationId, MessageId, RunId};
use crate::domain::model::ModelOptions;
use crate::domain::run::context::ContextSummary;
use crate::domain::run::{OnBusy, Run};
use crate::domain::tool::ToolDefinition;
use crate::domain::tool::client_tool::ClientTool;
use crate::domain::tool::tool_review::ToolReview;
use crate::domain::trace::TraceId;
use crate::service::{Content, NewPart, NewToolResult, ServerStatus, StartRun};

/// Defines the body of a message: its own fields, before and after those of every message.
macro_rules! message_body {
    ($(#[$meta:meta])* $name:ident { $($before:tt)* } { $($after:tt)* }) => {
        $(#[$meta])*
        #[derive(Debug, Deserialize, ToSchema)]
        #[serde(deny_unknown_fields)]
        pub(crate) struct $name {
            $($before)*
            /// The agent by name or id; `name@3` selects version 3. The conversation stores it. Defaults to the conversation's stored
            /// agent, or else to the server's default agent.
            agent: Option<String>,
            /// The model as `provider/name`. The conversation stores it. Defaults to the conversation's stored model, or else to the
            /// agent's model.
            #[schema(min_length = 1, max_length = 200)]
            model: Option<String>,
            /// Options of model calls.
            options: Option<ModelOptions>,
            /// Limits of this run, which must not exceed the agent's limits.
            limits: Option<RunLimits>,
            /// Tools that the client executes. The event `tool.requested` names a call, and `POST /api/v1/runs/{id}/tool-results`
            /// answers it.
            #[serde(default)]
            #[schema(required = false)]
            tools: Vec<ClientTool>,
            $($after)*
        }
    };
}

message_body! {
    /// A message for the agent, in a new or an existing conversation.
    StartRunBody {
        /// The content of the message.
        input: ContentBody,
        /// The id of the conversation: one of the caller's own, or a new id that the client generated. If absent, a new conversation is
        /// created.
        conversation_id: Option<ConversationId>,
    } {
        /// How the server handles the message if the conversation has an active run.
        on_busy: Option<OnBusy>,
    }
}

impl StartRunBody {
    pub(crate) fn into_request(self, trace: TraceId) -> StartRun {
        let Self { input, conversation_id, agent, model, options, limits, tools, on_busy } = self;
        let sent = SendMessageBody { content: input, agent, model, options, limits, tools, on_busy };
        StartRun { content_field: "input", create: true, ..sent.into_request(conversation_id, trace) }
    }
}

message_body! {
    /// A message for the agent in an existing conversation.
    SendMessageBody {
        /// The content of the message.
        content: ContentBody,
    } {
        /// How the server handles the message if the conversation has an active run.
        on_busy: Option<OnBusy>,
    }
}

impl SendMessageBody {
    pub(crate) fn into_request(self, conversation_id: Option<ConversationId>, trace: TraceId) -> StartRun {
        let Self { content: ContentBody(content), agent, model, options, limits, tools, on_busy } = self;
        let on_busy = on_busy.unwrap_or_default();
        let new = StartRun::new(content, "content", trace);
        StartRun { conversation_id, agent, model, options, limits, tools, on_busy, ..new }
    }
}

message_body! {
    /// The new content of an edited message.
    EditMessageBody {
        /// The new content of the message.
        content: ContentBody,
    } {}
}

impl EditMessageBody {
    pub(crate) fn into_request(self, conversation_id: ConversationId, message: MessageId, trace: TraceId) -> StartRun {
        let Self { content, agent, model, options, limits, tools } = self;
        let sent = SendMessageBody { content, agent, model, options, limits, tools, on_busy: Some(OnBusy::Reject) };
        StartRun { edits: Some(message), ..sent.into_request(Some(conversation_id), trace) }
    }
}

/// Results of calls of client tools. All of them are stored, or none.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ToolResultsBody {
    /// At least one result. All calls must belong to one run.
    pub results: Vec<ToolResultBody>,
}

/// The result of a call of a client tool.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ToolResultBody {
    /// The id of the call, from its `tool.requested`.
    call_id: CallId,
    /// The result: a text, or a list of parts.
    content: ContentBody,
    /// Whether the call failed. The content is then the error.
    #[serde(default)]
    is_error: bool,
}

impl ToolResultBody {
    pub(crate) fn into_result(self) -> NewToolResult {
        NewToolResult { call_id: self.call_id, content: self.content.0, is_error: self.is_error }
    }
}

/// A body without fields, which may be omitted. The API document does not mention it.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct EmptyBody {}

/// A message that was accepted and the run that answers it.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct AcceptedBody {
    /// The message as stored.
    pub message: Message,
    /// The run: a new run, or the active run that the message joined.
    pub run: Run,
}

// One page of a list. The API document would repeat a doc comment for each list.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ListBody<T> {
    pub data: Vec<T>,
    pub next_cursor: NextCursor,
}

/// The cursor of the next page, for the parameter `cursor`. `null` on the last page.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct NextCursor(pub Option<String>);

impl<T> ListBody<T> {
    pub(crate) fn whole(data: Vec<T>) -> Self {
        Self { data, next_cursor: NextCursor(None) }
    }
}

/// The tools on offer.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ToolList)]
pub(crate) struct ToolsBody {
    /// The tools.
    #[schema(value_type = Vec<ToolDefinition>)]
    pub data: Vec<Arc<ToolDefinition>>,
    /// The MCP servers of these tools.
    pub servers: Vec<ServerStatus>,
    /// Tool definitions that have changed since their review, newest first. These tools are not offered to new runs.
    pub changed: Vec<ToolReview>,
}

/// The fields of each event of the log.
#[derive(ToSchema)]
#[expect(dead_code, reason = "events are stored and sent as text; this is their description")]
pub(crate) struct EventEnvelope {
    /// The sequence number, which increases within the conversation. It is the cursor of this event.
    seq: i64,
    /// The conversation of the event.
    conversation_id: ConversationId,
    /// The run of the event. Absent for events outside a run.
    run_id: Option<RunId>,
    /// The attempt of the run. Absent for events outside a run.
    attempt: Option<u32>,
    /// When the event happened, RFC 3339.
    at: String,
    /// Present if a stream has shortened the event to the size of a frame.
    shortened: Option<Shortened>,
}

/// The size of a shortened event, and the path of the whole event.
#[derive(ToSchema)]
#[expect(dead_code, reason = "frames are shortened as text; this is their description")]
pub(crate) struct Shortened {
    /// The size of the whole event in bytes.
    bytes: usize,
    /// The path at which the whole event can be read.
    url: Option<String>,
}

/// The content of a message: a text, or a list of parts.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ContentBody(pub Content);

impl<'de> Deserialize<'de> for ContentBody {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TextOrParts;

        impl<'de> Visitor<'de> for TextOrParts {
            type Value = ContentBody;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a string or a list of parts")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<ContentBody, E> {
                Ok(ContentBody(Content::Text(text.to_owned())))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<ContentBody, A::Error> {
                Vec::deserialize(SeqAccessDeserializer::new(list)).map(|parts| ContentBody(Content::Parts(parts)))
            }
        }

        deserializer.deserialize_any(TextOrParts)
    }
}

impl PartialSchema for ContentBody {
    fn schema() -> RefOr<Schema> {
        let text = ObjectBuilder::new().schema_type(Type::String).min_length(Some(1)).max_length(Some(100_000));
        let parts = ArrayBuilder::new().items(Ref::from_schema_name("PartBody")).min_items(Some(1)).max_items(Some(64));
        OneOfBuilder::new().item(text).item(parts).into()
    }
}

impl ToSchema for ContentBody {
    fn name() -> Cow<'static, str> {
        Cow::Borrowed("ContentBody")
    }

    fn schemas(schemas: &mut Vec<(String, RefOr<Schema>)>) {
        schemas.push(("PartBody".to_owned(), NewPart::schema()));
    }
}

/// The result of a compaction.
#[serde_with::skip_serializing_none]
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct CompactedBody {
    /// Number of messages that this compaction removed from future requests.
    messages: u32,
    /// Total number of messages that requests omit.
    left_out: u32,
    /// The newest omitted message.
    through: Option<MessageId>,
    /// The summary that replaces these messages.
    summary: Option<String>,
}

impl CompactedBody {
    pub(crate) fn new(messages: u32, summary: Option<ContextSummary>) -> Self {
        let words = summary.as_ref().and_then(section);
        let left_out = summary.as_ref().map_or(0, |summary| summary.messages);
        Self { messages, left_out, through: summary.map(|summary| summary.covers), summary: words }
    }
}
