//! `/api/v1/runs`: starting, watching and steering runs.

use axum::Json;
use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse as _, Response};
use serde::Deserialize;
use utoipa::{IntoParams, ToSchema};

use crate::domain::ids::{CallId, ConversationId, RunId};
use crate::domain::run::{Run, RunStatus};
use crate::domain::tool::call_record::ToolCallRecord;
use crate::http::options::App;
use crate::http::streams;
use crate::http::streams::delivery::{Delivery, applied};
use crate::http::wire::answer::accepted;
use crate::http::wire::auth::Caller;
use crate::http::wire::etag;
use crate::http::wire::extract::{Id, Ids, Input, OptionalInput, Params, PreferWait, Wants, cursor, query};
use crate::http::wire::page;
use crate::http::wire::page::{PageParams, Paging};
use crate::http::wire::problem::{Answer, Problem};
use crate::http::wire::request::Trace;
use crate::http::wire::types::{AcceptedBody, EmptyBody, EventEnvelope, ListBody, StartRunBody};
use crate::service::{Access, ContinueRun, Cursor, Error, EventPage, RetryCall, RunCursor, RunExplanation, RunFilter, Waited};
use crate::support::clock::UnixMillis;

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct EventParams {
    /// The `seq` of the last event that the client has; the same as the `Last-Event-ID` header.
    #[param(minimum = 0, value_type = Option<i64>)]
    pub after: Option<String>,
    /// `next_cursor` of the page before; the same as `after`.
    pub cursor: Option<String>,
    /// How many events, for JSON pages.
    #[param(minimum = 1, maximum = 100, default = 50)]
    pub limit: Option<u32>,
}

/// A request for the events of a run or a conversation, as a page or a stream.
pub(crate) struct EventsRequest {
    pub app: App,
    pub access: Access,
    pub after: Option<Cursor>,
    pub limit: u32,
    pub wants: Wants,
}

impl FromRequestParts<App> for EventsRequest {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Answer<Self> {
        let access = Access::from_request_parts(parts, app).await?;
        let params: EventParams = query(&parts.uri)?;
        let wants = Wants::of(&parts.headers)?;
        let after = cursor(&parts.headers, params.after.as_deref().or(params.cursor.as_deref()))?;
        Ok(Self { app: app.clone(), access, after, limit: page::limit(params.limit)?, wants })
    }
}

/// Starts a run
///
/// One call makes the conversation (unless it exists), the message and the run. With `Accept: text/event-stream` (or `application/x-ndjson`) the answer is
/// the run's event stream; with `Prefer: wait=N` it is the finished run.
#[utoipa::path(
    post, path = "/api/v1/runs", tag = "runs", operation_id = "start_run", request_body = StartRunBody,
    params(
        ("Prefer" = Option<String>, Header, description = "`wait=N` waits up to N seconds (at most 60)"),
        ("traceparent" = Option<String>, Header, description = "The trace that the log lines of request and run carry"),
    ),
    responses(
        (status = 202, description = "Accepted and stored", body = AcceptedBody, headers(("Location" = String))),
        (status = 200, description = "The run, finished or waiting for a human; or its event stream",
         content((Run = "application/json"), (String = "text/event-stream"), (String = "application/x-ndjson"))),
    ),
)]
pub(crate) async fn start(delivery: Delivery, Input { body, key }: Input<StartRunBody>) -> Answer<Response> {
    let request = body.into_request(delivery.trace.clone());
    delivery.accept(request, key).await
}

