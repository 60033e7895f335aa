//! Records that users keep: agents, providers and MCP servers, beside those of the configuration.

pub(super) mod agent_bounds;
pub(super) mod agents;
pub(super) mod configured;
pub(super) mod endpoints;
pub(super) mod mcp_deps;
pub(super) mod mcp_servers;
pub(super) mod named;
pub(super) mod providers;
