//! What the application decides about the HTTP layer.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::sockets::Sockets;
use crate::domain::principal::Principal;
use crate::service::Service;

/// Who may call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Auth {
    /// Everybody, as this principal. Only for a server that listens on loopback and has no key.
    Open(Principal),
    /// Holders of a key.
    Keys,
}

/// Bounds and intervals.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HttpLimits {
    /// Bytes of a request body.
    pub max_body_bytes: usize,
    /// How long a body may take to arrive.
    pub body_timeout: Duration,
    /// How often an event stream says that it is alive.
    pub sse_ping: Duration,
    /// Bytes of a WebSocket message.
    pub ws_max_message_bytes: usize,
    /// How often a WebSocket is pinged.
    pub ws_ping: Duration,
    /// How long a WebSocket may be silent, pongs included.
    pub ws_silence: Duration,
    /// How long a WebSocket may take to say who it is.
    pub ws_auth_timeout: Duration,
    /// How long a WebSocket may take to accept what is sent to it.
    pub ws_write_timeout: Duration,
    /// Subscriptions of one WebSocket.
    pub ws_max_subscriptions: usize,
    /// WebSockets of one principal.
    pub ws_max_per_principal: usize,
}

impl Default for HttpLimits {
    fn default() -> Self {
        Self {
            max_body_bytes: 1024 * 1024,
            body_timeout: Duration::from_secs(30),
            sse_ping: Duration::from_secs(15),
            ws_max_message_bytes: 1024 * 1024,
            ws_ping: Duration::from_secs(20),
            ws_silence: Duration::from_secs(45),
            ws_auth_timeout: Duration::from_secs(10),
            ws_write_timeout: Duration::from_secs(20),
            ws_max_subscriptions: 64,
            ws_max_per_principal: 1_000,
        }
    }
}

/// Renders the metrics.
pub type RenderMetrics = Arc<dyn Fn() -> String + Send + Sync>;

/// What the application decides.
#[derive(Clone)]
pub struct HttpOptions {
    /// Who may call.
    pub auth: Auth,
    /// Cancelled when the server drains: streams end with a word on when to come back, and `/readyz` says no.
    pub shutdown: CancellationToken,
    /// Owns the tasks of WebSockets, so that the application can wait for them.
    pub connections: TaskTracker,
    /// For `/metrics`.
    pub metrics: RenderMetrics,
    /// The hosts that requests may be for, without ports; `None` for any. Set it when listening on loopback, where a web page
    /// can make a browser send requests under a name of its own (DNS rebinding).
    pub allowed_hosts: Option<Vec<String>>,
    /// Origins of web pages that may call from another origin, as browsers send them in `Origin`.
    pub cors_origins: Vec<String>,
    /// Where browsers find the server, if that is not what they name as its host.
    pub public_url: Option<String>,
    /// Whether there is a page for people at `/`.
    pub page: bool,
    /// Bounds and intervals.
    pub limits: HttpLimits,
}

impl HttpOptions {
    /// Options for `auth` with nothing else decided: no metrics, any host, no other origins, no page.
    #[must_use]
    pub fn new(auth: Auth) -> Self {
        Self {
            auth,
            shutdown: CancellationToken::new(),
            connections: TaskTracker::new(),
            metrics: Arc::new(String::new),
            allowed_hosts: None,
            cors_origins: Vec::new(),
            public_url: None,
            page: false,
            limits: HttpLimits::default(),
        }
    }

    /// The hosts that a loopback listener answers for.
    #[must_use]
    pub fn loopback_hosts() -> Vec<String> {
        ["localhost", "127.0.0.1", "::1"].map(str::to_owned).into()
    }
}

/// What every handler gets.
#[derive(Clone)]
pub(crate) struct App {
    pub service: Arc<Service>,
    pub options: Arc<HttpOptions>,
    pub sockets: Arc<Sockets>,
}
