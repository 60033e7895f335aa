//! `/api/v1/mcp-servers/{id}/login`: logins at MCP servers that require one.

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::Response;
use serde::Deserialize;
use utoipa::IntoParams;

use crate::domain::ids::McpServerId;
use crate::http::options::App;
use crate::http::v1::access::logins::{LoginBody, LoginReturn, login_page_response, login_response, returning_party, site};
use crate::http::v1::mcp_servers::McpServer;
use crate::http::wire::auth::{self, Caller};
use crate::http::wire::extract::{Id, OptionalInput, Params};
use crate::http::wire::problem::HttpResult;
use crate::http::wire::types::EmptyBody;
use crate::service::{Access, Error, LoginCallback, login_mark};

const CALLBACK: &str = "/api/v1/mcp-servers/callback";

/// The prefix of the cookie that binds a login to the browser that began it.
const COOKIE: &str = "capstan_mcp_login";

/// Begins a login at an MCP server
///
/// For a server whose `status.auth` is `needed`, open `url` in a browser within 10 minutes. After the user agrees, the browser
/// returns to the callback of this server (`/api/v1/mcp-servers/callback`). The server then connects to the MCP server with the
/// received tokens. The same browser must finish the login: it holds a cookie. A caller with a key of the same user may finish it
/// instead. Users who may change the MCP server may log in. All users of the MCP server share the login. A new login replaces an
/// earlier one. Each request begins a login, regardless of its `Idempotency-Key`.
#[utoipa::path(
    post, path = "/api/v1/mcp-servers/{id}/login", tag = "mcp-servers", operation_id = "begin_mcp_server_login",
    params(("id" = McpServerId, Path, description = "The id of the MCP server")),
    responses(
        (status = 200, description = "The URL at which the user agrees", body = LoginBody, headers(("Set-Cookie" = String))),
        (status = 409, description = "The MCP server supports no login"),
    ),
)]
pub(crate) async fn begin(
    State(app): State<App>,
    access: Access,
    Id(id): Id<McpServerId>,
    uri: Uri,
    headers: HeaderMap,
    _: OptionalInput<EmptyBody>,
) -> HttpResult<Response> {
    let site = site(&app, &uri, &headers)?;
    let login = app.service.begin_mcp_login(&access, &id, &format!("{site}{CALLBACK}")).await?;
    let name = format!("{COOKIE}_{}", login.mark);
    Ok(login_response(login, &site, &name, CALLBACK))
}

/// Deletes the login at an MCP server
///
/// The server deletes the tokens and ends the connections that use them.
#[utoipa::path(
    delete, path = "/api/v1/mcp-servers/{id}/login", tag = "mcp-servers", operation_id = "forget_mcp_server_login",
    params(("id" = McpServerId, Path, description = "The id of the MCP server")),
    responses((status = 204, description = "The login was deleted")),
)]
pub(crate) async fn forget(caller: Caller, Id(id): Id<McpServerId>) -> HttpResult<StatusCode> {
    caller.app.service.forget_mcp_login(&caller.principal, &id).await?;
    Ok(StatusCode::NO_CONTENT)
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct CallbackParams {
    /// The code that the server exchanges for tokens.
    code: Option<String>,
    /// The state of the login, which identifies it.
    state: Option<String>,
    /// The issuer that redirected the browser.
    iss: Option<String>,
    /// The reason why there is no code.
    error: Option<String>,
}

/// Finishes a login at an MCP server
///
/// The authorization server redirects the browser to this URL. A login can be finished once.
#[utoipa::path(
    get, path = "/api/v1/mcp-servers/callback", tag = "mcp-servers", operation_id = "finish_mcp_server_login",
    params(CallbackParams),
    responses((status = 200, description = "The MCP server, or an HTML page for people",
        content((McpServer = "application/json"), (String = "text/html")))),
)]
pub(crate) async fn finish(Params(params): Params<CallbackParams>, back: LoginReturn) -> HttpResult<Response> {
    let LoginReturn { app, headers, caller } = back;
    let CallbackParams { code, state, iss: issuer, error } = params;
    let state = match (state, &caller) {
        (Some(state), _) => state,
        (None, Some(_)) => {
            return Err(Error::invalid("the query needs a state: this request is not the callback of a login").into());
        }
        // The name of the cookie depends on the state.
        (None, None) => return Err(auth::unauthorized()),
    };
    // A browser may begin logins at several servers.
    let name = format!("{COOKIE}_{}", login_mark(&state));
    let browser = auth::cookie(&headers, &name);
    let party = returning_party(caller.as_ref(), browser.as_deref())?;
    let (principal, server) = app.service.finish_mcp_login(party, LoginCallback { state, code, issuer, error }).await?;
    Ok(login_page_response(&headers, "You are logged in.", McpServer::of(server, &principal), &name, CALLBACK))
}
