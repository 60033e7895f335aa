//! One MCP server: connected when it is first needed, and again when its connection was lost.

mod calls;

use std::path::PathBuf;
use std::pin::pin;
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
use crate::tools::mcp::calls::rounds::Pauses;
use crate::tools::mcp::config::identity::Identity;
use crate::tools::mcp::oauth::{AuthState, Login, TokenOf, Tokens};
use crate::tools::mcp::process::last_words;
use crate::tools::mcp::process::processes::{ProcessHolder, ProcessPermit};
use crate::tools::mcp::servers::catalogue::Labels;
use crate::tools::mcp::servers::common::{Common, lock};
use crate::tools::mcp::servers::listed;
use crate::tools::mcp::servers::live::{Known, Live};
use crate::tools::mcp::servers::restart_policy::RestartPolicy;
use crate::tools::mcp::transport::connection::Connection;
use crate::tools::mcp::transport::endpoint::{Endpoint, Fault};
use crate::tools::mcp::{McpPrompt, McpResource, ServerConfig, ServerTransport};
use crate::tools::{ServerStatus, names};

/// The part of the start limit in which a starting server holds a start permit: 10 s of the 60 s by default. A slower start most
/// often waits for something other than this machine.
const TURN_PART: u32 = 6;
const LIST_LIMIT: Duration = Duration::from_secs(15);

pub struct Server {
    pub identity: Identity,
    /// Its part of the names of its tools, when it was made.
    half: String,
    pub revision: i64,
    /// The destination of a kept server.
    destination: Option<String>,
    config: ServerConfig,
    /// Its working directory, unless its entry names another one.
    home: Option<PathBuf>,
    common: Arc<Common>,
    phase: watch::Sender<Phase>,
    /// The beginning of this phase.
    since: Mutex<UnixMillis>,
    restarts: Mutex<RestartPolicy>,
    last_used: Mutex<Instant>,
    /// Cloned by each call and each task that waits for the connection.
    work: Arc<()>,
    /// Cloned by each request on the connection.
    sent: Arc<()>,
    /// Held while a connection closes that could disturb the next one.
    leaves: Arc<tokio::sync::Mutex<()>>,
    pauses: Pauses,
    /// Limits concurrent calls.
    pub slots: Arc<Semaphore>,
    /// Cancelled when the server is closed for good.
    closing: CancellationToken,
    /// Holds a token for each attempt to start it, for each process, and for each replaced connection that is not closed yet.
    remains: TaskTracker,
    /// Whether the last greeting was the one of the stateless revision.
    stateless: AtomicBool,
    /// Whether the last HTTP transport was SSE, the one of the first revision.
    is_old: AtomicBool,
    login: Option<Arc<Login>>,
}

#[derive(Clone)]
enum Phase {
    Unknown,
    Starting {
        since: Instant,
    },
    Up(Arc<Live>),
    /// The connection was closed because it was idle.
    Resting(Rested),
    Failed {
        fault: Fault,
        retry_at: Instant,
    },
    Closed,
}

/// The last known tools of a server without a connection.
#[derive(Clone)]
struct Rested {
    tools: Vec<Arc<ToolDefinition>>,
    left_out: bool,
}

impl Server {
    /// Returns a server that is not connected yet. `slots` are those of the same server for other owners.
    pub fn new(
        identity: Identity,
        half: String,
        revision: i64,
        config: ServerConfig,
        slots: Option<Arc<Semaphore>>,
        (home, common): (Option<PathBuf>, Arc<Common>),
    ) -> Arc<Self> {
        // The destination of a configured server changes only with a restart, so it needs no check.
        let destination = (identity.key == identity.id.as_str()).then(|| config.transport.destination());
        // A remote server is one machine for all owners, so they share its limit. But no owner waits for the answer of another user.
        let slots = slots.filter(|_| matches!(config.transport, ServerTransport::Http { .. }) && !config.asks());
        let slots = slots.unwrap_or_else(|| Arc::new(Semaphore::new(config.concurrency)));
        let (phase, since) = (watch::Sender::new(Phase::Unknown), Mutex::new(common.clock.now()));
        let login = login(&identity, &config, common.tokens.as_ref());
        Arc::new(Self {
            identity,
            half,
            revision,
            destination,
            config,
            home,
            common,
            phase,
            since,
            restarts: Mutex::default(),
            last_used: Mutex::new(Instant::now()),
            work: Arc::default(),
            sent: Arc::default(),
            leaves: Arc::default(),
            pauses: Pauses::default(),
            slots,
            closing: CancellationToken::new(),
            remains: TaskTracker::new(),
            stateless: AtomicBool::new(false),
            is_old: AtomicBool::new(false),
            login,
        })
    }

