//! User servers, OAuth logins at MCP servers, and their tokens: the values.

use crate::domain::ids::{McpServerId, UserId};
use crate::store::NameCursor;
use crate::support::encryption::EncryptedSecret;

pub type McpServerCursor = NameCursor<McpServerId>;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct McpTokens {
    pub server: McpServerId,
    /// The owner of the server; `None` for a server that all users may use.
    pub owner: Option<UserId>,
    pub encrypted: EncryptedSecret,
    /// Milliseconds until the tokens should be refreshed, negative if overdue; `None` if their expiry is unknown.
    pub fresh_for_ms: Option<i64>,
    /// Incremented at each change.
    pub version: i64,
}
