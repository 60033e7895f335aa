//! Records with names, unique per owner: agents, providers, MCP servers with their logins, and tool reviews. Also limitations of
//! models, which have no owner.

pub(super) mod agents;
pub(super) mod mcp_logins;
pub(super) mod mcp_servers;
pub(super) mod model_limitations;
pub(super) mod named;
pub(super) mod providers;
pub(super) mod tool_reviews;
