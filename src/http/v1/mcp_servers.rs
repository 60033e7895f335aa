//! `/api/v1/mcp-servers`: MCP servers that users keep, and those of the configuration.

use std::sync::Arc;

use axum::Json;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::{IntoParams, ToSchema};

use crate::domain::access::principal::Principal;
use crate::domain::ids::McpServerId;
use crate::domain::problem::ProblemBody;
use crate::domain::tool::ToolDefinition;
use crate::http::wire::answer::created;
use crate::http::wire::auth::Caller;
use crate::http::wire::etag::{versioned, wanted_versions};
use crate::http::wire::extract::{Id, Input, OptionalInput, Params};
use crate::http::wire::page::{self, PageParams, Paging};
use crate::http::wire::problem::Answer;
use crate::http::wire::scope::ShownScope;
use crate::http::wire::types::{EmptyBody, ListBody};
use crate::service::{
    AnyMcpServer, AuthState, ImportedMcpServers, McpPrompt, McpResource, McpServerCursor, McpServerPatch, McpServersDocument,
    NewMcpServer, OwnerScope, Page, ServerStatus, ShownMcpServer,
};

/// How a server is doing, as far as the process knows that answers.
#[serde_with::skip_serializing_none]
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct McpServerStatus {
    /// `unknown` (not tried yet), `starting`, `ok` or `error`.
    state: String,
    /// Since when, RFC 3339.
    since: Option<String>,
    /// Why it is in error. Seen by administrators, and by whoever keeps the server for themselves.
    error: Option<String>,
    /// The end of what its process said on its standard error stream: up to 64 KiB, in lists the last 2,000 characters. Seen by
    /// administrators, and by whoever keeps the server for themselves.
    stderr: Option<String>,
    /// How many tools it offers.
    tools: usize,
    /// Whether it lists more, which are left out: beyond what a server may offer, too large, or malformed. The log says which.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    left_out: bool,
    /// Whether it wants a login.
    auth: AuthState,
}

/// An MCP server.
#[serde_with::skip_serializing_none]
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct McpServer {
    /// The id. Tools and tool calls name it as their `server`.
    id: McpServerId,
    /// What the names of its tools begin with.
    name: String,
    /// Its entry, as in an `mcpServers` document, with `${NAME}` in the place of each secret. Seen by whoever may change it.
    #[schema(value_type = Option<Object>)]
    entry: Option<Map<String, Value>>,
    /// Whether runs may use it.
    enabled: bool,
    /// Whose it is.
    scope: ShownScope,
    /// How it is doing.
    status: McpServerStatus,
    /// When it was made, RFC 3339. Not for servers of the configuration.
    created_at: Option<String>,
    /// When it was changed, RFC 3339. Not for servers of the configuration.
    updated_at: Option<String>,
    /// Raised by one at each change; also the `ETag`. Not for servers of the configuration.
    version: Option<i64>,
    /// Parts of the entry that this request gave and that have no effect, such as unknown keys.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    warnings: Vec<String>,
}

impl McpServer {
    pub(in crate::http) fn of(shown: ShownMcpServer, viewer: &Principal) -> Self {
        let ServerStatus { id, name, status: state, since, error, stderr, tools, left_out, auth, owner: _ } = shown.status;
        let status = McpServerStatus { state, since, error, stderr, tools, left_out, auth };
        let (id, name, entry, enabled, scope, record) = match shown.server {
            AnyMcpServer::Configured(_) => (id, name, None, true, ShownScope::Config, None),
            AnyMcpServer::Stored(record) => {
                // The entry of a server of the operator's is shown to administrators only.
                let (scope, sees_entry) = ShownScope::of(record.owner.as_ref(), viewer);
                let entry = sees_entry.then(|| record.entry.clone());
                (record.id.clone(), record.name.clone(), entry, record.enabled, scope, Some(record))
            }
        };
        Self {
            id,
            name,
            entry,
            enabled,
            scope,
            status,
            created_at: record.as_ref().map(|record| record.created_at.to_rfc3339()),
            updated_at: record.as_ref().map(|record| record.updated_at.to_rfc3339()),
            version: record.map(|record| record.version),
            warnings: shown.warnings,
        }
    }

    fn answer(shown: ShownMcpServer, viewer: &Principal) -> Response {
        let server = Self::of(shown, viewer);
        versioned(server.version, server)
    }
}

/// Makes an MCP server
///
/// It is kept in any case; its `status` says whether it could be reached within 5 seconds. A member's URL must be a public https one,
/// and no member may give a command, unless the server allows that.
#[utoipa::path(
    post, path = "/api/v1/mcp-servers", tag = "mcp-servers", operation_id = "create_mcp_server",
    request_body = NewMcpServer,
    responses((status = 201, description = "The server", body = McpServer, headers(("Location" = String), ("ETag" = String)))),
)]
pub(crate) async fn create(caller: Caller, Input { body, key }: Input<NewMcpServer>) -> Answer<Response> {
    let (shown, replay) = caller.app.service.create_mcp_server(&caller.principal, body, key).await?;
    let server = McpServer::of(shown, &caller.principal);
    let place = format!("/api/v1/mcp-servers/{}", server.id);
    Ok(created(replay, server.version, &place, server))
}

