//! Records that owners keep under names: agents, providers, MCP servers with their logins, and tool reviews.

pub(super) mod agents;
pub(super) mod mcp_logins;
pub(super) mod mcp_servers;
pub(super) mod named;
pub(super) mod providers;
pub(super) mod tool_reviews;
