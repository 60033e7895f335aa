//! Servers that speak the Model Context Protocol: their configuration, connections, tools and calls.
//!
//! Owns the child processes and HTTP sessions. Must not know runs, events or the database.

mod catalogue;
mod config;
mod connection;
mod content;
mod handler;
mod lines;
mod masks;
mod process;
mod server;
mod servers;

pub use config::{McpConfig, McpConfigError, ServerConfig, ServerTransport};
pub use servers::{McpAnswer, McpCall, McpServers};