/// A run
///
/// With `Prefer: wait=N` the answer comes when the run is over or waits for a human (`approval`, `input`), after N seconds at the latest.
/// A run that waits for a retry or for its budget is waited for.
#[utoipa::path(
    get, path = "/api/v1/runs/{id}", tag = "runs", operation_id = "get_run",
    params(
        ("id" = RunId, Path, description = "The run"),
        ("Prefer" = Option<String>, Header, description = "`wait=N` waits up to N seconds (at most 60)"),
        ("If-None-Match" = Option<String>, Header, description = "The ETag that the client has"),
    ),
    responses(
        (status = 200, description = "The run", body = Run, headers(("ETag" = String))),
        (status = 202, description = "The run, which is still going after the wait", body = Run, headers(("ETag" = String))),
        (status = 304, description = "The client has this state already"),
    ),
)]
pub(crate) async fn get(
    Caller { app, principal }: Caller,
    Id(id): Id<RunId>,
    PreferWait(wait): PreferWait,
    request: HeaderMap,
) -> Answer<Response> {
    let Some(seconds) = wait else {
        let run = app.service.run(&principal, &id).await?;
        return Ok(etag::tagged(&request, StatusCode::OK, &run));
    };
    let mut headers = HeaderMap::new();
    applied(&mut headers, seconds);
    let (status, run) = match app.service.wait_for_run(&principal, &id, seconds).await? {
        Waited::Settled(run) => (StatusCode::OK, run),
        Waited::StillGoing(run) => (StatusCode::ACCEPTED, run),
    };
    Ok((headers, etag::tagged(&request, status, &run)).into_response())
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct RunParams {
    /// Only runs with this status.
    #[param(inline)]
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
    /// Returns the filter, and the query that says the same on the next page.
    fn read(self, conversation: Option<ConversationId>) -> Answer<(RunFilter, String)> {
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

fn time(name: &str, text: Option<&str>) -> Answer<Option<UnixMillis>> {
    let Some(text) = text else { return Ok(None) };
    let time = UnixMillis::from_rfc3339(text);
    Ok(Some(time.ok_or_else(|| Error::invalid(format!("the query's {name} is no time such as 2026-01-31T12:00:00Z")))?))
}

/// The caller's runs, newest first
#[utoipa::path(
    get, path = "/api/v1/runs", tag = "runs", operation_id = "list_runs", params(RunParams, PageParams),
    responses((status = 200, description = "A page", body = ListBody<Run>, headers(("Link" = String)))),
)]
pub(crate) async fn list(caller: Caller, Params(filter): Params<RunParams>, Paging(page): Paging<RunCursor>) -> Answer<Response> {
    let (filter, rest) = filter.read(None)?;
    let found = caller.app.service.runs(&caller.principal, &filter, &page).await?;
    Ok(page::answer(found, page.limit, "/api/v1/runs", &rest))
}

/// The runs of a conversation, newest first
#[utoipa::path(
    get, path = "/api/v1/conversations/{id}/runs", tag = "conversations", operation_id = "list_conversation_runs",
    params(("id" = ConversationId, Path, description = "The conversation"), RunParams, PageParams),
    responses((status = 200, description = "A page", body = ListBody<Run>, headers(("Link" = String)))),
)]
pub(crate) async fn list_of_conversation(
    caller: Caller,
    Id(id): Id<ConversationId>,
    Params(filter): Params<RunParams>,
    Paging(page): Paging<RunCursor>,
) -> Answer<Response> {
    let (filter, rest) = filter.read(Some(id.clone()))?;
    let found = caller.app.service.runs(&caller.principal, &filter, &page).await?;
    Ok(page::answer(found, page.limit, &format!("/api/v1/conversations/{id}/runs"), &rest))
}

/// The events of a run
///
/// A JSON page, or with `Accept: text/event-stream` or `application/x-ndjson` a stream: from the cursor, or from the run's first event, until the run is
/// over. A client that comes back after the end gets 204.
#[utoipa::path(
    get, path = "/api/v1/runs/{id}/events", tag = "runs", operation_id = "run_events",
    params(
        ("id" = RunId, Path, description = "The run"), EventParams,
        ("Last-Event-ID" = Option<String>, Header, description = "The `seq` of the last event that the client has"),
        ("ticket" = Option<String>, Query, description = "Instead of a key: a ticket for this stream (streams only)"),
    ),
    responses(
        (status = 200, description = "Events, oldest first",
         content((ListBody<EventEnvelope> = "application/json"), (String = "text/event-stream"), (String = "application/x-ndjson"))),
        (status = 204, description = "The client has every event and the run is over (streams only)"),
        (status = 410, description = "No events at this cursor (JSON only)", body = crate::domain::problem::ProblemBody,
         content_type = "application/problem+json"),
    ),
)]
pub(crate) async fn events(Id(id): Id<RunId>, request: EventsRequest) -> Answer<Response> {
    let EventsRequest { app, access, after, limit, wants } = request;
    match wants {
        Wants::Stream(framing) => {
            let start = app.service.stream_run(access.principal(), &id, after).await?;
            Ok(streams::respond(&app, access, start, framing))
        }
        Wants::Json => {
            let events = app.service.run_events(access.principal(), &id, after, limit).await?;
            Ok(event_page(&events, limit, &format!("/api/v1/runs/{id}/events")))
        }
    }
}