/// MCP servers, by name
///
/// The caller's own and those of everybody, those of the configuration included. Runs use all of them; one whose name means another
/// one's tools, too, gets another beginning for the names of its own.
#[utoipa::path(
    get, path = "/api/v1/mcp-servers", tag = "mcp-servers", operation_id = "list_mcp_servers", params(PageParams),
    responses((status = 200, description = "A page", body = ListBody<McpServer>, headers(("Link" = String)))),
)]
pub(crate) async fn list(caller: Caller, Paging(page): Paging<McpServerCursor>) -> Answer<Response> {
    let Page { items, next } = caller.app.service.mcp_servers(&caller.principal, &page).await?;
    let items = items.into_iter().map(|server| McpServer::of(server, &caller.principal)).collect();
    Ok(page::answer(Page { items, next }, page.limit, "/api/v1/mcp-servers", ""))
}

/// An MCP server
#[utoipa::path(
    get, path = "/api/v1/mcp-servers/{id}", tag = "mcp-servers", operation_id = "get_mcp_server",
    params(("id" = McpServerId, Path, description = "The server")),
    responses((status = 200, description = "The server", body = McpServer, headers(("ETag" = String)))),
)]
pub(crate) async fn get(caller: Caller, Id(id): Id<McpServerId>) -> Answer<Response> {
    Ok(McpServer::answer(caller.app.service.mcp_server(&caller.principal, &id).await?, &caller.principal))
}

/// Changes an MCP server
///
/// Connections to what it was end in every process, at once in this one and within seconds in others; one that is not enabled is not
/// used and has no process. Its `status` says whether it could be reached within 5 seconds.
#[utoipa::path(
    patch, path = "/api/v1/mcp-servers/{id}", tag = "mcp-servers", operation_id = "update_mcp_server",
    params(
        ("id" = McpServerId, Path, description = "The server"),
        ("If-Match" = Option<String>, Header, description = "ETags that the client has: then only a version of these is changed"),
    ),
    request_body = McpServerPatch,
    responses(
        (status = 200, description = "The server", body = McpServer, headers(("ETag" = String))),
        (status = 412, description = "It has another version by now", body = ProblemBody, content_type = "application/problem+json"),
    ),
)]
pub(crate) async fn update(
    caller: Caller,
    Id(id): Id<McpServerId>,
    headers: HeaderMap,
    Input { body, .. }: Input<McpServerPatch>,
) -> Answer<Response> {
    let shown = caller.app.service.update_mcp_server(&caller.principal, &id, &body, wanted_versions(&headers).as_deref()).await?;
    Ok(McpServer::answer(shown, &caller.principal))
}

/// Deletes an MCP server
///
/// Its connections and processes end. Calls of runs that were offered its tools fail from then on.
#[utoipa::path(
    delete, path = "/api/v1/mcp-servers/{id}", tag = "mcp-servers", operation_id = "delete_mcp_server",
    params(
        ("id" = McpServerId, Path, description = "The server"),
        ("If-Match" = Option<String>, Header, description = "ETags that the client has: then only a version of these is deleted"),
    ),
    responses(
        (status = 204, description = "It is gone"),
        (status = 412, description = "It has another version by now", body = ProblemBody, content_type = "application/problem+json"),
    ),
)]
pub(crate) async fn delete(caller: Caller, Id(id): Id<McpServerId>, headers: HeaderMap) -> Answer<StatusCode> {
    caller.app.service.delete_mcp_server(&caller.principal, &id, wanted_versions(&headers).as_deref()).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Starts an MCP server
///
/// Connects to it now, whatever has gone wrong with it before, and waits 5 seconds for it. Servers start by themselves when they are
/// needed. Every request does it, whatever its `Idempotency-Key`.
#[utoipa::path(
    post, path = "/api/v1/mcp-servers/{id}/start", tag = "mcp-servers", operation_id = "start_mcp_server",
    params(("id" = McpServerId, Path, description = "The server")), request_body = Option<EmptyBody>,
    responses((status = 200, description = "The server", body = McpServer, headers(("ETag" = String)))),
)]
pub(crate) async fn start(caller: Caller, Id(id): Id<McpServerId>, _: OptionalInput<EmptyBody>) -> Answer<Response> {
    Ok(McpServer::answer(caller.app.service.start_mcp_server(&caller.principal, &id).await?, &caller.principal))
}

/// Stops an MCP server
///
/// Ends its connections and processes, those of a server of the configuration in this process only. It starts again when it is next
/// needed: to keep it from that, change `enabled`. Every request does it, whatever its `Idempotency-Key`.
#[utoipa::path(
    post, path = "/api/v1/mcp-servers/{id}/stop", tag = "mcp-servers", operation_id = "stop_mcp_server",
    params(("id" = McpServerId, Path, description = "The server")), request_body = Option<EmptyBody>,
    responses((status = 200, description = "The server", body = McpServer, headers(("ETag" = String)))),
)]
pub(crate) async fn stop(caller: Caller, Id(id): Id<McpServerId>, _: OptionalInput<EmptyBody>) -> Answer<Response> {
    Ok(McpServer::answer(caller.app.service.stop_mcp_server(&caller.principal, &id).await?, &caller.principal))
}

