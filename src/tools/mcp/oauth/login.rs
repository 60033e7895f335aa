//! The tokens of one connection: shown to its server and nobody else, got anew when they are old or are not taken.

use std::collections::HashMap;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use reqwest::header::{HeaderName, HeaderValue};
use rmcp::model::ClientJsonRpcMessage;
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
use crate::support::outbound::Reach;
use crate::tools::mcp::masks::Masks;
use crate::tools::mcp::statuses::judged;

/// Whether a server wants a login.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum AuthState {
    /// It has not asked for one.
    None,
    /// It wants one: `POST /api/v1/mcp-servers/{id}/login` begins it.
    Needed,
    /// Somebody has logged in.
    Ok,
}

/// Which tokens are asked for.
#[derive(Debug, Clone)]
pub struct TokenOf {
    /// The server.
    pub server: McpServerId,
    /// Whose the server is; `None` for one of everybody.
    pub owner: Option<UserId>,
    /// The URL of its entry: tokens of a login at another one are not for it.
    pub url: String,
    /// The authorization server that its entry names, if it does: tokens of another one are not shown to it.
    pub issuer: Option<String>,
    /// Where it may lead.
    pub reach: Reach,
}

/// What is shown to a server.
#[derive(Debug, Clone)]
pub struct Access {
    /// The token.
    pub token: SecretString,
    /// What it is refreshed with, if it can be. It is shown to no server, and looked for in what they say.
    pub refresh: Option<SecretString>,
    /// How long it may be shown without asking again; `None` if nobody has said that it ends.
    pub fresh_for: Option<Duration>,
}

/// Where tokens are kept, and the one who refreshes them.
#[async_trait]
pub trait Tokens: Send + Sync {
    /// A token, refreshed if it is time, or if it is the one that the server has `refused`. `None` if somebody has to log in.
    ///
    /// # Errors
    /// In words, if they cannot be read or refreshed now.
    async fn token(&self, of: &TokenOf, refused: Option<&SecretString>) -> Result<Option<Access>, String>;
}

/// See the module documentation.
pub struct Login {
    of: TokenOf,
    tokens: Arc<dyn Tokens>,
    masks: Masks,
    state: AtomicU8,
    current: Mutex<Option<(SecretString, Option<Instant>)>>,
}

impl Login {
    /// Nobody has asked yet whether there are tokens. Those that there are, are added to `masks`.
    pub fn new(of: TokenOf, tokens: Arc<dyn Tokens>, masks: Masks) -> Self {
        Self { of, tokens, masks, state: AtomicU8::new(AuthState::None as u8), current: Mutex::default() }
    }

    /// Whether the server wants a login, as far as was seen.
    pub fn state(&self) -> AuthState {
        let states = [AuthState::None, AuthState::Needed, AuthState::Ok];
        states.into_iter().find(|state| *state as u8 == self.state.load(Ordering::SeqCst)).unwrap_or(AuthState::None)
    }

    /// What somebody is told who finds the server without a login.
    pub fn wanted(&self) -> String {
        format!("it needs a login, which POST /api/v1/mcp-servers/{}/login begins", self.of.server)
    }

    /// Forgets what was read: another process may have logged in, or out.
    pub async fn look_again(&self) {
        *self.current.lock().await = None;
    }

    /// The token to show, if there is one; not the one that was `refused`.
    pub async fn token(&self, refused: Option<&SecretString>) -> Result<Option<SecretString>, String> {
        let mut current = self.current.lock().await;
        if let Some((token, until)) = &*current
            && until.is_none_or(|until| Instant::now() < until)
            && refused.is_none_or(|refused| refused.expose_secret() != token.expose_secret())
        {
            return Ok(Some(token.clone()));
        }
        *current = None;
        let Some(Access { token, refresh, fresh_for }) = self.tokens.token(&self.of, refused).await? else { return Ok(None) };
        self.masks.add_token("access_token", &token);
        if let Some(refresh) = &refresh {
            self.masks.add_token("refresh_token", refresh);
        }
        *current = Some((token.clone(), fresh_for.map(|fresh_for| Instant::now() + fresh_for)));
        Ok(Some(token))
    }

