//! Servers that speak the Model Context Protocol: their configuration, connections, tools and calls.
//!
//! Owns the child processes and HTTP sessions. Must not know runs, events or the database.

mod attentive;
mod catalogue;
mod config;
mod connection;
mod content;
mod handler;
mod masks;
pub mod orphans;
mod outputs;
mod process;
mod server;
mod servers;
mod stdio;

pub use config::{McpConfig, McpConfigError, ServerConfig, ServerTransport};
pub use servers::{McpAnswer, McpCall, McpServers};
