//! `/api/v1/input-requests`: questions of runs to humans, and the answers.

use axum::Json;
use axum::response::{IntoResponse as _, Response};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::{IntoParams, ToSchema};

use crate::domain::ids::InputId;
use crate::domain::run::input::{InputAnswer, InputRecord, InputState};
use crate::http::wire::auth::Caller;
use crate::http::wire::extract::{Id, Input, Params};
use crate::http::wire::idempotency::replayed;
use crate::http::wire::page::{self, PageParams, Paging};
use crate::http::wire::problem::Answer;
use crate::http::wire::types::ListBody;
use crate::service::InputCursor;

/// The answer to a question.
#[serde_with::skip_serializing_none]
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct AnswerBody {
    /// The `value` of one of the question's choices. Questions of a model can be answered in words alone.
    #[serde(skip_serializing_if = "String::is_empty", default, alias = "action")]
    choice: String,
    /// What else is to be said. The model reads it.
    text: Option<String>,
    /// The form that is asked for, filled in, if `choice` (or `action`, which is the same) is `accept`.
    #[schema(value_type = Option<Object>)]
    content: Option<Value>,
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct FilterParams {
    /// Only those that stand there; `pending` for those that want an answer.
    status: Option<InputState>,
}

/// Questions of runs, newest first
#[utoipa::path(
    get, path = "/api/v1/input-requests", tag = "runs", operation_id = "list_input_requests", params(FilterParams, PageParams),
    responses((status = 200, description = "A page", body = ListBody<InputRecord>, headers(("Link" = String)))),
)]
pub(crate) async fn list(
    caller: Caller,
    Params(filter): Params<FilterParams>,
    Paging(page): Paging<InputCursor>,
) -> Answer<Response> {
    let found = caller.app.service.input_requests(&caller.principal, filter.status, &page).await?;
    let rest = page::query([("status", filter.status.map(InputState::as_str))]);
    Ok(page::answer(found, page.limit, "/api/v1/input-requests", &rest))
}

/// A question
#[utoipa::path(
    get, path = "/api/v1/input-requests/{id}", tag = "runs", operation_id = "get_input_request",
    params(("id" = InputId, Path, description = "The question")),
    responses((status = 200, description = "The question, with its answer if there is one", body = InputRecord)),
)]
pub(crate) async fn get(caller: Caller, Id(id): Id<InputId>) -> Answer<Json<InputRecord>> {
    Ok(Json(caller.app.service.input_request(&caller.principal, &id).await?))
}

/// Answers a question
///
/// A run that has to ask a human is `waiting` for `input`, and the event `input.requested` has the question with the answers that
/// it allows. A question takes one answer; the run goes on with it.
#[utoipa::path(
    post, path = "/api/v1/input-requests/{id}", tag = "runs", operation_id = "answer_input_request", request_body = AnswerBody,
    params(("id" = InputId, Path, description = "The question")),
    responses((status = 200, description = "The question with its answer", body = InputRecord)),
)]
pub(crate) async fn answer(caller: Caller, Id(id): Id<InputId>, Input { body, key }: Input<AnswerBody>) -> Answer<Response> {
    let answer = InputAnswer { content: body.content, ..InputAnswer::new(body.choice, body.text) };
    let (record, replay) = caller.app.service.resolve_input(&caller.principal, &id, answer, key).await?;
    Ok((replayed(replay), Json(record)).into_response())
}
