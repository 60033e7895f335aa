//! All MCP servers: the operator servers of the configuration, and the user servers that are stored through the API.
//!
//! Each owner has a separate connection to each server, so that owners never share sessions, open pages or files. A server whose entry has
//! `shared` has one connection for all owners. Entries may change at any time in any process, so their revisions are read every two
//! seconds. Unused connections are closed; the tools of their servers stay on offer. Must not know the wire of a connection.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use futures_util::future::join_all;
use serde_json::{Map, Value};
use tokio::sync::Semaphore;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::domain::agent::ServerNote;
use crate::domain::conversation::ToolContent;
use crate::domain::ids::{CallId, McpServerId, UserId};
use crate::domain::run::Handle;
use crate::domain::tool::mcp_server::configured_id;
use crate::domain::tool::{ToolCallState, ToolDefinition};
use crate::support::ids::UuidIds;
use crate::support::locks::lock;
use crate::tools::mcp::config::Identity;
use crate::tools::mcp::config::user_servers::{UserServer, UserServerSource};
use crate::tools::mcp::process::container::Containers;
use crate::tools::mcp::process::orphans::{GuardProcess, ProcessMarkerSource};
use crate::tools::mcp::process::slots::Processes;
use crate::tools::mcp::server::Server;
use crate::tools::mcp::server::context::ServerContext;
use crate::tools::mcp::{McpPrompt, McpResource, ServerConfig, ServerTransport};
use crate::tools::options::ToolExecutorOptions;
use crate::tools::{CallPermit, ProgressSender, ServerStatus, model_tool_names};

const PARALLEL_STARTS: usize = 4;
/// How long tasks may take to end after their servers have ended.
const TASKS_LIMIT: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_secs(1);
/// The number of checks between two reads of the revisions of user servers.
const CHECKS_PER_READ: u32 = 2;
/// How long the tools of a server stay on offer after its idle connection was closed. Then the server is asked again.
const OFFERED_AFTER_CLOSE: Duration = Duration::from_secs(2 * 3_600);

pub struct McpCall<'a> {
    /// The owner of the run.
    pub owner: &'a UserId,
    pub id: &'a CallId,
    /// The key of the server in the frozen tool definition: the name of an operator server, or the id of a user server.
    pub server: &'a str,
    /// The tool's name at the server.
    pub tool: &'a str,
    /// The hash of the frozen definition: a tool that has changed since then is not called. `None` skips this check, for the operator's
    /// reconciliation tools.
    pub frozen_hash: Option<&'a str>,
    /// The destination of the server when the tool was frozen.
    pub frozen_destination: Option<&'a str>,
    /// How the server continues an earlier call: by its task, or with the answers that it has requested.
    pub handle: Option<&'a Handle>,
    /// Whether the call may be repeated if its outcome is unknown.
    pub may_repeat: bool,
    pub arguments: Value,
    pub meta: Map<String, Value>,
    /// The time limit, unless the server has its own.
    pub timeout: Duration,
    pub progress: ProgressSender,
    pub permit: &'a CallPermit,
}

pub struct McpAnswer {
    pub state: ToolCallState,
    pub content: Vec<ToolContent>,
    pub is_error: bool,
    pub structured: Option<Value>,
}

impl McpAnswer {
    pub fn failed(reason: String) -> Self {
        Self::error(ToolCallState::Failed, reason)
    }

