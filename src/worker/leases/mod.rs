//! The claims of this process: leases, heartbeat, orphaned claims, control signals, and the sweep for expired leases.

pub(super) mod claimed;
pub(super) mod control_signals;
pub(super) mod expired_leases;
pub(super) mod heartbeat;
pub(super) mod orphaned_claims;
pub(super) mod registry;
