//! Servers that speak the Model Context Protocol: their configuration, connections, tools and calls.
//!
//! Owns the child processes and HTTP sessions. Must not know runs, events or the database.

mod calls;
mod config;
mod errors;
pub mod oauth;
pub mod process;
mod server;
mod servers;
mod transport;

pub use config::keys::{check_document, is_switched_off};
pub use config::user_servers::{KeptServer, KeptServers, MemberRules, Parted, Secrets, part, read_kept};
pub use config::{ConnectionLimits, McpConfig, McpConfigError, McpWarning, ServerConfig, ServerTransport};
pub use process::container::{ContainerOptions, sweep as sweep_handed};
pub use process::last_words;
pub use servers::listed::{McpPrompt, McpPromptArgument, McpResource};
pub use servers::{ConfiguredServer, McpAnswer, McpCall, McpServers};
