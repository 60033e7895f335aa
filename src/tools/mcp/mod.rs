//! Servers that speak the Model Context Protocol: their configuration, connections, tools and calls.
//!
//! Owns the child processes and HTTP sessions. Must not know runs, events or the database.

mod config;
mod servers;

pub use config::{Approval, McpConfig, McpConfigError, ServerConfig, ServerTransport};
pub use servers::{McpAnswer, McpCall, McpServers};
