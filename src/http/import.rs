//! `/api/v1/conversations/import`: conversations from exported documents.

use axum::extract::{FromRequest as _, Request};
use axum::response::Response;
use serde::Deserialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::answer::created;
use super::auth::Caller;
use super::extract::{Input, RequestBody};
use super::options::App;
use super::problem::Answer;
use crate::domain::conversation::{AgentChoice, Conversation};
use crate::domain::message::Message;
use crate::service::{Document, Error};
use crate::support::nearest::nearest;

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
    system_prompt: Option<String>,
    /// What its user wants of every answer, at most 10,000 characters.
    instructions: Option<String>,
    /// The agent of messages that name none. It need not exist here: then the next message has to name another one.
    agent: Option<String>,
    /// The model of messages that name none. It need not be served here: then the next message has to name another one.
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
pub(crate) async fn import(Caller { app, principal }: Caller, request: Request) -> Answer<Response> {
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
    Ok(created(replay, None, &format!("/api/v1/conversations/{}", conversation.id), conversation))
}
