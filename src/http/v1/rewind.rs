//! Rewinding a conversation, and editing one of its messages.

use axum::Json;
use axum::response::{IntoResponse as _, Response};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::domain::conversation::Conversation;
use crate::domain::ids::{ConversationId, MessageId};
use crate::domain::run::Run;
use crate::http::streams::delivery::Delivery;
use crate::http::wire::auth::Caller;
use crate::http::wire::extract::{Id, Ids, Input};
use crate::http::wire::idempotency::replayed;
use crate::http::wire::problem::Answer;
use crate::http::wire::types::{AcceptedBody, EditMessageBody};
use crate::service::{Error, RewindFrom};

/// Where to take a conversation back to: one of the two.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RewindBody {
    /// The message that is to be the last one.
    to_message_id: Option<MessageId>,
    /// The first message that is to be taken out.
    before_message_id: Option<MessageId>,
}

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
pub(crate) async fn rewind(caller: Caller, Id(id): Id<ConversationId>, Input { body, key }: Input<RewindBody>) -> Answer<Response> {
    let from = match (body.to_message_id, body.before_message_id) {
        (Some(id), None) => RewindFrom::After(id),
        (None, Some(id)) => RewindFrom::At(id),
        (None, None) | (Some(_), Some(_)) => {
            return Err(Error::invalid("give one of to_message_id and before_message_id").into());
        }
    };
    let (conversation, superseded, replay) = caller.app.service.rewind_conversation(&caller.principal, &id, from, key).await?;
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
    Ids(id, message): Ids<ConversationId, MessageId>,
    delivery: Delivery,
    Input { body, key }: Input<EditMessageBody>,
) -> Answer<Response> {
    let request = body.into_request(id, message, delivery.trace.clone());
    delivery.accept(request, key).await
}
