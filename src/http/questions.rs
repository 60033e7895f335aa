//! `/api/v1/input-requests`: answers to what a run asks a human.

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse as _, Response};

use super::auth::Caller;
use super::extract::{Id, Input, RequestBody};
use super::options::App;
use super::problem::Answer;
use super::runs::replayed;
use crate::domain::ids::InputId;
use crate::domain::input::{InputAnswer, InputRecord};

impl RequestBody for InputAnswer {}

/// Answers a question
///
/// A run that has to ask a human is `waiting` for `input`, and the event `input.requested` has the question with the answers that
/// it allows. A question takes one answer; the run goes on with it.
#[utoipa::path(
    post, path = "/api/v1/input-requests/{id}", tag = "runs", operation_id = "answer_input_request", request_body = InputAnswer,
    params(("id" = InputId, Path, description = "The question")),
    responses((status = 200, description = "The question with its answer", body = InputRecord)),
)]
pub(crate) async fn answer(
    State(app): State<App>,
    Caller(principal): Caller,
    Id(id): Id<InputId>,
    Input { body, key }: Input<InputAnswer>,
) -> Answer<Response> {
    let (record, replay) = app.service.resolve_input(&principal, &id, body, key).await?;
    Ok((replayed(replay), Json(record)).into_response())
}
