//! The process around the server: listener, signals, log, metrics, watchdog, and periodic work.
//!
//! Owns the tasks that run beside requests and runs. Must not know a use case.

pub(super) mod lifecycle;
pub(super) mod listen;
pub(super) mod log;
pub(super) mod notify;
pub(super) mod telemetry;
pub(super) mod upkeep;
pub(super) mod watchdog;
