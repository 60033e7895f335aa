//! `/copilotkit`: the routes of CopilotKit's runtime, with the agents of this server.

use axum::Json;
use axum::extract::{Path, Request, State};
use axum::http::HeaderMap;
use axum::response::Response;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::messages::ag_ui_messages;
use super::request::RunInput;
use super::routes::{self, connect_stream, find_run};
use crate::http::api_router::{ApiRouter, routes};
use crate::http::clients::body;
use crate::http::clients::thread::Thread;
use crate::http::options::App;
use crate::http::wire::auth::Caller;
use crate::http::wire::extract::{Input, OptionalInput};
use crate::http::wire::problem::HttpResult;
use crate::http::wire::request::Trace;
use crate::service::{Access, AgentCursor, AnyAgent, PageRequest};

const MAX_AGENTS: u32 = 100;

pub(super) fn routes() -> ApiRouter {
    ApiRouter::new().routes(routes!(info)).routes(routes!(run)).routes(routes!(connect)).routes(routes!(stop))
}

/// Starts, continues or joins a run
#[utoipa::path(
    post, path = "/copilotkit/agent/{agent}/run", tag = "copilotkit", operation_id = "copilotkit_run", request_body = RunInput,
    params(("agent" = String, Path, description = "The agent by name or id")),
    responses((status = 200, description = "The events of the run", body = String, content_type = "text/event-stream")),
)]
async fn run(
    app: State<App>,
    access: Access,
    trace: Trace,
    agent: Path<String>,
    headers: HeaderMap,
    request: Request,
) -> HttpResult<Response> {
    routes::run(app, access, trace, agent, headers, request).await
}

/// Lists the agents
#[utoipa::path(
    get, path = "/copilotkit/info", tag = "copilotkit", operation_id = "copilotkit_info",
    responses((status = 200, description = "The agents, as the client of the runtime expects them", body = Object)),
)]
async fn info(caller: Caller) -> HttpResult<Json<Value>> {
    let page = PageRequest::<AgentCursor> { limit: MAX_AGENTS, after: None };
    let found = caller.app.service.agents(&caller.principal, &page).await?;
    let agents: Map<String, Value> = found
        .items
        .iter()
        .map(|view| {
            let (name, description) = match &view.agent {
                AnyAgent::Stored(record) => (record.name.as_str(), record.description.as_str()),
                AnyAgent::Preset(preset) => (preset.name, preset.description.as_str()),
                AnyAgent::Default(name) => (name.as_str(), "The agent of the server's settings"),
            };
            (name.to_owned(), json!({ "name": name, "description": description, "className": "HttpAgent" }))
        })
        .collect();
    let version = env!("CARGO_PKG_VERSION");
    Ok(Json(json!({ "version": version, "agents": agents, "audioFileTranscriptionEnabled": false })))
}

/// Streams the messages of a thread, and then its active run
#[utoipa::path(
    post, path = "/copilotkit/agent/{agent}/connect", tag = "copilotkit", operation_id = "copilotkit_connect",
    request_body = RunInput, params(("agent" = String, Path, description = "Any agent")),
    responses((status = 200, description = "The events", body = String, content_type = "text/event-stream")),
)]
async fn connect(State(app): State<App>, access: Access, Trace(trace): Trace, request: Request) -> HttpResult<Response> {
    let Input { body, .. } = body::read::<RunInput>(request, &app, &access).await?;
    let thread = Thread::new(&app, access, trace, ("threadId", &body.thread_id))?;
    let found = thread.history().await?;
    let (row, messages) = match &found {
        Some((row, messages)) => (Some(row), messages.as_slice()),
        None => (None, [].as_slice()),
    };
    let active = row.and_then(|row| row.active_run_id.clone());
    let head = row.map_or(0, |row| row.last_seq);
    let shown = ag_ui_messages(messages, active.as_ref());
    connect_stream(thread, (active, head), body, shown).await
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct StopBody {
    run_id: Option<String>,
}

/// Cancels the run of a thread that the body names, or else the active run
#[utoipa::path(
    post, path = "/copilotkit/agent/{agent}/stop/{thread}", tag = "copilotkit", operation_id = "copilotkit_stop",
    params(("agent" = String, Path, description = "Any agent"), ("thread" = String, Path, description = "The client's name of the thread")),
    responses((status = 200, description = "Whether a run was active", body = Object)),
)]
async fn stop(
    State(app): State<App>,
    access: Access,
    Trace(trace): Trace,
    Path((_agent, thread)): Path<(String, String)>,
    OptionalInput { body, .. }: OptionalInput<StopBody>,
) -> HttpResult<Json<Value>> {
    let thread = Thread::new(&app, access, trace, ("threadId", &thread))?;
    let active = thread.row().await?.and_then(|row| row.active_run_id);
    let named = match &body.run_id {
        Some(name) => find_run(&app, thread.principal(), name).await?,
        None => None,
    };
    let run = match named {
        // A late stop must not cancel the run after the named one.
        Some(run) => Some(run).filter(|run| run.conversation_id == thread.id && !run.status.is_terminal()).map(|run| run.id),
        // A request with answers continues a run that has the name of an earlier request.
        None => active,
    };
    if let Some(run) = &run {
        thread.service().cancel_run(thread.principal(), run, None).await?;
    }
    Ok(Json(json!({ "stopped": run.is_some() })))
}
