//! The state that all MCP servers of this process share.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::support::clock::SharedClock;
use crate::tools::Environment;
use crate::tools::mcp::oauth::Tokens;
use crate::tools::mcp::process::container::Containers;
use crate::tools::mcp::process::orphans::{GuardProcess, ProcessMarkerSource};
use crate::tools::mcp::process::slots::Processes;

pub struct ServerContext {
    pub environment: Environment,
    /// Generates the markers by which processes of servers are found.
    pub markers: ProcessMarkerSource,
    /// Ends processes of servers if this program is killed.
    pub guard: GuardProcess,
    pub containers: Containers,
    /// The folder that contains the working directory of each server program.
    pub homes: Option<PathBuf>,
    pub tokens: Option<Arc<dyn Tokens>>,
    pub clock: SharedClock,
    /// Limits how many servers start at the same time.
    pub starts: Semaphore,
    /// The time limit of each start, from its permit to its list of tools.
    pub start_limit: Duration,
    pub processes: Processes,
    /// Cancelled when the servers are shut down.
    pub closing: CancellationToken,
    /// Owns all tasks.
    pub tasks: TaskTracker,
}