    /// Returns the time since the last use. A call under way counts as use.
    pub fn idle_for(&self) -> Duration {
        if self.is_at_work() { Duration::ZERO } else { self.last_used().elapsed() }
    }

    fn is_at_work(&self) -> bool {
        self.is_called() || self.is_paused()
    }

    /// Whether a call is under way, or a task waits for the connection.
    fn is_called(&self) -> bool {
        Arc::strong_count(&self.work) > 1
    }

    /// Whether it is connected or starting.
    pub fn is_up(&self) -> bool {
        matches!(*self.phase.borrow(), Phase::Up(_) | Phase::Starting { .. })
    }

    pub fn is_resting(&self) -> bool {
        matches!(*self.phase.borrow(), Phase::Resting(_))
    }

    /// Closes an idle connection, and returns whether there was one. Its tools stay on offer, and the next call connects again.
    ///
    /// With `leaving`, another server needs the process slot. Then paused calls do not keep the connection, because a server gets
    /// all that it needs when it is called again. `leaving` is held until the connection is closed.
    pub fn rest(self: &Arc<Self>, leaving: Option<TaskTrackerToken>) -> bool {
        // Each user of the connection holds a clone, and no task can get one while the phase is locked.
        let is_wanted = || if leaving.is_some() { self.is_called() } else { self.is_at_work() };
        let left = self.let_go(|live| is_wanted() || Arc::strong_count(live) > 1);
        let Some((live, token)) = left else { return false };
        let name = &self.identity.name;
        tracing::debug!(mcp.server = name, "MCP server {name} is not used and rests");
        self.common.tasks.spawn(async move {
            live.connection.close().await;
            drop((live, token, leaving));
        });
        true
    }

    /// Takes the connection out of use, unless it is wanted. The caller holds the token until the connection is closed.
    fn let_go(&self, is_wanted: impl FnOnce(&Arc<Live>) -> bool) -> Option<(Arc<Live>, TaskTrackerToken)> {
        let mut left = None;
        self.shift(|phase| {
            let Phase::Up(live) = phase else { return false };
            if is_wanted(live) {
                return false;
            }
            let Some(tools) = live.tools_now() else { return false };
            left = Some((Arc::clone(live), self.remains.token()));
            *phase = Phase::Resting(Rested { tools, left_out: live.leaves_out() });
            true
        });
        left
    }

    /// Returns its tools, with names that begin with `half`. Waits for a start up to `patience` after the start began. After a
    /// failed start it waits a fifth of that, so that the server does not delay every run.
    pub async fn definitions(self: &Arc<Self>, half: &str, patience: Duration) -> Result<Vec<Arc<ToolDefinition>>, String> {
        let rested = if let Phase::Resting(rested) = &*self.phase.borrow() { Some(rested.tools.clone()) } else { None };
        let mut tools = match rested {
            Some(tools) => tools,
            None => self.listed(patience).await?,
        };
        if half != self.half {
            let raws: Vec<&str> = tools.iter().map(|tool| tool.tool.as_str()).collect();
            let names = names::tool_names(&self.identity.key, half, &raws);
            tools.iter_mut().zip(names).for_each(|(tool, name)| Arc::make_mut(tool).name = name);
        }
        Ok(tools)
    }

    async fn listed(self: &Arc<Self>, patience: Duration) -> Result<Vec<Arc<ToolDefinition>>, String> {
        let patience = if lock(&self.restarts).is_any() { patience / 5 } else { patience };
        let began = if let Phase::Starting { since } = &*self.phase.borrow() { *since } else { Instant::now() };
        let live =
            tokio::time::timeout_at(began + patience, self.live()).await.map_err(|_| "it is still starting".to_owned())??;
        // If the new list does not arrive in time, the run is offered the old one.
        self.refresh(&live).await;
        Ok(live.tools().await)
    }

    pub async fn resources(self: &Arc<Self>) -> Result<Vec<McpResource>, String> {
        let all = self.asked(|live| async move { live.connection.list_resources().await }).await?;
        Ok(listed::resources(all, &self.config.masks))
    }

    pub async fn prompts(self: &Arc<Self>) -> Result<Vec<McpPrompt>, String> {
        let all = self.asked(|live| async move { live.connection.list_prompts().await }).await?;
        Ok(listed::prompts(all, &self.config.masks))
    }

