//! Who may use the server: principals, tickets, and the audit of what they did.

pub mod audit;
pub mod principal;
pub mod ticket;
