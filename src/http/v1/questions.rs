//! `/api/v1/input-requests`: questions of runs to humans, and the answers.

use axum::Json;
use axum::response::{IntoResponse as _, Response};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::{IntoParams, ToSchema};

use crate::domain::ids::{ConversationId, InputId};
use crate::domain::run::question::{InputAnswer, InputRecord, InputState};
use crate::http::wire::auth::Caller;
use crate::http::wire::extract::{Id, Input};
use crate::http::wire::idempotency_header::replayed;
use crate::http::wire::page::{self, ListRequest, PageParams};
use crate::http::wire::problem::HttpResult;
use crate::http::wire::types::ListBody;
use crate::service::InputCursor;

/// The answer to a question.
#[serde_with::skip_serializing_none]
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct AnswerBody {
    /// The `value` of one of the question's choices. Optional if a question of a model is answered with `text`.
    #[serde(skip_serializing_if = "String::is_empty", default, alias = "action")]
    choice: String,
    /// Additional text for the model.
    text: Option<String>,
    /// The completed form, if `choice` (or its alias `action`) is `accept`.
    #[schema(value_type = Option<Object>)]
    content: Option<Value>,
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct FilterParams {
    /// Only questions in this state. `pending` selects questions that wait for an answer.
    status: Option<InputState>,
    /// Only questions of this conversation.
    conversation_id: Option<ConversationId>,
}

/// Lists questions of runs, newest first
#[utoipa::path(
    get, path = "/api/v1/input-requests", tag = "runs", operation_id = "list_input_requests", params(FilterParams, PageParams),
    responses((status = 200, description = "A page of the list", body = ListBody<InputRecord>)),
)]
pub(crate) async fn list(ListRequest { caller, filter, page }: ListRequest<FilterParams, InputCursor>) -> HttpResult<Response> {
    let found = caller.app.service.input_requests(&caller.principal, filter.status, filter.conversation_id.as_ref(), &page).await?;
    let rest = page::query([
        ("status", filter.status.map(InputState::as_str)),
        ("conversation_id", filter.conversation_id.as_ref().map(ConversationId::as_str)),
    ]);
    Ok(page::answer(found, page.limit, "/api/v1/input-requests", &rest))
}

/// Returns a question
#[utoipa::path(
    get, path = "/api/v1/input-requests/{id}", tag = "runs", operation_id = "get_input_request",
    params(("id" = InputId, Path, description = "The id of the question")),
    responses((status = 200, description = "The question, with its answer if it is answered", body = InputRecord)),
)]
pub(crate) async fn get(caller: Caller, Id(id): Id<InputId>) -> HttpResult<Json<InputRecord>> {
    Ok(Json(caller.app.service.input_request(&caller.principal, &id).await?))
}

/// Answers a question
///
/// A run that asks a human is `waiting` for `input`. The event `input.requested` contains the question and its allowed answers. A
/// question accepts one answer, and the run then continues with it.
#[utoipa::path(
    post, path = "/api/v1/input-requests/{id}", tag = "runs", operation_id = "answer_input_request", request_body = AnswerBody,
    params(("id" = InputId, Path, description = "The id of the question")),
    responses((status = 200, description = "The question with its answer", body = InputRecord)),
)]
pub(crate) async fn answer(caller: Caller, Id(id): Id<InputId>, Input { body, key }: Input<AnswerBody>) -> HttpResult<Response> {
    let answer = InputAnswer { content: body.content, ..InputAnswer::new(body.choice, body.text) };
    let (record, replay) = caller.app.service.resolve_input(&caller.principal, &id, answer, key).await?;
    Ok((replayed(replay), Json(record)).into_response())
}
