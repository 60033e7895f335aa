//! `/api/v1/runs`: starts, reads and controls runs.

use axum::Json;
use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse as _, Response};
use serde::Deserialize;
use utoipa::openapi::path::{Parameter, ParameterBuilder, ParameterIn};
use utoipa::{IntoParams, PartialSchema as _, ToSchema};

use crate::domain::event::EventBody;
use crate::domain::ids::{CallId, ConversationId, RunId};
use crate::domain::run::step_request::StepRequest;
use crate::domain::run::{Run, RunStatus};
use crate::domain::tool::call_record::ToolCallRecord;
use crate::http::options::App;
use crate::http::streams;
use crate::http::streams::cursor::read_cursor;
use crate::http::streams::preferred_response::{RunResponder, RunResponses, add_preference_applied};
use crate::http::streams::render::StreamEvent;
use crate::http::wire::auth::Caller;
use crate::http::wire::extract::{Id, Ids, Input, OptionalInput, Params, PreferWait, ResponseFormat, header, query};
use crate::http::wire::page::{ListRequest, PageParams, Paging};
use crate::http::wire::problem::{HttpResult, Problem};
use crate::http::wire::responses::accepted;
use crate::http::wire::types::{AcceptedBody, EmptyBody, ListBody, StartRunBody, ToolResultBody, ToolResultsBody};
use crate::http::wire::{etag, page};
use crate::service::{Access, Cursor, Error, EventPage, RetryCall, RetryRun, RunCursor, RunExplanation, RunFilter, WaitOutcome};
use crate::support::clock::UnixMillis;

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct EventParams {
    /// The `seq` of the last event that the client has. Equivalent to the `Last-Event-ID` header.
    #[param(minimum = 0, value_type = Option<i64>)]
    pub after: Option<String>,
    /// `next_cursor` of the previous page. Equivalent to `after`.
    pub cursor: Option<String>,
    /// Maximum number of events of a JSON page.
    #[param(minimum = 1, maximum = 100, default = 50)]
    pub limit: Option<u32>,
}

/// A request for the events of a run or a conversation, as a page or a stream.
pub(crate) struct EventsRequest {
    pub app: App,
    pub access: Access,
    pub after: Option<Cursor>,
    pub limit: u32,
    pub wants: ResponseFormat,
}

impl IntoParams for EventsRequest {
    fn into_params(parameter_in: impl Fn() -> Option<ParameterIn>) -> Vec<Parameter> {
        let cursor = "The `seq` of the last event that the client has";
        let ticket = ParameterBuilder::new()
            .name("ticket")
            .parameter_in(ParameterIn::Query)
            .description(Some("A ticket for this stream, instead of a key (streams only)"))
            .schema(Some(String::schema()));
        let mut parameters = EventParams::into_params(parameter_in);
        parameters.extend([header("Last-Event-ID", cursor), ticket.build()]);
        parameters
    }
}

impl FromRequestParts<App> for EventsRequest {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> HttpResult<Self> {
        let access = Access::from_request_parts(parts, app).await?;
        let params: EventParams = query(&parts.uri)?;
        let wants = ResponseFormat::of(&parts.headers)?;
        let after = read_cursor(&parts.headers, params.after.as_deref().or(params.cursor.as_deref()))?;
        Ok(Self { app: app.clone(), access, after, limit: page::limit(params.limit)?, wants })
    }
}

/// Starts a run
///
/// Creates the message and the run, and also the conversation if it does not exist. With `Accept: text/event-stream` or
/// `application/x-ndjson`, the response is the run's event stream. With `Prefer: wait=N`, the server first waits up to N seconds
/// until the run ends or waits for an answer.
#[utoipa::path(
    post, path = "/api/v1/runs", tag = "runs", operation_id = "start_run", request_body = StartRunBody,
    params(RunResponder), responses(RunResponses<AcceptedBody>),
)]
pub(crate) async fn start(responder: RunResponder, Input { body, key }: Input<StartRunBody>) -> HttpResult<Response> {
    let request = body.into_request(responder.trace.clone());
    responder.start_run(request, key).await
}