    /// Sends a request other than a call, within a time limit.
    async fn asked<T, F>(self: &Arc<Self>, ask: impl FnOnce(Arc<Live>) -> F) -> Result<T, String>
    where
        F: Future<Output = Result<T, Fault>>,
    {
        let _sent = Arc::clone(&self.sent);
        let answered = async { ask(self.live().await?).await.map_err(|fault| fault.reason) };
        let late = |_| format!("the server did not list them within {LIST_LIMIT:?}");
        tokio::time::timeout(LIST_LIMIT, answered).await.map_err(late)?
    }

    /// Forgets earlier failures, so that the next use connects at once.
    pub fn forgive(&self) {
        *lock(&self.restarts) = RestartPolicy::default();
        self.shift(|phase| {
            let is_away = matches!(phase, Phase::Failed { .. } | Phase::Resting(_));
            if is_away {
                *phase = Phase::Unknown;
            }
            is_away
        });
    }

    /// Connects again after a loss or a failed start, when it is time.
    pub fn tend(self: &Arc<Self>) {
        let now = Instant::now();
        let is_due = match &*self.phase.borrow() {
            Phase::Up(live) => !live.connection.is_alive() && lock(&self.restarts).is_due(now),
            Phase::Failed { retry_at, .. } => now >= *retry_at && lock(&self.restarts).tries_by_itself(),
            Phase::Unknown | Phase::Starting { .. } | Phase::Resting(_) | Phase::Closed => false,
        };
        if is_due {
            self.begin();
        }
    }

    /// Changes the phase, and notes the time if `change` returns true.
    fn shift(&self, change: impl FnOnce(&mut Phase) -> bool) {
        if self.phase.send_if_modified(change) {
            *lock(&self.since) = self.common.clock.now();
        }
    }

    /// Returns `none` with the current state filled in.
    pub async fn status(&self, none: ServerStatus) -> ServerStatus {
        let auth = self.login.as_ref().map_or(none.auth, |login| login.state());
        let none = ServerStatus { auth, left_out: self.leaves_out(), ..none };
        let phase = self.phase.borrow().clone();
        let (status, error, stderr, tools) = match phase {
            Phase::Unknown | Phase::Closed => ("unknown", None, None, 0),
            Phase::Starting { .. } => ("starting", None, None, 0),
            Phase::Resting(rested) => ("ok", None, None, rested.tools.len()),
            Phase::Up(live) if live.connection.is_alive() => ("ok", None, live.connection.said(), live.tools().await.len()),
            Phase::Up(live) => ("error", Some("the connection was lost and is made again".to_owned()), live.connection.said(), 0),
            Phase::Failed { fault: Fault { reason, stderr }, .. } => ("error", Some(reason), stderr, 0),
        };
        let since = Some(lock(&self.since).to_rfc3339());
        ServerStatus { status: status.to_owned(), since, error, stderr, tools, ..none }
    }

    /// Whether tools that it lists are left out, as far as is known.
    pub fn leaves_out(&self) -> bool {
        match &*self.phase.borrow() {
            Phase::Up(live) => live.connection.is_alive() && live.leaves_out(),
            Phase::Resting(rested) => rested.left_out,
            Phase::Unknown | Phase::Starting { .. } | Phase::Failed { .. } | Phase::Closed => false,
        }
    }

