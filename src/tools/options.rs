//! Settings for the tools, and the parts of this process that they use.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::Environment;
use super::mcp::{ConnectionLimits, ContainerOptions, McpConfig, UserServerSource};
use crate::support::clock::SharedClock;
use crate::support::net::egress::EgressScope;

pub struct ToolExecutorOptions {
    /// The only folder that the built-in file tools can read. It need not exist.
    pub files_root: PathBuf,
    pub mcp: McpConfig,
    /// The user servers that are kept through the API.
    pub user_servers: Option<Arc<dyn UserServerSource>>,
    /// The environment of this process, which contains the few variables that every child process gets.
    pub environment: Environment,
    /// How long [`super::Toolbox::definitions`] waits for servers that are still starting.
    pub start_wait: Duration,
    pub clock: SharedClock,
    /// The default IANA time zone of `current_time`.
    pub default_timezone: String,
    /// The optional built-in tools on offer.
    pub enabled: Vec<String>,
    /// The egress policy for URLs of the model.
    pub egress: EgressScope,
    /// This program, which is started as a guard: it ends the MCP servers if this process is killed.
    pub guard: Option<PathBuf>,
    pub connections: ConnectionLimits,
    pub containers: ContainerOptions,
    /// The folder of the files that containers read at their start; `None` for the temporary folder.
    pub container_inputs: Option<PathBuf>,
    /// The folder that contains the working directory of each MCP server program; without it, all use that of this process.
    pub homes: Option<PathBuf>,
}

impl ToolExecutorOptions {
    /// Returns options for the built-in tools on `files_root`, without MCP servers and guard.
    pub fn new(files_root: PathBuf, clock: SharedClock) -> Self {
        Self {
            files_root,
            mcp: McpConfig::default(),
            user_servers: None,
            environment: Arc::new(|_| None),
            start_wait: Duration::from_secs(15),
            clock,
            default_timezone: "UTC".to_owned(),
            enabled: Vec::new(),
            egress: EgressScope::Public,
            guard: None,
            connections: ConnectionLimits::default(),
            containers: ContainerOptions::default(),
            container_inputs: None,
            homes: None,
        }
    }
}
