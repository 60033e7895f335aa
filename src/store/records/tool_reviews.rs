//! Tool reviews: the trait, its values, and the comparison of seen definitions with accepted ones.

use std::collections::{BTreeSet, HashSet};

use async_trait::async_trait;

use crate::domain::ids::{ToolReviewId, UserId};
use crate::domain::tool::{ToolReview, ToolReviewStatus};
use crate::store::StoreResult;

pub const MAX_REVIEWS: i64 = 1_000;

/// The value of an owner column for a server that all users may use.
pub const SHARED_OWNER: &str = "";

#[derive(Debug, Clone, PartialEq)]
pub struct ListedDefinition {
    /// The id of the review, if the definition is new.
    pub id: ToolReviewId,
    /// The owner of the server; `None` for a server that all users may use.
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

impl ListedDefinition {
    pub(in crate::store) fn owner(&self) -> &str {
        self.owner.as_ref().map_or(SHARED_OWNER, UserId::as_str)
    }
}

/// The result of a comparison, after new definitions are stored.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ComparedDefinitions {
    /// The listed definitions that are not accepted.
    pub changed: Vec<ToolReviewId>,
    /// The owners of servers with changed definitions that were not stored before; `None` for a server that all users may use.
    pub new_reviews_of: BTreeSet<Option<UserId>>,
}

/// Tool definitions that were seen, with their reviews.
#[async_trait]
#[warn(missing_docs)]
pub trait ToolReviewStore: Send + Sync {
    /// Compares tools with their stored definitions. The first definition of a tool is stored as accepted. Another one is stored as
    /// changed, and replaces an earlier changed one.
    async fn compare_tool_definitions(&self, listed: &[ListedDefinition]) -> StoreResult<ComparedDefinitions>;

    /// Returns definitions of the viewer's servers and of shared servers, newest first, at most [`MAX_REVIEWS`].
    async fn tool_reviews(&self, viewer: &UserId, status: Option<ToolReviewStatus>) -> StoreResult<Vec<ToolReview>>;

    /// Accepts a definition of a server in `scope`. Idempotent. `None` if there is none.
    async fn accept_tool_review(&self, scope: &ToolReviewScope, id: &ToolReviewId, by: &UserId) -> StoreResult<Option<ToolReview>>;
}

/// The servers whose tools a principal may review.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolReviewScope {
    pub owner: UserId,
    /// Whether shared servers are included.
    pub includes_shared: bool,
}

pub struct StoredDefinition {
    pub owner: String,
    pub server: String,
    pub tool: String,
    pub hash: String,
    pub is_accepted: bool,
}

/// The result of a comparison of seen and stored definitions.
pub struct DefinitionDiff<'s> {
    /// Definitions to store, with their status.
    pub new: Vec<(&'s ListedDefinition, ToolReviewStatus)>,
    /// Definitions that are not accepted.
    pub changed: Vec<ToolReviewId>,
}

/// Compares seen definitions with stored ones.
pub fn compare<'s>(listed: &'s [ListedDefinition], stored: &[StoredDefinition]) -> DefinitionDiff<'s> {
    let accepted: HashSet<(&str, &str, &str, &str)> = stored.iter().filter(|stored| stored.is_accepted).map(key).collect();
    let changed: HashSet<_> = stored.iter().filter(|stored| !stored.is_accepted).map(key).collect();
    let tools: HashSet<_> =
        stored.iter().map(|stored| (stored.owner.as_str(), stored.server.as_str(), stored.tool.as_str())).collect();
    let mut diff = DefinitionDiff { new: Vec::new(), changed: Vec::new() };
    for tool in listed {
        let (owner, server, name) = (tool.owner(), tool.server.as_str(), tool.tool.as_str());
        let full = (owner, server, name, tool.definition_hash.as_str());
        if accepted.contains(&full) {
            continue;
        }
        if !tools.contains(&(owner, server, name)) {
            diff.new.push((tool, ToolReviewStatus::Accepted));
            continue;
        }
        if !changed.contains(&full) {
            diff.new.push((tool, ToolReviewStatus::Changed));
        }
        diff.changed.push(tool.id.clone());
    }
    diff
}

fn key(stored: &StoredDefinition) -> (&str, &str, &str, &str) {
    (&stored.owner, &stored.server, &stored.tool, &stored.hash)
}

/// Returns the servers of the tools with their owners, each once.
pub fn servers(listed: &[ListedDefinition]) -> Vec<(&str, &str)> {
    let mut servers: Vec<(&str, &str)> = listed.iter().map(|tool| (tool.owner(), tool.server.as_str())).collect();
    servers.sort_unstable();
    servers.dedup();
    servers
}
