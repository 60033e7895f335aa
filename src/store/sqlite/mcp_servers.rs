//! MCP servers that people keep.

use async_trait::async_trait;
use sqlx::SqliteConnection;

use super::named::Make;
use super::{SqliteStore, idempotency};
use crate::domain::ids::{McpServerId, UserId};
use crate::domain::mcp_server::McpServerRecord;
use crate::store::mcp_servers::{cursor, mcp_server_columns, read_mcp_server};
use crate::store::providers::page_of;
use crate::store::{
    IdempotencyClaim, Keyed, McpServerCursor, McpServerStore, NamedChanged, NamedMade, Page, PageRequest, StoreResult, rows,
};

/// False if the owner has one of that name.
async fn insert(connection: &mut SqliteConnection, new: &McpServerRecord) -> StoreResult<bool> {
    let made = sqlx::query(
        "INSERT INTO mcp_servers (id, owner_id, name, entry, key_id, key_data, reach, enabled, created_at, updated_at, version,
             generation)
         VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
         ON CONFLICT (coalesce(owner_id, ''), name) DO NOTHING",
    )
    .bind(new.id.as_str())
    .bind(new.owner.as_ref().map(UserId::as_str))
    .bind(&new.name)
    .bind(rows::encode_storable("mcp_servers", "entry", new.id.as_str(), &new.entry)?)
    .bind(new.secrets.as_ref().map(|sealed| sealed.key_id.as_str()))
    .bind(new.secrets.as_ref().map(|sealed| sealed.data.as_str()))
    .bind(new.reach.as_str())
    .bind(new.enabled)
    .bind(new.created_at.0)
    .bind(new.updated_at.0)
    .bind(new.version)
    .bind(new.generation)
    .execute(&mut *connection)
    .await?;
    Ok(made.rows_affected() > 0)
}

/// Changes a server that is of the version that the change was made from.
async fn update(connection: &mut SqliteConnection, changed: &McpServerRecord) -> StoreResult<NamedChanged> {
    let version: Result<Option<i64>, sqlx::Error> = sqlx::query_scalar(
        "UPDATE mcp_servers SET name = ?3, entry = ?4, key_id = ?5, key_data = ?6, reach = ?7, enabled = ?8,
             updated_at = ?9, version = version + 1
         WHERE id = ?1 AND version = ?2 RETURNING version",
    )
    .bind(changed.id.as_str())
    .bind(changed.version)
    .bind(&changed.name)
    .bind(rows::encode_storable("mcp_servers", "entry", changed.id.as_str(), &changed.entry)?)
    .bind(changed.secrets.as_ref().map(|sealed| sealed.key_id.as_str()))
    .bind(changed.secrets.as_ref().map(|sealed| sealed.data.as_str()))
    .bind(changed.reach.as_str())
    .bind(changed.enabled)
    .bind(changed.updated_at.0)
    .fetch_optional(&mut *connection)
    .await;
    match version {
        Ok(Some(version)) => Ok(NamedChanged::Changed(version)),
        Ok(None) => Ok(NamedChanged::Stale),
        Err(error) if error.as_database_error().is_some_and(sqlx::error::DatabaseError::is_unique_violation) => {
            Ok(NamedChanged::NameTaken)
        }
        Err(error) => Err(error.into()),
    }
}

#[async_trait]
impl McpServerStore for SqliteStore {
    async fn create_mcp_server(
        &self,
        new: &McpServerRecord,
        most: u32,
        idempotency: Option<IdempotencyClaim>,
    ) -> StoreResult<Keyed<NamedMade<McpServerId>>> {
        let (owner, key) = (new.owner.as_ref(), idempotency.as_ref());
        self.make(Make { table: "mcp_servers", owner, most, id: &new.id, key }, async |tx| insert(tx, new).await).await
    }

    async fn mcp_server(&self, viewer: &UserId, id: &McpServerId) -> StoreResult<Option<McpServerRecord>> {
        let row = sqlx::query(concat!(
            "SELECT ",
            mcp_server_columns!(),
            " FROM mcp_servers WHERE id = ? AND coalesce(owner_id, '') IN (?, '')"
        ))
        .bind(id.as_str())
        .bind(viewer.as_str())
        .fetch_optional(self.reader())
        .await?;
        row.as_ref().map(read_mcp_server).transpose()
    }

