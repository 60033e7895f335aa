//! Reports to owners and administrators: audit, feedback and usage.
//!
//! Owns who may see a report. Must not know how its rows are written.

pub(super) mod audit;
pub(super) mod feedback;
pub(super) mod owned_log;
pub(super) mod usage;
