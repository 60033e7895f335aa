//! The claims of this process: leases, heartbeat, control signals, and the sweep for expired leases.

pub(super) mod claimed;
pub(super) mod control;
pub(super) mod heartbeat;
pub(super) mod registry;
pub(super) mod sweeper;