/// Returns a run
///
/// With `Prefer: wait=N`, the server responds after at most N seconds, or earlier if the run ends or waits for an answer
/// (`approval`, `input`, `client_tool`). It does not respond early if the run waits for a retry or for its budget.
#[utoipa::path(
    get, path = "/api/v1/runs/{id}", tag = "runs", operation_id = "get_run",
    params(
        ("id" = RunId, Path, description = "The id of the run"),
        ("Prefer" = Option<String>, Header, description = "`wait=N` waits up to N seconds (at most 60)"),
        ("If-None-Match" = Option<String>, Header, description = "The ETag of the client's copy"),
    ),
    responses(
        (status = 200, description = "The run", body = Run, headers(("ETag" = String))),
        (status = 202, description = "The run, which is still active after the wait", body = Run, headers(("ETag" = String))),
        (status = 304, description = "The client already has the current state"),
    ),
)]
pub(crate) async fn get(
    Caller { app, principal }: Caller,
    Id(id): Id<RunId>,
    PreferWait(wait): PreferWait,
    request: HeaderMap,
) -> HttpResult<Response> {
    let Some(seconds) = wait else {
        let run = app.service.run(&principal, &id).await?;
        return Ok(etag::tagged(&request, StatusCode::OK, &run));
    };
    let mut headers = HeaderMap::new();
    add_preference_applied(&mut headers, seconds);
    let (status, run) = match app.service.wait_for_run(&principal, &id, seconds).await? {
        WaitOutcome::EndedOrWaiting(run) => (StatusCode::OK, run),
        WaitOutcome::TimedOut(run) => (StatusCode::ACCEPTED, run),
    };
    Ok((headers, etag::tagged(&request, status, &run)).into_response())
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct RunParams {
    /// Only runs with this status.
    status: Option<RunStatus>,
    /// Only runs of the agent with this name.
    #[param(max_length = 200)]
    agent: Option<String>,
    /// Only runs that were accepted at this time or later, RFC 3339.
    #[param(format = DateTime)]
    created_after: Option<String>,
    /// Only runs that were accepted before this time, RFC 3339.
    #[param(format = DateTime)]
    created_before: Option<String>,
}

impl RunParams {
    /// Returns the filter, and the query that selects the same rows on the next page.
    fn read(self, conversation: Option<ConversationId>) -> HttpResult<(RunFilter, String)> {
        let Self { status, agent, created_after, created_before } = self;
        let rest = page::query([
            ("status", status.map(RunStatus::as_str)),
            ("agent", agent.as_deref()),
            ("created_after", created_after.as_deref()),
            ("created_before", created_before.as_deref()),
        ]);
        let filter = RunFilter {
            conversation,
            status,
            created_from: time("created_after", created_after.as_deref())?,
            created_before: time("created_before", created_before.as_deref())?,
            agent,
        };
        Ok((filter, rest))
    }
}

fn time(name: &str, text: Option<&str>) -> HttpResult<Option<UnixMillis>> {
    let Some(text) = text else { return Ok(None) };
    let time = UnixMillis::from_rfc3339(text);
    Ok(Some(time.ok_or_else(|| Error::invalid(format!("the query parameter {name} must be a time such as 2026-01-31T12:00:00Z")))?))
}

/// Lists the caller's runs, newest first
#[utoipa::path(
    get, path = "/api/v1/runs", tag = "runs", operation_id = "list_runs", params(RunParams, PageParams),
    responses((status = 200, description = "A page of the list", body = ListBody<Run>)),
)]
pub(crate) async fn list(ListRequest { caller, filter, page }: ListRequest<RunParams, RunCursor>) -> HttpResult<Response> {
    let (filter, rest) = filter.read(None)?;
    let found = caller.app.service.runs(&caller.principal, &filter, &page).await?;
    Ok(page::answer(found, page.limit, "/api/v1/runs", &rest))
}

