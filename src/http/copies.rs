//! Conversations that are made of what was said before.

use axum::Json;
use axum::extract::{FromRequest as _, Request, State};
use axum::http::header::LOCATION;
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::auth::Caller;
use super::extract::{Id, Input, RequestBody};
use super::options::App;
use super::problem::Answer;
use super::runs::replayed;
use crate::domain::conversation::{AgentChoice, Conversation};
use crate::domain::ids::{ConversationId, MessageId, RunId};
use crate::domain::message::Message;
use crate::service::{CopyUntil, Document, Error, Replay};
use crate::support::nearest::nearest;

/// How far a conversation is copied: one of the three, or nothing for all turns that are over.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ForkBody {
    /// The message that is to be the last one.
    #[serde(default)]
    to_message_id: Option<MessageId>,
    /// The first message that is not copied.
    #[serde(default)]
    before_message_id: Option<MessageId>,
    /// The run that is to be the last one.
    #[serde(default)]
    to_run_id: Option<RunId>,
    /// The title of the copy, at most 255 characters; that of the conversation if absent.
    #[serde(default)]
    title: Option<String>,
}

impl RequestBody for ForkBody {
    fn when_empty() -> Option<Self> {
        Some(Self::default())
    }
}

/// Forks a conversation
///
/// Makes another one of the same owner with a copy of what was said, to a message (`to_message_id`), before one (`before_message_id`), to the
/// end of a run (`to_run_id`), or as far as its turns are over. Nothing is executed and nothing is charged; the copy has its own ids, and
/// `forked_from` says where it comes from.
#[utoipa::path(
    post, path = "/api/v1/conversations/{id}/fork", tag = "conversations", operation_id = "fork_conversation",
    params(("id" = ConversationId, Path, description = "The conversation")), request_body = Option<ForkBody>,
    responses((status = 201, description = "The copy", body = Conversation, headers(("Location" = String)))),
)]
pub(crate) async fn fork(
    State(app): State<App>,
    Caller(principal): Caller,
    Id(id): Id<ConversationId>,
    Input { body, key }: Input<ForkBody>,
) -> Answer<Response> {
    let until = match (body.to_message_id, body.before_message_id, body.to_run_id) {
        (None, None, None) => CopyUntil::End,
        (Some(id), None, None) => CopyUntil::After(id),
        (None, Some(id), None) => CopyUntil::Before(id),
        (None, None, Some(id)) => CopyUntil::Run(id),
        (Some(_), Some(_), _) | (Some(_), _, Some(_)) | (_, Some(_), Some(_)) => {
            return Err(Error::invalid("give at most one of to_message_id, before_message_id and to_run_id").into());
        }
    };
    let (conversation, replay) = app.service.fork_conversation(&principal, &id, until, body.title, key).await?;
    Ok(made(conversation, replay))
}

/// A conversation that was made, and where it is.
pub(super) fn made(conversation: Conversation, replay: Replay) -> Response {
    let mut headers = replayed(replay);
    if let Ok(value) = HeaderValue::from_str(&format!("/api/v1/conversations/{}", conversation.id)) {
        headers.insert(LOCATION, value);
    }
    (StatusCode::CREATED, headers, Json(conversation)).into_response()
}

/// The only format of documents.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, ToSchema)]
pub(crate) enum DocumentFormat {
    /// What an export writes.
    #[serde(rename = "capstan.conversation")]
    Conversation,
}

/// A document as `GET /conversations/{id}/export` writes it.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ImportBody {
    #[expect(dead_code, reason = "there is one; any other is refused")]
    format: DocumentFormat,
    /// The version of the format: 1.
    #[schema(minimum = 1, maximum = 1)]
    version: u32,
    /// When it was written. Not kept.
    #[serde(default)]
    #[expect(dead_code, reason = "it is part of the document")]
    exported_at: Option<String>,
    /// What is said of the conversation.
    conversation: ImportedConversation,
    /// What was said.
    messages: Vec<Message>,
}

/// What is kept of a document's conversation. The rest of it is taken and not looked at.
#[derive(Debug, Default, Deserialize, ToSchema)]
pub(crate) struct ImportedConversation {
    /// Its title, at most 255 characters.
    #[serde(default)]
    title: String,
    /// Its tags.
    #[serde(default)]
    #[schema(max_items = 20)]
    tags: Vec<String>,
    /// Its own part of the system prompt, at most 10,000 characters.
    #[serde(default)]
    system_prompt: Option<String>,
    /// What its user wants of every answer, at most 10,000 characters.
    #[serde(default)]
    instructions: Option<String>,
    /// The agent of messages that name none. It need not exist here: then the next message has to name another one.
    #[serde(default)]
    agent: Option<String>,
    /// The model of messages that name none. It need not be served here: then the next message has to name another one.
    #[serde(default)]
    model: Option<String>,
    #[serde(flatten)]
    #[schema(ignore)]
    rest: Map<String, Value>,
}

impl ImportedConversation {
    /// Refuses a misspelt field. Any other may be a field of an export that imports do not keep.
    fn check_rest(&self) -> Answer<()> {
        for key in self.rest.keys() {
            if let Some(near) = nearest(key, ["title", "tags", "system_prompt", "instructions", "agent", "model"]) {
                let reason = format!("is not known; did you mean {near:?}?");
                return Err(Error::field(&format!("/conversation/{key}"), reason).into());
            }
        }
        Ok(())
    }
}

impl RequestBody for ImportBody {
    fn max_bytes(app: &App) -> usize {
        usize::try_from(app.service.copy_limits().bytes).unwrap_or(usize::MAX)
    }
}

/// Imports a conversation
///
/// Makes a conversation of the caller's of a document that an export has written as JSON. All ids are made anew. Nothing is executed and
/// nothing is charged; calls of tools that have no result in the document are not made.
#[utoipa::path(
    post, path = "/api/v1/conversations/import", tag = "conversations", operation_id = "import_conversation", request_body = ImportBody,
    responses(
        (status = 201, description = "The conversation", body = Conversation, headers(("Location" = String))),
        (status = 429, description = "Too many imports and uploads at this moment"),
    ),
)]
pub(crate) async fn import(State(app): State<App>, Caller(principal): Caller, request: Request) -> Answer<Response> {
    // As with files: what is large is held in memory by a few at a time only.
    let _seat = app.service.begin_upload(&principal).await?;
    let Input { body, key } = Input::<ImportBody>::from_request(request, &app).await?;
    if body.version != 1 {
        return Err(Error::field("/version", "is not one that this server knows; it knows 1").into());
    }
    body.conversation.check_rest()?;
    let ImportedConversation { title, tags, system_prompt, instructions, agent, model, rest: _ } = body.conversation;
    let choice = AgentChoice { agent, model };
    let document = Document { title, tags, system_prompt, instructions, choice, messages: body.messages };
    let (conversation, replay) = app.service.import_conversation(&principal, document, key).await?;
    Ok(made(conversation, replay))
}
