//! Ratings of answers.

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use serde::Deserialize;
use utoipa::{IntoParams, ToSchema};

use crate::domain::conversation::feedback::{Feedback, FeedbackRecord, Rating};
use crate::domain::ids::{ConversationId, MessageId};
use crate::http::wire::auth::Caller;
use crate::http::wire::extract::{Id, Ids, Input, Params};
use crate::http::wire::idempotency::replayed;
use crate::http::wire::page::{self, PageParams, Paging};
use crate::http::wire::problem::Answer;
use crate::http::wire::types::ListBody;
use crate::service::FeedbackCursor;

/// What a user thinks of an answer.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct FeedbackBody {
    /// Whether it was a good one.
    rating: Rating,
    /// Why: at most `limits.max_feedback_chars` characters.
    comment: Option<String>,
}

/// Rates an answer
///
/// A message that a model has said, with words if there are any. Whoever says it again says all of it anew. It is shown as `feedback`
/// where messages are listed; no model reads it.
#[utoipa::path(
    post, path = "/api/v1/conversations/{id}/messages/{message_id}/feedback", tag = "feedback", operation_id = "give_feedback",
    params(("id" = ConversationId, Path, description = "The conversation"), ("message_id" = MessageId, Path, description = "The message")),
    request_body = FeedbackBody,
    responses((status = 200, description = "What is kept", body = Feedback)),
)]
pub(crate) async fn give(
    caller: Caller,
    Ids(id, message): Ids<ConversationId, MessageId>,
    Input { body, key }: Input<FeedbackBody>,
) -> Answer<Response> {
    let FeedbackBody { rating, comment } = body;
    let (feedback, replay) = caller.app.service.give_feedback(&caller.principal, (id, message), rating, comment, key).await?;
    Ok((replayed(replay), Json(feedback)).into_response())
}

/// Takes a rating back
#[utoipa::path(
    delete, path = "/api/v1/conversations/{id}/messages/{message_id}/feedback", tag = "feedback", operation_id = "delete_feedback",
    params(("id" = ConversationId, Path, description = "The conversation"), ("message_id" = MessageId, Path, description = "The message")),
    responses((status = 204, description = "It is gone")),
)]
pub(crate) async fn withdraw(caller: Caller, Ids(id, message): Ids<ConversationId, MessageId>) -> Answer<StatusCode> {
    caller.app.service.withdraw_feedback(&caller.principal, &id, &message).await?;
    Ok(StatusCode::NO_CONTENT)
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct FeedbackParams {
    /// Only those that say so.
    #[param(inline)]
    rating: Option<Rating>,
    /// For administrators: those of a user, by their id, or of `all`. The caller's own if absent.
    #[param(pattern = "^(all|user_[0-9a-fA-F-]{32,36})$")]
    owner: Option<String>,
    /// Only what an administrator has looked at, or only what nobody has.
    reviewed: Option<bool>,
}

/// What is changed of feedback.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ReviewBody {
    /// Whether somebody has looked at it.
    reviewed: bool,
}

/// Marks feedback as reviewed, or not
///
/// For administrators. An answer that its user rates anew is to be looked at again.
#[utoipa::path(
    patch, path = "/api/v1/feedback/{message_id}", tag = "feedback", operation_id = "review_feedback",
    params(("message_id" = MessageId, Path, description = "The message that it is about")),
    request_body = ReviewBody,
    responses((status = 200, description = "The feedback", body = FeedbackRecord)),
)]
pub(crate) async fn review(
    caller: Caller,
    Id(message): Id<MessageId>,
    Input { body, .. }: Input<ReviewBody>,
) -> Answer<Json<FeedbackRecord>> {
    Ok(Json(caller.app.service.review_feedback(&caller.principal, &message, body.reviewed).await?))
}

/// What users think of answers, what was said last first
///
/// With the agent and the model of each answer, and without its words, which are its owner's. Answers that were taken out of their
/// conversations are in it; those of conversations that were deleted are not.
#[utoipa::path(
    get, path = "/api/v1/feedback", tag = "feedback", operation_id = "list_feedback", params(FeedbackParams, PageParams),
    responses((status = 200, description = "A page", body = ListBody<FeedbackRecord>, headers(("Link" = String)))),
)]
pub(crate) async fn list(
    caller: Caller,
    Params(filter): Params<FeedbackParams>,
    Paging(page): Paging<FeedbackCursor>,
) -> Answer<Response> {
    let FeedbackParams { rating, owner, reviewed } = filter;
    let found = caller.app.service.feedback(&caller.principal, owner.as_deref(), (rating, reviewed), &page).await?;
    let rest = page::query([
        ("rating", rating.map(Rating::as_str)),
        ("owner", owner.as_deref()),
        ("reviewed", reviewed.map(|is| if is { "true" } else { "false" })),
    ]);
    Ok(page::answer(found, page.limit, "/api/v1/feedback", &rest))
}
