//! User servers: MCP servers that are stored through the API.

use serde_json::{Map, Value};

use crate::domain::ids::{McpServerId, UserId};
use crate::domain::model::EgressScope;
use crate::support::clock::UnixMillis;
use crate::support::encryption::{AssociatedData, EncryptedSecret};

#[derive(Debug, Clone, PartialEq)]
pub struct McpServerRecord {
    /// Stored in frozen tools, so that a call never reaches another server of the same name.
    pub id: McpServerId,
    /// `None` for a server that all users may use.
    pub owner: Option<UserId>,
    /// The prefix of its tools' names. Unique per owner.
    pub name: String,
    /// The entry as in an `mcpServers` document, with `${NAME}` instead of each secret.
    pub entry: Map<String, Value>,
    /// The secrets by name, as JSON, encrypted for [`secrets_place`].
    pub secrets: Option<EncryptedSecret>,
    /// Addresses that its URL may have, and whether it may be a command, by the role of the user who set it.
    pub egress: EgressScope,
    pub enabled: bool,
    pub created_at: UnixMillis,
    pub updated_at: UnixMillis,
    /// Incremented at each change.
    pub version: i64,
    /// Incremented to close its connections in all processes.
    pub generation: i64,
}

impl McpServerRecord {
    pub fn secrets_place(&self) -> AssociatedData<'_> {
        secrets_place(self.owner.as_ref(), self.id.as_str())
    }
}

/// Returns the associated data of the encryption of a server's secrets.
pub fn secrets_place<'a>(owner: Option<&'a UserId>, id: &'a str) -> AssociatedData<'a> {
    AssociatedData { purpose: "mcp_server", owner: owner.map(UserId::as_str), record: id }
}

/// Returns the row name of a server's tokens. It differs from the row name of its secrets.
pub fn tokens_row(id: &McpServerId) -> String {
    format!("{id}.tokens")
}

/// Returns the associated data of the encryption of a server's tokens, in the [row](tokens_row).
pub fn tokens_place<'a>(owner: Option<&'a UserId>, row: &'a str) -> AssociatedData<'a> {
    AssociatedData { purpose: "mcp_tokens", owner: owner.map(UserId::as_str), record: row }
}

/// Returns the id of the configured server with that name.
pub fn configured_id(name: &str) -> McpServerId {
    McpServerId::derived("capstan.configured_mcp_server", name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_id_of_a_configured_server_is_made_of_its_name() {
        let id = configured_id("files");
        assert_eq!(McpServerId::parse(id.as_str()).unwrap(), id);
        assert_eq!(configured_id("files"), id);
        assert_ne!(configured_id("file"), id);
    }
}
