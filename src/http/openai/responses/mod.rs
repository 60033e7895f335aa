//! `/v1/responses`: runs as responses.
//!
//! A response is a run, or the part of a run between two answers of its client. It keeps no state of its own: its id derives from
//! the id of the run, and each read translates the log.

pub(in crate::http) mod conversations;
mod create;
pub(in crate::http) mod deletion;
pub(in crate::http) mod input_items;
mod items;
mod object;
mod references;
mod request;
pub(in crate::http) mod socket;
mod translate;

use std::time::Duration;

use axum::Json;
use axum::extract::Path;
use axum::response::{IntoResponse as _, Response};
use serde::Deserialize;
use serde_json::Value;
use tokio::time::timeout;
use utoipa::IntoParams;

pub(in crate::http) use create::{__path_create, create};

use crate::domain::access::principal::Principal;
use crate::domain::agent::AgentProfile;
use crate::domain::problem::ProblemCode;
use crate::domain::run::Run;
use crate::http::clients::pauses::RunPauses;
use crate::http::clients::stream::{self, ChunkTranslator as _};
use crate::http::openai::client_disconnect::GuardedWriter;
use crate::http::openai::events;
use crate::http::openai::responses::object::{ResponseDetails, ResponseId};
use crate::http::openai::responses::translate::{ResponseTranslator, event_of_frame};
use crate::http::options::App;
use crate::http::wire::auth::Caller;
use crate::http::wire::extract::Params;
use crate::http::wire::problem::{HttpResult, Problem};
use crate::service::{Access, Cursor, Error, Reader, StreamStart};

/// How long a request waits until a cancelled run has ended.
const CANCEL_WAIT: Duration = Duration::from_secs(10);

/// Number of events in one read.
const EVENTS: u32 = 500;

/// Number of events to read for the first one of a response. Messages may precede it.
const FIRST_EVENTS: u32 = 100;

async fn find(app: &App, principal: &Principal, id: &str) -> HttpResult<(Run, ResponseDetails)> {
    find_with_pauses(app, principal, id).await.map(|(run, facts, _)| (run, facts))
}

/// Finds the run of a response, with the pauses of the run if the response is not its first one.
async fn find_with_pauses(app: &App, principal: &Principal, id: &str) -> HttpResult<(Run, ResponseDetails, Option<RunPauses>)> {
    let missing = || Problem::new(ProblemCode::NotFound, format!("Response with id {id:?} not found."));
    let Some(ResponseId { run, segment }) = ResponseId::parse(id) else { return Err(missing()) };
    let known = async {
        let found = app.service.run(principal, &run).await?;
        let profile = app.service.run_profile(principal, &run).await?;
        Ok::<_, Error>((found, profile, app.service.deleted_responses(principal, &run).await?))
    };
    match known.await {
        Ok((run, profile, deleted)) => {
            if deleted.contains(&segment) {
                return Err(missing());
            }
            let pauses = match segment {
                0 => None,
                _ => Some(RunPauses::read_with_results(&app.service, principal, &run.id).await?),
            };
            if pauses.as_ref().is_some_and(|pauses| segment > pauses.newest_response()) {
                return Err(missing());
            }
            let facts = details(app, principal, (&run, segment), &profile).await?;
            Ok((run, facts, pauses))
        }
        Err(Error::NotFound(_)) => Err(missing()),
        Err(error) => Err(error.into()),
    }
}

async fn details(
    app: &App,
    principal: &Principal,
    (run, segment): (&Run, u32),
    profile: &AgentProfile,
) -> HttpResult<ResponseDetails> {
    let continued = match segment {
        0 => Value::Null,
        _ => app.service.continued_requests(principal, &run.id).await?.remove(&segment).unwrap_or_default(),
    };
    Ok(ResponseDetails::of(run, segment, profile, &continued))
}

async fn reader(app: &App, principal: &Principal, run: &Run) -> HttpResult<Reader> {
    match app.service.stream_run(principal, &run.id, None).await? {
        StreamStart::Stream(reader) => Ok(reader),
        StreamStart::Finished { .. } => Err(Problem::new(ProblemCode::NotFound, "the run has no events")),
    }
}

/// Returns a response as the log has it now.
async fn stored(app: &App, principal: &Principal, run: &Run, facts: ResponseDetails) -> HttpResult<Value> {
    let mut translator = ResponseTranslator::new(facts, None);
    let mut after = None;
    loop {
        let page = app.service.run_events(principal, &run.id, after, EVENTS).await?;
        for event in &page.events {
            translator.translate(event);
            if translator.is_over() {
                return Ok(translator.response());
            }
        }
        match page.next {
            Some(next) => after = Some(Cursor(next)),
            None => return Ok(translator.response()),
        }
    }
}

