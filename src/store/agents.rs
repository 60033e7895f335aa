//! What is kept of agents: the trait, and how rows become its values.

use std::str::FromStr;

use async_trait::async_trait;
use sqlx::{ColumnIndex, Decode, Row, Type};

use super::{IdempotencyClaim, InvalidCursor, Keyed, NameCursor, NamedChanged, NamedMade, Page, PageRequest, StoreResult, rows};
use crate::domain::agent_record::{AgentRecord, AgentVersion};
use crate::domain::ids::{AgentId, UserId};
use crate::support::clock::UnixMillis;

/// The last agent of a page.
pub type AgentCursor = NameCursor<AgentId>;

/// The last version of a page: its number.
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

/// Agents that people keep. Those of an owner and those of the server: nobody sees the others.
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

    /// The agent, unless it is missing or another owner's.
    async fn agent(&self, viewer: &UserId, id: &AgentId) -> StoreResult<Option<AgentRecord>>;

    /// The agent of that name: the viewer's own before the server's.
    async fn agent_named(&self, viewer: &UserId, name: &str) -> StoreResult<Option<AgentRecord>>;

    /// A page of agents, by name.
    async fn agents(&self, viewer: &UserId, page: &PageRequest<AgentCursor>) -> StoreResult<Page<AgentRecord>>;

    /// Stores a changed agent: all but owner, `created_at` and what its version says; `revision` is the one that it was changed
    /// from. With `version`, that is stored, too.
    async fn change_agent(&self, changed: &AgentRecord, version: Option<&AgentVersion>) -> StoreResult<NamedChanged>;

    /// A version of an agent. Who may see it has been asked before.
    async fn agent_version(&self, id: &AgentId, number: u32) -> StoreResult<Option<AgentVersion>>;

    /// A page of versions of an agent, newest first; after the one of that number. Who may see them has been asked before.
    async fn agent_versions(&self, id: &AgentId, page: &PageRequest<AgentVersionCursor>) -> StoreResult<Page<AgentVersion>>;

    /// Deletes an agent of that owner, or of the server, with its versions. False if there is none of that revision.
    async fn delete_agent(&self, owner: Option<&UserId>, id: &AgentId, revision: i64) -> StoreResult<bool>;
}

/// Agents with what the version says that runs get, as [`read_agent`] reads them.
macro_rules! select_agents {
    () => {
        "SELECT a.id, a.owner_id, a.name, a.description, a.pinned, a.latest, v.profile, a.created_at, a.updated_at, a.revision
         FROM agents a JOIN agent_versions v ON v.agent_id = a.id AND v.number = coalesce(a.pinned, a.latest)"
    };
}
pub(super) use select_agents;

/// Reads [`select_agents`].
pub(super) fn read_agent<'r, R>(row: &'r R) -> StoreResult<AgentRecord>
where
    R: Row,
    &'static str: ColumnIndex<R>,
    String: Decode<'r, R::Database> + Type<R::Database>,
    i64: Decode<'r, R::Database> + Type<R::Database>,
{
    let text = |column: &'static str| -> Result<String, sqlx::Error> { row.try_get(column) };
    let id = text("id")?;
    Ok(AgentRecord {
        owner: row.try_get::<Option<String>, _>("owner_id")?.map(UserId::from_stored),
        name: text("name")?,
        description: text("description")?,
        pinned: row.try_get::<Option<i64>, _>("pinned")?.map(number),
        latest: number(row.try_get("latest")?),
        profile: rows::decode("agent_versions", "profile", &id, &text("profile")?)?,
        created_at: UnixMillis(row.try_get("created_at")?),
        updated_at: UnixMillis(row.try_get("updated_at")?),
        revision: row.try_get("revision")?,
        id: AgentId::from_stored(id),
    })
}

/// Reads a whole row of `agent_versions`.
pub(super) fn read_version<'r, R>(row: &'r R) -> StoreResult<AgentVersion>
where
    R: Row,
    &'static str: ColumnIndex<R>,
    String: Decode<'r, R::Database> + Type<R::Database>,
    i64: Decode<'r, R::Database> + Type<R::Database>,
{
    let text = |column: &'static str| -> Result<String, sqlx::Error> { row.try_get(column) };
    Ok(AgentVersion {
        number: number(row.try_get("number")?),
        profile: rows::decode("agent_versions", "profile", &text("agent_id")?, &text("profile")?)?,
        note: text("note")?,
        created_by: UserId::from_stored(text("created_by")?),
        created_at: UnixMillis(row.try_get("created_at")?),
    })
}

fn number(stored: i64) -> u32 {
    u32::try_from(stored).unwrap_or(0)
}

/// The cursor of a version.
pub(super) fn version_cursor(version: &AgentVersion) -> String {
    version.number.to_string()
}

/// The cursor of an agent.
pub(super) fn cursor(record: &AgentRecord) -> String {
    AgentCursor { name: record.name.clone(), id: record.id.clone() }.to_string()
}