/// Lists the runs of a conversation, newest first
#[utoipa::path(
    get, path = "/api/v1/conversations/{id}/runs", tag = "conversations", operation_id = "list_conversation_runs",
    params(("id" = ConversationId, Path, description = "The id of the conversation"), RunParams, PageParams),
    responses((status = 200, description = "A page of the list", body = ListBody<Run>)),
)]
pub(crate) async fn list_of_conversation(
    caller: Caller,
    Id(id): Id<ConversationId>,
    Params(filter): Params<RunParams>,
    Paging(page): Paging<RunCursor>,
) -> HttpResult<Response> {
    let (filter, rest) = filter.read(Some(id.clone()))?;
    let found = caller.app.service.runs(&caller.principal, &filter, &page).await?;
    Ok(page::answer(found, page.limit, &format!("/api/v1/conversations/{id}/runs"), &rest))
}

/// Reads the events of a run
///
/// The response is a JSON page. With `Accept: text/event-stream` or `application/x-ndjson`, it is a stream. The stream starts at
/// the cursor or with the run's first event, and ends with the run. A client that reconnects after the end gets status 204.
#[utoipa::path(
    get, path = "/api/v1/runs/{id}/events", tag = "runs", operation_id = "run_events",
    params(("id" = RunId, Path, description = "The id of the run"), EventsRequest),
    responses(
        (status = 200, description = "Events, oldest first. Each `data` field or line of a stream is one event",
         content((ListBody<EventBody> = "application/json"), (StreamEvent = "text/event-stream"), (StreamEvent = "application/x-ndjson"))),
        (status = 204, description = "The run has ended and the client has all events (streams only)"),
    ),
)]
pub(crate) async fn events(Id(id): Id<RunId>, request: EventsRequest) -> HttpResult<Response> {
    let EventsRequest { app, access, after, limit, wants } = request;
    match wants {
        ResponseFormat::Stream(framing) => {
            let start = app.service.stream_run(access.principal(), &id, after).await?;
            Ok(streams::respond(&app, access, start, framing))
        }
        ResponseFormat::Json => {
            let events = app.service.run_events(access.principal(), &id, after, limit).await?;
            Ok(event_page(&events, limit, &format!("/api/v1/runs/{id}/events")))
        }
    }
}

/// Responds with a page of events, each as stored.
pub(crate) fn event_page(page: &EventPage, limit: u32, path: &str) -> Response {
    let envelopes: Vec<String> = page.events.iter().map(|event| event.envelope()).collect();
    let next = page.next.map_or_else(|| "null".to_owned(), |seq| format!("\"{seq}\""));
    let body = format!("{{\"data\":[{}],\"next_cursor\":{next}}}", envelopes.join(","));
    let mut headers = page::next_link(page.next.map(|seq| format!("{path}?limit={limit}&after={seq}")));
    headers.insert(axum::http::header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    (headers, body).into_response()
}

/// Explains the progress of a run
#[utoipa::path(
    get, path = "/api/v1/runs/{id}/explain", tag = "runs", operation_id = "explain_run",
    params(("id" = RunId, Path, description = "The id of the run")),
    responses((status = 200, description = "The explanation of the run's progress", body = RunExplanation)),
)]
pub(crate) async fn explain(caller: Caller, Id(id): Id<RunId>) -> HttpResult<Json<RunExplanation>> {
    Ok(Json(caller.app.service.explain_run(&caller.principal, &id).await?))
}

