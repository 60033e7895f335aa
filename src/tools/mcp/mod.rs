//! Servers of the Model Context Protocol: their configuration, connections, tools and calls.
//!
//! Owns the child processes and HTTP sessions. Must not know runs, events or the database.

mod calls;
mod config;
mod errors;
pub mod oauth;
pub mod process;
mod registry;
mod server;
mod transport;

pub use config::unknown_keys::{check_document, is_switched_off};
pub use config::user_servers::{MemberRules, Secrets, SplitEntry, UserServer, UserServerSource, part, read_kept};
pub use config::{ConnectionLimits, McpConfig, McpConfigError, McpWarning, ServerConfig, ServerTransport};
pub use process::container::{ContainerOptions, remove_stale_files as remove_stale_container_files};
pub use process::{PROXIES, stderr_end, without_login};

pub use registry::{ConfiguredServer, McpAnswer, McpCall, McpServers};
pub use server::resources::{McpPrompt, McpPromptArgument, McpResource};
