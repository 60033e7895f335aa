//! Users and their keys, the sign-in of browsers, and logins at providers and MCP servers.
//!
//! Owns cookies. Must not know how a key is checked.

pub(in crate::http) mod keys;
pub(in crate::http) mod logins;
pub(in crate::http) mod mcp_logins;
pub(in crate::http) mod me;
pub(in crate::http) mod sessions;
pub(in crate::http) mod users;