/// Answers with a page of events, each as it was stored.
pub(crate) fn event_page(page: &EventPage, limit: u32, path: &str) -> Response {
    let envelopes: Vec<String> = page.events.iter().map(|event| event.envelope()).collect();
    let next = page.next.map_or_else(|| "null".to_owned(), |seq| format!("\"{seq}\""));
    let body = format!("{{\"data\":[{}],\"next_cursor\":{next}}}", envelopes.join(","));
    let mut headers = page::next_link(page.next.map(|seq| format!("{path}?limit={limit}&after={seq}")));
    headers.insert(axum::http::header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    (headers, body).into_response()
}

/// Why a run is or is not moving
#[utoipa::path(
    get, path = "/api/v1/runs/{id}/explain", tag = "runs", operation_id = "explain_run",
    params(("id" = RunId, Path, description = "The run")),
    responses((status = 200, description = "What is known", body = RunExplanation)),
)]
pub(crate) async fn explain(caller: Caller, Id(id): Id<RunId>) -> Answer<Json<RunExplanation>> {
    Ok(Json(caller.app.service.explain_run(&caller.principal, &id).await?))
}

/// Cancels a run
///
/// A run that is being worked on ends a moment later: its events say when. A run that is over stays as it is.
#[utoipa::path(
    post, path = "/api/v1/runs/{id}/cancel", tag = "runs", operation_id = "cancel_run", request_body = Option<EmptyBody>,
    params(("id" = RunId, Path, description = "The run")),
    responses((status = 202, description = "The run as it is now", body = Run, headers(("Location" = String)))),
)]
pub(crate) async fn cancel(
    caller: Caller,
    Id(id): Id<RunId>,
    OptionalInput { key, .. }: OptionalInput<EmptyBody>,
) -> Answer<Response> {
    let (run, replay) = caller.app.service.cancel_run(&caller.principal, &id, key).await?;
    Ok(accepted(replay, run))
}

/// Goes on with a run
///
/// A run that waits for a retry tries at once. After a failed run a new one continues with what is stored.
#[utoipa::path(
    post, path = "/api/v1/runs/{id}/resume", tag = "runs", operation_id = "resume_run", request_body = Option<EmptyBody>,
    params(("id" = RunId, Path, description = "The run")),
    responses((status = 202, description = "The run that goes on", body = Run, headers(("Location" = String)))),
)]
pub(crate) async fn resume(
    caller: Caller,
    Id(id): Id<RunId>,
    Trace(trace): Trace,
    OptionalInput { key, .. }: OptionalInput<EmptyBody>,
) -> Answer<Response> {
    let request = ContinueRun { principal: &caller.principal, run: &id, key, trace };
    let (run, replay) = caller.app.service.resume_run(request).await?;
    Ok(accepted(replay, run))
}

/// Answers a message once more
///
/// For a run that has ended and is the newest of its conversation. A new run answers the same message; what was said since is not
/// part of the conversation any more, and its `run.queued` says so. Tools may be called again: what they did is not undone. With
/// `Accept: text/event-stream` (or `application/x-ndjson`) the answer is the new run's event stream; with `Prefer: wait=N` it is the
/// finished run.
#[utoipa::path(
    post, path = "/api/v1/runs/{id}/retry", tag = "runs", operation_id = "retry_run", request_body = Option<EmptyBody>,
    params(
        ("id" = RunId, Path, description = "The run"),
        ("Prefer" = Option<String>, Header, description = "`wait=N` waits up to N seconds (at most 60)"),
    ),
    responses(
        (status = 202, description = "The new run", body = Run, headers(("Location" = String))),
        (status = 200, description = "The new run, finished or waiting for a human; or its event stream",
         content((Run = "application/json"), (String = "text/event-stream"), (String = "application/x-ndjson"))),
    ),
)]
pub(crate) async fn retry(
    Id(id): Id<RunId>,
    delivery: Delivery,
    OptionalInput { key, .. }: OptionalInput<EmptyBody>,
) -> Answer<Response> {
    let (run, replay) = delivery.service().retry_run(delivery.continuing(&id, key)).await?;
    delivery.respond_with(run, replay).await
}

