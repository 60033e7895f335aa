//! The route `/mcp`, and the choice between requests with and without a session.
//!
//! Most requests have no session, so any process can answer them. Only a client that supports elicitation, with protocol version
//! 2025-11-25 or earlier, gets a session: its answers arrive as separate requests. Later protocol versions have no sessions.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use axum::Extension;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::HeaderMap;
use axum::http::header::CONTENT_TYPE;
use axum::response::Response;
use bytes::Bytes;
use futures_util::StreamExt as _;
use moka::sync::Cache;
use rmcp::model::{ClientCapabilities, Implementation, InitializeRequestParams, ProtocolVersion};
use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;
use rmcp::transport::streamable_http_server::session::never::NeverSessionManager;
use rmcp::transport::streamable_http_server::session::{SessionState, SessionStore, SessionStoreError};
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use serde_json::Value;
use uuid::Uuid;

use super::server::AgentServer;
use crate::domain::ids::UserId;
use crate::domain::problem::ProblemCode;
use crate::http::api_router::{ApiRouter, routes};
use crate::http::options::App;
use crate::http::wire::problem::{HttpResult, Problem, RenderedError};
use crate::http::wire::{auth, extract};
use crate::service::Access;

const SESSION_ID: &str = "mcp-session-id";
/// Time without any message after which a session ends. A later request with its id starts it again.
const SESSION_IDLE: Duration = Duration::from_secs(15 * 60);
/// Limit of the sessions of one user in this process. Further clients get no session.
const MAX_SESSIONS: usize = 64;
/// Limit of the users with sessions in this process. The sessions of the least recently used user end first, and start again on
/// use.
const MAX_USERS: u64 = 1_000;

pub(super) fn routes() -> ApiRouter {
    ApiRouter::new().routes(routes!(send, listen, end)).with_extension(Sessions::default())
}

/// Sends a message of MCP
///
/// The response to a request is a message, or a stream that ends with it.
#[utoipa::path(
    post, path = "/mcp", tag = "mcp", operation_id = "mcp_send", request_body = Object,
    params(("Mcp-Session-Id" = Option<String>, Header)),
    responses((status = 200, description = "The messages of the server",
               content((Object = "application/json"), (String = "text/event-stream"))),
              (status = 202, description = "A message that has no response is accepted")),
)]
async fn send(app: State<App>, sessions: Extension<Sessions>, access: Access, request: Request) -> HttpResult<Response> {
    serve(app, sessions, access, request).await
}

/// Streams the messages of a session
#[utoipa::path(
    get, path = "/mcp", tag = "mcp", operation_id = "mcp_listen", params(("Mcp-Session-Id" = Option<String>, Header)),
    responses((status = 200, description = "The messages of the server", body = String, content_type = "text/event-stream")),
)]
async fn listen(app: State<App>, sessions: Extension<Sessions>, access: Access, request: Request) -> HttpResult<Response> {
    serve(app, sessions, access, request).await
}

/// Ends a session
#[utoipa::path(
    delete, path = "/mcp", tag = "mcp", operation_id = "mcp_end", params(("Mcp-Session-Id" = Option<String>, Header)),
    responses((status = 202, description = "The session has ended"), (status = 204, description = "The session has ended")),
)]
async fn end(app: State<App>, sessions: Extension<Sessions>, access: Access, request: Request) -> HttpResult<Response> {
    serve(app, sessions, access, request).await
}

async fn serve(
    State(app): State<App>,
    Extension(sessions): Extension<Sessions>,
    access: Access,
    request: Request,
) -> HttpResult<Response> {
    if !auth::is_own_origin(&app, request.uri(), request.headers()) {
        return Err(Problem::new(ProblemCode::Forbidden, "requests from pages of another origin are refused"));
    }
    let (parts, body) = request.into_parts();
    let bytes = extract::read(Request::from_parts(parts.clone(), body), &app, app.options.limits.max_body_bytes).await?;
    let session = parts.headers.get(SESSION_ID).map(|id| id.to_str().unwrap_or_default().to_owned());
    let needs_session = session.is_some() || begins_with_elicitation(&bytes);
    let request = Request::from_parts(parts, Body::from(bytes));
    let user = if needs_session { sessions.with_room(&app, &access, session.as_deref()).await } else { None };
    let response = match user {
        Some(user) => Box::pin(user.service.handle(request)).await,
        None => {
            let config = config(&app).with_legacy_session_mode(false);
            let server = AgentServer::new(app);
            let manager = Arc::new(NeverSessionManager::default());
            Box::pin(StreamableHttpService::new(move || Ok(server.clone()), manager, config).handle(request)).await
        }
    };
    let mut response = response.map(Body::new);
    if has_type(response.headers(), "application/json") {
        response.extensions_mut().insert(RenderedError);
    }
    if has_type(response.headers(), "text/event-stream") {
        let revoked = async move { access.wait_until_over().await };
        response = response.map(|body| Body::from_stream(body.into_data_stream().take_until(Box::pin(revoked))));
    }
    Ok(response)
}

