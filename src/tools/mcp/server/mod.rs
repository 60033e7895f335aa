//! One configured server: connected when it is first needed, and again when its connection was lost.

mod calls;

use std::path::PathBuf;
use std::pin::pin;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Semaphore, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

use super::catalogue::Labels;
use super::common::{Common, Identity};
use super::connection::Connection;
use super::endpoint::{Endpoint, Fault};
use super::handler::Allowed;
use super::live::{Known, Live};
use super::oauth::{AuthState, Login, TokenOf, Tokens};
use super::process::last_words;
use super::processes::{Place, ProcessHolder};
use super::rounds::Pauses;
use super::setbacks::Setbacks;
use super::{McpPrompt, McpResource, ServerConfig, ServerTransport, listed};
use crate::domain::ids::{McpServerId, UserId};
use crate::domain::tool::ToolDefinition;
use crate::support::clock::UnixMillis;
use crate::tools::{ServerStatus, names};

/// For which part of the time that it may take a server that starts keeps others from starting: 10 s of the 60 s by default. What takes
/// longer most often waits for something else than this machine.
const TURN_PART: u32 = 6;
/// How long somebody who wants to see its resources or prompts waits for them.
const LIST_LIMIT: Duration = Duration::from_secs(15);

/// One server.
pub struct Server {
    key: String,
    id: McpServerId,
    name: String,
    owner: Option<UserId>,
    /// Its part of the names of its tools, when it was made.
    half: String,
    /// Raised by each change of what it was made of.
    revision: i64,
    /// Where it is, if somebody keeps it.
    destination: Option<String>,
    config: ServerConfig,
    /// Its working directory, unless its entry names another one.
    home: Option<PathBuf>,
    common: Arc<Common>,
    phase: watch::Sender<Phase>,
    /// Since when it is in this phase.
    since: Mutex<UnixMillis>,
    setbacks: Mutex<Setbacks>,
    /// When somebody last wanted something of it.
    used: Mutex<Instant>,
    /// Held by everybody who has a call under way, or waits for the connection.
    work: Arc<()>,
    /// Held by everybody for whom something is under way on the connection.
    sent: Arc<()>,
    /// Held while a connection is being closed that the next one might be in the way of.
    leaves: Arc<tokio::sync::Mutex<()>>,
    /// The calls that it wants to be called again for.
    pauses: Pauses,
    /// Limits the calls that it works on at a time.
    slots: Arc<Semaphore>,
    /// Cancelled when it ends for good.
    closing: CancellationToken,
    /// Holds a token for each attempt to start it, for each process, and for each connection that was replaced and is not closed yet.
    remains: TaskTracker,
    /// Whether it was greeted in the new way the last time.
    stateless: AtomicBool,
    /// Whether the first transport over HTTP is the one that it knows.
    is_old: AtomicBool,
    /// The login at it, if it may have one.
    login: Option<Arc<Login>>,
}

/// Where a server stands.
#[derive(Clone)]
enum Phase {
    Unknown,
    Starting {
        since: Instant,
    },
    Up(Arc<Live>),
    /// Its connection has ended because nobody used it.
    Resting(Rested),
    Failed {
        fault: Fault,
        retry_at: Instant,
    },
    Closed,
}

/// What a server offered when its connection ended.
#[derive(Clone)]
struct Rested {
    tools: Vec<Arc<ToolDefinition>>,
    left_out: bool,
}

impl Server {
    /// A server that is not connected yet. `slots` are those of the same server for other owners.
    pub fn new(
        identity: Identity,
        half: String,
        revision: i64,
        config: ServerConfig,
        slots: Option<Arc<Semaphore>>,
        (home, common): (Option<PathBuf>, Arc<Common>),
    ) -> Arc<Self> {
        let Identity { key, id, name, owner } = identity;
        // Who writes the configuration decides where its servers are, and restarts this program to change it.
        let destination = (key == id.as_str()).then(|| config.transport.destination());
        // What is far away is one for everybody, whoever calls it; but nobody waits until somebody else has answered a question.
        let slots = slots.filter(|_| matches!(config.transport, ServerTransport::Http { .. }) && !config.asks());
        let slots = slots.unwrap_or_else(|| Arc::new(Semaphore::new(config.concurrency)));
        let (phase, since) = (watch::Sender::new(Phase::Unknown), Mutex::new(common.clock.now()));
        let (setbacks, used) = (Mutex::default(), Mutex::new(Instant::now()));
        let stateless = AtomicBool::new(false);
        let login = login(&id, owner.as_ref(), &config, common.tokens.as_ref());
        Arc::new(Self {
            key,
            id,
            name,
            owner,
            half,
            revision,
            destination,
            config,
            home,
            common,
            phase,
            since,
            setbacks,
            used,
            work: Arc::default(),
            sent: Arc::default(),
            leaves: Arc::default(),
            pauses: Pauses::default(),
            slots,
            closing: CancellationToken::new(),
            remains: TaskTracker::new(),
            stateless,
            is_old: AtomicBool::new(false),
            login,
        })
    }

