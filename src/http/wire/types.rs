//! Bodies of requests and answers that are not values of the domain already.

use std::borrow::Cow;
use std::sync::Arc;

use serde::de::value::SeqAccessDeserializer;
use serde::de::{SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use utoipa::openapi::schema::{ArrayBuilder, ObjectBuilder, OneOfBuilder, Schema, Type};
use utoipa::openapi::{Ref, RefOr};
use utoipa::{PartialSchema, ToSchema};

use crate::domain::agent::agent_record::RunLimits;
use crate::domain::conversation::message::Message;
use crate::domain::conversation::summary::section;
use crate::domain::ids::{ConversationId, MessageId, RunId};
use crate::domain::model::ModelOptions;
use crate::domain::run::context::ContextSummary;
use crate::domain::run::{OnBusy, Run};
use crate::domain::tool::ToolDefinition;
use crate::domain::tool::pin::ToolPin;
use crate::domain::trace::TraceId;
use crate::service::{Content, NewPart, ServerStatus, StartRun};

/// A message for the agent, in a new conversation or in one that exists.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct StartRunBody {
    /// What the message says.
    input: ContentBody,
    /// The conversation: one of the caller's own, or a new id minted by the client. A new conversation if absent.
    conversation_id: Option<ConversationId>,
    /// The agent by name or id, `name@3` for that version of it. The conversation keeps it. If absent: the one that the conversation keeps,
    /// or else the server's default.
    agent: Option<String>,
    /// The model as `provider/name`. The conversation keeps it. If absent: the one that the conversation keeps, or else the agent's.
    #[schema(min_length = 1, max_length = 200)]
    model: Option<String>,
    /// Options of model calls.
    options: Option<ModelOptions>,
    /// Bounds of this run that are lower than the agent's.
    limits: Option<RunLimits>,
    /// What to do if the conversation has an active run.
    on_busy: Option<OnBusy>,
}

impl StartRunBody {
    pub(crate) fn into_request(self, trace: TraceId) -> StartRun {
        let Self { input, conversation_id, agent, model, options, limits, on_busy } = self;
        let sent = SendMessageBody { content: input, agent, model, options, limits, on_busy };
        StartRun { content_field: "input", create: true, ..sent.into_request(conversation_id, trace) }
    }
}

/// A message for the agent in a conversation.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct SendMessageBody {
    /// What the message says.
    content: ContentBody,
    /// The agent by name or id, `name@3` for that version of it. The conversation keeps it. If absent: the one that the conversation keeps,
    /// or else the server's default.
    agent: Option<String>,
    /// The model as `provider/name`. The conversation keeps it. If absent: the one that the conversation keeps, or else the agent's.
    #[schema(min_length = 1, max_length = 200)]
    model: Option<String>,
    /// Options of model calls.
    options: Option<ModelOptions>,
    /// Bounds of this run that are lower than the agent's.
    limits: Option<RunLimits>,
    /// What to do if the conversation has an active run.
    on_busy: Option<OnBusy>,
}

impl SendMessageBody {
    pub(crate) fn into_request(self, conversation_id: Option<ConversationId>, trace: TraceId) -> StartRun {
        let Self { content: ContentBody(content), agent, model, options, limits, on_busy } = self;
        StartRun {
            content,
            content_field: "content",
            conversation_id,
            agent,
            model,
            options,
            limits,
            on_busy: on_busy.unwrap_or_default(),
            create: false,
            edits: None,
            trace,
        }
    }
}

/// What a message is to say instead.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct EditMessageBody {
    /// What the message says now.
    content: ContentBody,
    /// The agent by name or id, `name@3` for that version of it. The conversation keeps it. If absent: the one that the conversation keeps,
    /// or else the server's default.
    agent: Option<String>,
    /// The model as `provider/name`. The conversation keeps it. If absent: the one that the conversation keeps, or else the agent's.
    #[schema(min_length = 1, max_length = 200)]
    model: Option<String>,
    /// Options of model calls.
    options: Option<ModelOptions>,
    /// Bounds of this run that are lower than the agent's.
    limits: Option<RunLimits>,
}

impl EditMessageBody {
    pub(crate) fn into_request(self, conversation_id: ConversationId, message: MessageId, trace: TraceId) -> StartRun {
        let Self { content, agent, model, options, limits } = self;
        let sent = SendMessageBody { content, agent, model, options, limits, on_busy: Some(OnBusy::Reject) };
        StartRun { edits: Some(message), ..sent.into_request(Some(conversation_id), trace) }
    }
}

/// A body without fields, which may be left out.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct EmptyBody {}

/// A message that was accepted and the run that answers it.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct AcceptedBody {
    /// The message as stored.
    pub message: Message,
    /// The run: a new one, or the active one that the message joined.
    pub run: Run,
}

/// One page of a list.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ListBody<T> {
    /// The rows.
    pub data: Vec<T>,
    /// Give it as `cursor` to get the next page; `null` on the last page.
    pub next_cursor: Option<String>,
}

impl<T> ListBody<T> {
    /// A list on one page.
    pub(crate) fn whole(data: Vec<T>) -> Self {
        Self { data, next_cursor: None }
    }
}

/// The tools on offer.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ToolsBody {
    /// The tools.
    #[schema(value_type = Vec<ToolDefinition>)]
    pub data: Vec<Arc<ToolDefinition>>,
    /// The servers that they come from.
    pub servers: Vec<ServerStatus>,
    /// Definitions that have changed since they were looked at, newest first: these tools are not offered to new runs.
    pub changed: Vec<ToolPin>,
}

/// An entry of a conversation's log. Types that a client does not know must be ignored.
#[serde_with::skip_serializing_none]
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct EventEnvelope {
    /// Counts up within the conversation; the cursor of this event.
    pub seq: i64,
    /// What happened, such as `part.delta`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The conversation.
    pub conversation_id: ConversationId,
    /// The run, for events of a run.
    pub run_id: Option<RunId>,
    /// The run's attempt, for events of a run.
    pub attempt: Option<u32>,
    /// When it happened, RFC 3339.
    pub at: String,
    /// What belongs to the type.
    #[schema(value_type = Object)]
    pub data: serde_json::Value,
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

/// What requests leave out of a conversation.
#[serde_with::skip_serializing_none]
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct CompactedBody {
    /// Messages that are left out from now on and were not before.
    messages: u32,
    /// All that are left out.
    left_out: u32,
    /// The newest of them.
    through: Option<MessageId>,
    /// What stands for them.
    summary: Option<String>,
}

impl CompactedBody {
    pub(crate) fn new(messages: u32, summary: Option<ContextSummary>) -> Self {
        let words = summary.as_ref().and_then(section);
        let left_out = summary.as_ref().map_or(0, |summary| summary.messages);
        Self { messages, left_out, through: summary.map(|summary| summary.covers), summary: words }
    }
}