/// Returns the request of a model step
///
/// The response contains the last request of the step, before the provider's dialect changes its form.
#[utoipa::path(
    get, path = "/api/v1/runs/{id}/steps/{step}/request", tag = "runs", operation_id = "get_step_request",
    params(
        ("id" = RunId, Path, description = "The id of the run"),
        ("step" = u32, Path, description = "The number of a model step, from `step.started`"),
    ),
    responses((status = 200, description = "The request of the step", body = StepRequest)),
)]
pub(crate) async fn step_request(caller: Caller, Ids(id, step): Ids<RunId, u32>) -> HttpResult<Json<StepRequest>> {
    Ok(Json(caller.app.service.step_request(&caller.principal, &id, step).await?))
}

/// Cancels a run
///
/// A run that a worker holds ends a moment later, and its events say when. A run that has ended stays unchanged.
#[utoipa::path(
    post, path = "/api/v1/runs/{id}/cancel", tag = "runs", operation_id = "cancel_run",
    params(("id" = RunId, Path, description = "The id of the run")),
    responses((status = 202, description = "The current state of the run", body = Run, headers(("Location" = String)))),
)]
pub(crate) async fn cancel(
    caller: Caller,
    Id(id): Id<RunId>,
    OptionalInput { key, .. }: OptionalInput<EmptyBody>,
) -> HttpResult<Response> {
    let (run, replay) = caller.app.service.cancel_run(&caller.principal, &id, key).await?;
    Ok(accepted(replay, run))
}

/// Resumes a run
///
/// A run that waits for a retry or for its budget tries again at once. After a failed run, a new run continues from the stored
/// state. The response has the same forms as the response of `retry_run`.
#[utoipa::path(
    post, path = "/api/v1/runs/{id}/resume", tag = "runs", operation_id = "resume_run",
    params(
        ("id" = RunId, Path, description = "The id of the run"),
        ("Prefer" = Option<String>, Header, description = "`wait=N` waits up to N seconds (at most 60)"),
    ),
    responses(
        (status = 202, description = "The run that continues", body = Run, headers(("Location" = String))),
        (status = 200, description = "The run that continues, if it has ended or waits for a human; or its event stream",
         content((Run = "application/json"), (String = "text/event-stream"), (String = "application/x-ndjson"))),
    ),
)]
pub(crate) async fn resume(
    Id(id): Id<RunId>,
    responder: RunResponder,
    OptionalInput { key, .. }: OptionalInput<EmptyBody>,
) -> HttpResult<Response> {
    let (run, replay) = responder.service().resume_run(responder.continue_request(&id, key)).await?;
    responder.respond_with(run, replay).await
}

/// Retries a run
///
/// The run must have ended and be the newest of its conversation. A new run answers the same message. The messages after that
/// message leave the conversation, and the new run's `run.queued` event says so. Tools may be called again: their earlier effects
/// are not undone. With `Accept: text/event-stream` or `application/x-ndjson`, the response is the new run's event stream. With
/// `Prefer: wait=N`, the server first waits up to N seconds until the new run ends or waits for an answer.
#[utoipa::path(
    post, path = "/api/v1/runs/{id}/retry", tag = "runs", operation_id = "retry_run", request_body = Option<RetryRun>,
    params(("id" = RunId, Path, description = "The id of the run"), RunResponder), responses(RunResponses<Run>),
)]
pub(crate) async fn retry(
    Id(id): Id<RunId>,
    responder: RunResponder,
    OptionalInput { body, key }: OptionalInput<RetryRun>,
) -> HttpResult<Response> {
    let (run, replay) = responder.service().retry_run(responder.continue_request(&id, key), body).await?;
    responder.respond_with(run, replay).await
}

/// Stores results of client tools
///
/// A run whose model calls a client tool is `waiting` for `client_tool`. The event `tool.requested` contains the call. A call
/// accepts one result, and the run continues when it has the results of all its calls. A call without a result expires after the
/// agent's `ask_expires_ms`.
#[utoipa::path(
    post, path = "/api/v1/runs/{id}/tool-results", tag = "runs", operation_id = "store_tool_results", request_body = ToolResultsBody,
    params(("id" = RunId, Path, description = "The id of the run")),
    responses((status = 202, description = "The run, which continues", body = Run, headers(("Location" = String)))),
)]
pub(crate) async fn store_results(
    caller: Caller,
    Id(id): Id<RunId>,
    Input { body, key }: Input<ToolResultsBody>,
) -> HttpResult<Response> {
    let results = body.results.into_iter().map(ToolResultBody::into_result).collect();
    let (run, replay) = caller.app.service.store_tool_results(&caller.principal, &id, results, key).await?;
    Ok(accepted(replay, run))
}

