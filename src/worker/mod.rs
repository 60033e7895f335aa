//! Drives runs: claim, lease, heartbeat, commands, group commit, sweep, drain. The only caller of `engine::decide`.
//!
//! Owns the runs that this process has claimed, and the one writer of their log. Must not know HTTP, nor any dialect.

mod context;
mod effects;
mod leases;
mod log_writer;
mod options;
mod pool;
mod ranking;
mod run;

pub use log_writer::{LogError, LogWriter, RunLog, Urgency};
pub use options::{WorkerDeps, WorkerOptions};
pub use pool::Worker;
pub use ranking::{EmbeddingSource, Ranker};
