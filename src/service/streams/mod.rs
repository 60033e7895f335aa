//! Streams and pages of the event log. Owns cursors, snapshots and the live tail; must not know a transport.

pub(super) mod events;
pub(super) mod follower;
pub(super) mod list_follower;
pub(super) mod snapshot;
pub(super) mod stream;
