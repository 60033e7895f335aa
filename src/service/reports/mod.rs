//! Reports to owners and administrators: audit, feedback and usage.

pub(super) mod audit;
pub(super) mod feedback;
pub(super) mod owned_log;
pub(super) mod usage;
