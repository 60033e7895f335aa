//! Tool reviews: the trait, its values, and how seen definitions compare with accepted ones.

use std::collections::HashSet;

use async_trait::async_trait;

use crate::domain::ids::{PinId, UserId};
use crate::domain::tool::pin::{PinStatus, ToolPin};
use crate::store::StoreResult;

pub const MAX_PINS: i64 = 1_000;

/// Stands for all owners in a column of owners.
pub(in crate::store) const EVERYBODY: &str = "";

#[derive(Debug, Clone, PartialEq)]
pub struct SeenTool {
    /// The id that it gets if it was never seen before.
    pub id: PinId,
    /// The owner of the server; `None` for one of all owners.
    pub owner: Option<UserId>,
    /// The server: its name in the configuration, or its id.
    pub server: String,
    pub tool: String,
    /// SHA-256 of description, schema and hints.
    pub definition_hash: String,
    pub description: String,
    /// JSON Schema of its arguments, as text.
    pub parameters: String,
    /// The annotations of its server, as JSON text.
    pub hints: String,
}

impl SeenTool {
    pub(in crate::store) fn owner(&self) -> &str {
        self.owner.as_ref().map_or(EVERYBODY, UserId::as_str)
    }
}

/// Definitions of tools that were seen.
#[async_trait]
pub trait PinStore: Send + Sync {
    /// Compares tools with what was seen of them before. The first definition of a tool is kept as accepted, another one as changed, in
    /// the place of the one that had changed before. Returns the ids of those whose definitions are not accepted.
    async fn sight_tools(&self, seen: &[SeenTool]) -> StoreResult<Vec<PinId>>;

    /// Returns definitions, newest first, at most [`MAX_PINS`]: of the viewer's servers and of those of all owners.
    async fn tool_pins(&self, viewer: &UserId, status: Option<PinStatus>) -> StoreResult<Vec<ToolPin>>;

    /// Accepts a definition of a server of `scope`. Accepting it again changes nothing. `None` if there is none.
    async fn accept_tool_pin(&self, scope: &PinScope, id: &PinId, by: &UserId) -> StoreResult<Option<ToolPin>>;
}

/// The servers that a principal may decide about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PinScope {
    pub owner: UserId,
    /// Whether servers of all owners as well.
    pub everybody: bool,
}

/// A stored definition.
pub(in crate::store) struct StoredDefinition {
    pub(in crate::store) owner: String,
    pub(in crate::store) server: String,
    pub(in crate::store) tool: String,
    pub(in crate::store) hash: String,
    pub(in crate::store) is_accepted: bool,
}

/// The result of comparing seen definitions with stored ones.
pub(in crate::store) struct Sight<'s> {
    /// Definitions to store, with their status.
    pub(in crate::store) new: Vec<(&'s SeenTool, PinStatus)>,
    /// Definitions that are not accepted.
    pub(in crate::store) changed: Vec<PinId>,
}

/// Compares what is seen with what is kept.
pub(in crate::store) fn compare<'s>(seen: &'s [SeenTool], kept: &[StoredDefinition]) -> Sight<'s> {
    let accepted: HashSet<(&str, &str, &str, &str)> = kept.iter().filter(|kept| kept.is_accepted).map(key).collect();
    let changed: HashSet<_> = kept.iter().filter(|kept| !kept.is_accepted).map(key).collect();
    let tools: HashSet<_> = kept.iter().map(|kept| (kept.owner.as_str(), kept.server.as_str(), kept.tool.as_str())).collect();
    let mut sight = Sight { new: Vec::new(), changed: Vec::new() };
    for tool in seen {
        let (owner, server, name) = (tool.owner(), tool.server.as_str(), tool.tool.as_str());
        let full = (owner, server, name, tool.definition_hash.as_str());
        if accepted.contains(&full) {
            continue;
        }
        if !tools.contains(&(owner, server, name)) {
            sight.new.push((tool, PinStatus::Accepted));
            continue;
        }
        if !changed.contains(&full) {
            sight.new.push((tool, PinStatus::Changed));
        }
        sight.changed.push(tool.id.clone());
    }
    sight
}

fn key(kept: &StoredDefinition) -> (&str, &str, &str, &str) {
    (&kept.owner, &kept.server, &kept.tool, &kept.hash)
}

/// Returns the servers of the tools, each once, with their owners.
pub(in crate::store) fn servers(seen: &[SeenTool]) -> Vec<(&str, &str)> {
    let mut servers: Vec<(&str, &str)> = seen.iter().map(|tool| (tool.owner(), tool.server.as_str())).collect();
    servers.sort_unstable();
    servers.dedup();
    servers
}
