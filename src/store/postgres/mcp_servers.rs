//! MCP servers that people keep.

use async_trait::async_trait;
use sqlx::{Connection as _, PgConnection};

use super::PostgresStore;
use super::accept::record;
use super::cancel::store_key;
use super::conversations::recorded_key;
use super::errors::{is_unique_violation, retried};
use super::named::{Make, make};
use crate::domain::ids::{McpServerId, UserId};
use crate::domain::mcp_server::McpServerRecord;
use crate::store::mcp_servers::{cursor, mcp_server_columns, read_mcp_server};
use crate::store::providers::page_of;
use crate::store::{
    IdempotencyClaim, Keyed, McpServerCursor, McpServerStore, NamedChanged, NamedMade, Page, PageRequest, StoreResult, rows,
};
use crate::support::text::storable;

/// The number of the lock under which an owner's requests with keys wait for each other.
const LOCK: i64 = 8;

/// False if the owner has one of that name.
async fn insert(connection: &mut PgConnection, new: &McpServerRecord) -> StoreResult<bool> {
    let made = sqlx::query(
        "INSERT INTO mcp_servers (id, owner_id, name, entry, key_id, key_data, reach, enabled, created_at, updated_at, version,
             generation)
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)
         ON CONFLICT (coalesce(owner_id, ''), name COLLATE \"C\") DO NOTHING",
    )
    .bind(new.id.as_str())
    .bind(new.owner.as_ref().map(UserId::as_str))
    .bind(storable(&new.name))
    .bind(rows::encode_storable("mcp_servers", "entry", new.id.as_str(), &new.entry)?)
    .bind(new.secrets.as_ref().map(|sealed| sealed.key_id.as_str()))
    .bind(new.secrets.as_ref().map(|sealed| sealed.data.as_str()))
    .bind(new.reach.as_str())
    .bind(new.enabled)
    .bind(new.created_at.0)
    .bind(new.updated_at.0)
    .bind(new.version)
    .bind(new.generation)
    .execute(connection)
    .await?;
    Ok(made.rows_affected() > 0)
}

/// Changes a server that is of the version that the change was made from.
async fn update(connection: &mut PgConnection, changed: &McpServerRecord) -> StoreResult<NamedChanged> {
    let version = sqlx::query_scalar(
        "UPDATE mcp_servers SET name = $3, entry = $4, key_id = $5, key_data = $6, reach = $7, enabled = $8,
             updated_at = $9, version = version + 1
         WHERE id = $1 AND version = $2 RETURNING version",
    )
    .bind(changed.id.as_str())
    .bind(changed.version)
    .bind(storable(&changed.name))
    .bind(rows::encode_storable("mcp_servers", "entry", changed.id.as_str(), &changed.entry)?)
    .bind(changed.secrets.as_ref().map(|sealed| sealed.key_id.as_str()))
    .bind(changed.secrets.as_ref().map(|sealed| sealed.data.as_str()))
    .bind(changed.reach.as_str())
    .bind(changed.enabled)
    .bind(changed.updated_at.0)
    .fetch_optional(connection)
    .await;
    match version {
        Ok(Some(version)) => Ok(NamedChanged::Changed(version)),
        Ok(None) => Ok(NamedChanged::Stale),
        Err(error) if is_unique_violation(&error) => Ok(NamedChanged::NameTaken),
        Err(error) => Err(error.into()),
    }
}

/// The same once for each key.
async fn replace(
    connection: &mut PgConnection,
    changed: &McpServerRecord,
    key: Option<&IdempotencyClaim>,
) -> StoreResult<Keyed<NamedChanged>> {
    let mut tx = connection.begin().await?;
    let owner = changed.owner.as_ref().map_or("", UserId::as_str);
    // A request that comes again while the first is under way finds a server that has been changed, and has to see that it was that one.
    sqlx::query("SELECT pg_advisory_xact_lock(hashtextextended($1, $2))").bind(owner).bind(LOCK).execute(&mut *tx).await?;
    if let Some(key) = key
        && let Some(recorded) = recorded_key(&mut tx, key).await?
    {
        return Ok(recorded);
    }
    let outcome = update(&mut tx, changed).await?;
    match &outcome {
        NamedChanged::Changed(_) => {
            store_key(&mut tx, record(key, &outcome)?).await?;
            tx.commit().await?;
        }
        NamedChanged::Stale | NamedChanged::NameTaken => {}
    }
    Ok(Keyed::Fresh(outcome))
}

#[async_trait]
impl McpServerStore for PostgresStore {
    async fn create_mcp_server(
        &self,
        new: &McpServerRecord,
        most: u32,
        idempotency: Option<IdempotencyClaim>,
    ) -> StoreResult<Keyed<NamedMade<McpServerId>>> {
        let key = idempotency.as_ref();
        let (table, lock, owner) = ("mcp_servers", LOCK, new.owner.as_ref());
        let made = retried(|| {
            let what = Make { table, lock, owner, most, id: &new.id, key };
            self.api.ask(async |connection| make(connection, what, async |tx| insert(tx, new).await).await)
        })
        .await;
        self.or_recorded(made, key).await
    }