    /// Says why it offers no tools, without internal reasons. `None` if it offers tools, or was not tried yet.
    pub fn problem(&self) -> Option<&'static str> {
        match &*self.phase.borrow() {
            Phase::Unknown | Phase::Resting(_) | Phase::Closed => None,
            Phase::Starting { .. } => Some("it is still starting"),
            Phase::Up(live) => (!live.connection.is_alive()).then_some("its connection was lost"),
            Phase::Failed { .. } => Some(match self.login.as_ref().map(|login| login.state()) {
                Some(AuthState::Needed) => "somebody has to log in there first",
                _ => "it cannot be reached",
            }),
        }
    }

    /// Closes it for good, and waits until its processes have ended.
    pub async fn close(&self) {
        let phase = self.phase.send_replace(Phase::Closed);
        self.closing.cancel();
        self.remains.close();
        let last = async {
            if let Phase::Up(live) = phase {
                live.connection.close().await;
            }
        };
        tokio::join!(last, self.remains.wait());
    }

    /// Closes a replaced connection after its other calls are over: an error that ends one call, such as a lost session, need not
    /// end them.
    async fn bury(&self, connection: &Connection) {
        tokio::select! {
            () = connection.is_idle() => {}
            () = self.closing.cancelled() => {}
        }
        connection.close().await;
    }

    /// Returns the connection, and connects first if there is none. Only one attempt is under way at a time, and it continues when
    /// its caller stops waiting.
    pub async fn live(self: &Arc<Self>) -> Result<Arc<Live>, String> {
        *lock(&self.last_used) = Instant::now();
        let _work = Arc::clone(&self.work);
        self.begin();
        let mut phases = self.phase.subscribe();
        let phase = phases.wait_for(|phase| !matches!(phase, Phase::Starting { .. }));
        let phase = phase.await.map(|phase| phase.clone()).unwrap_or(Phase::Closed);
        match phase {
            Phase::Up(live) => Ok(live),
            Phase::Failed { fault, .. } => Err(fault.reason),
            Phase::Unknown | Phase::Starting { .. } | Phase::Resting(_) | Phase::Closed => Err("it is being shut down".to_owned()),
        }
    }

    /// Begins to connect, unless it is connected or must not be tried yet.
    fn begin(self: &Arc<Self>) {
        let (mut died, mut start) = (None, None);
        let now = Instant::now();
        // A remote server may end sessions at any time, so only the ends of processes count as losses.
        let counts = !matches!(self.config.transport, ServerTransport::Http { .. });
        self.shift(|phase| {
            let (next, starts) = match phase {
                Phase::Unknown | Phase::Resting(_) => (Phase::Starting { since: now }, true),
                Phase::Up(live) if !live.connection.is_alive() => {
                    let next = match lock(&self.restarts).given_up_until(now, counts) {
                        Some(until) => {
                            let reason = RestartPolicy::TOO_MANY.to_owned();
                            let fault = Fault { reason, stderr: live.connection.said() };
                            let name = &self.identity.name;
                            tracing::warn!(mcp.server = name, "MCP server {name} is crash-looping");
                            (Phase::Failed { fault, retry_at: until }, false)
                        }
                        None => (Phase::Starting { since: now }, true),
                    };
                    died = Some((live.clone(), self.remains.token()));
                    next
                }
                Phase::Failed { retry_at, .. } if now >= *retry_at => (Phase::Starting { since: now }, true),
                Phase::Failed { .. } | Phase::Up(_) | Phase::Starting { .. } | Phase::Closed => return false,
            };
            *phase = next;
            // Tokens are taken while the phase is locked, so that `close` waits for the task below.
            start = starts.then(|| self.remains.token());
            true
        });
        if start.is_some() || died.is_some() {
            let server = self.clone();
            self.common.tasks.spawn(async move {
                let bury = async {
                    if let Some((live, _token)) = died {
                        server.bury(&live.connection).await;
                    }
                };
                let start = async {
                    if let Some(_token) = start {
                        Arc::clone(&server).start().await;
                    }
                };
                tokio::join!(start, bury);
            });
        }
    }

    async fn start(self: Arc<Self>) {
        let mut attempt = Attempt(Some(Arc::clone(&self)));
        let opened = async {
            drop(self.leaves.lock().await);
            self.open_in_turn().await
        };
        let result = tokio::select! {
            // Checked first: a start that waited for a slot until the server was closed must not begin.
            biased;
            () = self.closing.cancelled() => return,
            () = self.common.closing.cancelled() => return,
            opened = opened => opened,
        };
        let name = &self.identity.name;
        let next = match result {
            Ok(live) => {
                lock(&self.restarts).runs();
                tracing::info!(mcp.server = name, "MCP server {name} is connected");
                Phase::Up(Arc::new(live))
            }
            Err(fault) => {
                let Fault { reason, stderr } = &fault;
                let stderr = stderr.as_deref().map(last_words);
                tracing::warn!(mcp.server = name, error = reason, stderr, "MCP server {name} cannot be used");
                self.failed_to_start(fault)
            }
        };
        // Disarmed before the phase changes: a server can die at once, and the next attempt may already be starting.
        attempt.0 = None;
        let mut late = None;
        self.shift(|phase| {
            let is_open = !matches!(phase, Phase::Closed);
            if is_open {
                *phase = next;
            } else {
                late = Some(next);
            }
            is_open
        });
        if let Some(Phase::Up(live)) = late {
            live.connection.close().await;
        }
    }

    /// Returns the phase after a failed attempt. The backoff grows each time.
    fn failed_to_start(&self, fault: Fault) -> Phase {
        Phase::Failed { fault, retry_at: Instant::now() + lock(&self.restarts).failed() }
    }

    fn labels(&self) -> Labels<'_> {
        Labels { identity: &self.identity, half: &self.half, destination: self.destination.as_deref() }
    }

    /// Connects when it gets a start permit. The start limit begins then, so that waiting for other servers does not count.
    async fn open_in_turn(self: &Arc<Self>) -> Result<Live, Fault> {
        // A remote server costs this machine nothing to start, so it needs no permit.
        let (permit, turn) = match &self.config.transport {
            ServerTransport::Stdio { .. } | ServerTransport::Container { .. } => {
                let permit = self.common.processes.acquire(Arc::<Self>::clone(self)).await?;
                self.common.guard.watch();
                if matches!(self.config.transport, ServerTransport::Container { .. })
                    && let Some((engine, variables)) = self.common.containers.engine().await
                {
                    self.common.guard.watch_containers(&engine, &variables, self.common.containers.handed.as_deref());
                    self.common.containers.note();
                }
                let turn = self.common.starts.acquire().await.map_err(|_| "the servers are being shut down".to_owned())?;
                (Some(permit), Some(turn))
            }
            ServerTransport::Http { .. } => (None, None),
        };
        let limit = self.common.start_limit;
        let mut opening = pin!(tokio::time::timeout(limit, self.open(permit)));
        let opened = tokio::select! {
            biased;
            opened = &mut opening => opened,
            () = tokio::time::sleep(limit / TURN_PART) => {
                drop(turn);
                opening.await
            }
        };
        let late = || format!("the server did not start within {limit:?}: mcp.start_timeout_ms gives all of them more time");
        opened.unwrap_or_else(|_| Err(late().into()))
    }

    async fn open(self: &Arc<Self>, permit: Option<ProcessPermit>) -> Result<Live, Fault> {
        if let Some(login) = &self.login {
            login.look_again().await;
        }
        let connection = Connection::open(Endpoint {
            name: &self.identity.name,
            config: &self.config,
            common: &self.common,
            stateless: &self.stateless,
            is_old: &self.is_old,
            home: self.home.as_deref(),
            login: self.login.as_ref(),
            remains: &self.remains,
        });
        let connection = connection.await?;
        Live::open(connection, self.labels(), &self.config, permit).await
    }

    /// Lists the tools again if the server says that they have changed.
    async fn refresh(self: &Arc<Self>, live: &Arc<Live>) -> Known {
        let (server, connected) = (Arc::clone(self), Arc::clone(live));
        let list_again = async move {
            connected.list_again(server.labels(), &server.config, &server.common.closing).await;
        };
        live.refresh(list_again, &self.common.tasks).await
    }
}

