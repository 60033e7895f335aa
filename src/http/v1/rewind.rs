//! `/api/v1/conversations/{id}/rewind`: rewinds a conversation, and edits one of its messages.

use axum::Json;
use axum::response::{IntoResponse as _, Response};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::domain::conversation::Conversation;
use crate::domain::ids::{ConversationId, MessageId};
use crate::http::streams::preferred_response::{RunResponder, RunResponses};
use crate::http::v1::conversations::MessagePath;
use crate::http::wire::auth::Caller;
use crate::http::wire::extract::{Id, Ids, Input};
use crate::http::wire::idempotency_header::replayed;
use crate::http::wire::problem::HttpResult;
use crate::http::wire::types::{AcceptedBody, EditMessageBody};
use crate::service::{Error, RewindFrom};

/// The target of a rewind. Exactly one field must be set.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RewindBody {
    /// The last message that stays in the conversation.
    to_message_id: Option<MessageId>,
    /// The first message that leaves the conversation.
    before_message_id: Option<MessageId>,
}

/// A conversation after a rewind.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct RewoundBody {
    /// The conversation.
    conversation: Conversation,
    /// The messages that are no longer part of the conversation, in their order.
    superseded: Vec<MessageId>,
}

/// Rewinds a conversation
///
/// Rewinds to a message (`to_message_id`) or to the state before a message (`before_message_id`). Later messages leave the
/// conversation: the server neither lists them nor sends them to a model. The event `conversation.updated` names them in
/// `supersedes`. The event log keeps them. Effects of tools are not undone. To edit a message, rewind to the state before it and
/// send the new message.
#[utoipa::path(
    post, path = "/api/v1/conversations/{id}/rewind", tag = "conversations", operation_id = "rewind_conversation",
    params(("id" = ConversationId, Path, description = "The id of the conversation")), request_body = RewindBody,
    responses((status = 200, description = "The conversation and the removed messages", body = RewoundBody)),
)]
pub(crate) async fn rewind(
    caller: Caller,
    Id(id): Id<ConversationId>,
    Input { body, key }: Input<RewindBody>,
) -> HttpResult<Response> {
    let from = match (body.to_message_id, body.before_message_id) {
        (Some(id), None) => RewindFrom::After(id),
        (None, Some(id)) => RewindFrom::At(id),
        (None, None) | (Some(_), Some(_)) => {
            return Err(Error::invalid("send one of to_message_id and before_message_id").into());
        }
    };
    let (conversation, superseded, replay) = caller.app.service.rewind_conversation(&caller.principal, &id, from, key).await?;
    Ok((replayed(replay), Json(RewoundBody { conversation, superseded })).into_response())
}

/// Edits a message
///
/// Removes the message and all later messages from the conversation, like `rewind`, and sends the new message in the same
/// transaction. Effects of tools are not undone. Only messages of the user can be edited. The server refuses this while a run is
/// active. The response has the same forms as the response to a sent message.
#[utoipa::path(
    post, path = "/api/v1/conversations/{id}/messages/{message_id}/edit", tag = "conversations", operation_id = "edit_message",
    request_body = EditMessageBody, params(MessagePath, RunResponder), responses(RunResponses<AcceptedBody>),
)]
pub(crate) async fn edit(
    Ids(id, message): Ids<ConversationId, MessageId>,
    responder: RunResponder,
    Input { body, key }: Input<EditMessageBody>,
) -> HttpResult<Response> {
    let request = body.into_request(id, message, responder.trace.clone());
    responder.start_run(request, key).await
}