    async fn mcp_server(&self, viewer: &UserId, id: &McpServerId) -> StoreResult<Option<McpServerRecord>> {
        let row = sqlx::query(concat!(
            "SELECT ",
            mcp_server_columns!(),
            " FROM mcp_servers WHERE id = $1 AND coalesce(owner_id, '') IN ($2, '')"
        ))
        .bind(id.as_str())
        .bind(viewer.as_str())
        .fetch_optional(&self.api)
        .await?;
        row.as_ref().map(read_mcp_server).transpose()
    }

    async fn mcp_servers(&self, viewer: &UserId, page: &PageRequest<McpServerCursor>) -> StoreResult<Page<McpServerRecord>> {
        let limit = page.limit.clamp(1, 100);
        let found = sqlx::query(concat!(
            "SELECT ",
            mcp_server_columns!(),
            " FROM mcp_servers WHERE coalesce(owner_id, '') IN ($1, '') AND (name COLLATE \"C\", id COLLATE \"C\") > ($2, $3)
             ORDER BY name COLLATE \"C\", id COLLATE \"C\" LIMIT $4"
        ))
        .bind(viewer.as_str())
        .bind(page.after.as_ref().map_or("".into(), |after| storable(&after.name)))
        .bind(page.after.as_ref().map_or("", |after| after.id.as_str()))
        .bind(i64::from(limit) + 1)
        .fetch_all(&self.api)
        .await?;
        Ok(page_of(found.iter().map(read_mcp_server).collect::<StoreResult<_>>()?, limit, cursor))
    }

    async fn usable_mcp_servers(&self, owner: &UserId) -> StoreResult<Vec<McpServerRecord>> {
        let found = sqlx::query(concat!(
            "SELECT ",
            mcp_server_columns!(),
            " FROM mcp_servers WHERE coalesce(owner_id, '') IN ($1, '') AND enabled ORDER BY name COLLATE \"C\", id COLLATE \"C\""
        ))
        .bind(owner.as_str())
        .fetch_all(&self.api)
        .await?;
        found.iter().map(read_mcp_server).collect()
    }

    async fn enabled_mcp_servers(&self, ids: &[McpServerId]) -> StoreResult<Vec<McpServerRecord>> {
        let ids: Vec<&str> = ids.iter().map(McpServerId::as_str).collect();
        let found = sqlx::query(concat!("SELECT ", mcp_server_columns!(), " FROM mcp_servers WHERE id = ANY($1) AND enabled"))
            .bind(ids)
            .fetch_all(&self.api)
            .await?;
        found.iter().map(read_mcp_server).collect()
    }

    async fn change_mcp_server(&self, changed: &McpServerRecord) -> StoreResult<NamedChanged> {
        self.api.ask(async |connection| update(connection, changed).await).await
    }

    async fn replace_mcp_server(
        &self,
        changed: &McpServerRecord,
        idempotency: Option<IdempotencyClaim>,
    ) -> StoreResult<Keyed<NamedChanged>> {
        let key = idempotency.as_ref();
        let replaced = retried(|| self.api.ask(async |connection| replace(connection, changed, key).await)).await;
        self.or_recorded(replaced, key).await
    }

    async fn renew_mcp_server(&self, owner: Option<&UserId>, id: &McpServerId) -> StoreResult<bool> {
        let renewed =
            sqlx::query("UPDATE mcp_servers SET generation = generation + 1 WHERE id = $1 AND coalesce(owner_id, '') = $2")
                .bind(id.as_str())
                .bind(owner.map_or("", UserId::as_str))
                .execute(&self.api)
                .await?;
        Ok(renewed.rows_affected() > 0)
    }

    async fn delete_mcp_server(&self, owner: Option<&UserId>, id: &McpServerId, version: i64) -> StoreResult<bool> {
        // Nobody has to look at what a server says that is gone.
        let deleted = sqlx::query(
            "WITH gone AS (
                DELETE FROM mcp_servers WHERE id = $1 AND coalesce(owner_id, '') = $2 AND version = $3
                RETURNING id, coalesce(owner_id, '') AS owner_id
             ), pins AS (DELETE FROM tool_pins p USING gone WHERE p.owner_id = gone.owner_id AND p.server = gone.id),
             tokens AS (DELETE FROM mcp_tokens t USING gone WHERE t.server_id = gone.id),
             logins AS (DELETE FROM mcp_logins l USING gone WHERE l.server_id = gone.id)
             SELECT id FROM gone",
        )
        .bind(id.as_str())
        .bind(owner.map_or("", UserId::as_str))
        .bind(version)
        .fetch_optional(&self.api)
        .await?;
        Ok(deleted.is_some())
    }
}
