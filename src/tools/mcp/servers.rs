//! All configured servers together.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use serde_json::{Map, Value};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::McpConfig;
use super::orphans::{Guard, Words};
use super::server::{Common, Server};
use crate::domain::ids::UserId;
use crate::domain::message::ToolContent;
use crate::domain::tool::{ToolCallState, ToolDefinition};
use crate::support::ids::UuidIds;
use crate::tools::{Environment, ProgressSender, ServerStatus, names};

/// The most servers that start at the same time.
const PARALLEL_STARTS: usize = 4;
/// How long tasks may take to end after their servers have.
const TASKS_LIMIT: Duration = Duration::from_secs(10);

/// One call on its way to a server.
pub struct McpCall<'a> {
    /// Whose run it is of.
    pub owner: &'a UserId,
    /// The server's name in the configuration.
    pub server: &'a str,
    /// The tool's name at the server.
    pub tool: &'a str,
    /// The definition of the tool as it was frozen into the run: one that has changed is not called. `None` for a tool that the
    /// operator has named, whatever its definition.
    pub frozen_hash: Option<&'a str>,
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
    /// Ends the call.
    pub cancel: &'a CancellationToken,
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

/// All configured servers.
pub struct McpServers {
    /// Each server, or what is wrong with its entry.
    servers: BTreeMap<String, Result<Arc<Server>, String>>,
    common: Arc<Common>,
    start_patience: Duration,
}

impl McpServers {
    /// The servers of `config`. Nothing is started yet. `guard` is this program, to end what it leaves behind if it is killed.
    #[must_use]
    pub fn new(config: McpConfig, environment: Environment, start_patience: Duration, guard: Option<PathBuf>) -> Self {
        let words = Words::new(&UuidIds);
        let common = Arc::new(Common {
            environment,
            guard: Guard::new(guard, words.beginning().to_owned()),
            words,
            starts: Semaphore::new(PARALLEL_STARTS),
            closing: CancellationToken::new(),
            tasks: TaskTracker::new(),
        });
        let names: Vec<String> = config.servers.keys().cloned().collect();
        let halves = names::server_halves(&names.iter().map(String::as_str).collect::<Vec<_>>());
        let servers = config
            .servers
            .into_iter()
            .zip(halves)
            .map(|((name, entry), half)| {
                let server = entry.map(|config| Server::new(name.clone(), half, config, common.clone()));
                (name, server)
            })
            .collect();
        Self { servers, common, start_patience }
    }

    /// The tools of all servers that can be reached, sorted by name. Servers start side by side; one that takes longer than the
    /// patience is left out this time and goes on starting.
    pub async fn definitions(&self, _owner: &UserId) -> Vec<ToolDefinition> {
        let all = self.servers.values().filter_map(|server| server.as_ref().ok()).map(|server| async {
            // Why a server is left out stands in its state.
            server.definitions(self.start_patience).await.unwrap_or_default()
        });
        let mut definitions: Vec<ToolDefinition> = join_all(all).await.into_iter().flatten().collect();
        definitions.sort_by(|one, other| one.name.cmp(&other.name));
        definitions
    }

    /// Carries out one call.
    pub async fn call(&self, call: McpCall<'_>) -> McpAnswer {
        let reason = match self.servers.get(call.server) {
            Some(Ok(server)) => return server.call(call).await,
            Some(Err(reason)) => format!("the entry of the server {} cannot be used: {reason}", call.server),
            None => format!("the server {} is not configured any more", call.server),
        };
        McpAnswer::error(ToolCallState::Failed, reason)
    }

    /// The state of each server.
    pub async fn statuses(&self, _owner: &UserId) -> Vec<ServerStatus> {
        let all = self.servers.iter().map(|(name, server)| async move {
            match server {
                Ok(server) => server.status().await,
                Err(reason) => {
                    let error = Some(reason.clone());
                    ServerStatus { name: name.clone(), status: "error".to_owned(), error, stderr: None, tools: 0 }
                }
            }
        });
        join_all(all).await
    }

    /// Ends all servers, side by side, and waits until nothing of them is left.
    pub async fn shutdown(&self) {
        self.common.closing.cancel();
        join_all(self.servers.values().filter_map(|server| server.as_ref().ok()).map(|server| server.close())).await;
        self.common.tasks.close();
        if tokio::time::timeout(TASKS_LIMIT, self.common.tasks.wait()).await.is_err() {
            tracing::warn!(tasks = self.common.tasks.len(), "tasks of MCP servers did not end");
        }
        self.common.guard.dismiss().await;
    }
}
