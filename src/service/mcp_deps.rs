//! The parts that the service needs to keep MCP servers for users.

use std::sync::Arc;

use crate::tools::mcp::{McpServers, MemberRules};

/// What MCP servers are kept with.
#[derive(Clone)]
pub struct McpDeps {
    /// Connects to them.
    pub servers: Arc<McpServers>,
    /// What those of members may be.
    pub rules: MemberRules,
    /// How many one owner may have.
    pub max_per_owner: u32,
    /// How many logins one owner may begin within 10 minutes; 0 for no limit.
    pub max_logins: u32,
}
