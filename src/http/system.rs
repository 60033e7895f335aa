//! Tools, health, metrics and the pages that explain the API.

use axum::Json;
use axum::extract::{Path, State};
use axum::http::HeaderValue;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use serde_json::json;

use crate::domain::problem::ProblemCode;
use crate::domain::tool::tool_review::ToolReviewStatus;
use crate::http::options::App;
use crate::http::wire::auth::Caller;
use crate::http::wire::problem::{HttpResult, Problem};
use crate::http::wire::types::ToolsBody;
use crate::service::Error;

const PING_LIMIT: std::time::Duration = std::time::Duration::from_secs(2);

/// Lists the tools that are offered
#[utoipa::path(
    get, path = "/api/v1/tools", tag = "tools", operation_id = "list_tools",
    responses((status = 200, description = "The tools and the state of their MCP servers", body = ToolsBody)),
)]
pub(crate) async fn tools(caller: Caller) -> HttpResult<Json<ToolsBody>> {
    let (data, servers) = caller.app.service.tools(&caller.principal).await;
    let changed = caller.app.service.tool_reviews(&caller.principal, Some(ToolReviewStatus::Changed)).await?;
    Ok(Json(ToolsBody { data, servers, changed }))
}

/// Reports whether the process is up
#[utoipa::path(
    get, path = "/healthz", tag = "system", operation_id = "health", security(()),
    responses((status = 200, description = "The process is up", body = Object)),
)]
pub(crate) async fn healthz() -> Json<serde_json::Value> {
    Json(json!({ "status": "ok" }))
}

/// Reports whether the server accepts requests
///
/// The server is ready if the database answers and accepts writes, and the server is not shutting down.
#[utoipa::path(
    get, path = "/readyz", tag = "system", operation_id = "ready", security(()),
    responses((status = 200, description = "The server accepts requests", body = Object)),
)]
pub(crate) async fn readyz(State(app): State<App>) -> HttpResult<Json<serde_json::Value>> {
    if app.options.unready.is_cancelled() {
        return Err(Problem::new(ProblemCode::Unavailable, "the server is shutting down"));
    }
    let ping = tokio::time::timeout(PING_LIMIT, app.service.ping());
    match ping.await {
        Ok(Ok(())) => Ok(Json(json!({ "status": "ready" }))),
        Ok(Err(_)) => Err(Problem::new(ProblemCode::Unavailable, "the database is unreachable or accepts no writes")),
        Err(_elapsed) => Err(Problem::new(ProblemCode::Unavailable, "the database does not answer")),
    }
}

/// Returns metrics in the Prometheus text format
#[utoipa::path(
    get, path = "/metrics", tag = "system", operation_id = "metrics", security(()),
    responses((status = 200, description = "The metrics", body = String)),
)]
pub(crate) async fn metrics(State(app): State<App>) -> Response {
    text("text/plain; version=0.0.4", (app.options.metrics)())
}

pub(crate) async fn error_page(Path(word): Path<String>) -> HttpResult<Response> {
    let code = ProblemCode::ALL.iter().find(|code| code.as_str() == word).ok_or(Error::NotFound("error code"))?;
    Ok(text("text/markdown; charset=utf-8", code.page().to_owned()))
}

fn text(content_type: &'static str, body: String) -> Response {
    ([(CONTENT_TYPE, HeaderValue::from_static(content_type))], body).into_response()
}
