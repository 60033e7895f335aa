//! The dependencies of MCP servers.

use std::sync::Arc;

use crate::tools::mcp::{McpServers, MemberRules};

#[derive(Clone)]
pub struct McpDeps {
    pub servers: Arc<McpServers>,
    pub rules: MemberRules,
    pub max_per_owner: u32,
    /// Limit of logins that one owner may begin within 10 minutes; 0 for no limit.
    pub max_logins: u32,
}
