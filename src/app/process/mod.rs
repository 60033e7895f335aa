//! The process around the server: listener, signals, log, metrics, watchdog, and periodic work.
//!
//! Owns the tasks that run beside requests and runs. Must not know a use case.

pub(super) mod background_tasks;
pub(super) mod listener;
pub(super) mod log;
pub(super) mod open_file_limit;
pub(super) mod process_wakeups;
pub(super) mod signals;
pub(super) mod telemetry;
pub(super) mod watchdog;
