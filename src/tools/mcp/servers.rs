//! All servers together: those of the configuration, and those that people keep.
//!
//! Each owner has a connection to each server, with the credentials of its entry: what a server keeps of a connection (a session, an
//! open page, files in its folder) is nobody else's. One whose entry says `shared` has one connection for everybody. What a connection
//! was made of may change at any time, in any process: it is looked at every two seconds. Connections that nobody uses end; the
//! tools of their servers stay on offer.

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use futures_util::future::join_all;
use serde_json::{Map, Value};
use tokio::sync::Semaphore;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::common::{Common, Identity};
use super::container::{ContainerOptions, Containers};
use super::kept::{KeptServer, KeptServers};
use super::oauth::AuthState;
use super::orphans::{Guard, Words};
use super::processes::Processes;
use super::server::Server;
use super::{McpConfig, McpPrompt, McpResource, ServerConfig, ServerTransport};
use crate::domain::handle::Handle;
use crate::domain::ids::{CallId, McpServerId, UserId};
use crate::domain::mcp_server::configured_id;
use crate::domain::message::ToolContent;
use crate::domain::prompt::ServerNote;
use crate::domain::tool::{ToolCallState, ToolDefinition};
use crate::support::clock::SharedClock;
use crate::support::ids::UuidIds;
use crate::tools::{CallPermit, Environment, ProgressSender, ServerStatus, names};

/// The most servers that start at the same time.
const PARALLEL_STARTS: usize = 4;
/// How long tasks may take to end after their servers have.
const TASKS_LIMIT: Duration = Duration::from_secs(10);
/// How often connections are looked at.
const LOOK: Duration = Duration::from_secs(1);
/// Each how many looks it is asked whether servers have changed.
const LOOKS_TO_ASK: u32 = 2;
/// How long the tools of a server are on offer whose connection has ended because nobody used it. Then it is asked anew.
const RESTED: Duration = Duration::from_secs(2 * 3_600);

/// How many connections there are, and for how long.
#[derive(Debug, Clone, Copy)]
pub struct ConnectionLimits {
    /// How long nobody uses a connection until it ends; absent for as long as there is this process.
    pub idle: Option<Duration>,
    /// The most processes of servers at a time, containers among them; absent for no limit.
    pub processes: Option<usize>,
    /// How long a server may take from its start to its list of tools.
    pub start: Duration,
}

impl Default for ConnectionLimits {
    fn default() -> Self {
        Self { idle: Some(Duration::from_secs(1_800)), processes: Some(100), start: Duration::from_secs(60) }
    }
}

/// One call on its way to a server.
pub struct McpCall<'a> {
    /// Whose run it is of.
    pub owner: &'a UserId,
    /// Its id.
    pub id: &'a CallId,
    /// What the tool was frozen with: the server's name in the configuration, or its id.
    pub server: &'a str,
    /// The tool's name at the server.
    pub tool: &'a str,
    /// The definition of the tool as it was frozen into the run: one that has changed is not called. `None` for a tool that the
    /// operator has named, whatever its definition.
    pub frozen_hash: Option<&'a str>,
    /// Where its server was then.
    pub frozen_destination: Option<&'a str>,
    /// How its server goes on with the call: it is asked for its task, or called again with what it wanted to know.
    pub handle: Option<&'a Handle>,
    /// Whether the call may be repeated if nobody knows what became of it.
    pub may_repeat: bool,
    /// The checked arguments.
    pub arguments: Value,
    /// What goes beside them.
    pub meta: Map<String, Value>,
    /// The time limit, unless the server has its own.
    pub timeout: Duration,
    /// Where progress is reported.
    pub progress: ProgressSender,
    /// As long as it may go on.
    pub permit: &'a CallPermit,
}

/// How a call ended.
pub struct McpAnswer {
    /// The outcome state.
    pub state: ToolCallState,
    /// The answer.
    pub content: Vec<ToolContent>,
    /// Whether it is an error.
    pub is_error: bool,
    /// The structured content of a result that has one.
    pub structured: Option<Value>,
}

