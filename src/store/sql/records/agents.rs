//! Stored agents and their versions.
//!
//! Owns the tables `agents` and `agent_versions`. Must not know what a profile means.

use crate::domain::agent::{AgentRecord, AgentVersion};
use crate::domain::ids::{AgentId, UserId};
use crate::store::pages::page_of;
use crate::store::records::agents::{AgentCursor, AgentVersionCursor, MAX_AGENT_VERSIONS};
use crate::store::rows::{decode, encode_storable, unsigned_count};
use crate::store::sql::records::named::{NamedRow, owner_text};
use crate::store::sql::{Row, Transaction, Value, statements, values};
use crate::store::{
    CreateNamedOutcome, IdempotencyKey, IdempotentResult, Page, PageRequest, RecordStore, StoreResult, UpdateNamedOutcome,
};
use crate::support::clock::UnixMillis;

/// The number of the lock that allows one request per owner to create an agent at a time.
const LOCK: i64 = 15;

/// Selects agents with the content of the version that runs use.
macro_rules! select_agents {
    ($dialect:ident) => {
        "SELECT a.id, a.owner_id, a.name, a.description, a.pinned, a.latest, v.profile, a.created_at, a.updated_at, a.revision
         FROM agents a JOIN agent_versions v ON v.agent_id = a.id AND v.number = coalesce(a.pinned, a.latest)"
    };
}

macro_rules! version_columns {
    ($dialect:ident) => {
        "agent_id, number, profile, note, created_by, created_at"
    };
}

