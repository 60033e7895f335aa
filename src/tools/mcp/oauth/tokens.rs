//! The login tokens of one connection. They are sent to its server only, and refreshed when they expire or are refused.

use std::collections::HashMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use reqwest::header::{HeaderName, HeaderValue};
use rmcp::model::{ClientJsonRpcMessage, GetMeta as _};
use rmcp::transport::common::client_side_sse::BoxedSseResponse;
use rmcp::transport::streamable_http_client::{
    AuthRequiredError, StreamableHttpClient, StreamableHttpError, StreamableHttpPostResponse,
};
use secrecy::{ExposeSecret as _, SecretString};
use serde::Serialize;
use tokio::sync::Mutex;
use tokio::time::Instant;
use utoipa::ToSchema;

use crate::domain::ids::{McpServerId, UserId};
use crate::support::locks::lock;
use crate::support::net::egress::EgressScope;
use crate::support::trace::TRACEPARENT;
use crate::tools::mcp::config::redaction::SecretRedactor;
use crate::tools::mcp::transport::http_status::classify_status;

/// The largest event of a stream whose caller sets no limit, in bytes: the default of the library.
const MAX_EVENT: usize = 16 * 1024 * 1024;

/// Whether an MCP server requires a login.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum AuthState {
    /// The server has not required a login.
    None,
    /// The server requires a login. `POST /api/v1/mcp-servers/{id}/login` begins it.
    Needed,
    /// A user has logged in.
    Ok,
}

/// The server, entry and owner for which a token is valid.
#[derive(Debug, Clone)]
pub struct TokenScope {
    pub server: McpServerId,
    /// The owner; `None` for a server of all users.
    pub owner: Option<UserId>,
    /// The URL of its entry. Tokens for another URL are ignored.
    pub url: String,
    /// The authorization server of its entry. Tokens of another one are ignored.
    pub issuer: Option<String>,
    pub egress: EgressScope,
}

#[derive(Debug, Clone)]
pub struct Access {
    pub token: SecretString,
    /// The refresh token. It is never sent to the server, but redacted in its texts.
    pub refresh: Option<SecretString>,
    /// How long the token may be used without a new check; `None` if it has no known expiry.
    pub fresh_for: Option<Duration>,
}

/// The store of tokens, which also refreshes them.
#[async_trait]
pub trait Tokens: Send + Sync {
    /// Returns a token, or `None` if a login is needed. Refreshes a token that expires soon or that the server has `refused`.
    async fn token(&self, scope: &TokenScope, refused: Option<&SecretString>) -> Result<Option<Access>, String>;
}

pub struct Login {
    scope: TokenScope,
    tokens: Arc<dyn Tokens>,
    redactor: SecretRedactor,
    state: std::sync::Mutex<AuthState>,
    current: Mutex<Option<(SecretString, Option<Instant>)>>,
}

impl Login {
    /// Creates a login without tokens. Tokens that are read later are added to `redactor`.
    pub fn new(scope: TokenScope, tokens: Arc<dyn Tokens>, redactor: SecretRedactor) -> Self {
        Self { scope, tokens, redactor, state: std::sync::Mutex::new(AuthState::None), current: Mutex::default() }
    }

    /// Returns whether the server requires a login, as far as known.
    pub fn state(&self) -> AuthState {
        *lock(&self.state)
    }

    pub fn login_hint(&self) -> String {
        format!("it needs a login, which POST /api/v1/mcp-servers/{}/login begins", self.scope.server)
    }

    /// Drops the cached token, because another process may have logged in or out.
    pub async fn drop_cached_token(&self) {
        *self.current.lock().await = None;
    }

    /// Returns the current token, but not the `refused` one.
    pub async fn token(&self, refused: Option<&SecretString>) -> Result<Option<SecretString>, String> {
        let mut current = self.current.lock().await;
        if let Some((token, until)) = &*current
            && until.is_none_or(|until| Instant::now() < until)
            && refused.is_none_or(|refused| refused.expose_secret() != token.expose_secret())
        {
            return Ok(Some(token.clone()));
        }
        *current = None;
        let Some(Access { token, refresh, fresh_for }) = self.tokens.token(&self.scope, refused).await? else { return Ok(None) };
        self.redactor.add_token("access_token", &token);
        if let Some(refresh) = &refresh {
            self.redactor.add_token("refresh_token", refresh);
        }
        *current = Some((token.clone(), fresh_for.map(|fresh_for| Instant::now() + fresh_for)));
        Ok(Some(token))
    }

    /// Derives the state from an answer: `good` after a success.
    fn record_state<T>(&self, answer: Result<T, Failure>, good: AuthState) -> Result<T, Failure> {
        let state = match &answer {
            Ok(_) => good,
            Err(error) if is_unauthorized(error) => AuthState::Needed,
            Err(_) => return answer,
        };
        *lock(&self.state) = state;
        answer
    }
}

