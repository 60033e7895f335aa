//! Agents that owners keep: the trait and its values.

use std::str::FromStr;

use async_trait::async_trait;

use crate::domain::agent::agent_record::{AgentRecord, AgentVersion};
use crate::domain::ids::{AgentId, UserId};
use crate::store::{IdempotencyClaim, InvalidCursor, Keyed, NameCursor, NamedChanged, NamedMade, Page, PageRequest, StoreResult};

pub type AgentCursor = NameCursor<AgentId>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AgentVersionCursor(pub u32);

impl FromStr for AgentVersionCursor {
    type Err = InvalidCursor;

    fn from_str(text: &str) -> Result<Self, InvalidCursor> {
        text.parse().map(Self).map_err(|_| InvalidCursor)
    }
}

/// The most versions of one agent that are kept: an older one goes when another is made, unless runs get it.
pub const MAX_AGENT_VERSIONS: u32 = 1_000;

/// Agents of owners and of the server. A viewer sees their own and the server's.
#[async_trait]
pub trait AgentStore: Send + Sync {
    /// Stores an agent with its first version, unless its owner has `most` already. Idempotent by `idempotency`.
    async fn create_agent(
        &self,
        new: &AgentRecord,
        first: &AgentVersion,
        most: u32,
        idempotency: Option<IdempotencyClaim>,
    ) -> StoreResult<Keyed<NamedMade<AgentId>>>;

    /// Returns the agent, unless it is missing or another owner's.
    async fn agent(&self, viewer: &UserId, id: &AgentId) -> StoreResult<Option<AgentRecord>>;

    /// Returns the agent of that name: the viewer's own before the server's.
    async fn agent_named(&self, viewer: &UserId, name: &str) -> StoreResult<Option<AgentRecord>>;

    /// A page of agents, by name.
    async fn agents(&self, viewer: &UserId, page: &PageRequest<AgentCursor>) -> StoreResult<Page<AgentRecord>>;

    /// Stores a changed agent: all but owner, `created_at` and what its version says; `revision` is the one that it was changed
    /// from. With `version`, that is stored, too.
    async fn change_agent(&self, changed: &AgentRecord, version: Option<&AgentVersion>) -> StoreResult<NamedChanged>;

    /// Returns a version of an agent. The caller has checked who may see it.
    async fn agent_version(&self, id: &AgentId, number: u32) -> StoreResult<Option<AgentVersion>>;

    /// Returns a page of versions, newest first, after the one of that number. The caller has checked who may see them.
    async fn agent_versions(&self, id: &AgentId, page: &PageRequest<AgentVersionCursor>) -> StoreResult<Page<AgentVersion>>;

    /// Deletes an agent of that owner, or of the server, with its versions. False if there is none of that revision.
    async fn delete_agent(&self, owner: Option<&UserId>, id: &AgentId, revision: i64) -> StoreResult<bool>;
}
