//! Agents that people keep.

use async_trait::async_trait;
use sqlx::{Connection as _, PgConnection};

use super::PostgresStore;
use super::errors::{is_unique_violation, retried};
use super::named::{Make, make};
use crate::domain::agent_record::{AgentRecord, AgentVersion};
use crate::domain::ids::{AgentId, UserId};
use crate::store::agents::{cursor, read_agent, read_version, select_agents, version_cursor};
use crate::store::providers::page_of;
use crate::store::{
    AgentCursor, AgentStore, AgentVersionCursor, IdempotencyClaim, Keyed, MAX_AGENT_VERSIONS, NamedChanged, NamedMade, Page,
    PageRequest, StoreResult, rows,
};
use crate::support::text::storable;

/// False if the owner has one of that name.
async fn insert(connection: &mut PgConnection, new: &AgentRecord, first: &AgentVersion) -> StoreResult<bool> {
    let made = sqlx::query(
        "INSERT INTO agents (id, owner_id, name, description, pinned, latest, created_at, updated_at, revision)
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)
         ON CONFLICT (coalesce(owner_id, ''), name COLLATE \"C\") DO NOTHING",
    )
    .bind(new.id.as_str())
    .bind(new.owner.as_ref().map(UserId::as_str))
    .bind(storable(&new.name))
    .bind(storable(&new.description))
    .bind(new.pinned.map(i64::from))
    .bind(i64::from(new.latest))
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

async fn add_version(connection: &mut PgConnection, agent: &AgentId, version: &AgentVersion) -> StoreResult<()> {
    sqlx::query(
        "INSERT INTO agent_versions (agent_id, number, profile, note, created_by, created_at) VALUES ($1, $2, $3, $4, $5, $6)",
    )
    .bind(agent.as_str())
    .bind(i64::from(version.number))
    .bind(rows::encode_storable("agent_versions", "profile", agent.as_str(), &version.profile)?)
    .bind(storable(&version.note))
    .bind(version.created_by.as_str())
    .bind(version.created_at.0)
    .execute(connection)
    .await?;
    Ok(())
}

async fn change(connection: &mut PgConnection, changed: &AgentRecord, version: Option<&AgentVersion>) -> StoreResult<NamedChanged> {
    let mut tx = connection.begin().await?;
    let revision = sqlx::query_scalar(
        "UPDATE agents SET name = $3, description = $4, pinned = $5, latest = $6, updated_at = $7, revision = revision + 1
         WHERE id = $1 AND revision = $2 RETURNING revision",
    )
    .bind(changed.id.as_str())
    .bind(changed.revision)
    .bind(storable(&changed.name))
    .bind(storable(&changed.description))
    .bind(changed.pinned.map(i64::from))
    .bind(i64::from(changed.latest))
    .bind(changed.updated_at.0)
    .fetch_optional(&mut *tx)
    .await;
    let revision = match revision {
        Ok(Some(revision)) => revision,
        Ok(None) => return Ok(NamedChanged::Stale),
        Err(error) if is_unique_violation(&error) => return Ok(NamedChanged::NameTaken),
        Err(error) => return Err(error.into()),
    };
    if let Some(version) = version {
        add_version(&mut tx, &changed.id, version).await?;
        sqlx::query("DELETE FROM agent_versions WHERE agent_id = $1 AND number <= $2 AND number <> $3")
            .bind(changed.id.as_str())
            .bind(i64::from(version.number) - i64::from(MAX_AGENT_VERSIONS))
            .bind(i64::from(changed.current()))
            .execute(&mut *tx)
            .await?;
    }
    tx.commit().await?;
    Ok(NamedChanged::Changed(revision))
}

#[async_trait]
impl AgentStore for PostgresStore {
    async fn create_agent(
        &self,
        new: &AgentRecord,
        first: &AgentVersion,
        most: u32,
        idempotency: Option<IdempotencyClaim>,
    ) -> StoreResult<Keyed<NamedMade<AgentId>>> {
        let key = idempotency.as_ref();
        let made = retried(|| {
            self.api.ask(async |connection| {
                let what = Make { table: "agents", lock: 15, owner: new.owner.as_ref(), most, id: &new.id, key };
                make(connection, what, async |connection| insert(connection, new, first).await).await
            })
        });
        self.or_recorded(made.await, key).await
    }

    async fn agent(&self, viewer: &UserId, id: &AgentId) -> StoreResult<Option<AgentRecord>> {
        let row = sqlx::query(concat!(select_agents!(), " WHERE a.id = $1 AND coalesce(a.owner_id, '') IN ($2, '')"))
            .bind(id.as_str())
            .bind(viewer.as_str())
            .fetch_optional(&self.api)
            .await?;
        row.as_ref().map(read_agent).transpose()
    }

    async fn agent_named(&self, viewer: &UserId, name: &str) -> StoreResult<Option<AgentRecord>> {
        let row = sqlx::query(concat!(
            select_agents!(),
            " WHERE a.name COLLATE \"C\" = $1 AND coalesce(a.owner_id, '') IN ($2, '') ORDER BY a.owner_id IS NULL LIMIT 1"
        ))
        .bind(storable(name))
        .bind(viewer.as_str())
        .fetch_optional(&self.api)
        .await?;
        row.as_ref().map(read_agent).transpose()
    }

    async fn agents(&self, viewer: &UserId, page: &PageRequest<AgentCursor>) -> StoreResult<Page<AgentRecord>> {
        let limit = page.limit.clamp(1, 100);
        let found = sqlx::query(concat!(
            select_agents!(),
            " WHERE coalesce(a.owner_id, '') IN ($1, '') AND (a.name COLLATE \"C\", a.id COLLATE \"C\") > ($2, $3)
             ORDER BY a.name COLLATE \"C\", a.id COLLATE \"C\" LIMIT $4"
        ))
        .bind(viewer.as_str())
        .bind(page.after.as_ref().map_or("".into(), |after| storable(&after.name)))
        .bind(page.after.as_ref().map_or("", |after| after.id.as_str()))
        .bind(i64::from(limit) + 1)
        .fetch_all(&self.api)
        .await?;
        Ok(page_of(found.iter().map(read_agent).collect::<StoreResult<_>>()?, limit, cursor))
    }

    async fn change_agent(&self, changed: &AgentRecord, version: Option<&AgentVersion>) -> StoreResult<NamedChanged> {
        self.api.ask(async |connection| change(connection, changed, version).await).await
    }

    async fn agent_version(&self, id: &AgentId, number: u32) -> StoreResult<Option<AgentVersion>> {
        let row = sqlx::query("SELECT * FROM agent_versions WHERE agent_id = $1 AND number = $2")
            .bind(id.as_str())
            .bind(i64::from(number))
            .fetch_optional(&self.api)
            .await?;
        row.as_ref().map(read_version).transpose()
    }

    async fn agent_versions(&self, id: &AgentId, page: &PageRequest<AgentVersionCursor>) -> StoreResult<Page<AgentVersion>> {
        let limit = page.limit.clamp(1, 100);
        let found = sqlx::query("SELECT * FROM agent_versions WHERE agent_id = $1 AND number < $2 ORDER BY number DESC LIMIT $3")
            .bind(id.as_str())
            .bind(page.after.map_or(i64::MAX, |after| i64::from(after.0)))
            .bind(i64::from(limit) + 1)
            .fetch_all(&self.api)
            .await?;
        let versions = found.iter().map(read_version).collect::<StoreResult<_>>()?;
        Ok(page_of(versions, limit, version_cursor))
    }

    async fn delete_agent(&self, owner: Option<&UserId>, id: &AgentId, revision: i64) -> StoreResult<bool> {
        let deleted = sqlx::query(
            "WITH gone AS (DELETE FROM agents WHERE id = $1 AND coalesce(owner_id, '') = $2 AND revision = $3 RETURNING id),
                  versions AS (DELETE FROM agent_versions v USING gone WHERE v.agent_id = gone.id)
             SELECT id FROM gone",
        )
        .bind(id.as_str())
        .bind(owner.map_or("", UserId::as_str))
        .bind(revision)
        .fetch_optional(&self.api)
        .await?;
        Ok(deleted.is_some())
    }
}
