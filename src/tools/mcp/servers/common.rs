//! The state that all MCP servers of this process share.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::support::clock::SharedClock;
use crate::tools::Environment;
use crate::tools::mcp::oauth::Tokens;
use crate::tools::mcp::process::container::Containers;
use crate::tools::mcp::process::orphans::{Guard, Words};
use crate::tools::mcp::process::processes::Processes;

pub struct Common {
    pub environment: Environment,
    /// Makes the marks by which processes of servers are found.
    pub words: Words,
    /// Ends processes of servers if this program is killed.
    pub guard: Guard,
    pub containers: Containers,
    /// The folder below which each server program has its own working directory.
    pub homes: Option<PathBuf>,
    pub tokens: Option<Arc<dyn Tokens>>,
    pub clock: SharedClock,
    /// Limits how many servers start at the same time.
    pub starts: Semaphore,
    /// How long each start may take, from its turn to its list of tools.
    pub start_limit: Duration,
    pub processes: Processes,
    /// Cancelled when the servers are shut down.
    pub closing: CancellationToken,
    /// Owns all tasks.
    pub tasks: TaskTracker,
}

/// Locks a mutex. A panic elsewhere leaves its value usable.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
