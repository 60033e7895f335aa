//! Servers that speak the Model Context Protocol: their configuration, connections, tools and calls.
//!
//! Owns the child processes and HTTP sessions. Must not know runs, events or the database.

mod answers;
mod arguments;
mod attentive;
mod catalogue;
mod cgroup;
mod common;
mod config;
mod connection;
#[cfg(test)]
mod connection_tests;
mod container;
mod content;
mod encoded;
mod endpoint;
mod errors;
mod fates;
mod handler;
mod identity;
mod kept;
mod keys;
mod listed;
mod live;
mod masks;
pub mod oauth;
pub mod orphans;
mod outputs;
mod process;
mod processes;
mod questions;
mod remote;
mod reply;
mod restart_policy;
mod rounds;
mod sampling;
mod server;
mod servers;
mod sse;
mod statuses;
mod stdio;
mod tasks;
mod tool_list;

pub use config::{ConnectionLimits, McpConfig, McpConfigError, McpWarning, ServerConfig, ServerTransport};
pub use container::{ContainerOptions, sweep as sweep_handed};
pub use kept::{KeptServer, KeptServers, MemberRules, Parted, Secrets, part, read_kept};
pub use keys::{check_document, is_switched_off};
pub use listed::{McpPrompt, McpPromptArgument, McpResource};
pub use process::last_words;
pub use servers::{ConfiguredServer, McpAnswer, McpCall, McpServers};
