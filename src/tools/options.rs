//! Settings for the tools, and the parts of this process that they use.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::Environment;
use super::mcp::{ConnectionLimits, ContainerOptions, KeptServers, McpConfig};
use crate::support::clock::SharedClock;
use crate::support::net::outbound::Reach;

pub struct DoorOptions {
    /// The one folder that the built-in file tools see. It need not exist.
    pub files_root: PathBuf,
    pub mcp: McpConfig,
    /// The MCP servers that are kept through the API.
    pub kept: Option<Arc<dyn KeptServers>>,
    /// The environment of this process: the few variables that every child process gets are looked up here.
    pub environment: Environment,
    /// How long [`super::Toolbox::definitions`] waits for servers that are still starting.
    pub start_patience: Duration,
    pub clock: SharedClock,
    /// The IANA name of the time zone of `current_time` when the model names none.
    pub default_timezone: String,
    /// Optional built-in tools that are offered.
    pub enabled: Vec<String>,
    /// Where URLs of the model may lead.
    pub reach: Reach,
    /// This program. It is started beside the MCP servers, and ends them if this process is killed.
    pub guard: Option<PathBuf>,
    pub connections: ConnectionLimits,
    pub containers: ContainerOptions,
    /// The folder of the files that containers read at their start; among temporary files if absent.
    pub container_inputs: Option<PathBuf>,
    /// The folder below which each MCP server program has its own working directory; without it, all use that of this process.
    pub homes: Option<PathBuf>,
}

impl DoorOptions {
    /// Returns options for the built-in tools on `files_root`, without MCP servers and guard.
    pub fn new(files_root: PathBuf, clock: SharedClock) -> Self {
        Self {
            files_root,
            mcp: McpConfig::default(),
            kept: None,
            environment: Arc::new(|_| None),
            start_patience: Duration::from_secs(15),
            clock,
            default_timezone: "UTC".to_owned(),
            enabled: Vec::new(),
            reach: Reach::Public,
            guard: None,
            connections: ConnectionLimits::default(),
            containers: ContainerOptions::default(),
            container_inputs: None,
            homes: None,
        }
    }
}
