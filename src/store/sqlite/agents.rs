//! Agents that people keep.

use async_trait::async_trait;
use sqlx::SqliteConnection;

use super::SqliteStore;
use super::named::Make;
use crate::domain::agent_record::{AgentRecord, AgentVersion};
use crate::domain::ids::{AgentId, UserId};
use crate::store::agents::{cursor, read_agent, read_version, select_agents, version_cursor};
use crate::store::providers::page_of;
use crate::store::{
    AgentCursor, AgentStore, AgentVersionCursor, IdempotencyClaim, Keyed, MAX_AGENT_VERSIONS, NamedChanged, NamedMade, Page,
    PageRequest, StoreResult, rows,
};

/// False if the owner has one of that name.
async fn insert(connection: &mut SqliteConnection, new: &AgentRecord, first: &AgentVersion) -> StoreResult<bool> {
    let made = sqlx::query(
        "INSERT INTO agents (id, owner_id, name, description, pinned, latest, created_at, updated_at, revision)
         VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (coalesce(owner_id, ''), name) DO NOTHING",
    )
    .bind(new.id.as_str())
    .bind(new.owner.as_ref().map(UserId::as_str))
    .bind(&new.name)
    .bind(&new.description)
    .bind(new.pinned)
    .bind(new.latest)
    .bind(new.created_at.0)
    .bind(new.updated_at.0)
    .bind(new.revision)
    .execute(&mut *connection)
    .await?;
    if made.rows_affected() == 0 {
        return Ok(false);
    }
    add_version(connection, &new.id, first).await?;
    Ok(true)
}

async fn add_version(connection: &mut SqliteConnection, agent: &AgentId, version: &AgentVersion) -> StoreResult<()> {
    sqlx::query("INSERT INTO agent_versions (agent_id, number, profile, note, created_by, created_at) VALUES (?, ?, ?, ?, ?, ?)")
        .bind(agent.as_str())
        .bind(version.number)
        .bind(rows::encode_storable("agent_versions", "profile", agent.as_str(), &version.profile)?)
        .bind(&version.note)
        .bind(version.created_by.as_str())
        .bind(version.created_at.0)
        .execute(&mut *connection)
        .await?;
    Ok(())
}

#[async_trait]
impl AgentStore for SqliteStore {
    async fn create_agent(
        &self,
        new: &AgentRecord,
        first: &AgentVersion,
        most: u32,
        idempotency: Option<IdempotencyClaim>,
    ) -> StoreResult<Keyed<NamedMade<AgentId>>> {
        let (owner, key) = (new.owner.as_ref(), idempotency.as_ref());
        self.make(Make { table: "agents", owner, most, id: &new.id, key }, async |tx| insert(tx, new, first).await).await
    }

    async fn agent(&self, viewer: &UserId, id: &AgentId) -> StoreResult<Option<AgentRecord>> {
        let row = sqlx::query(concat!(select_agents!(), " WHERE a.id = ? AND coalesce(a.owner_id, '') IN (?, '')"))
            .bind(id.as_str())
            .bind(viewer.as_str())
            .fetch_optional(self.reader())
            .await?;
        row.as_ref().map(read_agent).transpose()
    }

    async fn agent_named(&self, viewer: &UserId, name: &str) -> StoreResult<Option<AgentRecord>> {
        let row = sqlx::query(concat!(
            select_agents!(),
            " WHERE a.name = ? AND coalesce(a.owner_id, '') IN (?, '') ORDER BY a.owner_id IS NULL LIMIT 1"
        ))
        .bind(name)
        .bind(viewer.as_str())
        .fetch_optional(self.reader())
        .await?;
        row.as_ref().map(read_agent).transpose()
    }