    async fn mcp_servers(&self, viewer: &UserId, page: &PageRequest<McpServerCursor>) -> StoreResult<Page<McpServerRecord>> {
        let limit = page.limit.clamp(1, 100);
        let found = sqlx::query(concat!(
            "SELECT ",
            mcp_server_columns!(),
            " FROM mcp_servers WHERE coalesce(owner_id, '') IN (?, '') AND (name, id) > (?, ?)
             ORDER BY name, id LIMIT ?"
        ))
        .bind(viewer.as_str())
        .bind(page.after.as_ref().map_or("", |after| after.name.as_str()))
        .bind(page.after.as_ref().map_or("", |after| after.id.as_str()))
        .bind(i64::from(limit) + 1)
        .fetch_all(self.reader())
        .await?;
        Ok(page_of(found.iter().map(read_mcp_server).collect::<StoreResult<_>>()?, limit, cursor))
    }

    async fn usable_mcp_servers(&self, owner: &UserId) -> StoreResult<Vec<McpServerRecord>> {
        let found = sqlx::query(concat!(
            "SELECT ",
            mcp_server_columns!(),
            " FROM mcp_servers WHERE coalesce(owner_id, '') IN (?, '') AND enabled ORDER BY name, id"
        ))
        .bind(owner.as_str())
        .fetch_all(self.reader())
        .await?;
        found.iter().map(read_mcp_server).collect()
    }

    async fn enabled_mcp_servers(&self, ids: &[McpServerId]) -> StoreResult<Vec<McpServerRecord>> {
        let ids: Vec<&str> = ids.iter().map(McpServerId::as_str).collect();
        let found = sqlx::query(concat!(
            "SELECT ",
            mcp_server_columns!(),
            " FROM mcp_servers WHERE id IN (SELECT value FROM json_each(?)) AND enabled"
        ))
        .bind(serde_json::json!(ids).to_string())
        .fetch_all(self.reader())
        .await?;
        found.iter().map(read_mcp_server).collect()
    }

    async fn change_mcp_server(&self, changed: &McpServerRecord) -> StoreResult<NamedChanged> {
        let (_turn, mut tx) = self.write_in_turn().await?;
        let outcome = update(&mut tx, changed).await?;
        match &outcome {
            NamedChanged::Changed(_) => tx.commit().await?,
            NamedChanged::Stale | NamedChanged::NameTaken => {}
        }
        Ok(outcome)
    }

    async fn replace_mcp_server(
        &self,
        changed: &McpServerRecord,
        idempotency: Option<IdempotencyClaim>,
    ) -> StoreResult<Keyed<NamedChanged>> {
        let key = idempotency.as_ref();
        let (_turn, mut tx) = self.write_in_turn().await?;
        if let Some(earlier) = idempotency::earlier(&mut tx, key).await? {
            return Ok(earlier);
        }
        let outcome = update(&mut tx, changed).await?;
        match &outcome {
            NamedChanged::Changed(_) => {
                idempotency::keep(&mut tx, key, &outcome).await?;
                tx.commit().await?;
            }
            NamedChanged::Stale | NamedChanged::NameTaken => {}
        }
        Ok(Keyed::Fresh(outcome))
    }

    async fn renew_mcp_server(&self, owner: Option<&UserId>, id: &McpServerId) -> StoreResult<bool> {
        let (_turn, mut tx) = self.write_in_turn().await?;
        let renewed = sqlx::query("UPDATE mcp_servers SET generation = generation + 1 WHERE id = ? AND coalesce(owner_id, '') = ?")
            .bind(id.as_str())
            .bind(owner.map_or("", UserId::as_str))
            .execute(&mut *tx)
            .await?
            .rows_affected();
        tx.commit().await?;
        Ok(renewed > 0)
    }

    async fn delete_mcp_server(&self, owner: Option<&UserId>, id: &McpServerId, version: i64) -> StoreResult<bool> {
        let (_turn, mut tx) = self.write_in_turn().await?;
        let deleted = sqlx::query("DELETE FROM mcp_servers WHERE id = ? AND coalesce(owner_id, '') = ? AND version = ?")
            .bind(id.as_str())
            .bind(owner.map_or("", UserId::as_str))
            .bind(version)
            .execute(&mut *tx)
            .await?
            .rows_affected();
        if deleted > 0 {
            // Nobody has to look at what a server says that is gone.
            sqlx::query("DELETE FROM tool_pins WHERE owner_id = ? AND server = ?")
                .bind(owner.map_or("", UserId::as_str))
                .bind(id.as_str())
                .execute(&mut *tx)
                .await?;
            for statement in ["DELETE FROM mcp_tokens WHERE server_id = ?", "DELETE FROM mcp_logins WHERE server_id = ?"] {
                sqlx::query(statement).bind(id.as_str()).execute(&mut *tx).await?;
            }
        }
        tx.commit().await?;
        Ok(deleted > 0)
    }
}