    pub fn error(state: ToolCallState, reason: String) -> Self {
        Self { state, content: vec![ToolContent::text(reason)], is_error: true, structured: None }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfiguredServer {
    /// Derived from the name.
    pub id: McpServerId,
    pub name: String,
}

pub struct McpServers {
    configured: Vec<Arc<OwnerServer>>,
    user_servers: Option<Arc<dyn UserServerSource>>,
    open: Mutex<HashMap<ConnectionKey, Arc<Server>>>,
    common: Arc<ServerContext>,
    start_wait: Duration,
    idle: Option<Duration>,
    is_watched: AtomicBool,
}

/// A server as the runs of one owner may use it.
struct OwnerServer {
    identity: Identity,
    /// The prefix of its tool names.
    name_prefix: String,
    /// The entry, or the reason why it is invalid.
    config: Result<ServerConfig, String>,
    /// Incremented by each change.
    revision: i64,
}

impl OwnerServer {
    fn from_user_server(server: UserServer, name_prefix: String) -> Self {
        let UserServer { id, owner, name, config, revision } = server;
        Self { identity: Identity { key: id.as_str().to_owned(), id, name, owner }, name_prefix, config, revision }
    }
}

/// The key in frozen tool definitions, and the owner of the connection; `None` for a shared one.
type ConnectionKey = (String, Option<UserId>);

impl McpServers {
    /// Connects to no server: a connection is opened at its first use.
    pub fn new(options: ToolExecutorOptions) -> Arc<Self> {
        let ToolExecutorOptions { mcp, user_servers, environment, clock, start_wait, connections: limits, .. } = options;
        let markers = ProcessMarkerSource::new(&UuidIds);
        let prefix = markers.prefix.clone();
        let containers = Containers::new(options.containers, options.container_inputs, prefix.clone(), Arc::clone(&environment));
        let common = Arc::new(ServerContext {
            environment,
            guard: GuardProcess::new(options.guard, prefix),
            markers,
            clock,
            containers,
            homes: options.homes,
            tokens: user_servers.as_ref().and_then(|user_servers| user_servers.tokens()),
            starts: Semaphore::new(PARALLEL_STARTS),
            start_limit: limits.start,
            processes: Processes::new(limits.processes),
            closing: CancellationToken::new(),
            tasks: TaskTracker::new(),
        });
        let name_prefixes = model_tool_names::server_halves(
            &BTreeSet::new(),
            &mcp.servers.keys().map(|name| (&**name, &**name)).collect::<Vec<_>>(),
        );
        let configured = mcp.servers.into_iter().zip(name_prefixes).map(|((name, config), name_prefix)| {
            let identity = Identity { key: name.clone(), id: configured_id(&name), name, owner: None };
            Arc::new(OwnerServer { identity, name_prefix, config, revision: 0 })
        });
        let configured = configured.collect();
        let (open, is_watched, idle) = (Mutex::default(), AtomicBool::new(false), limits.idle);
        Arc::new(Self { configured, user_servers, open, common, start_wait, idle, is_watched })
    }

    pub fn configured(&self) -> impl Iterator<Item = ConfiguredServer> {
        let all = self.configured.iter().map(|offer| &offer.identity);
        all.map(|identity| ConfiguredServer { id: identity.id.clone(), name: identity.name.clone() })
    }

    /// Returns the entry of an operator server, or the reason why it is invalid.
    pub fn configured_entry(&self, id: &McpServerId) -> Result<ServerConfig, String> {
        let offer = self.configured.iter().find(|offer| offer.identity.id == *id);
        offer.map_or_else(|| Err("it is not configured any more".to_owned()), |offer| offer.config.clone())
    }

    /// Returns the tools of all reachable servers of an owner, sorted by name. Servers start in parallel. A server that takes longer than
    /// the time limit is omitted this time and continues to start.
    pub async fn definitions(self: &Arc<Self>, owner: &UserId) -> Vec<Arc<ToolDefinition>> {
        let all = self.offers(owner).await.into_iter().filter_map(|offer| Some((self.server(owner, &offer).ok()?, offer)));
        let all = all.map(|(server, offer)| async move {
            // The status of the server contains the reason.
            server.definitions(&offer.name_prefix, self.start_wait).await.unwrap_or_default()
        });
        let mut definitions: Vec<Arc<ToolDefinition>> = join_all(all).await.into_iter().flatten().collect();
        definitions.sort_by(|one, other| one.name.cmp(&other.name));
        definitions
    }

    pub async fn call(self: &Arc<Self>, call: McpCall<'_>) -> McpAnswer {
        match self.server_for(call.owner, call.server).await {
            Ok(server) => server.call(call).await,
            Err(reason) => McpAnswer::failed(reason),
        }
    }

    pub async fn statuses(self: &Arc<Self>, owner: &UserId) -> Vec<ServerStatus> {
        let offers = self.offers(owner).await;
        join_all(offers.iter().map(|offer| self.status(owner, offer))).await
    }

    /// Describes the servers of an owner to a model: by the prefix of their tools, without internal reasons.
    pub async fn notes(self: &Arc<Self>, owner: &UserId) -> Vec<ServerNote> {
        let note = |offer: Arc<OwnerServer>| {
            let (unavailable_reason, left_out) = match &offer.config {
                Ok(config) => match lock(&self.open).get(&connection_key(owner, &offer, config)) {
                    Some(server) => (server.unavailable_reason(), server.omits_tools()),
                    None => (None, false),
                },
                Err(_) => (Some("its entry is invalid"), false),
            };
            ServerNote {
                prefix: format!("{}__", offer.name_prefix),
                name: offer.identity.name.clone(),
                unavailable_reason,
                left_out,
            }
        };
        self.offers(owner).await.into_iter().map(note).collect()
    }

    /// Returns the status of one server; `None` if the owner has no such server, as in the methods below.
    pub async fn status_of(self: &Arc<Self>, owner: &UserId, id: &McpServerId) -> Option<ServerStatus> {
        let offer = self.offer(owner, id).await?;
        Some(self.status(owner, &offer).await)
    }

    /// Connects to a server despite earlier failures, and waits up to `time_limit` for it.
    pub async fn start(self: &Arc<Self>, owner: &UserId, id: &McpServerId, time_limit: Duration) -> Option<ServerStatus> {
        let offer = self.offer(owner, id).await?;
        if let Ok(server) = self.server(owner, &offer) {
            server.reset_restart_policy();
            // The status shows whether this succeeded.
            let _ = server.definitions(&offer.name_prefix, time_limit).await;
        }
        Some(self.status(owner, &offer).await)
    }

    pub async fn tools_of(self: &Arc<Self>, owner: &UserId, id: &McpServerId) -> Option<Result<Vec<Arc<ToolDefinition>>, String>> {
        let offer = self.offer(owner, id).await?;
        let listed = async { self.server(owner, &offer)?.definitions(&offer.name_prefix, self.start_wait).await };
        Some(listed.await)
    }

    pub async fn resources_of(self: &Arc<Self>, owner: &UserId, id: &McpServerId) -> Option<Result<Vec<McpResource>, String>> {
        let offer = self.offer(owner, id).await?;
        let listed = async { self.server(owner, &offer)?.resources().await };
        Some(listed.await)
    }

    pub async fn prompts_of(self: &Arc<Self>, owner: &UserId, id: &McpServerId) -> Option<Result<Vec<McpPrompt>, String>> {
        let offer = self.offer(owner, id).await?;
        let listed = async { self.server(owner, &offer)?.prompts().await };
        Some(listed.await)
    }

    /// Closes all connections to a server in this process, and waits until their processes have ended. The next use connects again.
    pub async fn stop(&self, id: &McpServerId) {
        let ended: Vec<Arc<Server>> =
            lock(&self.open).extract_if(|_, server| server.identity.id == *id).map(|(_, server)| server).collect();
        join_all(ended.iter().map(|server| server.close())).await;
    }

    /// Closes outdated connections after a user server was created, changed or deleted.
    pub async fn changed(self: &Arc<Self>, id: &McpServerId) {
        if let Some(user_servers) = &self.user_servers {
            user_servers.clear_cache();
            self.end_outdated(user_servers.as_ref(), std::slice::from_ref(id)).await;
        }
    }

    /// Searches for the container engine in the background if an operator server needs it, so that the log reports a missing one at
    /// once. Also removes orphaned containers of earlier processes with the same folder.
    pub fn prepare_containers(&self) {
        let runs_in_one = |config: &ServerConfig| matches!(config.transport, ServerTransport::Container { .. });
        let wants_one = self.configured.iter().any(|offer| offer.config.as_ref().is_ok_and(runs_in_one));
        let common = Arc::clone(&self.common);
        self.common.tasks.spawn(async move {
            let prepared = async {
                if wants_one {
                    common.containers.look_for_engine().await;
                }
                common.containers.remove_orphaned().await;
            };
            tokio::select! {
                () = common.closing.cancelled() => {}
                () = prepared => {}
            }
        });
    }

    /// Ends all servers in parallel, and waits until their processes have ended.
    pub async fn shutdown(&self) {
        self.common.closing.cancel();
        let all: Vec<Arc<Server>> = lock(&self.open).values().cloned().collect();
        join_all(all.iter().map(|server| server.close())).await;
        self.common.tasks.close();
        if tokio::time::timeout(TASKS_LIMIT, self.common.tasks.wait()).await.is_err() {
            tracing::warn!(tasks = self.common.tasks.len(), "tasks of MCP servers did not end");
        }
        self.common.guard.stop_guards().await;
    }

    /// Returns whether an owner has an enabled server with this frozen key; true if that cannot be read.
    pub async fn has(&self, owner: &UserId, key: &str) -> bool {
        if self.configured.iter().any(|offer| offer.identity.key == key) {
            return true;
        }
        let Some(user_servers) = &self.user_servers else { return false };
        user_servers.of_owner(owner).await.map_or(true, |servers| servers.iter().any(|server| server.id.as_str() == key))
    }

    async fn offer(&self, owner: &UserId, id: &McpServerId) -> Option<Arc<OwnerServer>> {
        self.offers(owner).await.into_iter().find(|offer| offer.identity.id == *id)
    }

    /// Returns the servers that an owner's runs may use: operator servers, user servers of all owners, then the owner's. A server never
    /// changes the tool names of a server before it.
    async fn offers(&self, owner: &UserId) -> Vec<Arc<OwnerServer>> {
        let mut offers = self.configured.clone();
        let Some(user_servers) = &self.user_servers else { return offers };
        let user_servers = match user_servers.of_owner(owner).await {
            Ok(user_servers) => user_servers,
            Err(error) => {
                tracing::warn!(error, "the user servers cannot be read; runs that begin now do not have their tools");
                return offers;
            }
        };
        let mut taken: BTreeSet<String> = offers.iter().map(|offer| offer.name_prefix.clone()).collect();
        let (own, of_all): (Vec<_>, Vec<_>) = user_servers.into_iter().partition(|server| server.owner.is_some());
        for servers in [of_all, own] {
            let keys: Vec<(&str, &str)> = servers.iter().map(|server| (server.id.as_str(), server.name.as_str())).collect();
            let name_prefixes = model_tool_names::server_halves(&taken, &keys);
            taken.extend(name_prefixes.iter().cloned());
            offers.extend(
                servers
                    .into_iter()
                    .zip(name_prefixes)
                    .map(|(server, name_prefix)| Arc::new(OwnerServer::from_user_server(server, name_prefix))),
            );
        }
        offers
    }

    /// Returns the server of an offer, and creates it if there is none or its revision is older.
    fn server(self: &Arc<Self>, owner: &UserId, offer: &OwnerServer) -> Result<Arc<Server>, String> {
        let config = offer.config.as_ref().map_err(Clone::clone)?;
        if self.common.closing.is_cancelled() {
            return Err("the servers are being shut down".to_owned());
        }
        let key = connection_key(owner, offer, config);
        let mut open = lock(&self.open);
        // An offer that was read before a change may arrive after it.
        if let Some(server) = open.get(&key).filter(|server| server.revision >= offer.revision) {
            return Ok(Arc::clone(server));
        }
        let (identity, name_prefix) = (offer.identity.clone(), offer.name_prefix.clone());
        let id = &identity.id;
        // Owners do not share a working directory.
        let folder = key.1.as_ref().map_or_else(|| id.to_string(), |owner| format!("{id}-{owner}"));
        let home = self.common.homes.as_ref().map(|homes| homes.join(folder));
        let of_others = open.iter().find(|((other_key, _), other)| *other_key == key.0 && other.revision == offer.revision);
        let call_permits = of_others.map(|(_, other)| Arc::clone(&other.call_permits));
        let server =
            Server::new(identity, name_prefix, offer.revision, config.clone(), call_permits, (home, Arc::clone(&self.common)));
        if let Some(outdated) = open.insert(key, Arc::clone(&server)) {
            self.end(outdated);
        }
        drop(open);
        self.watch();
        Ok(server)
    }

    /// Returns the server of a frozen tool definition.
    async fn server_for(self: &Arc<Self>, owner: &UserId, key: &str) -> Result<Arc<Server>, String> {
        let known = {
            let open = lock(&self.open);
            let own = open.get(&(key.to_owned(), Some(owner.clone())));
            own.or_else(|| open.get(&(key.to_owned(), None))).cloned()
        };
        if let Some(server) = known {
            return Ok(server);
        }
        match self.offers(owner).await.into_iter().find(|offer| offer.identity.key == key) {
            Some(offer) => self
                .server(owner, &offer)
                .map_err(|reason| format!("the entry of the server {} cannot be used: {reason}", offer.identity.name)),
            None => Err(format!("the server {key} is not configured any more, or is not enabled; nothing was sent")),
        }
    }

    async fn status(&self, owner: &UserId, offer: &OwnerServer) -> ServerStatus {
        let Identity { id, name, owner: whose, .. } = &offer.identity;
        let none = ServerStatus::unknown(id.clone(), name.clone(), whose.clone());
        let config = match &offer.config {
            Ok(config) => config,
            Err(reason) => return ServerStatus { status: "error".to_owned(), error: Some(reason.clone()), ..none },
        };
        let server = lock(&self.open).get(&connection_key(owner, offer, config)).cloned();
        match server.filter(|server| server.revision >= offer.revision) {
            Some(server) => server.status(none).await,
            None => none,
        }
    }

    fn end(&self, server: Arc<Server>) {
        self.common.tasks.spawn(async move { server.close().await });
    }

    /// Starts the task that checks connections, once.
    fn watch(self: &Arc<Self>) {
        if self.is_watched.swap(true, Ordering::SeqCst) {
            return;
        }
        let (all, closing) = (Arc::downgrade(self), self.common.closing.clone());
        self.common.tasks.spawn(async move {
            tokio::select! {
                () = closing.cancelled() => {}
                () = supervise(all) => {}
            }
        });
    }

    /// Reconnects lost servers, and closes idle connections.
    fn check_connections(&self) {
        let mut open = lock(&self.open);
        let idle = self.idle.unwrap_or(Duration::MAX);
        for server in open.values().filter(|server| server.idle_for() >= idle) {
            server.close_idle(None);
        }
        // Failures of shared servers stay visible for operators.
        let is_forgotten = |owner: Option<&UserId>, server: &Server| match server.is_idle() {
            true => server.idle_for() >= OFFERED_AFTER_CLOSE.max(self.idle.unwrap_or_default()),
            false => owner.is_some() && !server.is_up() && server.idle_for() >= idle,
        };
        for (_, server) in open.extract_if(|(_, owner), server| is_forgotten(owner.as_ref(), server)) {
            self.end(server);
        }
        for server in open.values() {
            server.reconnect_if_due();
        }
    }

    /// Closes connections to servers among `ids` that were changed, deleted or disabled.
    async fn end_outdated(&self, user_servers: &dyn UserServerSource, ids: &[McpServerId]) {
        let current = match user_servers.by_ids(ids).await {
            Ok(current) => current,
            Err(error) => return tracing::debug!(error, "the revisions of the MCP servers cannot be read"),
        };
        let current: HashMap<&McpServerId, i64> = current.iter().map(|server| (&server.id, server.revision)).collect();
        let outdated = |server: &Server| {
            ids.contains(&server.identity.id) && current.get(&server.identity.id).is_none_or(|revision| server.revision < *revision)
        };
        let outdated: Vec<_> = lock(&self.open).extract_if(|_, server| outdated(server)).collect();
        for (_, server) in outdated {
            self.end(server);
        }
    }

    /// Returns the user servers with connections in this process.
    fn kept_and_open(&self) -> Vec<McpServerId> {
        let is_kept = |id: &McpServerId| self.configured.iter().all(|offer| offer.identity.id != *id);
        let ids: BTreeSet<McpServerId> =
            lock(&self.open).values().map(|server| server.identity.id.clone()).filter(is_kept).collect();
        ids.into_iter().collect()
    }
}

fn connection_key(owner: &UserId, offer: &OwnerServer, config: &ServerConfig) -> ConnectionKey {
    let is_of_all = config.shared && offer.identity.owner.is_none();
    (offer.identity.key.clone(), (!is_of_all).then(|| owner.clone()))
}

async fn supervise(all: Weak<McpServers>) {
    let mut ticks = tokio::time::interval(LOOK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut looks = 0_u32;
    loop {
        ticks.tick().await;
        let Some(all) = all.upgrade() else { return };
        all.check_connections();
        looks = (looks + 1) % CHECKS_PER_READ;
        let ids = if looks == 0 { all.kept_and_open() } else { Vec::new() };
        if let Some(user_servers) = all.user_servers.as_ref().filter(|_| !ids.is_empty()) {
            all.end_outdated(user_servers.as_ref(), &ids).await;
        }
    }
}
