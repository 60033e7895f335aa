//! The identity of one MCP server.

use crate::domain::ids::{McpServerId, UserId};

#[derive(Debug, Clone)]
pub struct Identity {
    /// The key in frozen tool definitions: the name of an operator server, or the id of a user server.
    pub key: String,
    pub id: McpServerId,
    pub name: String,
    /// The owner of a user server; `None` for a server of all owners.
    pub owner: Option<UserId>,
}
