//! Definitions of tools that were seen.

use async_trait::async_trait;
use serde_json::json;
use sqlx::{AssertSqlSafe, Row as _, Sqlite};

use super::SqliteStore;
use crate::domain::ids::{PinId, UserId};
use crate::domain::pin::{PinStatus, ToolPin};
use crate::store::pins::{COLUMNS, EVERYBODY, Kept, MAX_PINS, PinScope, PinStore, SeenTool, compare, read, servers};
use crate::store::{StoreResult, rows};
use crate::support::text::{storable, storable_json};

async fn kept<'e>(on: impl sqlx::Executor<'e, Database = Sqlite>, seen: &[SeenTool]) -> StoreResult<Vec<Kept>> {
    let found = sqlx::query(
        "SELECT owner_id, server, tool, definition_hash, status FROM tool_pins
         JOIN json_each(?) AS place ON owner_id = place.value ->> 0 AND server = place.value ->> 1",
    )
    .bind(json!(servers(seen)).to_string())
    .fetch_all(on)
    .await?;
    let read = |row: &sqlx::sqlite::SqliteRow| -> StoreResult<Kept> {
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

#[async_trait]
impl PinStore for SqliteStore {
    async fn sight_tools(&self, seen: &[SeenTool]) -> StoreResult<Vec<PinId>> {
        let known = kept(self.reader(), seen).await?;
        let sight = compare(seen, &known);
        if sight.new.is_empty() {
            return Ok(sight.changed);
        }
        let (_turn, mut tx) = self.write_in_turn().await?;
        let known = kept(&mut *tx, seen).await?;
        let sight = compare(seen, &known);
        for (tool, status) in sight.new {
            if status == PinStatus::Changed {
                sqlx::query("DELETE FROM tool_pins WHERE owner_id = ? AND server = ? AND tool = ? AND status = 'changed'")
                    .bind(tool.owner())
                    .bind(&tool.server)
                    .bind(&tool.tool)
                    .execute(&mut *tx)
                    .await?;
            }
            sqlx::query(concat!(
                "INSERT INTO tool_pins (id, owner_id, server, tool, definition_hash, description, parameters, hints, status, seen_at)
                 VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ",
                now!(),
                ") ON CONFLICT DO NOTHING"
            ))
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

    async fn tool_pins(&self, viewer: &UserId, status: Option<PinStatus>) -> StoreResult<Vec<ToolPin>> {
        let statement = format!(
            "SELECT {COLUMNS} WHERE p.owner_id IN (?1, ?2) AND (?3 IS NULL OR p.status = ?3)
             ORDER BY p.seen_at DESC, p.id DESC LIMIT ?4"
        );
        let found = sqlx::query(AssertSqlSafe(statement))
            .bind(viewer.as_str())
            .bind(EVERYBODY)
            .bind(status.map(PinStatus::as_str))
            .bind(MAX_PINS)
            .fetch_all(self.reader())
            .await?;
        found.iter().map(read).collect()
    }

    async fn accept_tool_pin(&self, scope: &PinScope, id: &PinId, by: &UserId) -> StoreResult<Option<ToolPin>> {
        let (_turn, mut tx) = self.write_in_turn().await?;
        sqlx::query(concat!(
            "UPDATE tool_pins SET status = 'accepted', accepted_by = ?1, accepted_at = ",
            now!(),
            " WHERE id = ?2 AND status = 'changed' AND (owner_id = ?3 OR owner_id = '' AND ?4)"
        ))
        .bind(by.as_str())
        .bind(id.as_str())
        .bind(scope.owner.as_str())
        .bind(scope.everybody)
        .execute(&mut *tx)
        .await?;
        let found =
            sqlx::query(AssertSqlSafe(format!("SELECT {COLUMNS} WHERE p.id = ?1 AND (p.owner_id = ?2 OR p.owner_id = '' AND ?3)")))
                .bind(id.as_str())
                .bind(scope.owner.as_str())
                .bind(scope.everybody)
                .fetch_optional(&mut *tx)
                .await?;
        tx.commit().await?;
        found.as_ref().map(read).transpose()
    }
}
