//! `/api/v1/mcp-servers`: user servers and operator servers.

use std::sync::Arc;

use axum::Json;
use axum::http::StatusCode;
use axum::response::Response;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::{IntoParams, ToSchema};

use crate::domain::access::principal::Principal;
use crate::domain::ids::McpServerId;
use crate::domain::tool::ToolDefinition;
use crate::domain::tool::approval::ApprovalMode;
use crate::http::wire::auth::Caller;
use crate::http::wire::etag::{IfMatch, versioned};
use crate::http::wire::extract::{Id, Input, OptionalInput, Params};
use crate::http::wire::page::{self, PageParams, Paging};
use crate::http::wire::problem::HttpResult;
use crate::http::wire::responses::created;
use crate::http::wire::scope::VisibleScope;
use crate::http::wire::types::{EmptyBody, ListBody};
use crate::service::{
    AnyMcpServer, AuthState, ImportedMcpServers, McpPrompt, McpResource, McpServerCursor, McpServerPatch, McpServerView,
    McpServersDocument, NewMcpServer, OwnerScope, Page, ServerStatus,
};

/// The status of an MCP server in the process that answers the request.
#[serde_with::skip_serializing_none]
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct McpServerStatus {
    /// `unknown` (not tried yet), `starting`, `ok` or `error`.
    state: String,
    /// When the state began, RFC 3339.
    since: Option<String>,
    /// The reason for the error. Visible to administrators and to the owner of the server.
    error: Option<String>,
    /// Number of failures in a row: a lost connection, and failed attempts to connect. Absent while there are none.
    failures: Option<u32>,
    /// When the server connects again without a call, RFC 3339. Present after a failed attempt while another one is planned.
    next_attempt_at: Option<String>,
    /// The end of the standard error stream of the server's process: up to 64 KiB, and in lists the last 2,000 characters. Visible
    /// to administrators and to the owner of the server.
    stderr: Option<String>,
    /// Number of tools that the server offers.
    tools: usize,
    /// Whether the server lists more tools than it offers. Tools are left out if they exceed a limit, are too large, or are
    /// malformed. The log names them.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    left_out: bool,
    /// Whether the server requires a login.
    auth: AuthState,
}

/// An MCP server.
#[serde_with::skip_serializing_none]
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct McpServer {
    /// The id. Tools and tool calls contain it as `server`.
    id: McpServerId,
    /// The prefix of the names of the server's tools.
    name: String,
    /// The entry, as in an `mcpServers` document, with `${NAME}` instead of each secret. Visible to users who may change the
    /// server.
    #[schema(value_type = Option<Object>)]
    entry: Option<Map<String, Value>>,
    /// Whether runs may use the server.
    enabled: bool,
    /// The scope of the server: its owner, all users, or the configuration.
    scope: VisibleScope,
    /// The status of the server.
    status: McpServerStatus,
    /// When the server was created, RFC 3339. Absent for operator servers.
    created_at: Option<String>,
    /// When the server was changed, RFC 3339. Absent for operator servers.
    updated_at: Option<String>,
    /// Incremented at each change, and also sent as the `ETag`. Absent for operator servers.
    version: Option<i64>,
    /// Parts of the request's entry that have no effect, such as unknown keys.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    warnings: Vec<String>,
}

impl McpServer {
    pub(in crate::http) fn of(view: McpServerView, viewer: &Principal) -> Self {
        let ServerStatus {
            id,
            name,
            status: state,
            since,
            error,
            failures,
            next_attempt_at,
            stderr,
            tools,
            left_out,
            auth,
            owner: _,
        } = view.status;
        let failures = Some(failures).filter(|count| *count > 0);
        let status = McpServerStatus { state, since, error, failures, next_attempt_at, stderr, tools, left_out, auth };
        let (id, name, entry, enabled, scope, record) = match view.server {
            AnyMcpServer::Configured(_) => (id, name, None, true, VisibleScope::Config, None),
            AnyMcpServer::Stored(record) => {
                // The entry of an MCP server for all users is shown to administrators only.
                let (scope, sees_entry) = VisibleScope::of(record.owner.as_ref(), viewer);
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
            warnings: view.warnings,
        }
    }

    fn answer(view: McpServerView, viewer: &Principal) -> Response {
        let server = Self::of(view, viewer);
        versioned(server.version, server)
    }
}

/// Creates an MCP server
///
/// The server is stored even if it cannot be reached. Its `status` says whether a connection succeeded within 5 seconds. A member
/// must give a public `https` URL and no command, unless the server's settings allow others.
#[utoipa::path(
    post, path = "/api/v1/mcp-servers", tag = "mcp-servers", operation_id = "create_mcp_server",
    request_body = NewMcpServer,
    responses((status = 201, description = "The MCP server", body = McpServer, headers(("Location" = String), ("ETag" = String)))),
)]
pub(crate) async fn create(caller: Caller, Input { body, key }: Input<NewMcpServer>) -> HttpResult<Response> {
    let (view, replay) = caller.app.service.create_mcp_server(&caller.principal, body, key).await?;
    let server = McpServer::of(view, &caller.principal);
    let location = format!("/api/v1/mcp-servers/{}", server.id);
    Ok(created(replay, server.version, &location, server))
}