    /// Its id.
    pub fn id(&self) -> &McpServerId {
        &self.id
    }

    /// Raised by each change of what it was made of.
    pub fn revision(&self) -> i64 {
        self.revision
    }

    /// What limits the calls that it works on at a time.
    pub fn slots(&self) -> Arc<Semaphore> {
        Arc::clone(&self.slots)
    }

    /// How long nobody has wanted anything of it.
    pub fn idle_for(&self) -> Duration {
        // Whoever is at work has wanted something, however long ago.
        if self.is_at_work() { Duration::ZERO } else { self.last_used().elapsed() }
    }

    fn is_at_work(&self) -> bool {
        self.is_called() || self.is_paused()
    }

    /// Whether a call is under way, or somebody waits for the connection.
    fn is_called(&self) -> bool {
        Arc::strong_count(&self.work) > 1
    }

    /// Whether it is connected, or about to be.
    pub fn is_up(&self) -> bool {
        matches!(*self.phase.borrow(), Phase::Up(_) | Phase::Starting { .. })
    }

    /// Whether its connection has ended because nobody used it.
    pub fn is_resting(&self) -> bool {
        matches!(*self.phase.borrow(), Phase::Resting(_))
    }

    /// Ends its connection if there is one that nobody uses; its tools stay on offer, and it is connected when one is called. Whether it
    /// does. With `leaving` it is somebody else who needs the room: then calls that are paused do not keep it, because a server gets all
    /// that it needs when it is called again. `leaving` is held until nothing of the connection is left.
    pub fn rest(self: &Arc<Self>, leaving: Option<TaskTrackerToken>) -> bool {
        // Whoever uses a connection holds it, and nobody gets hold of it while the phase is held.
        let is_wanted = || if leaving.is_some() { self.is_called() } else { self.is_at_work() };
        let left = self.let_go(|live| is_wanted() || Arc::strong_count(live) > 1);
        let Some((live, token)) = left else { return false };
        tracing::debug!(mcp.server = self.name, "MCP server {} is not used and rests", self.name);
        self.common.tasks.spawn(async move {
            live.connection.close().await;
            drop((live, token, leaving));
        });
        true
    }

    /// Takes the connection out of use, unless it is wanted: its tools stay on offer, and the next one is made when one is called. The token
    /// is held until nothing of it is left.
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

    /// Its tools, with names that begin with `half`. Waits while it starts, up to `patience` after the start began; for a server
    /// whose last start failed, a fifth of that, so that it does not hold up every run.
    ///
    /// # Errors
    /// Why it cannot be reached.
    pub async fn definitions(self: &Arc<Self>, half: &str, patience: Duration) -> Result<Vec<Arc<ToolDefinition>>, String> {
        let rested = match &*self.phase.borrow() {
            Phase::Resting(rested) => Some(rested.tools.clone()),
            Phase::Unknown | Phase::Starting { .. } | Phase::Up(_) | Phase::Failed { .. } | Phase::Closed => None,
        };
        let mut tools = match rested {
            Some(tools) => tools,
            None => self.listed(patience).await?,
        };
        if half != self.half {
            let raws: Vec<&str> = tools.iter().map(|tool| tool.tool.as_str()).collect();
            let names = names::tool_names(&self.key, half, &raws);
            tools.iter_mut().zip(names).for_each(|(tool, name)| Arc::make_mut(tool).name = name);
        }
        Ok(tools)
    }

