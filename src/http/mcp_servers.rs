//! `/api/v1/mcp-servers`: sources of tools that people keep.

use std::sync::Arc;

use axum::Json;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse as _, Response};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::{IntoParams, ToSchema};

use super::answer::created;
use super::auth::Caller;
use super::etag::{tag, wanted_versions};
use super::extract::{Id, Input, Params, RequestBody};
use super::page::{self, PageParams};
use super::problem::Answer;
use super::scope::{Scope, ShownScope};
use super::types::{EmptyBody, ListBody};
use crate::domain::ids::McpServerId;
use crate::domain::mcp_server::McpServerRecord;
use crate::domain::principal::{Principal, UserRole};
use crate::domain::problem::ProblemBody;
use crate::domain::tool::ToolDefinition;
use crate::service::{
    AnyMcpServer, AuthState, Import, ImportReport, Imported, McpPrompt, McpResource, McpServerPatch, NewMcpServer, Page,
    ServerStatus, ShownMcpServer, Variables,
};

/// A server to make.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct CreateMcpServerBody {
    /// What the names of its tools begin with: `name__tool`.
    #[schema(min_length = 1, max_length = 64)]
    name: String,
    /// Its entry, as in an `mcpServers` document. Its secrets are taken out of it and never shown again.
    #[schema(value_type = Object)]
    entry: Map<String, Value>,
    /// Values of variables that the entry names as `${NAME}`.
    #[serde(default)]
    #[schema(value_type = Object, write_only)]
    variables: Variables,
    /// Whether runs may use it.
    #[serde(default = "yes")]
    #[schema(default = true)]
    enabled: bool,
    /// Whose it is. Only an administrator makes one for everybody.
    #[serde(default)]
    scope: Scope,
}

fn yes() -> bool {
    true
}

impl RequestBody for CreateMcpServerBody {}

/// What to change of a server. What is absent stays.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct UpdateMcpServerBody {
    /// The name.
    #[schema(min_length = 1, max_length = 64)]
    name: Option<String>,
    /// The entry, all of it. A `${NAME}` that stands for a secret goes on to stand for it, unless the entry leads to another host.
    #[schema(value_type = Option<Object>)]
    entry: Option<Map<String, Value>>,
    /// New values of variables that the entry names as `${NAME}`.
    #[serde(default)]
    #[schema(value_type = Object, write_only)]
    variables: Variables,
    /// Whether runs may use it.
    enabled: Option<bool>,
}

impl RequestBody for UpdateMcpServerBody {}

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
    pub(super) fn of(shown: ShownMcpServer, viewer: &Principal) -> Self {
        let ServerStatus { id, name, status: state, since, error, stderr, tools, left_out, auth, owner: _ } = shown.status;
        let status = McpServerStatus { state, since, error, stderr, tools, left_out, auth };
        let warnings = shown.warnings;
        let record = match shown.server {
            AnyMcpServer::Kept(record) => *record,
            AnyMcpServer::Configured(_) => {
                return Self {
                    id,
                    name,
                    entry: None,
                    enabled: true,
                    scope: ShownScope::Config,
                    status,
                    created_at: None,
                    updated_at: None,
                    version: None,
                    warnings,
                };
            }
        };
        let McpServerRecord { id, owner, name, entry, enabled, created_at, updated_at, version, .. } = record;
        let (scope, sees_entry) = match (&owner, viewer.role) {
            (Some(_), UserRole::Admin | UserRole::Member) => (ShownScope::Own, true),
            (None, UserRole::Admin) => (ShownScope::Global, true),
            // What it is reached with is the operator's own.
            (None, UserRole::Member) => (ShownScope::Global, false),
        };
        Self {
            id,
            name,
            entry: sees_entry.then_some(entry),
            enabled,
            scope,
            status,
            created_at: Some(created_at.to_rfc3339()),
            updated_at: Some(updated_at.to_rfc3339()),
            version: Some(version),
            warnings,
        }
    }

    fn answer(shown: ShownMcpServer, viewer: &Principal) -> Response {
        let server = Self::of(shown, viewer);
        let headers = server.version.map(tag).unwrap_or_default();
        (headers, Json(server)).into_response()
    }
}