    async fn agents(&self, viewer: &UserId, page: &PageRequest<AgentCursor>) -> StoreResult<Page<AgentRecord>> {
        let limit = page.limit.clamp(1, 100);
        let found = sqlx::query(concat!(
            select_agents!(),
            " WHERE coalesce(a.owner_id, '') IN (?, '') AND (a.name, a.id) > (?, ?) ORDER BY a.name, a.id LIMIT ?"
        ))
        .bind(viewer.as_str())
        .bind(page.after.as_ref().map_or("", |after| after.name.as_str()))
        .bind(page.after.as_ref().map_or("", |after| after.id.as_str()))
        .bind(i64::from(limit) + 1)
        .fetch_all(self.reader())
        .await?;
        Ok(page_of(found.iter().map(read_agent).collect::<StoreResult<_>>()?, limit, cursor))
    }

    async fn change_agent(&self, changed: &AgentRecord, version: Option<&AgentVersion>) -> StoreResult<NamedChanged> {
        let (_turn, mut tx) = self.write_in_turn().await?;
        let revision: Result<Option<i64>, sqlx::Error> = sqlx::query_scalar(
            "UPDATE agents SET name = ?3, description = ?4, pinned = ?5, latest = ?6, updated_at = ?7, revision = revision + 1
             WHERE id = ?1 AND revision = ?2 RETURNING revision",
        )
        .bind(changed.id.as_str())
        .bind(changed.revision)
        .bind(&changed.name)
        .bind(&changed.description)
        .bind(changed.pinned)
        .bind(changed.latest)
        .bind(changed.updated_at.0)
        .fetch_optional(&mut *tx)
        .await;
        let revision = match revision {
            Ok(Some(revision)) => revision,
            Ok(None) => return Ok(NamedChanged::Stale),
            Err(error) if error.as_database_error().is_some_and(sqlx::error::DatabaseError::is_unique_violation) => {
                return Ok(NamedChanged::NameTaken);
            }
            Err(error) => return Err(error.into()),
        };
        if let Some(version) = version {
            add_version(&mut tx, &changed.id, version).await?;
            sqlx::query("DELETE FROM agent_versions WHERE agent_id = ? AND number <= ? AND number <> ?")
                .bind(changed.id.as_str())
                .bind(i64::from(version.number) - i64::from(MAX_AGENT_VERSIONS))
                .bind(changed.current())
                .execute(&mut *tx)
                .await?;
        }
        tx.commit().await?;
        Ok(NamedChanged::Changed(revision))
    }

    async fn agent_version(&self, id: &AgentId, number: u32) -> StoreResult<Option<AgentVersion>> {
        let row = sqlx::query("SELECT * FROM agent_versions WHERE agent_id = ? AND number = ?")
            .bind(id.as_str())
            .bind(number)
            .fetch_optional(self.reader())
            .await?;
        row.as_ref().map(read_version).transpose()
    }

    async fn agent_versions(&self, id: &AgentId, page: &PageRequest<AgentVersionCursor>) -> StoreResult<Page<AgentVersion>> {
        let limit = page.limit.clamp(1, 100);
        let found = sqlx::query("SELECT * FROM agent_versions WHERE agent_id = ? AND number < ? ORDER BY number DESC LIMIT ?")
            .bind(id.as_str())
            .bind(page.after.map_or(i64::MAX, |after| i64::from(after.0)))
            .bind(i64::from(limit) + 1)
            .fetch_all(self.reader())
            .await?;
        let versions = found.iter().map(read_version).collect::<StoreResult<_>>()?;
        Ok(page_of(versions, limit, version_cursor))
    }

    async fn delete_agent(&self, owner: Option<&UserId>, id: &AgentId, revision: i64) -> StoreResult<bool> {
        let (_turn, mut tx) = self.write_in_turn().await?;
        let deleted = sqlx::query("DELETE FROM agents WHERE id = ? AND coalesce(owner_id, '') = ? AND revision = ?")
            .bind(id.as_str())
            .bind(owner.map_or("", UserId::as_str))
            .bind(revision)
            .execute(&mut *tx)
            .await?
            .rows_affected();
        if deleted > 0 {
            sqlx::query("DELETE FROM agent_versions WHERE agent_id = ?").bind(id.as_str()).execute(&mut *tx).await?;
        }
        tx.commit().await?;
        Ok(deleted > 0)
    }
}