    async fn listed(self: &Arc<Self>, patience: Duration) -> Result<Vec<Arc<ToolDefinition>>, String> {
        let patience = if lock(&self.setbacks).is_any() { patience / 5 } else { patience };
        let began = match &*self.phase.borrow() {
            Phase::Starting { since } => *since,
            Phase::Unknown | Phase::Up(_) | Phase::Resting(_) | Phase::Failed { .. } | Phase::Closed => Instant::now(),
        };
        let live =
            tokio::time::timeout_at(began + patience, self.live()).await.map_err(|_| "it is still starting".to_owned())??;
        // A run is offered what was known before a list that does not come.
        self.refresh(&live).await;
        Ok(live.tools().await)
    }

    /// Its resources.
    ///
    /// # Errors
    /// Why they cannot be listed.
    pub async fn resources(self: &Arc<Self>) -> Result<Vec<McpResource>, String> {
        let all = self.asked(|live| async move { live.connection.list_resources().await }).await?;
        Ok(listed::resources(all, &self.config.masks))
    }

    /// Its prompts.
    ///
    /// # Errors
    /// Why they cannot be listed.
    pub async fn prompts(self: &Arc<Self>) -> Result<Vec<McpPrompt>, String> {
        let all = self.asked(|live| async move { live.connection.list_prompts().await }).await?;
        Ok(listed::prompts(all, &self.config.masks))
    }

    /// What it is asked for beside calls, for as long as somebody waits for that.
    async fn asked<T, F>(self: &Arc<Self>, ask: impl FnOnce(Arc<Live>) -> F) -> Result<T, String>
    where
        F: Future<Output = Result<T, Fault>>,
    {
        let _sent = Arc::clone(&self.sent);
        let answered = async { ask(self.live().await?).await.map_err(|fault| fault.reason) };
        let late = |_| format!("the server did not list them within {LIST_LIMIT:?}");
        tokio::time::timeout(LIST_LIMIT, answered).await.map_err(late)?
    }

    /// Forgets what has gone wrong, and its rest: it is tried again at once.
    pub fn forgive(&self) {
        *lock(&self.setbacks) = Setbacks::default();
        self.shift(|phase| {
            let is_away = matches!(phase, Phase::Failed { .. } | Phase::Resting(_));
            if is_away {
                *phase = Phase::Unknown;
            }
            is_away
        });
    }

    /// Makes a connection again that was lost, when it is time.
    pub fn tend(self: &Arc<Self>) {
        let now = Instant::now();
        let is_due = match &*self.phase.borrow() {
            Phase::Up(live) => !live.connection.is_alive() && lock(&self.setbacks).is_due(now),
            Phase::Failed { retry_at, .. } => now >= *retry_at && lock(&self.setbacks).tries_by_itself(),
            Phase::Unknown | Phase::Starting { .. } | Phase::Resting(_) | Phase::Closed => false,
        };
        if is_due {
            self.begin();
        }
    }

    /// Changes the phase if `change` says that it did, and notes when.
    fn shift(&self, change: impl FnOnce(&mut Phase) -> bool) -> bool {
        let changed = self.phase.send_if_modified(change);
        if changed {
            *lock(&self.since) = self.common.clock.now();
        }
        changed
    }

    /// Where it stands: `none` with what is known beside it.
    pub async fn status(&self, none: ServerStatus) -> ServerStatus {
        let auth = self.login.as_ref().map_or(none.auth, |login| login.state());
        let none = ServerStatus { auth, left_out: self.leaves_out(), ..none };
        let phase = self.phase.borrow().clone();
        let (status, fault, tools) = match phase {
            Phase::Unknown | Phase::Closed => ("unknown", None, 0),
            Phase::Starting { .. } => ("starting", None, 0),
            Phase::Resting(rested) => ("ok", None, rested.tools.len()),
            Phase::Up(live) if live.connection.is_alive() => {
                let (said, count) = (live.connection.said(), live.tools().await.len());
                let since = Some(lock(&self.since).to_rfc3339());
                return ServerStatus { status: "ok".to_owned(), since, stderr: said, tools: count, ..none };
            }
            Phase::Up(live) => {
                let reason = "the connection was lost and is made again".to_owned();
                ("error", Some(Fault { reason, stderr: live.connection.said() }), 0)
            }
            Phase::Failed { fault, .. } => ("error", Some(fault), 0),
        };
        let (error, stderr) = fault.map(|Fault { reason, stderr }| (reason, stderr)).unzip();
        let since = Some(lock(&self.since).to_rfc3339());
        ServerStatus { status: status.to_owned(), since, error, stderr: stderr.flatten(), tools, ..none }
    }

