//! Users, their keys and tickets, and the audit of tool calls.

pub(super) mod audit;
pub(super) mod keys;
pub(super) mod tickets;
pub(super) mod users;
