//! What becomes of a conversation's history: taken back, and taken out as a document.

use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::header::{CONTENT_DISPOSITION, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::auth::Caller;
use super::extract::{Id, Ids, Input, Params, PreferWait, RequestBody, Wants};
use super::options::App;
use super::problem::{Answer, Problem};
use super::request::Trace;
use super::runs::{accept, replayed};
use super::types::{AcceptedBody, EditMessageBody};
use crate::domain::conversation::Conversation;
use crate::domain::ids::{ConversationId, MessageId};
use crate::domain::message::Message;
use crate::domain::run::Run;
use crate::service::{Access, Error, ExportForm, MessageCursor, Page, PageRequest, RewindFrom};

/// Messages that are read at a time.
const PAGE: u32 = 100;

/// Where to take a conversation back to: one of the two.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RewindBody {
    /// The message that is to be the last one.
    #[serde(default)]
    to_message_id: Option<MessageId>,
    /// The first message that is to be taken out.
    #[serde(default)]
    before_message_id: Option<MessageId>,
}

impl RequestBody for RewindBody {}

/// A conversation that was taken back.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct RewoundBody {
    /// The conversation.
    conversation: Conversation,
    /// The messages that are not part of it any more, in their order.
    superseded: Vec<MessageId>,
}

/// Takes a conversation back
///
/// To a message (`to_message_id`), or to before one (`before_message_id`). Later messages are not part of the conversation any more:
/// they are neither listed nor sent to a model, and `conversation.updated` names them in `supersedes`. The log keeps them, and what
/// tools did is not undone. To edit a message, go back to before it and send the new one.
#[utoipa::path(
    post, path = "/api/v1/conversations/{id}/rewind", tag = "conversations", operation_id = "rewind_conversation",
    params(("id" = ConversationId, Path, description = "The conversation")), request_body = RewindBody,
    responses((status = 200, description = "The conversation, and what was taken out of it", body = RewoundBody)),
)]
pub(crate) async fn rewind(
    State(app): State<App>,
    Caller(principal): Caller,
    Id(id): Id<ConversationId>,
    Input { body, key }: Input<RewindBody>,
) -> Answer<Response> {
    let from = match (body.to_message_id, body.before_message_id) {
        (Some(id), None) => RewindFrom::After(id),
        (None, Some(id)) => RewindFrom::At(id),
        (None, None) | (Some(_), Some(_)) => {
            return Err(Error::invalid("give one of to_message_id and before_message_id").into());
        }
    };
    let (conversation, superseded, replay) = app.service.rewind_conversation(&principal, &id, from, key).await?;
    Ok((replayed(replay), Json(RewoundBody { conversation, superseded })).into_response())
}

/// Edits a message
///
/// The message and all after it are taken out of the conversation, as by `rewind`, and the new one is sent in its place, in one
/// transaction. What tools did is not undone. Only a message that the user has sent, and not while a run is under way. The answer is as
/// when a message is sent.
#[utoipa::path(
    post, path = "/api/v1/conversations/{id}/messages/{message_id}/edit", tag = "conversations", operation_id = "edit_message",
    params(
        ("id" = ConversationId, Path, description = "The conversation"),
        ("message_id" = MessageId, Path, description = "The message"),
        ("Prefer" = Option<String>, Header, description = "`wait=N` waits up to N seconds (at most 60)"),
        ("traceparent" = Option<String>, Header, description = "The trace that the log lines of request and run carry"),
    ),
    request_body = EditMessageBody,
    responses(
        (status = 202, description = "Accepted and stored", body = AcceptedBody, headers(("Location" = String))),
        (status = 200, description = "The run, finished or waiting for a human; or its event stream",
         content((Run = "application/json"), (String = "text/event-stream"), (String = "application/x-ndjson"))),
    ),
)]
pub(crate) async fn edit(
    State(app): State<App>,
    access: Access,
    Trace(trace): Trace,
    Ids(id, message): Ids<ConversationId, MessageId>,
    wants: Wants,
    PreferWait(wait): PreferWait,
    Input { body, key }: Input<EditMessageBody>,
) -> Answer<Response> {
    accept(&app, access, wants, wait, body.into_request(id, message, trace), key).await
}

/// How a conversation is written down.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct ExportParams {
    /// `json` holds all that the list of messages shows, `markdown` is for people.
    #[param(inline, default = "json")]
    format: Option<ExportFormat>,
}

/// The form of a document.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ExportFormat {
    /// JSON.
    #[default]
    Json,
    /// Markdown.
    Markdown,
}

/// A conversation as a document
///
/// With every message that is part of it. One that changes meanwhile may be caught in between; a document that is cut off ends
/// without the last bracket.
#[utoipa::path(
    get, path = "/api/v1/conversations/{id}/export", tag = "conversations", operation_id = "export_conversation",
    params(("id" = ConversationId, Path, description = "The conversation"), ExportParams),
    responses((status = 200, description = "The document", headers(("Content-Disposition" = String)),
        content((serde_json::Value = "application/json"), (String = "text/markdown")))),
)]
pub(crate) async fn export(
    State(app): State<App>,
    Caller(principal): Caller,
    Id(id): Id<ConversationId>,
    Params(params): Params<ExportParams>,
) -> Answer<Response> {
    let (form, media_type) = match params.format.unwrap_or_default() {
        ExportFormat::Json => (ExportForm::Json, "application/json"),
        ExportFormat::Markdown => (ExportForm::Markdown, "text/markdown; charset=utf-8"),
    };
    let service = Arc::clone(&app.service);
    let beginning = service.export_beginning(&principal, &id, form).await?;
    let disposition = format!("attachment; filename=\"{id}.{}\"", form.extension());
    let pages = stream::try_unfold(Place::Beginning(beginning), move |place| {
        let (service, principal, id) = (Arc::clone(&service), principal.clone(), id.clone());
        async move {
            let (text, after) = match place {
                Place::Over => return Ok(None),
                Place::Beginning(text) => return Ok(Some((text, Place::Messages(None)))),
                Place::Messages(after) => {
                    let first = after.is_none();
                    let page = service.messages(&principal, &id, &PageRequest { limit: PAGE, after }).await.map_err(cut_off)?;
                    (form.messages(&page.items, first), next(&page))
                }
            };
            let piece = match after {
                Some(after) => (text, Place::Messages(Some(after))),
                None => (text + form.end(), Place::Over),
            };
            Ok::<_, std::io::Error>(Some(piece))
        }
    });
    Ok(([(CONTENT_TYPE, media_type.to_owned()), (CONTENT_DISPOSITION, disposition)], Body::from_stream(pages)).into_response())
}

/// How far a document is written.
enum Place {
    Beginning(String),
    Messages(Option<MessageCursor>),
    Over,
}

fn next(page: &Page<Message>) -> Option<MessageCursor> {
    page.next.as_deref().and_then(|next| next.parse().ok())
}

/// The answer has begun, so all that is left is to cut it off. The cause goes where that of every problem goes.
fn cut_off(error: Error) -> std::io::Error {
    std::io::Error::other(Problem::from(error).0.detail)
}
