//! `/api/v1/mcp-servers/{id}/login`: logins at MCP servers that want one.

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::Response;
use serde::Deserialize;
use utoipa::IntoParams;

use crate::domain::ids::McpServerId;
use crate::domain::problem::ProblemBody;
use crate::http::options::App;
use crate::http::v1::logins::{LoginBody, LoginReturn, begun, cookie, ended, returned, site};
use crate::http::v1::mcp_servers::McpServer;
use crate::http::wire::auth::{self, Caller};
use crate::http::wire::extract::{Id, OptionalInput, Params};
use crate::http::wire::problem::Answer;
use crate::http::wire::types::EmptyBody;
use crate::service::{Access, Error, LoginCallback, login_mark};

const CALLBACK: &str = "/api/v1/mcp-servers/callback";

/// The beginning of the name of the cookie that binds a login to the browser that has begun it.
const COOKIE: &str = "capstan_mcp_login";

/// Begins a login at an MCP server
///
/// For a server whose `status.auth` is `needed`: open `url` in a browser within 10 minutes. Who has agreed there comes back to the
/// callback of this server (`/api/v1/mcp-servers/callback`), and the MCP server is connected with the tokens that came of it. The browser
/// must be the one that has begun the login (it gets a cookie), unless the caller finishes it with a key of the same user. Whoever
/// may change the server may log in; the login serves everybody who may use it. A new login takes the place of an earlier one; every
/// request begins one, whatever its `Idempotency-Key`.
#[utoipa::path(
    post, path = "/api/v1/mcp-servers/{id}/login", tag = "mcp-servers", operation_id = "begin_mcp_server_login",
    params(("id" = McpServerId, Path, description = "The server")), request_body = Option<EmptyBody>,
    responses(
        (status = 200, description = "Where to agree", body = LoginBody, headers(("Set-Cookie" = String))),
        (status = 409, description = "There is no logging in there", body = ProblemBody, content_type = "application/problem+json"),
    ),
)]
pub(crate) async fn begin(
    State(app): State<App>,
    access: Access,
    Id(id): Id<McpServerId>,
    uri: Uri,
    headers: HeaderMap,
    _: OptionalInput<EmptyBody>,
) -> Answer<Response> {
    let site = site(&app, &uri, &headers)?;
    let login = app.service.begin_mcp_login(&access, &id, &format!("{site}{CALLBACK}")).await?;
    let name = format!("{COOKIE}_{}", login.mark);
    Ok(begun(login, &site, &name, CALLBACK))
}

/// Forgets the login at an MCP server
///
/// Its tokens are gone, and connections that were made with them end.
#[utoipa::path(
    delete, path = "/api/v1/mcp-servers/{id}/login", tag = "mcp-servers", operation_id = "forget_mcp_server_login",
    params(("id" = McpServerId, Path, description = "The server")),
    responses((status = 204, description = "There is no login any more")),
)]
pub(crate) async fn forget(caller: Caller, Id(id): Id<McpServerId>) -> Answer<StatusCode> {
    caller.app.service.forget_mcp_login(&caller.principal, &id).await?;
    Ok(StatusCode::NO_CONTENT)
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct CallbackParams {
    /// What is exchanged for tokens.
    code: Option<String>,
    /// Which login it is of.
    state: Option<String>,
    /// Who has sent the browser back.
    iss: Option<String>,
    /// Why there is no code.
    error: Option<String>,
}

/// Ends a login at an MCP server
///
/// Where the browser comes back to. A login can be ended once.
#[utoipa::path(
    get, path = "/api/v1/mcp-servers/callback", tag = "mcp-servers", operation_id = "finish_mcp_server_login",
    params(CallbackParams),
    responses((status = 200, description = "The MCP server, or a page that says so",
        content((McpServer = "application/json"), (String = "text/html")))),
)]
pub(crate) async fn finish(Params(params): Params<CallbackParams>, back: LoginReturn) -> Answer<Response> {
    let LoginReturn { app, headers, caller } = back;
    let CallbackParams { code, state, iss: issuer, error } = params;
    let state = match (state, &caller) {
        (Some(state), _) => state,
        (None, Some(_)) => return Err(Error::invalid("the query needs a state: this is no callback of a login").into()),
        // The name of the cookie depends on the state.
        (None, None) => return Err(auth::unauthorized()),
    };
    // A browser may have begun logins at several servers.
    let name = format!("{COOKIE}_{}", login_mark(&state));
    let browser = cookie(&headers, &name);
    let who = returned(caller.as_ref(), browser.as_deref())?;
    let (principal, shown) = app.service.finish_mcp_login(who, LoginCallback { state, code, issuer, error }).await?;
    Ok(ended(&headers, "You are logged in.", McpServer::of(shown, &principal), &name, CALLBACK))
}