/// Lists MCP servers by name
///
/// The list contains the caller's own servers, servers for all users, and operator servers. Runs use all servers that are enabled.
/// A server whose name prefix is ambiguous gets a different prefix for its tools.
#[utoipa::path(
    get, path = "/api/v1/mcp-servers", tag = "mcp-servers", operation_id = "list_mcp_servers", params(PageParams),
    responses((status = 200, description = "A page of the list", body = ListBody<McpServer>)),
)]
pub(crate) async fn list(caller: Caller, Paging(page): Paging<McpServerCursor>) -> HttpResult<Response> {
    let Page { items, next } = caller.app.service.mcp_servers(&caller.principal, &page).await?;
    let items = items.into_iter().map(|server| McpServer::of(server, &caller.principal)).collect();
    Ok(page::answer(Page { items, next }, page.limit, "/api/v1/mcp-servers", ""))
}

/// Returns an MCP server
#[utoipa::path(
    get, path = "/api/v1/mcp-servers/{id}", tag = "mcp-servers", operation_id = "get_mcp_server",
    params(("id" = McpServerId, Path, description = "The id of the MCP server")),
    responses((status = 200, description = "The MCP server", body = McpServer, headers(("ETag" = String)))),
)]
pub(crate) async fn get(caller: Caller, Id(id): Id<McpServerId>) -> HttpResult<Response> {
    Ok(McpServer::answer(caller.app.service.mcp_server(&caller.principal, &id).await?, &caller.principal))
}

/// Changes an MCP server
///
/// Connections with the earlier entry end, at once in this process and within seconds in others. A disabled server is not used and
/// has no process. Its `status` says whether a connection succeeded within 5 seconds.
#[utoipa::path(
    patch, path = "/api/v1/mcp-servers/{id}", tag = "mcp-servers", operation_id = "update_mcp_server",
    params(("id" = McpServerId, Path, description = "The id of the MCP server"), IfMatch),
    request_body = McpServerPatch,
    responses((status = 200, description = "The MCP server", body = McpServer, headers(("ETag" = String)))),
)]
pub(crate) async fn update(
    caller: Caller,
    Id(id): Id<McpServerId>,
    IfMatch(versions): IfMatch,
    Input { body, .. }: Input<McpServerPatch>,
) -> HttpResult<Response> {
    let view = caller.app.service.update_mcp_server(&caller.principal, &id, &body, versions.as_deref()).await?;
    Ok(McpServer::answer(view, &caller.principal))
}

/// Deletes an MCP server
///
/// Its connections and processes end. Runs that were offered its tools then get errors for their calls.
#[utoipa::path(
    delete, path = "/api/v1/mcp-servers/{id}", tag = "mcp-servers", operation_id = "delete_mcp_server",
    params(("id" = McpServerId, Path, description = "The id of the MCP server"), IfMatch),
    responses((status = 204, description = "The MCP server was deleted")),
)]
pub(crate) async fn delete(caller: Caller, Id(id): Id<McpServerId>, IfMatch(versions): IfMatch) -> HttpResult<StatusCode> {
    caller.app.service.delete_mcp_server(&caller.principal, &id, versions.as_deref()).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Starts an MCP server
///
/// Connects to the server at once, even after earlier errors, and waits up to 5 seconds for it. Servers also start when they are
/// needed. Each request is executed, regardless of its `Idempotency-Key`.
#[utoipa::path(
    post, path = "/api/v1/mcp-servers/{id}/start", tag = "mcp-servers", operation_id = "start_mcp_server",
    params(("id" = McpServerId, Path, description = "The id of the MCP server")),
    responses((status = 200, description = "The MCP server", body = McpServer, headers(("ETag" = String)))),
)]
pub(crate) async fn start(caller: Caller, Id(id): Id<McpServerId>, _: OptionalInput<EmptyBody>) -> HttpResult<Response> {
    Ok(McpServer::answer(caller.app.service.start_mcp_server(&caller.principal, &id).await?, &caller.principal))
}

/// Stops an MCP server
///
/// Ends the connections and processes of the server. An operator server stops in this process only. The server starts again when it
/// is next needed; to prevent that, change `enabled`. Each request is executed, regardless of its `Idempotency-Key`.
#[utoipa::path(
    post, path = "/api/v1/mcp-servers/{id}/stop", tag = "mcp-servers", operation_id = "stop_mcp_server",
    params(("id" = McpServerId, Path, description = "The id of the MCP server")),
    responses((status = 200, description = "The MCP server", body = McpServer, headers(("ETag" = String)))),
)]
pub(crate) async fn stop(caller: Caller, Id(id): Id<McpServerId>, _: OptionalInput<EmptyBody>) -> HttpResult<Response> {
    Ok(McpServer::answer(caller.app.service.stop_mcp_server(&caller.principal, &id).await?, &caller.principal))
}