fn has_type(headers: &HeaderMap, kind: &str) -> bool {
    headers.get(CONTENT_TYPE).is_some_and(|value| value.as_bytes().starts_with(kind.as_bytes()))
}

/// Returns whether a message is the `initialize` of a client that can ask its user.
fn begins_with_elicitation(message: &Bytes) -> bool {
    let parsed: Result<Value, _> = serde_json::from_slice(message);
    parsed.is_ok_and(|message| message["method"] == "initialize" && message["params"]["capabilities"]["elicitation"].is_object())
}

fn config(app: &App) -> StreamableHttpServerConfig {
    // The layers around all routes check the host.
    StreamableHttpServerConfig::default()
        .disable_allowed_hosts()
        .with_sse_keep_alive(Some(app.options.limits.sse_ping))
        .with_max_request_body_bytes(app.options.limits.max_body_bytes)
        .with_cancellation_token(app.options.shutdown.child_token())
}

/// The sessions of clients that support elicitation, by user: the id of another user's session finds nothing.
#[derive(Clone)]
struct Sessions(Cache<UserId, UserSessions>);

impl Default for Sessions {
    fn default() -> Self {
        Self(Cache::builder().max_capacity(MAX_USERS).time_to_idle(SESSION_IDLE).build())
    }
}

impl Sessions {
    /// Returns the sessions of the caller, if `session` is one of them, or if one more is within the limit.
    async fn with_room(&self, app: &App, access: &Access, session: Option<&str>) -> Option<UserSessions> {
        let user = self.0.get_with(access.principal().user_id.clone(), || UserSessions::new(app));
        let open = user.manager.sessions.read().await;
        let has_room = open.len() < MAX_SESSIONS || session.is_some_and(|id| open.contains_key(id));
        drop(open);
        has_room.then_some(user)
    }
}

#[derive(Clone)]
struct UserSessions {
    manager: Arc<LocalSessionManager>,
    service: StreamableHttpService<AgentServer, LocalSessionManager>,
}

impl UserSessions {
    fn new(app: &App) -> Self {
        let mut manager = LocalSessionManager::default();
        manager.session_config.keep_alive = Some(SESSION_IDLE);
        let manager = Arc::new(manager);
        let mut config = config(app);
        config.session_store = Some(Arc::new(KnownSessions));
        let server = AgentServer::new(app.clone());
        let service = StreamableHttpService::new(move || Ok(server.clone()), Arc::clone(&manager), config);
        Self { manager, service }
    }
}

/// Restores a session that this process does not know, after a restart or from another process. Only clients that support
/// elicitation have sessions, and a session needs no other fact.
struct KnownSessions;

#[async_trait]
impl SessionStore for KnownSessions {
    async fn load(&self, session_id: &str) -> Result<Option<SessionState>, SessionStoreError> {
        let is_ours = Uuid::parse_str(session_id).is_ok();
        let capabilities = ClientCapabilities::builder().enable_elicitation().build();
        let params = InitializeRequestParams::new(capabilities, Implementation::new("unknown", "0"))
            .with_protocol_version(ProtocolVersion::LATEST_WITH_INITIALIZE);
        Ok(is_ours.then(|| SessionState::new(params)))
    }

    async fn store(&self, _session_id: &str, _state: &SessionState) -> Result<(), SessionStoreError> {
        Ok(())
    }

    async fn delete(&self, _session_id: &str) -> Result<(), SessionStoreError> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_clients_that_can_ask_begin_sessions() {
        let begins = |text: &'static str| begins_with_elicitation(&Bytes::from_static(text.as_bytes()));
        assert!(begins(r#"{"method": "initialize", "params": {"capabilities": {"elicitation": {}}}}"#));
        assert!(!begins(r#"{"method": "initialize", "params": {"capabilities": {}}}"#));
        assert!(!begins(r#"{"method": "tools/list", "params": {"capabilities": {"elicitation": {}}}}"#));
        assert!(!begins("[]") && !begins(""));
    }

    #[tokio::test]
    async fn unknown_session_can_ask_again() {
        let known = KnownSessions.load("01980000-0000-7000-8000-000000000001").await.unwrap().unwrap();
        assert!(known.initialize_params.capabilities.elicitation.is_some());
        assert!(KnownSessions.load("made up").await.unwrap().is_none());
    }
}
