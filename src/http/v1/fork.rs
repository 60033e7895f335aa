//! `/api/v1/conversations/{id}/fork`: a conversation with a copy of what was said in another.

use axum::response::Response;
use serde::Deserialize;
use utoipa::ToSchema;

use crate::domain::conversation::Conversation;
use crate::domain::ids::{ConversationId, MessageId, RunId};
use crate::http::wire::answer::created;
use crate::http::wire::auth::Caller;
use crate::http::wire::extract::{Id, OptionalInput};
use crate::http::wire::problem::Answer;
use crate::service::{CopyUntil, Error};

/// How far a conversation is copied: one of the three, or nothing for all turns that are over.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ForkBody {
    /// The message that is to be the last one.
    to_message_id: Option<MessageId>,
    /// The first message that is not copied.
    before_message_id: Option<MessageId>,
    /// The run that is to be the last one.
    to_run_id: Option<RunId>,
    /// The title of the copy, at most 255 characters; that of the conversation if absent.
    title: Option<String>,
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
    caller: Caller,
    Id(id): Id<ConversationId>,
    OptionalInput { body, key }: OptionalInput<ForkBody>,
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
    let (conversation, replay) = caller.app.service.fork_conversation(&caller.principal, &id, until, body.title, key).await?;
    Ok(created(replay, None, &format!("/api/v1/conversations/{}", conversation.id), conversation))
}