impl ProcessHolder for Server {
    /// Looks at the age of the pauses, too: no message says that an answer never comes because the run was cancelled.
    fn is_paused(&self) -> bool {
        self.pauses.are_any(Instant::now())
    }

    fn last_used(&self) -> Instant {
        *lock(&self.last_used)
    }

    fn end_if_idle(self: Arc<Self>, leaving: TaskTrackerToken) -> bool {
        self.rest(Some(leaving))
    }
}

/// An attempt to start a server. If it ends without a result, by a panic, it counts as failed, so that no caller waits for ever.
struct Attempt(Option<Arc<Server>>);

impl Drop for Attempt {
    fn drop(&mut self) {
        let Some(server) = &self.0 else { return };
        server.shift(|phase| {
            let is_open = matches!(phase, Phase::Starting { .. });
            if is_open {
                let fault = Fault::from("starting it has failed, and the reason is a mistake of this program".to_owned());
                *phase = server.failed_to_start(fault);
            }
            is_open
        });
    }
}

/// Returns the login of an HTTP server, unless its entry has credentials of its own.
fn login(identity: &Identity, config: &ServerConfig, tokens: Option<&Arc<dyn Tokens>>) -> Option<Arc<Login>> {
    let ServerTransport::Http { url, headers, reach, oauth, .. } = &config.transport else { return None };
    if headers.keys().any(|name| name.eq_ignore_ascii_case("authorization")) {
        return None;
    }
    let (server, owner) = (identity.id.clone(), identity.owner.clone());
    let of = TokenOf { server, owner, url: url.clone(), issuer: oauth.issuer.clone(), reach: *reach };
    Some(Arc::new(Login::new(of, Arc::clone(tokens?), config.masks.clone())))
}