/// Restarts an MCP server
///
/// Stops the server, then starts it. Each request is executed, regardless of its `Idempotency-Key`.
#[utoipa::path(
    post, path = "/api/v1/mcp-servers/{id}/restart", tag = "mcp-servers", operation_id = "restart_mcp_server",
    params(("id" = McpServerId, Path, description = "The id of the MCP server")),
    responses((status = 200, description = "The MCP server", body = McpServer, headers(("ETag" = String)))),
)]
pub(crate) async fn restart(caller: Caller, Id(id): Id<McpServerId>, _: OptionalInput<EmptyBody>) -> HttpResult<Response> {
    Ok(McpServer::answer(caller.app.service.restart_mcp_server(&caller.principal, &id).await?, &caller.principal))
}

/// A tool of an MCP server.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct McpServerTool {
    #[serde(flatten)]
    #[schema(value_type = ToolDefinition)]
    definition: Arc<ToolDefinition>,
    /// Whether the default agent asks before a call.
    approval: ApprovalMode,
}

/// Lists the tools of an MCP server
///
/// Returns the tools as the caller's runs are offered them, on one page. Connects to the server if necessary.
#[utoipa::path(
    get, path = "/api/v1/mcp-servers/{id}/tools", tag = "mcp-servers", operation_id = "list_mcp_server_tools",
    params(("id" = McpServerId, Path, description = "The id of the MCP server")),
    responses(
        (status = 200, description = "The tools, sorted by name", body = ListBody<McpServerTool>),
        (status = 409, description = "The MCP server cannot be reached"),
    ),
)]
pub(crate) async fn tools(caller: Caller, Id(id): Id<McpServerId>) -> HttpResult<Json<ListBody<McpServerTool>>> {
    let tools = caller.app.service.mcp_server_tools(&caller.principal, &id).await?;
    Ok(Json(ListBody::whole(tools.into_iter().map(|(definition, approval)| McpServerTool { definition, approval }).collect())))
}

/// Lists the resources of an MCP server
///
/// Returns up to 1,000 resources as the server lists them, on one page. The list is empty if the server has no resources. Connects
/// to the server if necessary.
#[utoipa::path(
    get, path = "/api/v1/mcp-servers/{id}/resources", tag = "mcp-servers", operation_id = "list_mcp_server_resources",
    params(("id" = McpServerId, Path, description = "The id of the MCP server")),
    responses(
        (status = 200, description = "The resources", body = ListBody<McpResource>),
        (status = 409, description = "The MCP server cannot be reached"),
    ),
)]
pub(crate) async fn resources(caller: Caller, Id(id): Id<McpServerId>) -> HttpResult<Json<ListBody<McpResource>>> {
    Ok(Json(ListBody::whole(caller.app.service.mcp_server_resources(&caller.principal, &id).await?)))
}

/// Lists the prompts of an MCP server
///
/// Returns up to 1,000 prompts as the server lists them, on one page. The list is empty if the server has no prompts. Connects to
/// the server if necessary.
#[utoipa::path(
    get, path = "/api/v1/mcp-servers/{id}/prompts", tag = "mcp-servers", operation_id = "list_mcp_server_prompts",
    params(("id" = McpServerId, Path, description = "The id of the MCP server")),
    responses(
        (status = 200, description = "The prompts", body = ListBody<McpPrompt>),
        (status = 409, description = "The MCP server cannot be reached"),
    ),
)]
pub(crate) async fn prompts(caller: Caller, Id(id): Id<McpServerId>) -> HttpResult<Json<ListBody<McpPrompt>>> {
    Ok(Json(ListBody::whole(caller.app.service.mcp_server_prompts(&caller.principal, &id).await?)))
}

/// Imports an `mcpServers` document
///
/// The server imports each entry separately, and the response contains the outcome of each entry. The server then tries for up to 5
/// seconds to connect to the imported MCP servers.
#[utoipa::path(
    post, path = "/api/v1/mcp-servers/import", tag = "mcp-servers", operation_id = "import_mcp_servers",
    request_body = McpServersDocument,
    responses((status = 200, description = "The outcome of each entry", body = ImportedMcpServers)),
)]
pub(crate) async fn import(caller: Caller, Input { body, key }: Input<McpServersDocument>) -> HttpResult<Json<ImportedMcpServers>> {
    Ok(Json(caller.app.service.import_mcp_servers(&caller.principal, body, key).await?))
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct ExportParams {
    /// The scope of the exported servers. Defaults to the caller's own servers. Only administrators may export servers for all
    /// users.
    scope: Option<OwnerScope>,
}

/// Exports an `mcpServers` document
///
/// The document contains `${NAME}` instead of each secret. A later import needs the values as `variables`.
#[utoipa::path(
    get, path = "/api/v1/mcp-servers/export", tag = "mcp-servers", operation_id = "export_mcp_servers", params(ExportParams),
    responses((status = 200, description = "The document", body = Object)),
)]
pub(crate) async fn export(caller: Caller, Params(params): Params<ExportParams>) -> HttpResult<Json<Value>> {
    Ok(Json(caller.app.service.export_mcp_servers(&caller.principal, params.scope.unwrap_or_default()).await?))
}