/// The tool call in a path.
#[derive(IntoParams)]
#[into_params(parameter_in = Path)]
#[expect(dead_code, reason = "Ids reads the path; this is its description")]
struct CallPath {
    /// The id of the run
    id: RunId,
    /// The id of the call.
    call_id: CallId,
}

/// Returns a tool call
///
/// The response contains the complete answer of the tool. Models and events receive it cut to `agent.tool_result_chars`. The size
/// of a tool's answer is limited, so the response has no pages.
#[utoipa::path(
    get, path = "/api/v1/runs/{id}/tool-calls/{call_id}", tag = "runs", operation_id = "get_tool_call",
    params(CallPath),
    responses((status = 200, description = "The current state of the call", body = ToolCallRecord)),
)]
pub(crate) async fn get_call(caller: Caller, Ids(id, call): Ids<RunId, CallId>) -> HttpResult<Json<ToolCallRecord>> {
    Ok(Json(caller.app.service.tool_call(&caller.principal, &id, &call).await?))
}

/// Retries a tool call
///
/// The call must have failed, been denied or cancelled, or have an unknown outcome. Its run must have ended and be the newest of
/// its conversation. A new run starts with the answer that contains the call. It makes the call again and keeps the results of the
/// other calls. The model continues from there. Later messages leave the conversation. The response has the same forms as the
/// response of `retry_run`.
#[utoipa::path(
    post, path = "/api/v1/runs/{id}/tool-calls/{call_id}/retry", tag = "runs", operation_id = "retry_tool_call",
    request_body = Option<RetryCall>, params(CallPath, RunResponder), responses(RunResponses<Run>),
)]
pub(crate) async fn retry_call(
    Ids(id, call): Ids<RunId, CallId>,
    responder: RunResponder,
    OptionalInput { body, key }: OptionalInput<RetryCall>,
) -> HttpResult<Response> {
    let (run, replay) = responder.service().retry_call(responder.continue_request(&id, key), &call, body).await?;
    responder.respond_with(run, replay).await
}

/// The options of an undo.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct UndoCallBody {
    /// Confirms the undo. Required if the call is not `done` and may not have taken effect. Also required for another attempt after
    /// an undo that failed, was cancelled, or has an unknown outcome.
    #[serde(default)]
    confirm: bool,
}

/// Undoes a tool call
///
/// The call's run must have ended, but need not be the newest. The call's MCP server must have a tool that undoes it: see
/// `undoable` in `tool.completed` and in the call's result. A new run makes that one call and ends. It fails if the call fails. All
/// rules for tool calls apply, approvals included. The model reads about the undo in the next run. A call can be undone once. An
/// undo call can itself be undone, if its tool has an undo tool. The response has the same forms as the response of `retry_run`.
#[utoipa::path(
    post, path = "/api/v1/runs/{id}/tool-calls/{call_id}/undo", tag = "runs", operation_id = "undo_tool_call",
    request_body = Option<UndoCallBody>, params(CallPath, RunResponder), responses(RunResponses<Run>),
)]
pub(crate) async fn undo_call(
    Ids(id, call): Ids<RunId, CallId>,
    responder: RunResponder,
    OptionalInput { body, key }: OptionalInput<UndoCallBody>,
) -> HttpResult<Response> {
    let (run, replay) = responder.service().undo_call(responder.continue_request(&id, key), &call, body.confirm).await?;
    responder.respond_with(run, replay).await
}