    /// Whether it lists tools that are left out, as far as is known.
    pub fn leaves_out(&self) -> bool {
        match &*self.phase.borrow() {
            Phase::Up(live) => live.connection.is_alive() && live.leaves_out(),
            Phase::Resting(rested) => rested.left_out,
            Phase::Unknown | Phase::Starting { .. } | Phase::Failed { .. } | Phase::Closed => false,
        }
    }

    /// Why it offers no tools, for people and models that are not to know more. `None` if it does, or nobody has tried.
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

    /// Ends it for good, and waits until nothing of it is left.
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

    /// Closes a connection that was replaced, when the calls that others make on it are over: what ends one call, such as a session
    /// that is gone, need not end them.
    async fn bury(&self, connection: &Connection) {
        tokio::select! {
            () = connection.is_idle() => {}
            () = self.closing.cancelled() => {}
        }
        connection.close().await;
    }

    /// The connection, made now if there is none. Only one attempt is under way at a time, and it goes on when whoever asked for
    /// it does not wait any longer.
    ///
    /// # Errors
    /// Why there is none.
    pub async fn live(self: &Arc<Self>) -> Result<Arc<Live>, String> {
        *lock(&self.used) = Instant::now();
        // It does not rest as long as somebody waits for it.
        let _work = Arc::clone(&self.work);
        self.begin();
        let mut phases = self.phase.subscribe();
        let phase = phases.wait_for(|phase| match phase {
            Phase::Starting { .. } => false,
            Phase::Unknown | Phase::Up(_) | Phase::Resting(_) | Phase::Failed { .. } | Phase::Closed => true,
        });
        let phase = phase.await.map(|phase| phase.clone()).unwrap_or(Phase::Closed);
        match phase {
            Phase::Up(live) => Ok(live),
            Phase::Failed { fault, .. } => Err(fault.reason),
            Phase::Unknown | Phase::Starting { .. } | Phase::Resting(_) | Phase::Closed => Err("it is being shut down".to_owned()),
        }
    }