statements! {
    COUNT = ["SELECT count(*) FROM agents WHERE coalesce(owner_id, '') = $1"];

    INSERT = ["INSERT INTO agents (id, owner_id, name, description, pinned, latest, created_at, updated_at, revision)
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9) ON CONFLICT (coalesce(owner_id, ''), name) DO NOTHING"];

    INSERT_VERSION = ["INSERT INTO agent_versions (", version_columns, ") VALUES ($1, $2, $3, $4, $5, $6)"];

    BY_ID = [select_agents, " WHERE a.id = $1 AND coalesce(a.owner_id, '') IN ($2, '')"];

    BY_NAME = [select_agents, " WHERE a.name = $1 AND coalesce(a.owner_id, '') IN ($2, '') ORDER BY a.owner_id IS NULL LIMIT 1"];

    PAGE = [select_agents, " WHERE coalesce(a.owner_id, '') IN ($1, '') AND (a.name, a.id) > ($2, $3)
         ORDER BY a.name, a.id LIMIT $4"];

    UPDATE = ["UPDATE agents SET name = $3, description = $4, pinned = $5, latest = $6, updated_at = $7, revision = revision + 1
         WHERE id = $1 AND revision = $2 RETURNING revision"];

    DELETE_OLD_VERSIONS = ["DELETE FROM agent_versions WHERE agent_id = $1 AND number <= $2 AND number <> $3"];

    VERSION = ["SELECT ", version_columns, " FROM agent_versions WHERE agent_id = $1 AND number = $2"];

    VERSIONS = ["SELECT ", version_columns, " FROM agent_versions WHERE agent_id = $1 AND number < $2
         ORDER BY number DESC LIMIT $3"];

    DELETE = ["DELETE FROM agents WHERE id = $1 AND coalesce(owner_id, '') = $2 AND revision = $3"];

    DELETE_VERSIONS = ["DELETE FROM agent_versions WHERE agent_id = $1"];
}

/// Agents of one owner, and agents of the server (without an owner). A viewer sees their own and the server's.
impl dyn RecordStore + '_ {
    /// Stores an agent with its first version, unless its owner has `most` already. Idempotent by `key`.
    pub async fn create_agent(
        &self,
        new: &AgentRecord,
        first: &AgentVersion,
        most: u32,
        key: Option<IdempotencyKey>,
    ) -> IdempotentResult<CreateNamedOutcome<AgentId>> {
        let insert = values![
            new.id.as_str(),
            new.owner.as_ref().map(UserId::as_str),
            &new.name,
            &new.description,
            new.pinned,
            new.latest,
            new.created_at,
            new.updated_at,
            new.revision,
        ];
        let row = NamedRow { count: COUNT, lock: LOCK, owner: new.owner.as_ref(), most, id: &new.id };
        self.database().create_named(row, &[(INSERT, insert), (INSERT_VERSION, &version_values(&new.id, first)?)], key).await
    }

    /// Returns the agent, unless it is missing or belongs to another owner.
    pub async fn agent(&self, viewer: &UserId, id: &AgentId) -> StoreResult<Option<AgentRecord>> {
        self.database().read_optional(BY_ID, values![id.as_str(), viewer.as_str()], read_agent).await
    }

    /// Returns the agent with that name. The viewer's own agent has priority over the server's.
    pub async fn agent_named(&self, viewer: &UserId, name: &str) -> StoreResult<Option<AgentRecord>> {
        self.database().read_optional(BY_NAME, values![name, viewer.as_str()], read_agent).await
    }

    /// Returns a page of agents, ordered by name.
    pub async fn agents(&self, viewer: &UserId, page: &PageRequest<AgentCursor>) -> StoreResult<Page<AgentRecord>> {
        let cursor = |agent: &AgentRecord| AgentCursor { name: agent.name.clone(), id: agent.id.clone() };
        self.database().named_page(PAGE, viewer, page, read_agent, cursor).await
    }

    /// Stores a changed agent, except its owner, `created_at` and version content. `revision` is the revision that the change is
    /// based on. Also stores `version`, if present.
    pub async fn change_agent(&self, changed: &AgentRecord, version: Option<&AgentVersion>) -> StoreResult<UpdateNamedOutcome> {
        let id = changed.id.as_str();
        let update =
            values![id, changed.revision, &changed.name, &changed.description, changed.pinned, changed.latest, changed.updated_at,];
        let Some(version) = version else { return self.database().change_named(UPDATE, update).await };
        let insert = version_values(&changed.id, version)?;
        let is_changed = |outcome: &UpdateNamedOutcome| matches!(outcome, UpdateNamedOutcome::Changed(_));
        let change = async |tx: &mut Transaction| {
            let outcome = tx.change_named(UPDATE, update).await?;
            if is_changed(&outcome) {
                tx.execute(INSERT_VERSION, &insert).await?;
                let oldest = i64::from(version.number) - i64::from(MAX_AGENT_VERSIONS);
                tx.execute(DELETE_OLD_VERSIONS, values![id, oldest, changed.current()]).await?;
            }
            Ok(outcome)
        };
        self.database().transaction(change, is_changed).await
    }

    /// Returns a version of an agent. The caller has checked access.
    pub async fn agent_version(&self, id: &AgentId, number: u32) -> StoreResult<Option<AgentVersion>> {
        self.database().read_optional(VERSION, values![id.as_str(), number], read_version).await
    }

    /// Returns a page of versions, newest first, after the given one. The caller has checked access.
    pub async fn agent_versions(&self, id: &AgentId, page: &PageRequest<AgentVersionCursor>) -> StoreResult<Page<AgentVersion>> {
        let limit = page.limit.clamp(1, 100);
        let before = page.after.map_or(i64::MAX, |after| i64::from(after.0));
        let versions = self.database().read_all(VERSIONS, values![id.as_str(), before, limit + 1], read_version).await?;
        Ok(page_of(versions, limit, |version| AgentVersionCursor(version.number).to_string()))
    }

    /// Deletes an agent of that owner, or of the server, with its versions. Returns false if none has that revision.
    pub async fn delete_agent(&self, owner: Option<&UserId>, id: &AgentId, revision: i64) -> StoreResult<bool> {
        let delete = async |tx: &mut Transaction| {
            let is_deleted = tx.execute(DELETE, values![id.as_str(), owner_text(owner), revision]).await? > 0;
            if is_deleted {
                tx.execute(DELETE_VERSIONS, values![id.as_str()]).await?;
            }
            Ok(is_deleted)
        };
        self.database().transaction(delete, |_| true).await
    }
}

fn version_values<'a>(agent: &'a AgentId, version: &'a AgentVersion) -> StoreResult<[Value<'a>; 6]> {
    Ok([
        Value::from(agent.as_str()),
        version.number.into(),
        encode_storable("agent_versions", "profile", agent.as_str(), &version.profile)?.into(),
        (&version.note).into(),
        version.created_by.as_str().into(),
        version.created_at.into(),
    ])
}

fn read_agent(row: &Row) -> StoreResult<AgentRecord> {
    let id: String = row.get("id")?;
    Ok(AgentRecord {
        owner: row.get::<Option<String>>("owner_id")?.map(UserId::from_stored),
        name: row.get("name")?,
        description: row.get("description")?,
        pinned: row.get::<Option<i64>>("pinned")?.map(unsigned_count),
        latest: unsigned_count(row.get("latest")?),
        profile: decode("agent_versions", "profile", &id, row.get("profile")?)?,
        created_at: UnixMillis(row.get("created_at")?),
        updated_at: UnixMillis(row.get("updated_at")?),
        revision: row.get("revision")?,
        id: AgentId::from_stored(id),
    })
}

fn read_version(row: &Row) -> StoreResult<AgentVersion> {
    Ok(AgentVersion {
        number: unsigned_count(row.get("number")?),
        profile: decode("agent_versions", "profile", row.get("agent_id")?, row.get("profile")?)?,
        note: row.get("note")?,
        created_by: UserId::from_stored(row.get("created_by")?),
        created_at: UnixMillis(row.get("created_at")?),
    })
}
