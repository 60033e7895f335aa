//! Drives runs: claim, lease, heartbeat, commands, group commit, sweep, drain. The only caller of `engine::decide`.
//!
//! Owns the runs that this process has claimed, and the one writer of their log. Must not know HTTP, nor any dialect.

mod asker;
mod attachments;
mod attempt;
mod claimed;
mod content_keeper;
mod context;
mod control;
mod driver;
mod ending;
mod figures;
mod heartbeat;
mod log_writer;
mod model_call;
mod one_answer;
mod options;
mod pins;
mod pool;
mod profiles;
mod progress;
mod ranking;
mod registry;
mod reservation;
mod sampler;
mod sweeper;
mod titles;
mod tool_calls;

pub use log_writer::{LogError, LogWriter, RunLog, Urgency};
pub use options::{WorkerDeps, WorkerOptions};
pub use pool::Worker;
pub use ranking::{EmbeddingSource, Ranker};
