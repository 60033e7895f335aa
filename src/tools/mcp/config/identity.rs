//! The identity of one MCP server.

use crate::domain::ids::{McpServerId, UserId};

#[derive(Debug, Clone)]
pub struct Identity {
    /// The key that its tools are frozen with: its name in the configuration, or its id if it is a kept server.
    pub key: String,
    pub id: McpServerId,
    pub name: String,
    /// The owner of a user server; `None` for a server of all owners.
    pub owner: Option<UserId>,
}
