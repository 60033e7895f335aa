//! One MCP server: connects at its first use, and again after its connection was lost. Must not know other servers.

mod calls;
pub(super) mod connected_server;
pub(super) mod context;
pub(super) mod resources;
mod restart;
pub(super) mod tool_definitions;
pub(super) mod tool_list;

use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::{Semaphore, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

use crate::domain::tool::ToolDefinition;
use crate::support::clock::UnixMillis;
use crate::support::locks::lock;
use crate::tools::mcp::calls::input_required::InputRequiredCalls;
use crate::tools::mcp::config::Identity;
use crate::tools::mcp::oauth::{AuthState, Login, TokenScope, Tokens};
use crate::tools::mcp::process::slots::ProcessHolder;
use crate::tools::mcp::server::connected_server::{ConnectedServer, ToolListFreshness};
use crate::tools::mcp::server::context::ServerContext;
use crate::tools::mcp::server::restart::RestartPolicy;
use crate::tools::mcp::server::tool_definitions::Labels;
use crate::tools::mcp::transport::connection::Connection;
use crate::tools::mcp::transport::endpoint::ServerError;
use crate::tools::mcp::{McpPrompt, McpResource, ServerConfig, ServerTransport};
use crate::tools::{ServerStatus, model_tool_names};

const LIST_LIMIT: Duration = Duration::from_secs(15);

pub struct Server {
    pub identity: Identity,
    /// The prefix of its tool names when it was created.
    name_prefix: String,
    pub revision: i64,
    /// The destination of a user server.
    destination: Option<String>,
    config: ServerConfig,
    /// Its working directory, unless its entry has another one.
    home: Option<PathBuf>,
    common: Arc<ServerContext>,
    phase: watch::Sender<Phase>,
    phase_began: Mutex<UnixMillis>,
    restarts: Mutex<RestartPolicy>,
    last_used: Mutex<Instant>,
    /// Cloned by each call, and by each task that waits for the connection: its count shows whether the server is in use.
    uses: Arc<()>,
    /// Cloned by each request on the connection: its count shows how many are under way.
    requests: Arc<()>,
    /// Locked while an old connection closes, because it could disturb the next one.
    closing_lock: Arc<tokio::sync::Mutex<()>>,
    paused_calls: InputRequiredCalls,
    /// Limits concurrent calls.
    pub call_permits: Arc<Semaphore>,
    /// Cancelled when the server is finally closed.
    closing: CancellationToken,
    /// Holds a token for each start attempt, for each process, and for each replaced connection that is not closed yet.
    open_resources: TaskTracker,
    /// Whether the last successful handshake was that of the stateless revision.
    stateless: AtomicBool,
    /// Whether the last HTTP transport was SSE.
    uses_sse: AtomicBool,
    login: Option<Arc<Login>>,
}

#[derive(Clone)]
enum Phase {
    Unknown,
    Starting {
        since: Instant,
    },
    Up(Arc<ConnectedServer>),
    /// The connection was closed because it was idle.
    Idle(IdleToolList),
    Failed {
        fault: ServerError,
        retry_at: Instant,
        /// The time of `retry_at` for display, if it connects then without a call. Computed once, so that all reads agree.
        next_attempt_at: Option<UnixMillis>,
    },
    Closed,
}

/// The last known tools of a server without a connection.
#[derive(Clone)]
struct IdleToolList {
    tools: Vec<Arc<ToolDefinition>>,
    omits_tools: bool,
}

impl Server {
    /// Returns a server that is not connected yet. `call_permits` are those of the same server for another owner.
    pub fn new(
        identity: Identity,
        name_prefix: String,
        revision: i64,
        config: ServerConfig,
        call_permits: Option<Arc<Semaphore>>,
        (home, common): (Option<PathBuf>, Arc<ServerContext>),
    ) -> Arc<Self> {
        // The destination of an operator server changes only with a restart, so it needs no check.
        let destination = (identity.key == identity.id.as_str()).then(|| config.transport.destination());
        // A remote server is one machine for all owners, so they share its limit. But a call that waits for a user or a model must not
        // delay the calls of other owners.
        let shared = call_permits.filter(|_| matches!(config.transport, ServerTransport::Http { .. }) && !config.may_ask());
        let call_permits = shared.unwrap_or_else(|| Arc::new(Semaphore::new(config.concurrency)));
        let (phase, phase_began) = (watch::Sender::new(Phase::Unknown), Mutex::new(common.clock.now()));
        let login = login(&identity, &config, common.tokens.as_ref());
        Arc::new(Self {
            identity,
            name_prefix,
            revision,
            destination,
            config,
            home,
            common,
            phase,
            phase_began,
            restarts: Mutex::default(),
            last_used: Mutex::new(Instant::now()),
            uses: Arc::default(),
            requests: Arc::default(),
            closing_lock: Arc::default(),
            paused_calls: InputRequiredCalls::default(),
            call_permits,
            closing: CancellationToken::new(),
            open_resources: TaskTracker::new(),
            stateless: AtomicBool::new(false),
            uses_sse: AtomicBool::new(false),
            login,
        })
    }

    /// Returns the time since the last use. A call under way counts as use.
    pub fn idle_for(&self) -> Duration {
        if self.is_in_use_or_paused() { Duration::ZERO } else { self.last_used().elapsed() }
    }

    fn is_in_use_or_paused(&self) -> bool {
        self.is_in_use() || self.is_paused()
    }

    /// Returns whether a call is under way, or a task waits for the connection.
    fn is_in_use(&self) -> bool {
        Arc::strong_count(&self.uses) > 1
    }

    /// Returns whether it is connected or starting.
    pub fn is_up(&self) -> bool {
        matches!(*self.phase.borrow(), Phase::Up(_) | Phase::Starting { .. })
    }

    pub fn is_idle(&self) -> bool {
        matches!(*self.phase.borrow(), Phase::Idle(_))
    }

    /// Closes an idle connection, and returns whether there was one. Its tools stay on offer, and the next call connects again.
    ///
    /// `leaving` is given if another server needs the process slot, and is held until the connection is closed. Paused calls then do not
    /// keep the connection: a paused call's repeated request contains all its state.
    pub fn close_idle(self: &Arc<Self>, leaving: Option<TaskTrackerToken>) -> bool {
        // Each task that uses the connection holds a clone of its `Arc`. While the phase is locked, no task can get one.
        let is_wanted = || if leaving.is_some() { self.is_in_use() } else { self.is_in_use_or_paused() };
        let detached = self.detach_connection(|connected| is_wanted() || Arc::strong_count(connected) > 1);
        let Some((connected, token)) = detached else { return false };
        let name = &self.identity.name;
        tracing::debug!(mcp.server = name, "MCP server {name} was idle and is disconnected");
        self.common.tasks.spawn(async move {
            connected.connection.close().await;
            drop((connected, token, leaving));
        });
        true
    }

    /// Takes the connection out of use, unless it is needed. The caller holds the token until the connection is closed.
    fn detach_connection(
        &self,
        is_wanted: impl FnOnce(&Arc<ConnectedServer>) -> bool,
    ) -> Option<(Arc<ConnectedServer>, TaskTrackerToken)> {
        let mut detached = None;
        self.change_phase(|phase| {
            let Phase::Up(connected) = phase else { return false };
            if is_wanted(connected) {
                return false;
            }
            let Some(tools) = connected.tools_now() else { return false };
            detached = Some((Arc::clone(connected), self.open_resources.token()));
            *phase = Phase::Idle(IdleToolList { tools, omits_tools: connected.omits_tools() });
            true
        });
        detached
    }

    /// Returns its tools, with names that begin with `name_prefix`. Waits for a connection attempt until `time_limit` after the attempt
    /// began. After a failure it waits only a fifth of that, so that the server does not delay every run.
    pub async fn definitions(
        self: &Arc<Self>,
        name_prefix: &str,
        time_limit: Duration,
    ) -> Result<Vec<Arc<ToolDefinition>>, String> {
        let idle = if let Phase::Idle(idle) = &*self.phase.borrow() { Some(idle.tools.clone()) } else { None };
        let mut tools = match idle {
            Some(tools) => tools,
            None => self.listed(time_limit).await?,
        };
        if name_prefix != self.name_prefix {
            let raws: Vec<&str> = tools.iter().map(|tool| tool.tool.as_str()).collect();
            let names = model_tool_names::tool_names(&self.identity.key, name_prefix, &raws);
            tools.iter_mut().zip(names).for_each(|(tool, name)| Arc::make_mut(tool).name = name);
        }
        Ok(tools)
    }

    async fn listed(self: &Arc<Self>, time_limit: Duration) -> Result<Vec<Arc<ToolDefinition>>, String> {
        let time_limit = if lock(&self.restarts).failures() > 0 { time_limit / 5 } else { time_limit };
        let began = if let Phase::Starting { since } = &*self.phase.borrow() { *since } else { Instant::now() };
        let connected = tokio::time::timeout_at(began + time_limit, self.connected())
            .await
            .map_err(|_| "it is still starting".to_owned())??;
        // If the new list does not arrive in time, the run gets the old one.
        self.refresh(&connected).await;
        Ok(connected.tools().await)
    }

    pub async fn resources(self: &Arc<Self>) -> Result<Vec<McpResource>, String> {
        let all = self.request(|connected| async move { connected.connection.list_resources().await }).await?;
        Ok(resources::resources(all, &self.config.redactor))
    }

    pub async fn prompts(self: &Arc<Self>) -> Result<Vec<McpPrompt>, String> {
        let all = self.request(|connected| async move { connected.connection.list_prompts().await }).await?;
        Ok(resources::prompts(all, &self.config.redactor))
    }

    /// Sends a request other than a call, within a time limit.
    async fn request<T, F>(self: &Arc<Self>, ask: impl FnOnce(Arc<ConnectedServer>) -> F) -> Result<T, String>
    where
        F: Future<Output = Result<T, ServerError>>,
    {
        let _request = Arc::clone(&self.requests);
        let answered = async { ask(self.connected().await?).await.map_err(|fault| fault.reason) };
        let late = |_| format!("the server did not list them within {LIST_LIMIT:?}");
        tokio::time::timeout(LIST_LIMIT, answered).await.map_err(late)?
    }

    /// Changes the phase, and stores the time if `change` returns true.
    fn change_phase(&self, change: impl FnOnce(&mut Phase) -> bool) {
        if self.phase.send_if_modified(change) {
            *lock(&self.phase_began) = self.common.clock.now();
        }
    }

    /// Returns `unknown` with the current state filled in.
    pub async fn status(&self, unknown: ServerStatus) -> ServerStatus {
        let (auth, left_out) = (self.login.as_ref().map_or(unknown.auth, |login| login.state()), self.omits_tools());
        let phase = self.phase.borrow().clone();
        let next_attempt_at = if let Phase::Failed { next_attempt_at, .. } = &phase { *next_attempt_at } else { None };
        let next_attempt_at = next_attempt_at.map(UnixMillis::to_rfc3339);
        let (status, error, stderr, tools) = match phase {
            Phase::Unknown | Phase::Closed => ("unknown", None, None, 0),
            Phase::Starting { .. } => ("starting", None, None, 0),
            Phase::Idle(idle) => ("ok", None, None, idle.tools.len()),
            Phase::Up(connected) if connected.connection.is_alive() => {
                ("ok", None, connected.connection.stderr_tail(), connected.tools().await.len())
            }
            Phase::Up(connected) => {
                ("error", Some("the connection was lost and is being restored".to_owned()), connected.connection.stderr_tail(), 0)
            }
            Phase::Failed { fault: ServerError { reason, stderr }, .. } => ("error", Some(reason), stderr, 0),
        };
        let since = Some(lock(&self.phase_began).to_rfc3339());
        let failures = lock(&self.restarts).failures();
        let status = status.to_owned();
        ServerStatus { status, since, error, failures, next_attempt_at, stderr, tools, auth, left_out, ..unknown }
    }

    /// Returns whether some of its listed tools are omitted, as far as is known.
    pub fn omits_tools(&self) -> bool {
        match &*self.phase.borrow() {
            Phase::Up(connected) => connected.connection.is_alive() && connected.omits_tools(),
            Phase::Idle(idle) => idle.omits_tools,
            Phase::Unknown | Phase::Starting { .. } | Phase::Failed { .. } | Phase::Closed => false,
        }
    }

    /// Returns why it offers no tools, without internal reasons. `None` if it offers tools, or was not tried yet.
    pub fn unavailable_reason(&self) -> Option<&'static str> {
        match &*self.phase.borrow() {
            Phase::Unknown | Phase::Idle(_) | Phase::Closed => None,
            Phase::Starting { .. } => Some("it is still starting"),
            Phase::Up(connected) => (!connected.connection.is_alive()).then_some("its connection was lost"),
            Phase::Failed { .. } => Some(match self.login.as_ref().map(|login| login.state()) {
                Some(AuthState::Needed) => "it needs a login",
                _ => "it cannot be reached",
            }),
        }
    }

    /// Closes it finally, and waits until its processes have ended.
    pub async fn close(&self) {
        let phase = self.phase.send_replace(Phase::Closed);
        self.closing.cancel();
        self.open_resources.close();
        let last = async {
            if let Phase::Up(connected) = phase {
                connected.connection.close().await;
            }
        };
        tokio::join!(last, self.open_resources.wait());
    }

    /// Closes a lost connection when its other calls have ended, or when the server closes: an error that ends one call, such as a lost
    /// session, may leave the others intact.
    async fn close_when_idle(&self, connection: &Connection) {
        tokio::select! {
            () = connection.is_idle() => {}
            () = self.closing.cancelled() => {}
        }
        connection.close().await;
    }

    /// Returns the connection, and connects first if there is none. Only one attempt is under way at a time, and it continues when its
    /// caller stops waiting.
    pub async fn connected(self: &Arc<Self>) -> Result<Arc<ConnectedServer>, String> {
        *lock(&self.last_used) = Instant::now();
        let _use = Arc::clone(&self.uses);
        self.start_connecting();
        let mut phases = self.phase.subscribe();
        let phase = phases.wait_for(|phase| !matches!(phase, Phase::Starting { .. }));
        let phase = phase.await.map(|phase| phase.clone()).unwrap_or(Phase::Closed);
        match phase {
            Phase::Up(connected) => Ok(connected),
            Phase::Failed { fault, .. } => Err(fault.reason),
            Phase::Unknown | Phase::Starting { .. } | Phase::Idle(_) | Phase::Closed => Err("it is being shut down".to_owned()),
        }
    }

    fn labels(&self) -> Labels<'_> {
        Labels { identity: &self.identity, name_prefix: &self.name_prefix, destination: self.destination.as_deref() }
    }

    /// Lists the tools again if the server has announced a change.
    async fn refresh(self: &Arc<Self>, connected: &Arc<ConnectedServer>) -> ToolListFreshness {
        let (server, listing) = (Arc::clone(self), Arc::clone(connected));
        let list_again = async move {
            listing.list_again(server.labels(), &server.config, &server.common.closing).await;
        };
        connected.refresh(list_again, &self.common.tasks).await
    }
}

impl ProcessHolder for Server {
    /// Ignores pauses that are older than a day: if a run is cancelled, nothing tells the server that its paused call has ended.
    fn is_paused(&self) -> bool {
        self.paused_calls.are_any(Instant::now())
    }

    fn last_used(&self) -> Instant {
        *lock(&self.last_used)
    }

    fn end_if_idle(self: Arc<Self>, leaving: TaskTrackerToken) -> bool {
        self.close_idle(Some(leaving))
    }
}

/// Returns the login of an HTTP server, unless its entry has credentials of its own.
fn login(identity: &Identity, config: &ServerConfig, tokens: Option<&Arc<dyn Tokens>>) -> Option<Arc<Login>> {
    let ServerTransport::Http { url, headers, egress, oauth, .. } = &config.transport else { return None };
    if headers.keys().any(|name| name.eq_ignore_ascii_case("authorization")) {
        return None;
    }
    let (server, owner) = (identity.id.clone(), identity.owner.clone());
    let scope = TokenScope { server, owner, url: url.clone(), issuer: oauth.issuer.clone(), egress: *egress };
    Some(Arc::new(Login::new(scope, Arc::clone(tokens?), config.redactor.clone())))
}
