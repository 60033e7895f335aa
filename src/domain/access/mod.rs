//! Access to the server: principals, tickets, and the audit of tool calls.
//!
//! Owns their values. Must not know how a caller is authenticated.

pub mod audit;
pub mod principal;
pub mod ticket;
