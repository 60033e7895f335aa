//! Settings of the HTTP layer, and the state of its handlers.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::domain::access::principal::Principal;
use crate::service::{Service, UserCounts};

/// How callers are authenticated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Auth {
    /// Not at all: each caller is this principal. Only for a server that listens on loopback and has no key.
    Open(Principal),
    Keys,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HttpLimits {
    pub max_body_bytes: usize,
    pub body_timeout: Duration,
    /// The interval of pings of an event stream.
    pub sse_ping: Duration,
    pub ws_ping: Duration,
    /// How long a WebSocket may be silent, pongs included.
    pub ws_silence: Duration,
    /// How long the first frame with a key may take.
    pub ws_auth_timeout: Duration,
    pub ws_max_subscriptions: usize,
    pub ws_max_per_principal: usize,
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
        }
    }
}

pub type RenderMetrics = Arc<dyn Fn() -> String + Send + Sync>;

#[derive(Clone)]
pub struct HttpOptions {
    pub auth: Auth,
    /// Cancelled when the server drains. Streams then tell their clients when to reconnect, and `/readyz` fails.
    pub shutdown: CancellationToken,
    /// Owns the tasks of WebSockets, so that the application can wait for them.
    pub connections: TaskTracker,
    pub metrics: RenderMetrics,
    /// The hosts that requests may be for, without ports; `None` for any. Set it when listening on loopback, where a web page
    /// can make a browser send requests under a name of its own (DNS rebinding).
    pub allowed_hosts: Option<Vec<String>>,
    /// Origins of web pages that may call from another origin, as browsers send them in `Origin`.
    pub cors_origins: Vec<String>,
    /// Where browsers find the server, if that is not what they name as its host.
    pub public_url: Option<String>,
    pub page: bool,
    pub limits: HttpLimits,
}

impl HttpOptions {
    /// Returns options without metrics, restrictions of hosts, other origins, and the page.
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

    pub fn loopback_hosts() -> Vec<String> {
        ["localhost", "127.0.0.1", "::1"].map(str::to_owned).into()
    }
}

/// The state of every handler.
#[derive(Clone)]
pub(crate) struct App {
    pub service: Arc<Service>,
    pub options: Arc<HttpOptions>,
    /// The open WebSockets of each principal.
    pub sockets: Arc<UserCounts>,
}
