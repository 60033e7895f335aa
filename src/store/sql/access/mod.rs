//! Users, their keys, grants and tickets, and the audit of tool calls.

pub(super) mod audit;
pub(super) mod grants;
pub(super) mod keys;
pub(super) mod tickets;
pub(super) mod users;
