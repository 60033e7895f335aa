//! MCP servers as people keep them: of one owner or of the server.

use serde_json::{Map, Value};
use sha2::{Digest as _, Sha256};

use super::ids::{McpServerId, UserId};
use super::provider::Reach;
use crate::support::clock::UnixMillis;
use crate::support::seal::{Place, Sealed};

/// An MCP server as it is kept.
#[derive(Debug, Clone, PartialEq)]
pub struct McpServerRecord {
    /// The id. It is also what tools are frozen with, so that a call never goes to another server of the same name.
    pub id: McpServerId,
    /// Whose it is; `None` if it is the server's, for everybody's use.
    pub owner: Option<UserId>,
    /// What the names of its tools begin with. Unique among those of its owner.
    pub name: String,
    /// Its entry, as in an `mcpServers` document, with `${NAME}` in the place of each secret.
    pub entry: Map<String, Value>,
    /// The secrets by their names, as JSON, sealed for [`secrets_place`].
    pub secrets: Option<Sealed>,
    /// Where its URL may lead, by the role of whoever gave it: also whether it may be a command.
    pub reach: Reach,
    /// Whether runs may use it.
    pub enabled: bool,
    /// When it was made.
    pub created_at: UnixMillis,
    /// When it was changed.
    pub updated_at: UnixMillis,
    /// Raised by one at each change.
    pub version: i64,
    /// Raised by one when its connections are to end, in whatever process they are.
    pub generation: i64,
}

impl McpServerRecord {
    /// The place that its secrets are sealed for.
    #[must_use]
    pub fn secrets_place(&self) -> Place<'_> {
        secrets_place(self.owner.as_ref(), self.id.as_str())
    }
}

/// The place that the secrets of a server are sealed for.
#[must_use]
pub fn secrets_place<'a>(owner: Option<&'a UserId>, id: &'a str) -> Place<'a> {
    Place { purpose: "mcp_server", owner: owner.map(UserId::as_str), record: id }
}

/// The name of the row of a server's tokens: another one than that of its secrets.
#[must_use]
pub fn tokens_row(id: &McpServerId) -> String {
    format!("{id}.tokens")
}

/// The place that the tokens of a server are sealed for, in the [row](tokens_row).
#[must_use]
pub fn tokens_place<'a>(owner: Option<&'a UserId>, row: &'a str) -> Place<'a> {
    Place { purpose: "mcp_tokens", owner: owner.map(UserId::as_str), record: row }
}

/// The id of the server of that name in the configuration: the same in every process and after every start.
#[must_use]
pub fn configured_id(name: &str) -> McpServerId {
    let hash = Sha256::digest(format!("capstan.configured_mcp_server.{name}"));
    let digits: String = hash.iter().take(16).map(|byte| format!("{byte:02x}")).collect();
    McpServerId::from_stored(format!("{}{digits}", McpServerId::PREFIX))
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