impl McpAnswer {
    /// A call that did not succeed, and why.
    pub fn error(state: ToolCallState, reason: String) -> Self {
        Self { state, content: vec![ToolContent::text(reason)], is_error: true, structured: None }
    }
}

/// A server of the configuration, as others are told of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfiguredServer {
    /// Made of the name.
    pub id: McpServerId,
    /// What the names of its tools begin with.
    pub name: String,
}

/// Settings and collaborators of [`McpServers`].
pub struct McpOptions {
    /// The servers of the configuration.
    pub config: McpConfig,
    /// The servers of users, if any are kept.
    pub kept: Option<Arc<dyn KeptServers>>,
    /// The environment of this process, in which the variables of child processes are looked up.
    pub environment: Environment,
    /// The clock.
    pub clock: SharedClock,
    /// How long [`McpServers::definitions`] waits for servers that are still starting.
    pub start_patience: Duration,
    /// Limits of connections.
    pub limits: ConnectionLimits,
    /// This program, which ends what it leaves behind if it is killed.
    pub guard: Option<PathBuf>,
    /// Limits of containers.
    pub containers: ContainerOptions,
    /// The folder of the files that containers read; among temporary files if absent.
    pub container_inputs: Option<PathBuf>,
    /// The folder below which each program has a working directory of its own; ours for all if absent.
    pub homes: Option<PathBuf>,
}

/// All servers.
pub struct McpServers {
    configured: Vec<Offer>,
    kept: Option<Arc<dyn KeptServers>>,
    open: Mutex<HashMap<Place, Arc<Server>>>,
    common: Arc<Common>,
    start_patience: Duration,
    idle: Option<Duration>,
    is_watched: AtomicBool,
}

/// A server as the runs of one owner may use it.
struct Offer {
    identity: Identity,
    /// Its part of the names of its tools.
    half: String,
    /// Its entry, or what is wrong with it.
    config: Result<ServerConfig, String>,
    /// Raised by each change.
    revision: i64,
}

impl Offer {
    fn kept(server: KeptServer, half: String) -> Self {
        let KeptServer { id, owner, name, config, revision } = server;
        Self { identity: Identity { key: id.as_str().to_owned(), id, name, owner }, half, config, revision }
    }
}

/// What a connection is of: what tools are frozen with, and whose it is; `None` if it is everybody's. Its credentials are those of
/// the server's entry, and of its login, of which another one ends it.
type Place = (String, Option<UserId>);

impl McpServers {
    /// Makes the servers of the configuration, and those of users. Nothing is started yet.
    #[must_use]
    pub fn new(options: McpOptions) -> Arc<Self> {
        let McpOptions { config, kept, environment, clock, start_patience, limits, .. } = options;
        let words = Words::new(&UuidIds);
        let beginning = words.beginning().to_owned();
        let containers = Containers::new(options.containers, options.container_inputs, beginning.clone(), Arc::clone(&environment));
        let common = Arc::new(Common {
            environment,
            guard: Guard::new(options.guard, beginning),
            words,
            clock,
            containers,
            homes: options.homes,
            tokens: kept.as_ref().and_then(|kept| kept.tokens()),
            starts: Semaphore::new(PARALLEL_STARTS),
            start_limit: limits.start,
            processes: Processes::new(limits.processes),
            closing: CancellationToken::new(),
            tasks: TaskTracker::new(),
        });
        let names: Vec<String> = config.servers.keys().cloned().collect();
        let halves = names::server_halves(&names.iter().map(String::as_str).collect::<Vec<_>>());
        let configured = config.servers.into_iter().zip(halves).map(|((name, config), half)| Offer {
            identity: Identity { key: name.clone(), id: configured_id(&name), name, owner: None },
            half,
            config,
            revision: 0,
        });
        let configured = configured.collect();
        let (open, is_watched, idle) = (Mutex::default(), AtomicBool::new(false), limits.idle);
        Arc::new(Self { configured, kept, open, common, start_patience, idle, is_watched })
    }