/// Fails if the log cannot continue after a frame, for example inside compacted deltas: the client would get their text twice.
///
/// Reads only the first events of the response, because the stream reads all of them later.
async fn check_frame(app: &App, principal: &Principal, run: &Run, segment: u32, number: i64) -> HttpResult<()> {
    let begins_after = match segment.checked_sub(1) {
        None => None,
        Some(earlier) => match RunPauses::read(&app.service, principal, &run.id).await?.end_of_response(earlier) {
            Some(pause) => Some(Cursor(pause)),
            None => return Ok(()),
        },
    };
    let first = app.service.run_events(principal, &run.id, begins_after, FIRST_EVENTS).await?;
    let Some(base) = first.events.iter().find(|event| segment > 0 || event.kind != "message.created") else { return Ok(()) };
    let seq = event_of_frame(base.seq, number);
    match app.service.run_events(principal, &run.id, Some(Cursor(seq)), 1).await {
        Ok(_) => Ok(()),
        Err(Error::CursorGone { .. }) => {
            let detail = format!("no event has the sequence_number {number} any more; read the stream without starting_after");
            Err(ProblemCode::CursorGone.body_about("/starting_after", detail).into())
        }
        Err(error) => Err(error.into()),
    }
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(in crate::http) struct RetrieveParams {
    /// Whether the answer is a stream of the response's events.
    stream: Option<bool>,
    /// The `sequence_number` of the last event that the client has.
    starting_after: Option<i64>,
}

/// Returns a response
///
/// With `stream`, the answer is the stream of its events, from the beginning or after `starting_after`. Status 410 means that the
/// events after `starting_after` were compacted after the retention time. Then read the response from the beginning.
#[utoipa::path(
    get, path = "/v1/responses/{id}", tag = "responses", operation_id = "openai_get_response",
    params(("id" = String, Path, description = "The id of the response"), RetrieveParams),
    responses((status = 200, description = "The response, or a stream of its events",
               content((Object = "application/json"), (String = "text/event-stream")))),
)]
pub(in crate::http) async fn get(
    access: Access,
    axum::extract::State(app): axum::extract::State<App>,
    Path(id): Path<String>,
    Params(params): Params<RetrieveParams>,
) -> HttpResult<Response> {
    let principal = access.principal().clone();
    let (run, facts) = find(&app, &principal, &id).await?;
    if params.stream != Some(true) {
        return Ok(Json(stored(&app, &principal, &run, facts).await?).into_response());
    }
    if let Some(number) = params.starting_after.filter(|number| *number >= 0) {
        check_frame(&app, &principal, &run, facts.segment, number).await?;
    }
    let reader = reader(&app, &principal, &run).await?;
    let translator = ResponseTranslator::new(facts, params.starting_after);
    Ok(stream::respond(&app, access, reader, GuardedWriter { translator, guard: None }))
}

/// Cancels a response
#[utoipa::path(
    post, path = "/v1/responses/{id}/cancel", tag = "responses", operation_id = "openai_cancel_response",
    params(("id" = String, Path, description = "The id of the response")),
    responses((status = 200, description = "The response", body = Object)),
)]
pub(in crate::http) async fn cancel(caller: Caller, Path(id): Path<String>) -> HttpResult<Json<Value>> {
    let Caller { app, principal } = &caller;
    let (run, facts, pauses) = find_with_pauses(app, principal, &id).await?;
    let pauses = match pauses {
        Some(pauses) => pauses,
        None => RunPauses::read_with_results(&app.service, principal, &run.id).await?,
    };
    if facts.segment < pauses.newest_response() {
        // The response has ended, and a later one of the same run goes on.
        return Ok(Json(stored(app, principal, &run, facts).await?));
    }
    app.service.cancel_run(principal, &run.id, None).await?;
    let mut translator = ResponseTranslator::new(facts, None);
    let ended = timeout(CANCEL_WAIT, events::complete(app, reader(app, principal, &run).await?, &mut translator)).await;
    if let Ok(Err(problem)) = ended {
        return Err(problem.into());
    }
    Ok(Json(translator.response()))
}

/// Names the newest response in the error about an active run, because requests of OpenAI have no `on_busy`.
async fn unfinished(app: &App, principal: &Principal, error: Error) -> Problem {
    let Error::RunActive(run) = error else { return error.into() };
    match RunPauses::read_with_results(&app.service, principal, &run).await {
        Ok(pauses) => unfinished_response(&ResponseId { run, segment: pauses.newest_response() }),
        // The run is gone with its conversation.
        Err(problem) => problem,
    }
}

fn unfinished_response(response: &ResponseId) -> Problem {
    let detail = format!("the response {response} of this conversation is unfinished; wait for its end, or cancel it");
    Problem::new(ProblemCode::RunActive, detail)
}
