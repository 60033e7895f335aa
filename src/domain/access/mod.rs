//! Access to the server: principals, tickets, and the audit of tool calls.

pub mod audit;
pub mod principal;
pub mod ticket;