    /// Notes what an answer says of the need for a login: `good` if it is one.
    fn noted<T>(&self, answer: Result<T, Failure>, good: AuthState) -> Result<T, Failure> {
        let state = match &answer {
            Ok(_) => good,
            Err(error) if is_unauthorized(error) => AuthState::Needed,
            // Says nothing of it.
            Err(_) => return answer,
        };
        self.state.store(state as u8, Ordering::SeqCst);
        answer
    }
}

/// A client that shows the tokens of a login, if there is one. It must be one that `statuses::noted` has made.
#[derive(Clone)]
pub struct Authorized {
    client: reqwest::Client,
    login: Option<Arc<Login>>,
}

type Failure = StreamableHttpError<reqwest::Error>;

impl Authorized {
    /// Shows the tokens of `login` with each request of `client`.
    pub fn new(client: reqwest::Client, login: Option<Arc<Login>>) -> Self {
        Self { client, login }
    }

    /// The client without any token.
    pub fn plain(&self) -> &reqwest::Client {
        &self.client
    }

    /// Does something with a token; once more with another one if the server does not take the first.
    pub async fn with_token<T, F>(&self, act: impl Fn(Option<String>) -> F + Send + Sync) -> Result<T, Failure>
    where
        T: Send,
        F: Future<Output = Result<T, Failure>> + Send,
    {
        let Some(login) = &self.login else { return act(None).await };
        let Some(first) = login.token(None).await.map_err(unauthorized)? else {
            return login.noted(act(None).await, AuthState::None);
        };
        match act(Some(first.expose_secret().to_owned())).await {
            Err(error) if is_unauthorized(&error) => {}
            done => return login.noted(done, AuthState::Ok),
        }
        match login.token(Some(&first)).await.map_err(unauthorized)? {
            // One that takes no token that its authorization server gives needs a login, too.
            Some(second) => login.noted(act(Some(second.expose_secret().to_owned())).await, AuthState::Ok),
            None => login.noted(Err(unauthorized(login.wanted())), AuthState::Ok),
        }
    }
}

/// The server answers that it does not know who asks: nothing was done.
fn unauthorized(why: String) -> Failure {
    StreamableHttpError::AuthRequired(AuthRequiredError::new(why))
}

/// Whether the server has answered 401.
pub fn is_unauthorized(error: &Failure) -> bool {
    match error {
        StreamableHttpError::AuthRequired(_) => true,
        StreamableHttpError::UnexpectedServerResponse(said) => said.starts_with("HTTP 401"),
        StreamableHttpError::Client(error) => error.status() == Some(reqwest::StatusCode::UNAUTHORIZED),
        _ => false,
    }
}

impl StreamableHttpClient for Authorized {
    type Error = reqwest::Error;

    async fn post_message(
        &self,
        uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session_id: Option<Arc<str>>,
        _auth_header: Option<String>,
        custom_headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<StreamableHttpPostResponse, Failure> {
        self.with_token(|token| {
            judged(self.client.post_message(uri.clone(), message.clone(), session_id.clone(), token, custom_headers.clone()))
        })
        .await
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
        self.with_token(|token| {
            let (uri, message, session_id, headers) = (uri.clone(), message.clone(), session_id.clone(), custom_headers.clone());
            let client = &self.client;
            judged(client.post_message_with_max_sse_event_size(uri, message, session_id, token, headers, max_sse_event_size))
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
        self.with_token(|token| {
            self.client.get_stream(uri.clone(), session_id.clone(), last_event_id.clone(), token, custom_headers.clone())
        })
        .await
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
            let (uri, session_id, last_event_id) = (uri.clone(), session_id.clone(), last_event_id.clone());
            let client = &self.client;
            client.get_stream_with_max_sse_event_size(
                uri,
                session_id,
                last_event_id,
                token,
                custom_headers.clone(),
                max_sse_event_size,
            )
        })
        .await
    }
}