/// A call of a tool
///
/// With all that the tool answered: what models read, and the events show, is cut to `agent.tool_result_chars`. There are no
/// pages of it: an answer is no larger than what a server may send at once.
#[utoipa::path(
    get, path = "/api/v1/runs/{id}/tool-calls/{call_id}", tag = "runs", operation_id = "get_tool_call",
    params(("id" = RunId, Path, description = "The run"), ("call_id" = CallId, Path, description = "The call")),
    responses((status = 200, description = "The call as it stands now", body = ToolCallRecord)),
)]
pub(crate) async fn get_call(caller: Caller, Ids(id, call): Ids<RunId, CallId>) -> Answer<Json<ToolCallRecord>> {
    Ok(Json(caller.app.service.tool_call(&caller.principal, &id, &call).await?))
}

/// Makes a call of a tool once more
///
/// For a call that failed, was denied or cancelled, or whose outcome is unknown, of a run that has ended and is the newest of its
/// conversation. A new run begins with the answer that held the call: the call is made again, the results of its neighbours are kept,
/// and the model goes on from there. What was said since is not part of the conversation any more. The answer has the forms of that
/// of `retry_run`.
#[utoipa::path(
    post, path = "/api/v1/runs/{id}/tool-calls/{call_id}/retry", tag = "runs", operation_id = "retry_tool_call",
    request_body = Option<RetryCall>,
    params(
        ("id" = RunId, Path, description = "The run"), ("call_id" = CallId, Path, description = "The call"),
        ("Prefer" = Option<String>, Header, description = "`wait=N` waits up to N seconds (at most 60)"),
    ),
    responses(
        (status = 202, description = "The new run", body = Run, headers(("Location" = String))),
        (status = 200, description = "The new run, finished or waiting for a human; or its event stream",
         content((Run = "application/json"), (String = "text/event-stream"), (String = "application/x-ndjson"))),
    ),
)]
pub(crate) async fn retry_call(
    Ids(id, call): Ids<RunId, CallId>,
    delivery: Delivery,
    OptionalInput { body, key }: OptionalInput<RetryCall>,
) -> Answer<Response> {
    let (run, replay) = delivery.service().retry_call(delivery.continuing(&id, key), &call, body).await?;
    delivery.respond_with(run, replay).await
}

/// For what a call is taken back.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct UndoCallBody {
    /// For a call that is not `done` and may not have taken effect, and for another try after one that failed, was cancelled or is
    /// unknown: that the call is to be taken back all the same.
    #[serde(default)]
    confirm: bool,
}

/// Takes a call of a tool back
///
/// For a call of a run that has ended, whatever came after it, of a tool whose server has a tool that takes its calls back (`undoable` in
/// `tool.completed` and in the call's result). A new run makes that one call and ends; it has failed if the call did. All rules of calls
/// hold, approvals among them. The model reads of it in the next turn. A call is taken back once; what took it back can be taken back in turn, if
/// its tool has a tool for that. The answer has the forms of that of `retry_run`.
#[utoipa::path(
    post, path = "/api/v1/runs/{id}/tool-calls/{call_id}/undo", tag = "runs", operation_id = "undo_tool_call",
    request_body = Option<UndoCallBody>,
    params(
        ("id" = RunId, Path, description = "The run"), ("call_id" = CallId, Path, description = "The call"),
        ("Prefer" = Option<String>, Header, description = "`wait=N` waits up to N seconds (at most 60)"),
    ),
    responses(
        (status = 202, description = "The new run", body = Run, headers(("Location" = String))),
        (status = 200, description = "The new run, finished or waiting for a human; or its event stream",
         content((Run = "application/json"), (String = "text/event-stream"), (String = "application/x-ndjson"))),
    ),
)]
pub(crate) async fn undo_call(
    Ids(id, call): Ids<RunId, CallId>,
    delivery: Delivery,
    OptionalInput { body, key }: OptionalInput<UndoCallBody>,
) -> Answer<Response> {
    let (run, replay) = delivery.service().undo_call(delivery.continuing(&id, key), &call, body.confirm).await?;
    delivery.respond_with(run, replay).await
}