    /// Begins to start it, if it does not run and may be tried.
    fn begin(self: &Arc<Self>) {
        let (mut died, mut start) = (None, None);
        let now = Instant::now();
        self.shift(|phase| {
            let (next, starts) = match phase {
                Phase::Unknown | Phase::Resting(_) => (Phase::Starting { since: now }, true),
                Phase::Up(live) if !live.connection.is_alive() => {
                    let next = match lock(&self.setbacks).given_up_until(now, self.counts_losses()) {
                        Some(until) => {
                            let reason = Setbacks::TOO_MANY.to_owned();
                            let fault = Fault { reason, stderr: live.connection.said() };
                            tracing::warn!(mcp.server = self.name, "MCP server {} is lost again and again", self.name);
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
            // Tokens are taken while the phase is held, so that whoever closes the server waits for what they are of.
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

    /// Whether the end of a connection is the end of a process. What is far away may end a session whenever it likes.
    fn counts_losses(&self) -> bool {
        !matches!(self.config.transport, ServerTransport::Http { .. })
    }

    async fn start(self: Arc<Self>) {
        let mut attempt = Attempt(Some(Arc::clone(&self)));
        let opened = async {
            drop(self.leaves.lock().await);
            self.open_in_turn().await
        };
        let result = tokio::select! {
            // First of all: whoever has waited for a place until it was closed starts nothing any more.
            biased;
            () = self.closing.cancelled() => return,
            () = self.common.closing.cancelled() => return,
            opened = opened => opened,
        };
        let next = match result {
            Ok(live) => {
                lock(&self.setbacks).runs();
                tracing::info!(mcp.server = self.name, "MCP server {} is connected", self.name);
                Phase::Up(Arc::new(live))
            }
            Err(fault) => {
                let Fault { reason, stderr } = &fault;
                let stderr = stderr.as_deref().map(last_words);
                tracing::warn!(mcp.server = self.name, error = reason, stderr, "MCP server {} cannot be used", self.name);
                self.failed_to_start(fault)
            }
        };
        // As soon as the phase is told, it may be that of the next attempt: a server can die at once.
        attempt.0 = None;
        let mut late = None;
        self.shift(|phase| match phase {
            Phase::Closed => {
                late = Some(next);
                false
            }
            Phase::Unknown | Phase::Starting { .. } | Phase::Up(_) | Phase::Resting(_) | Phase::Failed { .. } => {
                *phase = next;
                true
            }
        });
        if let Some(Phase::Up(live)) = late {
            live.connection.close().await;
        }
    }

    /// What it is after another attempt that failed: to be left alone, for longer each time.
    fn failed_to_start(&self, fault: Fault) -> Phase {
        Phase::Failed { fault, retry_at: Instant::now() + lock(&self.setbacks).failed() }
    }

    fn labels(&self) -> Labels<'_> {
        Labels {
            key: &self.key,
            name: &self.name,
            half: &self.half,
            owner: self.owner.as_ref(),
            destination: self.destination.as_deref(),
        }
    }

    /// Opens it when it is its turn. Its time begins then: waiting for others is no fault of its own.
    async fn open_in_turn(self: &Arc<Self>) -> Result<Live, Fault> {
        // What is far away costs this machine nothing to start, and may be as slow as it likes without anybody else waiting for it.
        let (place, turn) = match &self.config.transport {
            ServerTransport::Stdio { .. } | ServerTransport::Container { .. } => {
                let place = self.common.processes.place(Arc::<Self>::clone(self)).await?;
                self.common.guard.watch();
                if matches!(self.config.transport, ServerTransport::Container { .. })
                    && let Some((engine, variables)) = self.common.containers.engine().await
                {
                    self.common.guard.watch_containers(&engine, &variables, self.common.containers.handed());
                    self.common.containers.note();
                }
                let turn = self.common.starts.acquire().await.map_err(|_| "the servers are being shut down".to_owned())?;
                (Some(place), Some(turn))
            }
            ServerTransport::Http { .. } => (None, None),
        };
        let limit = self.common.start_limit;
        let mut opening = pin!(tokio::time::timeout(limit, self.open(place)));
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

    async fn open(self: &Arc<Self>, place: Option<Place>) -> Result<Live, Fault> {
        let ServerConfig { transport, masks, .. } = &self.config;
        let Common { words, containers, .. } = &*self.common;
        let login = self.login.as_ref();
        if let Some(login) = login {
            login.look_again().await;
        }
        let ServerConfig { elicitation, sampling, roots, .. } = &self.config;
        let allowed = Allowed { elicits: *elicitation, samples: *sampling, roots: Arc::clone(roots) };
        let server = Endpoint {
            name: &self.name,
            transport,
            masks,
            allowed: &allowed,
            stateless: &self.stateless,
            is_old: &self.is_old,
            words,
            containers,
            home: self.home.as_deref(),
            login,
            remains: &self.remains,
        };
        let connection = Connection::open(server, &self.common.environment, &self.common.tasks).await?;
        Live::open(connection, self.labels(), &self.config, place).await
    }

    /// Asks a server that has changed its tools for them.
    async fn refresh(self: &Arc<Self>, live: &Arc<Live>) -> Known {
        let (server, connected) = (Arc::clone(self), Arc::clone(live));
        let list_again = async move {
            connected.list_again(server.labels(), &server.config, &server.common.closing).await;
        };
        live.refresh(list_again, &self.common.tasks).await
    }
}

impl ProcessHolder for Server {
    /// No message says that an answer never comes, because the run was cancelled.
    fn is_paused(&self) -> bool {
        self.pauses.are_any(Instant::now())
    }

    fn last_used(&self) -> Instant {
        *lock(&self.used)
    }

    fn end_if_idle(self: Arc<Self>, leaving: TaskTrackerToken) -> bool {
        self.rest(Some(leaving))
    }
}

/// An attempt to start a server. Should it end without a result, by a panic, it has failed: nobody may wait for it for ever.
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

/// The login at a server. None at a process, and none where the entry says by itself who asks.
fn login(id: &McpServerId, owner: Option<&UserId>, config: &ServerConfig, tokens: Option<&Arc<dyn Tokens>>) -> Option<Arc<Login>> {
    let ServerTransport::Http { url, headers, reach, oauth, .. } = &config.transport else { return None };
    if headers.keys().any(|name| name.eq_ignore_ascii_case("authorization")) {
        return None;
    }
    let issuer = oauth.issuer.clone();
    let of = TokenOf { server: id.clone(), owner: owner.cloned(), url: url.clone(), issuer, reach: *reach };
    Some(Arc::new(Login::new(of, Arc::clone(tokens?), config.masks.clone())))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
