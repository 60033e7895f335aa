//! `/api/v1/feedback`: ratings of answers.

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use serde::Deserialize;
use utoipa::{IntoParams, ToSchema};

use crate::domain::conversation::feedback::{Feedback, FeedbackRecord, Rating};
use crate::domain::ids::{ConversationId, MessageId};
use crate::http::v1::conversations::MessagePath;
use crate::http::wire::auth::Caller;
use crate::http::wire::extract::{Id, Ids, Input};
use crate::http::wire::idempotency_header::replayed;
use crate::http::wire::page::{self, ListRequest, PageParams};
use crate::http::wire::problem::HttpResult;
use crate::http::wire::types::ListBody;
use crate::service::FeedbackCursor;

/// The feedback of a user on an answer.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct FeedbackBody {
    /// The rating of the answer.
    rating: Rating,
    /// The reason for the rating, at most `limits.max_feedback_chars` characters.
    comment: Option<String>,
}

/// Rates an answer
///
/// Rates a message of a model, with an optional comment. A new rating replaces the earlier rating and its comment. Lists of
/// messages show the rating as `feedback`. Models never read it.
#[utoipa::path(
    post, path = "/api/v1/conversations/{id}/messages/{message_id}/feedback", tag = "feedback", operation_id = "give_feedback",
    params(MessagePath), request_body = FeedbackBody,
    responses((status = 200, description = "The stored feedback", body = Feedback)),
)]
pub(crate) async fn give(
    caller: Caller,
    Ids(id, message): Ids<ConversationId, MessageId>,
    Input { body, key }: Input<FeedbackBody>,
) -> HttpResult<Response> {
    let FeedbackBody { rating, comment } = body;
    let (feedback, replay) = caller.app.service.give_feedback(&caller.principal, (id, message), rating, comment, key).await?;
    Ok((replayed(replay), Json(feedback)).into_response())
}

/// Deletes the rating of an answer
#[utoipa::path(
    delete, path = "/api/v1/conversations/{id}/messages/{message_id}/feedback", tag = "feedback", operation_id = "delete_feedback",
    params(MessagePath),
    responses((status = 204, description = "The rating was deleted")),
)]
pub(crate) async fn withdraw(caller: Caller, Ids(id, message): Ids<ConversationId, MessageId>) -> HttpResult<StatusCode> {
    caller.app.service.withdraw_feedback(&caller.principal, &id, &message).await?;
    Ok(StatusCode::NO_CONTENT)
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct FeedbackParams {
    /// Only feedback with this rating.
    rating: Option<Rating>,
    /// The id of a user, or `all`. For administrators only. Defaults to the caller.
    #[param(pattern = "^(all|user_[0-9a-fA-F-]{32,36})$")]
    owner: Option<String>,
    /// Only feedback that an administrator has reviewed (`true`) or has not reviewed (`false`).
    reviewed: Option<bool>,
}

/// The change of a review.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ReviewBody {
    /// Whether an administrator has reviewed the feedback.
    reviewed: bool,
}

/// Marks feedback as reviewed or not reviewed
///
/// Only administrators may send this request. A new rating of the answer removes the review.
#[utoipa::path(
    patch, path = "/api/v1/feedback/{message_id}", tag = "feedback", operation_id = "review_feedback",
    params(("message_id" = MessageId, Path, description = "The id of the rated message")),
    request_body = ReviewBody,
    responses((status = 200, description = "The feedback", body = FeedbackRecord)),
)]
pub(crate) async fn review(
    caller: Caller,
    Id(message): Id<MessageId>,
    Input { body, .. }: Input<ReviewBody>,
) -> HttpResult<Json<FeedbackRecord>> {
    Ok(Json(caller.app.service.review_feedback(&caller.principal, &message, body.reviewed).await?))
}

/// Lists the feedback on answers, newest first
///
/// Each item names the agent and the model of the answer. It omits the answer's text, which is private to its owner. Feedback on
/// answers that were removed from a conversation is included. Feedback of deleted conversations is not.
#[utoipa::path(
    get, path = "/api/v1/feedback", tag = "feedback", operation_id = "list_feedback", params(FeedbackParams, PageParams),
    responses((status = 200, description = "A page of the list", body = ListBody<FeedbackRecord>)),
)]
pub(crate) async fn list(
    ListRequest { caller, filter, page }: ListRequest<FeedbackParams, FeedbackCursor>,
) -> HttpResult<Response> {
    let FeedbackParams { rating, owner, reviewed } = filter;
    let found = caller.app.service.feedback(&caller.principal, owner.as_deref(), (rating, reviewed), &page).await?;
    let rest = page::query([
        ("rating", rating.map(Rating::as_str)),
        ("owner", owner.as_deref()),
        ("reviewed", reviewed.map(|is| if is { "true" } else { "false" })),
    ]);
    Ok(page::answer(found, page.limit, "/api/v1/feedback", &rest))
}
