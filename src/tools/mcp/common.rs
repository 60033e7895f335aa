//! What the servers of this process have in common, and what tells them apart.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::container::Containers;
use super::oauth::Tokens;
use super::orphans::{Guard, Words};
use super::processes::Processes;
use crate::domain::ids::{McpServerId, UserId};
use crate::support::clock::SharedClock;
use crate::tools::Environment;

/// What all servers share.
pub struct Common {
    /// Our own environment.
    pub environment: Environment,
    /// The words by which what servers start is found.
    pub words: Words,
    /// Ends what is left of servers when this program is killed.
    pub guard: Guard,
    /// Where servers run that are containers.
    pub containers: Containers,
    /// Below which each program has a working directory of its own.
    pub homes: Option<PathBuf>,
    /// Where the tokens of logins are.
    pub tokens: Option<Arc<dyn Tokens>>,
    /// What time it is.
    pub clock: SharedClock,
    /// Limits how many servers start at the same time.
    pub starts: Semaphore,
    /// How long each may take, from its turn to its list of tools.
    pub start_limit: Duration,
    /// Limits how many processes there are.
    pub processes: Processes,
    /// Cancelled when the servers are shut down.
    pub closing: CancellationToken,
    /// Owns all tasks.
    pub tasks: TaskTracker,
}

/// Which server it is.
#[derive(Debug, Clone)]
pub struct Identity {
    /// What its tools are frozen with: its name in the configuration, or its id if somebody keeps it.
    pub key: String,
    /// Its id.
    pub id: McpServerId,
    /// What people call it.
    pub name: String,
    /// Whose alone it is; `None` for one of everybody.
    pub owner: Option<UserId>,
}