/// Makes an MCP server
///
/// It is kept in any case; its `status` says whether it could be reached within 5 seconds. A member's URL must be a public https one,
/// and no member may give a command, unless the server allows that.
#[utoipa::path(
    post, path = "/api/v1/mcp-servers", tag = "mcp-servers", operation_id = "create_mcp_server",
    request_body = CreateMcpServerBody,
    responses((status = 201, description = "The server", body = McpServer, headers(("Location" = String), ("ETag" = String)))),
)]
pub(crate) async fn create(Caller { app, principal }: Caller, Input { body, key }: Input<CreateMcpServerBody>) -> Answer<Response> {
    let CreateMcpServerBody { name, entry, variables, enabled, scope } = body;
    let new = NewMcpServer { name, entry, variables, enabled, is_global: scope == Scope::Global };
    let (shown, replay) = app.service.create_mcp_server(&principal, new, key).await?;
    let server = McpServer::of(shown, &principal);
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
pub(crate) async fn list(Caller { app, principal }: Caller, Params(params): Params<PageParams>) -> Answer<Response> {
    let request = params.request()?;
    let Page { items, next } = app.service.mcp_servers(&principal, &request).await?;
    let items = items.into_iter().map(|server| McpServer::of(server, &principal)).collect();
    Ok(page::answer(Page { items, next }, request.limit, "/api/v1/mcp-servers", ""))
}

/// An MCP server
#[utoipa::path(
    get, path = "/api/v1/mcp-servers/{id}", tag = "mcp-servers", operation_id = "get_mcp_server",
    params(("id" = McpServerId, Path, description = "The server")),
    responses((status = 200, description = "The server", body = McpServer, headers(("ETag" = String)))),
)]
pub(crate) async fn get(Caller { app, principal }: Caller, Id(id): Id<McpServerId>) -> Answer<Response> {
    Ok(McpServer::answer(app.service.mcp_server(&principal, &id).await?, &principal))
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
    request_body = UpdateMcpServerBody,
    responses(
        (status = 200, description = "The server", body = McpServer, headers(("ETag" = String))),
        (status = 412, description = "It has another version by now", body = ProblemBody, content_type = "application/problem+json"),
    ),
)]
pub(crate) async fn update(
    Caller { app, principal }: Caller,
    Id(id): Id<McpServerId>,
    headers: HeaderMap,
    Input { body, .. }: Input<UpdateMcpServerBody>,
) -> Answer<Response> {
    let UpdateMcpServerBody { name, entry, variables, enabled } = body;
    let patch = McpServerPatch { name, entry, variables, enabled };
    let shown = app.service.update_mcp_server(&principal, &id, &patch, wanted_versions(&headers).as_deref()).await?;
    Ok(McpServer::answer(shown, &principal))
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
pub(crate) async fn delete(Caller { app, principal }: Caller, Id(id): Id<McpServerId>, headers: HeaderMap) -> Answer<StatusCode> {
    app.service.delete_mcp_server(&principal, &id, wanted_versions(&headers).as_deref()).await?;
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
pub(crate) async fn start(
    Caller { app, principal }: Caller,
    Id(id): Id<McpServerId>,
    Input { .. }: Input<EmptyBody>,
) -> Answer<Response> {
    Ok(McpServer::answer(app.service.start_mcp_server(&principal, &id).await?, &principal))
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
pub(crate) async fn stop(
    Caller { app, principal }: Caller,
    Id(id): Id<McpServerId>,
    Input { .. }: Input<EmptyBody>,
) -> Answer<Response> {
    Ok(McpServer::answer(app.service.stop_mcp_server(&principal, &id).await?, &principal))
}

/// Restarts an MCP server
///
/// Stops it, then starts it. Every request does it, whatever its `Idempotency-Key`.
#[utoipa::path(
    post, path = "/api/v1/mcp-servers/{id}/restart", tag = "mcp-servers", operation_id = "restart_mcp_server",
    params(("id" = McpServerId, Path, description = "The server")), request_body = Option<EmptyBody>,
    responses((status = 200, description = "The server", body = McpServer, headers(("ETag" = String)))),
)]
pub(crate) async fn restart(
    Caller { app, principal }: Caller,
    Id(id): Id<McpServerId>,
    Input { .. }: Input<EmptyBody>,
) -> Answer<Response> {
    Ok(McpServer::answer(app.service.restart_mcp_server(&principal, &id).await?, &principal))
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
pub(crate) async fn tools(
    Caller { app, principal }: Caller,
    Id(id): Id<McpServerId>,
) -> Answer<Json<ListBody<Arc<ToolDefinition>>>> {
    let data = app.service.mcp_server_tools(&principal, &id).await?;
    Ok(Json(ListBody { data, next_cursor: None }))
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
pub(crate) async fn resources(Caller { app, principal }: Caller, Id(id): Id<McpServerId>) -> Answer<Json<ListBody<McpResource>>> {
    let data = app.service.mcp_server_resources(&principal, &id).await?;
    Ok(Json(ListBody { data, next_cursor: None }))
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
pub(crate) async fn prompts(Caller { app, principal }: Caller, Id(id): Id<McpServerId>) -> Answer<Json<ListBody<McpPrompt>>> {
    let data = app.service.mcp_server_prompts(&principal, &id).await?;
    Ok(Json(ListBody { data, next_cursor: None }))
}

/// A document to bring in. Other keys are told in `warnings`, because programs commonly keep more in it.
#[derive(Deserialize, ToSchema)]
pub(crate) struct ImportMcpServersBody {
    /// The servers, as programs commonly keep them.
    #[serde(rename = "mcpServers")]
    #[schema(value_type = Object)]
    mcp_servers: Map<String, Value>,
    /// Values of variables that the entries name as `${NAME}`.
    #[serde(default)]
    #[schema(value_type = Object, write_only)]
    variables: Variables,
    /// Whose they are to be.
    #[serde(default)]
    scope: Scope,
    /// Whether they take the place of servers of their names.
    #[serde(default)]
    replace: bool,
    #[serde(flatten)]
    #[schema(ignore)]
    rest: Map<String, Value>,
}

impl RequestBody for ImportMcpServersBody {}

/// What became of an entry.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ImportOutcome {
    /// It is kept.
    Made,
    /// The server of its name was changed.
    Replaced,
    /// It is not kept: `reason` says why.
    Refused,
}

/// An entry that was brought in, or not.
#[serde_with::skip_serializing_none]
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ImportedMcpServer {
    /// Its name in the document.
    name: String,
    /// What became of it.
    outcome: ImportOutcome,
    /// The server that was made or changed.
    id: Option<McpServerId>,
    /// Why it was refused.
    reason: Option<String>,
    /// Parts of its entry that have no effect, such as unknown keys.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    warnings: Vec<String>,
}

/// The outcome of an import.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ImportedMcpServers {
    /// The outcome of each entry.
    data: Vec<ImportedMcpServer>,
    /// Always `null`: all entries are on one page.
    next_cursor: Option<String>,
    /// Parts of the document beside its entries that have no effect, such as unknown keys.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    warnings: Vec<String>,
}

/// Brings in an `mcpServers` document
///
/// Each entry by itself: the answer says what became of it. Nothing is connected to yet.
#[utoipa::path(
    post, path = "/api/v1/mcp-servers/import", tag = "mcp-servers", operation_id = "import_mcp_servers",
    request_body = ImportMcpServersBody,
    responses((status = 200, description = "What became of each entry", body = ImportedMcpServers)),
)]
pub(crate) async fn import(
    Caller { app, principal }: Caller,
    Input { body, key }: Input<ImportMcpServersBody>,
) -> Answer<Json<ImportedMcpServers>> {
    let ImportMcpServersBody { mcp_servers: entries, variables, scope, replace: replaces, rest } = body;
    let import = Import { entries, variables, is_global: scope == Scope::Global, replaces, rest };
    let ImportReport { outcomes, warnings } = app.service.import_mcp_servers(&principal, import, key).await?;
    let data = outcomes.into_iter().map(|(name, outcome)| match outcome {
        Imported::Made(id, warnings) => {
            ImportedMcpServer { name, outcome: ImportOutcome::Made, id: Some(id), reason: None, warnings }
        }
        Imported::Replaced(id, warnings) => {
            ImportedMcpServer { name, outcome: ImportOutcome::Replaced, id: Some(id), reason: None, warnings }
        }
        Imported::Refused(reason) => {
            let reason = Some(reason);
            ImportedMcpServer { name, outcome: ImportOutcome::Refused, id: None, reason, warnings: Vec::new() }
        }
    });
    Ok(Json(ImportedMcpServers { data: data.collect(), next_cursor: None, warnings }))
}

/// Whose servers to take out.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct ExportParams {
    /// Whose servers; the caller's own if absent. Those of everybody are for administrators.
    scope: Option<Scope>,
}

/// Takes out an `mcpServers` document
///
/// With `${NAME}` in the place of each secret: brought in again, it needs their values as `variables`.
#[utoipa::path(
    get, path = "/api/v1/mcp-servers/export", tag = "mcp-servers", operation_id = "export_mcp_servers", params(ExportParams),
    responses((status = 200, description = "The document", body = Object)),
)]
pub(crate) async fn export(Caller { app, principal }: Caller, Params(params): Params<ExportParams>) -> Answer<Json<Value>> {
    let is_global = params.scope.unwrap_or_default() == Scope::Global;
    Ok(Json(app.service.export_mcp_servers(&principal, is_global).await?))
}
