//! Settings of the HTTP layer, and the state of its handlers.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::http::HeaderMap;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::domain::access::principal::Principal;
use crate::domain::problem::ProblemBody;
use crate::service::{Service, UserCounts};

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Auth {
    /// No authentication: each caller is this principal. Only for a server that listens on loopback and has no key.
    Open(Principal),
    Keys,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HttpLimits {
    pub max_body_bytes: usize,
    pub body_timeout: Duration,
    pub sse_ping: Duration,
    pub ws_ping: Duration,
    /// Time limit without any message from a WebSocket's client, pongs included.
    pub ws_silence: Duration,
    /// Time limit for the first frame with a key.
    pub ws_auth_timeout: Duration,
    pub ws_max_subscriptions: usize,
    pub ws_max_per_principal: usize,
    /// Time from the disconnect of a client to the cancellation of its run, if no client can read the answer later.
    pub completion_grace: Duration,
}

impl Default for HttpLimits {
    fn default() -> Self {
        Self {
            max_body_bytes: 1024 * 1024,
            body_timeout: Duration::from_secs(30),
            sse_ping: Duration::from_secs(15),
            ws_ping: Duration::from_secs(20),
            ws_silence: Duration::from_secs(45),
            ws_auth_timeout: Duration::from_secs(10),
            ws_max_subscriptions: 64,
            ws_max_per_principal: 1_000,
            completion_grace: Duration::from_secs(10),
        }
    }
}

pub type RenderMetrics = Arc<dyn Fn() -> String + Send + Sync>;

#[derive(Clone)]
pub struct HttpOptions {
    pub auth: Auth,
    /// Cancelled when the server ends. Streams then tell their clients to reconnect later.
    pub shutdown: CancellationToken,
    /// Cancelled when the server should get no new requests, although it still answers them. `/readyz` then fails.
    pub unready: CancellationToken,
    /// Owns the tasks of WebSockets, so that the application can wait for them.
    pub connections: TaskTracker,
    pub metrics: RenderMetrics,
    /// The hosts that requests may name, without ports; `None` for any. Needed when listening on loopback: a web page can make a
    /// browser send requests with the page's own host name (DNS rebinding).
    pub allowed_hosts: Option<Vec<String>>,
    /// Web origins whose pages may call the API from another origin, as browsers send them in `Origin`.
    pub cors_origins: Vec<String>,
    /// The URL of the server for browsers, if it differs from the host that they send.
    pub public_url: Option<String>,
    pub page: bool,
    /// The folder with the built chat page, instead of the embedded page.
    pub page_dir: Option<PathBuf>,
    pub limits: HttpLimits,
}

impl HttpOptions {
    /// Returns options without metrics, without the chat page, and without restrictions of hosts and origins.
    pub fn new(auth: Auth) -> Self {
        let shutdown = CancellationToken::new();
        Self {
            auth,
            unready: shutdown.child_token(),
            shutdown,
            connections: TaskTracker::new(),
            metrics: Arc::new(String::new),
            allowed_hosts: None,
            cors_origins: Vec::new(),
            public_url: None,
            page: false,
            page_dir: None,
            limits: HttpLimits::default(),
        }
    }

    /// Returns the path under which browsers find the server, without a slash at its end; empty if that is the root of its host.
    pub(crate) fn path_prefix(&self) -> &str {
        let after_host = self
            .public_url
            .as_deref()
            .and_then(|url| url.split_once("://"))
            .and_then(|(_, rest)| rest.find('/').map(|at| &rest[at..]));
        after_host.unwrap_or_default().trim_end_matches('/')
    }

    pub fn loopback_hosts() -> Vec<String> {
        ["localhost", "127.0.0.1", "::1"].map(str::to_owned).into()
    }
}

/// Renders an error in the form of a protocol: the headers, with the content type among them, and the body.
pub(crate) type ErrorForm = fn(&ProblemBody) -> (HeaderMap, String);

/// A protocol other than the native one.
pub(crate) struct Protocol {
    /// The first segment of its paths, such as `/v1`.
    pub prefix: &'static str,
    pub error: ErrorForm,
}

/// The state of every handler.
#[derive(Clone)]
pub(crate) struct App {
    pub service: Arc<Service>,
    pub options: Arc<HttpOptions>,
    pub protocols: &'static [Protocol],
    pub sockets: Arc<UserCounts>,
}

impl App {
    /// Returns the form of errors under a path, if it belongs to a protocol other than the native one.
    pub fn error_form(&self, path: &str) -> Option<ErrorForm> {
        let owns =
            |protocol: &&Protocol| path.strip_prefix(protocol.prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
        self.protocols.iter().find(owns).map(|protocol| protocol.error)
    }
}
