//! `/api/v1/conversations/{id}/fork`: a new conversation with a copy of another one's messages.

use axum::response::Response;
use serde::Deserialize;
use utoipa::ToSchema;

use crate::domain::conversation::Conversation;
use crate::domain::ids::{ConversationId, MessageId, RunId};
use crate::http::wire::auth::Caller;
use crate::http::wire::extract::{Id, OptionalInput};
use crate::http::wire::problem::HttpResult;
use crate::http::wire::responses::created;
use crate::service::{CopyUntil, Error};

/// The end of a fork: at most one of the three ids. Without any of them, the fork contains all runs that have ended.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ForkBody {
    /// The last message of the copy.
    to_message_id: Option<MessageId>,
    /// The first message that is not copied.
    before_message_id: Option<MessageId>,
    /// The last run of the copy.
    to_run_id: Option<RunId>,
    /// The title of the copy, at most 255 characters. Defaults to the title of the conversation.
    title: Option<String>,
}

/// Forks a conversation
///
/// Creates a conversation of the same owner with a copy of the messages. The copy ends at a message (`to_message_id`), before one
/// (`before_message_id`) or at the end of a run (`to_run_id`). Without an id, it contains all runs that have ended. Nothing is
/// executed or charged. The copy has its own ids, and `forked_from` names its origin.
#[utoipa::path(
    post, path = "/api/v1/conversations/{id}/fork", tag = "conversations", operation_id = "fork_conversation",
    params(("id" = ConversationId, Path, description = "The id of the conversation")), request_body = Option<ForkBody>,
    responses((status = 201, description = "The copy", body = Conversation, headers(("Location" = String)))),
)]
pub(crate) async fn fork(
    caller: Caller,
    Id(id): Id<ConversationId>,
    OptionalInput { body, key }: OptionalInput<ForkBody>,
) -> HttpResult<Response> {
    let until = match (body.to_message_id, body.before_message_id, body.to_run_id) {
        (None, None, None) => CopyUntil::End,
        (Some(id), None, None) => CopyUntil::After(id),
        (None, Some(id), None) => CopyUntil::Before(id),
        (None, None, Some(id)) => CopyUntil::Run(id),
        (Some(_), Some(_), _) | (Some(_), _, Some(_)) | (_, Some(_), Some(_)) => {
            return Err(Error::invalid("send at most one of to_message_id, before_message_id and to_run_id").into());
        }
    };
    let (conversation, replay) = caller.app.service.fork_conversation(&caller.principal, &id, until, body.title, key).await?;
    Ok(created(replay, None, &format!("/api/v1/conversations/{}", conversation.id), conversation))
}
