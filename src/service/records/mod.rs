//! Records that are stored through the API: agents, providers and MCP servers, together with those of the configuration.
//!
//! Owns who may see and change a record. Must not know how runs use it.

pub(super) mod agent_bounds;
pub(super) mod agents;
pub(super) mod configured_providers;
pub(super) mod embeddings;
pub(super) mod endpoints;
pub(super) mod mcp_deps;
pub(super) mod mcp_servers;
pub(super) mod models;
pub(super) mod named;
pub(super) mod providers;
pub(super) mod settings;
