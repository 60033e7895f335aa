//! User servers: MCP servers that are stored through the API.

use serde_json::{Map, Value};

use crate::domain::ids::{McpServerId, UserId};
use crate::domain::model::provider::Reach;
use crate::support::clock::UnixMillis;
use crate::support::seal::{Place, Sealed};

#[derive(Debug, Clone, PartialEq)]
pub struct McpServerRecord {
    /// Frozen into tools, so that a call never goes to another server of the same name.
    pub id: McpServerId,
    /// `None` for a server that all users may use.
    pub owner: Option<UserId>,
    /// The prefix of its tools' names. Unique among those of its owner.
    pub name: String,
    /// As in an `mcpServers` document, with `${NAME}` in place of each secret.
    pub entry: Map<String, Value>,
    /// The secrets by name, as JSON, encrypted for [`secrets_place`].
    pub secrets: Option<Sealed>,
    /// Where its URL may lead, by the role of the user who gave it; also whether it may be a command.
    pub reach: Reach,
    pub enabled: bool,
    pub created_at: UnixMillis,
    pub updated_at: UnixMillis,
    /// Raised by one at each change.
    pub version: i64,
    /// Incremented to end its connections in all processes.
    pub generation: i64,
}

impl McpServerRecord {
    pub fn secrets_place(&self) -> Place<'_> {
        secrets_place(self.owner.as_ref(), self.id.as_str())
    }
}

/// Returns the place that the secrets of a server are encrypted for.
pub fn secrets_place<'a>(owner: Option<&'a UserId>, id: &'a str) -> Place<'a> {
    Place { purpose: "mcp_server", owner: owner.map(UserId::as_str), record: id }
}

/// Returns the name of the row of a server's tokens, which differs from that of its secrets.
pub fn tokens_row(id: &McpServerId) -> String {
    format!("{id}.tokens")
}

/// Returns the place that the tokens of a server are encrypted for, in the [row](tokens_row).
pub fn tokens_place<'a>(owner: Option<&'a UserId>, row: &'a str) -> Place<'a> {
    Place { purpose: "mcp_tokens", owner: owner.map(UserId::as_str), record: row }
}

/// Returns the id of the server of that name in the configuration.
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