/// Restarts an MCP server
///
/// Stops it, then starts it. Every request does it, whatever its `Idempotency-Key`.
#[utoipa::path(
    post, path = "/api/v1/mcp-servers/{id}/restart", tag = "mcp-servers", operation_id = "restart_mcp_server",
    params(("id" = McpServerId, Path, description = "The server")), request_body = Option<EmptyBody>,
    responses((status = 200, description = "The server", body = McpServer, headers(("ETag" = String)))),
)]
pub(crate) async fn restart(caller: Caller, Id(id): Id<McpServerId>, _: OptionalInput<EmptyBody>) -> Answer<Response> {
    Ok(McpServer::answer(caller.app.service.restart_mcp_server(&caller.principal, &id).await?, &caller.principal))
}

/// The tools of an MCP server
///
/// As the caller's runs are offered them, all on one page. Connects to it if need be.
#[utoipa::path(
    get, path = "/api/v1/mcp-servers/{id}/tools", tag = "mcp-servers", operation_id = "list_mcp_server_tools",
    params(("id" = McpServerId, Path, description = "The server")),
    responses(
        (status = 200, description = "The tools, by name", body = ListBody<ToolDefinition>),
        (status = 409, description = "It cannot be reached", body = ProblemBody, content_type = "application/problem+json"),
    ),
)]
pub(crate) async fn tools(caller: Caller, Id(id): Id<McpServerId>) -> Answer<Json<ListBody<Arc<ToolDefinition>>>> {
    Ok(Json(ListBody::whole(caller.app.service.mcp_server_tools(&caller.principal, &id).await?)))
}

/// The resources of an MCP server
///
/// As it lists them, up to 1,000, all on one page; none of a server that has no such thing. Connects to it if need be.
#[utoipa::path(
    get, path = "/api/v1/mcp-servers/{id}/resources", tag = "mcp-servers", operation_id = "list_mcp_server_resources",
    params(("id" = McpServerId, Path, description = "The server")),
    responses(
        (status = 200, description = "The resources", body = ListBody<McpResource>),
        (status = 409, description = "It cannot be reached", body = ProblemBody, content_type = "application/problem+json"),
    ),
)]
pub(crate) async fn resources(caller: Caller, Id(id): Id<McpServerId>) -> Answer<Json<ListBody<McpResource>>> {
    Ok(Json(ListBody::whole(caller.app.service.mcp_server_resources(&caller.principal, &id).await?)))
}

/// The prompts of an MCP server
///
/// As it lists them, up to 1,000, all on one page; none of a server that has no such thing. Connects to it if need be.
#[utoipa::path(
    get, path = "/api/v1/mcp-servers/{id}/prompts", tag = "mcp-servers", operation_id = "list_mcp_server_prompts",
    params(("id" = McpServerId, Path, description = "The server")),
    responses(
        (status = 200, description = "The prompts", body = ListBody<McpPrompt>),
        (status = 409, description = "It cannot be reached", body = ProblemBody, content_type = "application/problem+json"),
    ),
)]
pub(crate) async fn prompts(caller: Caller, Id(id): Id<McpServerId>) -> Answer<Json<ListBody<McpPrompt>>> {
    Ok(Json(ListBody::whole(caller.app.service.mcp_server_prompts(&caller.principal, &id).await?)))
}

/// Brings in an `mcpServers` document
///
/// Each entry by itself: the answer says what became of it. Nothing is connected to yet.
#[utoipa::path(
    post, path = "/api/v1/mcp-servers/import", tag = "mcp-servers", operation_id = "import_mcp_servers",
    request_body = McpServersDocument,
    responses((status = 200, description = "What became of each entry", body = ImportedMcpServers)),
)]
pub(crate) async fn import(caller: Caller, Input { body, key }: Input<McpServersDocument>) -> Answer<Json<ImportedMcpServers>> {
    Ok(Json(caller.app.service.import_mcp_servers(&caller.principal, body, key).await?))
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct ExportParams {
    /// Whose servers; the caller's own if absent. Those of everybody are for administrators.
    scope: Option<OwnerScope>,
}

/// Takes out an `mcpServers` document
///
/// With `${NAME}` in the place of each secret: brought in again, it needs their values as `variables`.
#[utoipa::path(
    get, path = "/api/v1/mcp-servers/export", tag = "mcp-servers", operation_id = "export_mcp_servers", params(ExportParams),
    responses((status = 200, description = "The document", body = Object)),
)]
pub(crate) async fn export(caller: Caller, Params(params): Params<ExportParams>) -> Answer<Json<Value>> {
    Ok(Json(caller.app.service.export_mcp_servers(&caller.principal, params.scope.unwrap_or_default()).await?))
}