    /// The servers of the configuration.
    pub fn configured(&self) -> impl Iterator<Item = ConfiguredServer> {
        let all = self.configured.iter().map(|offer| &offer.identity);
        all.map(|identity| ConfiguredServer { id: identity.id.clone(), name: identity.name.clone() })
    }

    /// The entry of a server of the configuration.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn configured_entry(&self, id: &McpServerId) -> Result<ServerConfig, String> {
        let offer = self.configured.iter().find(|offer| offer.identity.id == *id);
        offer.map_or_else(|| Err("it is not configured any more".to_owned()), |offer| offer.config.clone())
    }

    /// The tools of all servers of an owner that can be reached, sorted by name. Servers start side by side; one that takes longer
    /// than the patience is left out this time and goes on starting.
    pub async fn definitions(self: &Arc<Self>, owner: &UserId) -> Vec<Arc<ToolDefinition>> {
        let kept = self.offers(owner).await;
        let all = self.configured.iter().chain(&kept).filter_map(|offer| Some((self.server(owner, offer).ok()?, offer)));
        let all = all.map(|(server, offer)| async move {
            // Why a server is left out stands in its state.
            server.definitions(&offer.half, self.start_patience).await.unwrap_or_default()
        });
        let mut definitions: Vec<Arc<ToolDefinition>> = join_all(all).await.into_iter().flatten().collect();
        definitions.sort_by(|one, other| one.name.cmp(&other.name));
        definitions
    }

    /// Carries out one call.
    pub async fn call(self: &Arc<Self>, call: McpCall<'_>) -> McpAnswer {
        match self.server_for(call.owner, call.server).await {
            Ok(server) => server.call(call).await,
            Err(reason) => McpAnswer::error(ToolCallState::Failed, reason),
        }
    }

    /// The state of each server of an owner.
    pub async fn statuses(self: &Arc<Self>, owner: &UserId) -> Vec<ServerStatus> {
        let kept = self.offers(owner).await;
        join_all(self.configured.iter().chain(&kept).map(|offer| self.status(owner, offer))).await
    }

    /// The servers of an owner as a model may be told of them: with what stands in a name, and not with what has gone wrong inside.
    pub async fn notes(self: &Arc<Self>, owner: &UserId) -> Vec<ServerNote> {
        let kept = self.offers(owner).await;
        let note = |offer: &Offer| {
            let (problem, left_out) = match &offer.config {
                Ok(config) => match lock(&self.open).get(&place(owner, offer, config)) {
                    Some(server) => (server.problem(), server.leaves_out()),
                    None => (None, false),
                },
                Err(_) => (Some("its entry is wrong"), false),
            };
            ServerNote { prefix: format!("{}__", offer.half), name: offer.identity.name.clone(), problem, left_out }
        };
        self.configured.iter().chain(&kept).map(note).collect()
    }

    /// The state of one server of an owner. `None` if it is not among those.
    pub async fn status_of(self: &Arc<Self>, owner: &UserId, id: &McpServerId) -> Option<ServerStatus> {
        let kept = self.offers(owner).await;
        let offer = self.configured.iter().chain(&kept).find(|offer| offer.identity.id == *id)?;
        Some(self.status(owner, offer).await)
    }

    /// Connects to a server, whatever has gone wrong with it before, and waits up to `patience` for it. `None` if it is not among
    /// those of the owner.
    pub async fn start(self: &Arc<Self>, owner: &UserId, id: &McpServerId, patience: Duration) -> Option<ServerStatus> {
        let kept = self.offers(owner).await;
        let offer = self.configured.iter().chain(&kept).find(|offer| offer.identity.id == *id)?;
        if let Ok(server) = self.server(owner, offer) {
            server.forgive();
            // What came of it stands in its state.
            let _ = server.definitions(&offer.half, patience).await;
        }
        Some(self.status(owner, offer).await)
    }

    /// The tools of a server of an owner, as runs are offered them. `None` if it is not among those.
    ///
    /// # Errors
    /// Why it cannot be reached.
    pub async fn tools_of(self: &Arc<Self>, owner: &UserId, id: &McpServerId) -> Option<Result<Vec<Arc<ToolDefinition>>, String>> {
        let kept = self.offers(owner).await;
        let offer = self.configured.iter().chain(&kept).find(|offer| offer.identity.id == *id)?;
        Some(match self.server(owner, offer) {
            Ok(server) => server.definitions(&offer.half, self.start_patience).await,
            Err(reason) => Err(reason),
        })
    }

    /// The resources of a server of an owner. `None` if it is not among those.
    ///
    /// # Errors
    /// Why they cannot be listed.
    pub async fn resources_of(self: &Arc<Self>, owner: &UserId, id: &McpServerId) -> Option<Result<Vec<McpResource>, String>> {
        Some(match self.server_of(owner, id).await? {
            Ok(server) => server.resources().await,
            Err(reason) => Err(reason),
        })
    }

    /// The prompts of a server of an owner. `None` if it is not among those.
    ///
    /// # Errors
    /// Why they cannot be listed.
    pub async fn prompts_of(self: &Arc<Self>, owner: &UserId, id: &McpServerId) -> Option<Result<Vec<McpPrompt>, String>> {
        Some(match self.server_of(owner, id).await? {
            Ok(server) => server.prompts().await,
            Err(reason) => Err(reason),
        })
    }

    async fn server_of(self: &Arc<Self>, owner: &UserId, id: &McpServerId) -> Option<Result<Arc<Server>, String>> {
        let kept = self.offers(owner).await;
        let offer = self.configured.iter().chain(&kept).find(|offer| offer.identity.id == *id)?;
        Some(self.server(owner, offer))
    }

    /// Ends all connections to a server in this process, and waits until nothing of them is left. The next use makes another one.
    pub async fn stop(&self, id: &McpServerId) {
        let ended: Vec<Arc<Server>> =
            lock(&self.open).extract_if(|_, server| server.id() == id).map(|(_, server)| server).collect();
        join_all(ended.iter().map(|server| server.close())).await;
    }

    /// A kept server was made, changed or deleted: connections that were made of what it was end.
    pub async fn changed(self: &Arc<Self>, id: &McpServerId) {
        if let Some(kept) = &self.kept {
            kept.changed();
            self.end_outdated(kept.as_ref(), std::slice::from_ref(id)).await;
        }
    }

    /// In the background: looks for the engine if a server of the configuration runs in a container, so that the log says at once if there
    /// is none, and removes what earlier processes with the same folder have left of their containers.
    pub fn prepare_containers(&self) {
        let runs_in_one = |config: &ServerConfig| matches!(config.transport, ServerTransport::Container { .. });
        let wants_one = self.configured.iter().any(|offer| offer.config.as_ref().is_ok_and(runs_in_one));
        let common = Arc::clone(&self.common);
        self.common.tasks.spawn(async move {
            let prepared = async {
                if wants_one {
                    common.containers.look_for_engine().await;
                }
                common.containers.remove_left().await;
            };
            tokio::select! {
                () = common.closing.cancelled() => {}
                () = prepared => {}
            }
        });
    }

    /// Ends all servers, side by side, and waits until nothing of them is left.
    pub async fn shutdown(&self) {
        self.common.closing.cancel();
        let all: Vec<Arc<Server>> = lock(&self.open).values().cloned().collect();
        join_all(all.iter().map(|server| server.close())).await;
        self.common.tasks.close();
        if tokio::time::timeout(TASKS_LIMIT, self.common.tasks.wait()).await.is_err() {
            tracing::warn!(tasks = self.common.tasks.len(), "tasks of MCP servers did not end");
        }
        self.common.guard.dismiss().await;
    }

    /// Whether an owner has a server now, enabled, with which tools were frozen. What cannot be read is not held against anybody.
    pub async fn has(&self, owner: &UserId, key: &str) -> bool {
        if self.configured.iter().any(|offer| offer.identity.key == key) {
            return true;
        }
        let Some(kept) = &self.kept else { return false };
        kept.of(owner).await.map_or(true, |servers| servers.iter().any(|server| server.id.as_str() == key))
    }

    /// The kept servers that an owner's runs may use. No name of a server of the configuration changes because of one of them, and
    /// none of everybody's because of one of the owner's.
    async fn offers(&self, owner: &UserId) -> Vec<Offer> {
        let Some(kept) = &self.kept else { return Vec::new() };
        let kept = match kept.of(owner).await {
            Ok(kept) => kept,
            Err(error) => {
                tracing::warn!(
                    error,
                    "the MCP servers that people keep cannot be read; runs that begin now do without their tools"
                );
                return Vec::new();
            }
        };
        let mut taken: BTreeSet<String> = self.configured.iter().map(|offer| offer.half.clone()).collect();
        let mut offers = Vec::with_capacity(kept.len());
        let (own, of_all): (Vec<_>, Vec<_>) = kept.into_iter().partition(|server| server.owner.is_some());
        for servers in [of_all, own] {
            let keys: Vec<(&str, &str)> = servers.iter().map(|server| (server.id.as_str(), server.name.as_str())).collect();
            let halves = names::further_halves(&taken, &keys);
            taken.extend(halves.iter().cloned());
            offers.extend(servers.into_iter().zip(halves).map(|(server, half)| Offer::kept(server, half)));
        }
        offers
    }

    /// The server of an offer, with the connection that it has.
    fn server(self: &Arc<Self>, owner: &UserId, offer: &Offer) -> Result<Arc<Server>, String> {
        let config = offer.config.as_ref().map_err(Clone::clone)?;
        if self.common.closing.is_cancelled() {
            return Err("the servers are being shut down".to_owned());
        }
        let place = place(owner, offer, config);
        let mut open = lock(&self.open);
        // What was read before a change may come after it.
        if let Some(server) = open.get(&place).filter(|server| server.revision() >= offer.revision) {
            return Ok(Arc::clone(server));
        }
        let (identity, half) = (offer.identity.clone(), offer.half.clone());
        let home = self.common.homes.as_ref().map(|homes| home(homes, &identity.id, place.1.as_ref()));
        let of_others = open.iter().find(|((key, _), other)| *key == place.0 && other.revision() == offer.revision);
        let slots = of_others.map(|(_, other)| other.slots());
        let server = Server::new(identity, half, offer.revision, config.clone(), slots, (home, Arc::clone(&self.common)));
        if let Some(outdated) = open.insert(place, Arc::clone(&server)) {
            self.end(outdated);
        }
        drop(open);
        self.watch();
        Ok(server)
    }

    /// The server that a tool was frozen with.
    async fn server_for(self: &Arc<Self>, owner: &UserId, key: &str) -> Result<Arc<Server>, String> {
        let known = {
            let open = lock(&self.open);
            let own = open.get(&(key.to_owned(), Some(owner.clone())));
            own.or_else(|| open.get(&(key.to_owned(), None))).cloned()
        };
        if let Some(server) = known {
            return Ok(server);
        }
        let kept = self.offers(owner).await;
        match self.configured.iter().chain(&kept).find(|offer| offer.identity.key == key) {
            Some(offer) => self
                .server(owner, offer)
                .map_err(|reason| format!("the entry of the server {} cannot be used: {reason}", offer.identity.name)),
            None => Err(format!("the server {key} is not configured any more, or is not enabled; nothing was sent")),
        }
    }

    async fn status(&self, owner: &UserId, offer: &Offer) -> ServerStatus {
        let Identity { id, name, owner: whose, .. } = &offer.identity;
        let none = ServerStatus {
            id: id.clone(),
            name: name.clone(),
            status: "unknown".to_owned(),
            since: None,
            error: None,
            stderr: None,
            tools: 0,
            left_out: false,
            auth: AuthState::None,
            owner: whose.clone(),
        };
        let config = match &offer.config {
            Ok(config) => config,
            Err(reason) => return ServerStatus { status: "error".to_owned(), error: Some(reason.clone()), ..none },
        };
        let server = lock(&self.open).get(&place(owner, offer, config)).cloned();
        match server.filter(|server| server.revision() >= offer.revision) {
            Some(server) => server.status(none).await,
            None => none,
        }
    }

    fn end(&self, server: Arc<Server>) {
        self.common.tasks.spawn(async move { server.close().await });
    }

    /// Looks after connections as long as there are any of this process.
    fn watch(self: &Arc<Self>) {
        if self.is_watched.swap(true, Ordering::SeqCst) {
            return;
        }
        let (all, closing) = (Arc::downgrade(self), self.common.closing.clone());
        self.common.tasks.spawn(async move {
            tokio::select! {
                () = closing.cancelled() => {}
                () = look_after(all) => {}
            }
        });
    }

    /// Makes lost connections again, and ends those that nobody uses.
    fn look_at_connections(&self) {
        let mut open = lock(&self.open);
        let idle = self.idle.unwrap_or(Duration::MAX);
        for server in open.values().filter(|server| server.idle_for() >= idle) {
            server.rest(None);
        }
        // What has gone wrong with one of everybody is for operators to see for as long as they like.
        let is_forgotten = |owner: Option<&UserId>, server: &Server| match server.is_resting() {
            true => server.idle_for() >= RESTED.max(self.idle.unwrap_or_default()),
            false => owner.is_some() && !server.is_up() && server.idle_for() >= idle,
        };
        for (_, server) in open.extract_if(|(_, owner), server| is_forgotten(owner.as_ref(), server)) {
            self.end(server);
        }
        for server in open.values() {
            server.tend();
        }
    }

    /// Ends connections to those of these servers that have changed, or are not there or not enabled any more.
    async fn end_outdated(&self, kept: &dyn KeptServers, ids: &[McpServerId]) {
        let current = match kept.these(ids).await {
            Ok(current) => current,
            Err(error) => return tracing::debug!(error, "whether MCP servers have changed cannot be said"),
        };
        let current: HashMap<&McpServerId, i64> = current.iter().map(|server| (&server.id, server.revision)).collect();
        let outdated = |server: &Server| {
            ids.contains(server.id()) && current.get(server.id()).is_none_or(|revision| server.revision() < *revision)
        };
        let outdated: Vec<_> = lock(&self.open).extract_if(|_, server| outdated(server)).collect();
        for (_, server) in outdated {
            self.end(server);
        }
    }

    /// The kept servers with connections in this process.
    fn kept_and_open(&self) -> Vec<McpServerId> {
        let of_file = |server: &Server| self.configured.iter().any(|offer| offer.identity.id == *server.id());
        let ids: BTreeSet<McpServerId> =
            lock(&self.open).values().filter(|server| !of_file(server)).map(|server| server.id().clone()).collect();
        ids.into_iter().collect()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn place(owner: &UserId, offer: &Offer, config: &ServerConfig) -> Place {
    let is_of_all = config.shared && offer.identity.owner.is_none();
    (offer.identity.key.clone(), (!is_of_all).then(|| owner.clone()))
}

/// The working directory of a server. Those of several owners have nothing in common.
fn home(homes: &Path, id: &McpServerId, owner: Option<&UserId>) -> PathBuf {
    match owner {
        None => homes.join(id.as_str()),
        Some(owner) => homes.join(format!("{id}-{owner}")),
    }
}

async fn look_after(all: Weak<McpServers>) {
    let mut ticks = tokio::time::interval(LOOK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut looks = 0_u32;
    loop {
        ticks.tick().await;
        let Some(all) = all.upgrade() else { return };
        all.look_at_connections();
        looks = (looks + 1) % LOOKS_TO_ASK;
        let ids = if looks == 0 { all.kept_and_open() } else { Vec::new() };
        if let Some(kept) = all.kept.as_ref().filter(|_| !ids.is_empty()) {
            all.end_outdated(kept.as_ref(), &ids).await;
        }
    }
}