/// A client that sends the tokens of a login, if there is one. `http_status::prepare_client` must have prepared it.
#[derive(Clone)]
pub struct AuthorizedClient {
    /// The client without tokens.
    pub client: reqwest::Client,
    login: Option<Arc<Login>>,
}

type Failure = StreamableHttpError<reqwest::Error>;

impl AuthorizedClient {
    pub fn new(client: reqwest::Client, login: Option<Arc<Login>>) -> Self {
        Self { client, login }
    }

    /// Sends a request with a token, and again with another token if the server refuses the first.
    pub async fn with_token<T, F>(&self, act: impl Fn(Option<String>) -> F + Send + Sync) -> Result<T, Failure>
    where
        T: Send,
        F: Future<Output = Result<T, Failure>> + Send,
    {
        let Some(login) = &self.login else { return act(None).await };
        let Some(first) = login.token(None).await.map_err(unauthorized)? else {
            return login.record_state(act(None).await, AuthState::None);
        };
        match act(Some(first.expose_secret().to_owned())).await {
            Err(error) if is_unauthorized(&error) => {}
            done => return login.record_state(done, AuthState::Ok),
        }
        match login.token(Some(&first)).await.map_err(unauthorized)? {
            // A server that also refuses a new token needs a login.
            Some(second) => login.record_state(act(Some(second.expose_secret().to_owned())).await, AuthState::Ok),
            None => login.record_state(Err(unauthorized(login.login_hint())), AuthState::Ok),
        }
    }
}

/// Returns the error for a 401, which proves that the server did not act.
fn unauthorized(why: String) -> Failure {
    StreamableHttpError::AuthRequired(AuthRequiredError::new(why))
}

/// Returns whether the server answered 401.
fn is_unauthorized(error: &Failure) -> bool {
    match error {
        StreamableHttpError::AuthRequired(_) => true,
        StreamableHttpError::UnexpectedServerResponse(message) => message.starts_with("HTTP 401"),
        StreamableHttpError::Client(error) => error.status() == Some(reqwest::StatusCode::UNAUTHORIZED),
        _ => false,
    }
}

/// Returns the trace of a message as a header, because gateways in front of a server read no bodies. The library sends in its own
/// task, which has no current trace.
fn traceparent_of(message: &ClientJsonRpcMessage) -> Option<HeaderValue> {
    let ClientJsonRpcMessage::Request(request) = message else { return None };
    request.request.get_meta().get_traceparent()?.try_into().ok()
}

impl StreamableHttpClient for AuthorizedClient {
    type Error = reqwest::Error;

    async fn post_message(
        &self,
        uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session_id: Option<Arc<str>>,
        _auth_header: Option<String>,
        custom_headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<StreamableHttpPostResponse, Failure> {
        self.post_message_with_max_sse_event_size(uri, message, session_id, None, custom_headers, MAX_EVENT).await
    }

    async fn post_message_with_max_sse_event_size(
        &self,
        uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session_id: Option<Arc<str>>,
        _auth_header: Option<String>,
        custom_headers: HashMap<HeaderName, HeaderValue>,
        max_sse_event_size: usize,
    ) -> Result<StreamableHttpPostResponse, Failure> {
        let mut custom_headers = custom_headers;
        if let Some(traceparent) = traceparent_of(&message) {
            custom_headers.insert(HeaderName::from_static(TRACEPARENT), traceparent);
        }
        self.with_token(|token| {
            let (uri, message, session_id, headers) = (uri.clone(), message.clone(), session_id.clone(), custom_headers.clone());
            let client = &self.client;
            classify_status(client.post_message_with_max_sse_event_size(
                uri,
                message,
                session_id,
                token,
                headers,
                max_sse_event_size,
            ))
        })
        .await
    }

    async fn delete_session(
        &self,
        uri: Arc<str>,
        session_id: Arc<str>,
        _auth_header: Option<String>,
        custom_headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<(), Failure> {
        self.with_token(|token| self.client.delete_session(uri.clone(), session_id.clone(), token, custom_headers.clone())).await
    }

    async fn get_stream(
        &self,
        uri: Arc<str>,
        session_id: Option<Arc<str>>,
        last_event_id: Option<String>,
        _auth_header: Option<String>,
        custom_headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<BoxedSseResponse, Failure> {
        self.get_stream_with_max_sse_event_size(uri, session_id, last_event_id, None, custom_headers, MAX_EVENT).await
    }

    async fn get_stream_with_max_sse_event_size(
        &self,
        uri: Arc<str>,
        session_id: Option<Arc<str>>,
        last_event_id: Option<String>,
        _auth_header: Option<String>,
        custom_headers: HashMap<HeaderName, HeaderValue>,
        max_sse_event_size: usize,
    ) -> Result<BoxedSseResponse, Failure> {
        self.with_token(|token| {
            let (uri, session_id, event, headers) =
                (uri.clone(), session_id.clone(), last_event_id.clone(), custom_headers.clone());
            self.client.get_stream_with_max_sse_event_size(uri, session_id, event, token, headers, max_sse_event_size)
        })
        .await
    }
}
