//! Definitions of tools that were seen.

use async_trait::async_trait;
use sqlx::{AssertSqlSafe, Connection as _, PgConnection, Postgres, Row as _};

use super::PostgresStore;
use crate::domain::ids::{PinId, UserId};
use crate::domain::pin::{PinStatus, ToolPin};
use crate::store::pins::{COLUMNS, EVERYBODY, Kept, MAX_PINS, PinScope, PinStore, SeenTool, compare, read, servers};
use crate::store::{StoreResult, rows};
use crate::support::text::{storable, storable_json};

/// The lock of whoever keeps definitions: of two processes that see a tool for the first time, one is first.
const SIGHTING: i64 = 0x0043_4150_5049_4e53;

async fn kept<'e>(on: impl sqlx::Executor<'e, Database = Postgres>, seen: &[SeenTool]) -> StoreResult<Vec<Kept>> {
    let (owners, names): (Vec<&str>, Vec<&str>) = servers(seen).into_iter().unzip();
    let found = sqlx::query(
        "SELECT p.owner_id, p.server, p.tool, p.definition_hash, p.status
         FROM tool_pins p JOIN unnest($1::text[], $2::text[]) AS place (owner_id, server) USING (owner_id, server)",
    )
    .bind(owners)
    .bind(names)
    .fetch_all(on)
    .await?;
    let read = |row: &sqlx::postgres::PgRow| -> StoreResult<Kept> {
        let status: &str = row.try_get("status")?;
        Ok(Kept {
            owner: row.try_get("owner_id")?,
            server: row.try_get("server")?,
            tool: row.try_get("tool")?,
            hash: row.try_get("definition_hash")?,
            is_accepted: rows::word("tool_pins", "status", "", status, PinStatus::from_word)? == PinStatus::Accepted,
        })
    };
    found.iter().map(read).collect()
}

async fn keep(connection: &mut PgConnection, seen: &[SeenTool]) -> StoreResult<Vec<PinId>> {
    let mut tx = connection.begin().await?;
    sqlx::query("SELECT pg_advisory_xact_lock($1)").bind(SIGHTING).execute(&mut *tx).await?;
    let known = kept(&mut *tx, seen).await?;
    let sight = compare(seen, &known);
    for (tool, status) in sight.new {
        if status == PinStatus::Changed {
            sqlx::query("DELETE FROM tool_pins WHERE owner_id = $1 AND server = $2 AND tool = $3 AND status = 'changed'")
                .bind(tool.owner())
                .bind(&tool.server)
                .bind(&tool.tool)
                .execute(&mut *tx)
                .await?;
        }
        sqlx::query(
            "INSERT INTO tool_pins (id, owner_id, server, tool, definition_hash, description, parameters, hints, status, seen_at)
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, now_ms()) ON CONFLICT DO NOTHING",
        )
        .bind(tool.id.as_str())
        .bind(tool.owner())
        .bind(&tool.server)
        .bind(&tool.tool)
        .bind(&tool.definition_hash)
        .bind(storable(&tool.description))
        .bind(storable_json(tool.parameters.clone()))
        .bind(storable_json(tool.hints.clone()))
        .bind(status.as_str())
        .execute(&mut *tx)
        .await?;
    }
    tx.commit().await?;
    Ok(sight.changed)
}

#[async_trait]
impl PinStore for PostgresStore {
    async fn sight_tools(&self, seen: &[SeenTool]) -> StoreResult<Vec<PinId>> {
        let known = kept(&self.chores, seen).await?;
        let sight = compare(seen, &known);
        if sight.new.is_empty() {
            return Ok(sight.changed);
        }
        self.chores.ask(async |connection| keep(connection, seen).await).await
    }

    async fn tool_pins(&self, viewer: &UserId, status: Option<PinStatus>) -> StoreResult<Vec<ToolPin>> {
        let statement = format!(
            "SELECT {COLUMNS} WHERE p.owner_id IN ($1, $2) AND ($3::text IS NULL OR p.status = $3)
             ORDER BY p.seen_at DESC, p.id DESC LIMIT $4"
        );
        let found = sqlx::query(AssertSqlSafe(statement))
            .bind(viewer.as_str())
            .bind(EVERYBODY)
            .bind(status.map(PinStatus::as_str))
            .bind(MAX_PINS)
            .fetch_all(&self.api)
            .await?;
        found.iter().map(read).collect()
    }

    async fn accept_tool_pin(&self, scope: &PinScope, id: &PinId, by: &UserId) -> StoreResult<Option<ToolPin>> {
        sqlx::query(
            "UPDATE tool_pins SET status = 'accepted', accepted_by = $1, accepted_at = now_ms()
             WHERE id = $2 AND status = 'changed' AND (owner_id = $3 OR owner_id = '' AND $4)",
        )
        .bind(by.as_str())
        .bind(id.as_str())
        .bind(scope.owner.as_str())
        .bind(scope.everybody)
        .execute(&self.api)
        .await?;
        let statement = format!("SELECT {COLUMNS} WHERE p.id = $1 AND (p.owner_id = $2 OR p.owner_id = '' AND $3)");
        let found = sqlx::query(AssertSqlSafe(statement))
            .bind(id.as_str())
            .bind(scope.owner.as_str())
            .bind(scope.everybody)
            .fetch_optional(&self.api)
            .await?;
        found.as_ref().map(read).transpose()
    }
}
