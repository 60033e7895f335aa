//! Users, their keys, grants, tickets and sessions, and the audit of tool calls.

pub(super) mod audit;
pub(super) mod grants;
pub(super) mod keys;
pub(super) mod sessions;
pub(super) mod tickets;
pub(super) mod users;
