//! Old deltas are folded, and old conversations tidied.

use async_trait::async_trait;
use serde_json::json;
use sqlx::AssertSqlSafe;

use super::SqliteStore;
use super::conversations::delete;
use super::log::append;
use crate::domain::event::StoredEvent;
use crate::domain::fold::FoldedDelta;
use crate::domain::ids::{ConversationId, RunId, UserId};
use crate::store::retention::{put_away, read_ended_run};
use crate::store::rows::encode;
use crate::store::{EndedRun, RetentionStore, StoreResult, TOOL_SETS_PIECE, Tidying};

#[async_trait]
impl RetentionStore for SqliteStore {
    async fn runs_to_fold(&self, age_ms: u64, after: Option<&EndedRun>, limit: u32) -> StoreResult<Vec<EndedRun>> {
        let found = sqlx::query(concat!(
            "SELECT id, conversation_id, owner_id, first_seq, last_seq, finished_at FROM runs
             WHERE folded_at IS NULL AND finished_at IS NOT NULL AND last_seq IS NOT NULL
               AND finished_at <= ",
            now!(),
            " - ? AND (finished_at, id) > (?, ?)
             ORDER BY finished_at, id LIMIT ?"
        ))
        .bind(i64::try_from(age_ms).unwrap_or(i64::MAX))
        .bind(after.map_or(i64::MIN, |run| run.finished_at.0))
        .bind(after.map_or("", |run| run.id.as_str()))
        .bind(limit)
        .fetch_all(self.reader())
        .await?;
        found.iter().map(|row| Ok(read_ended_run(row)?)).collect()
    }

    async fn fold_deltas(
        &self,
        conversation: &ConversationId,
        folds: &[FoldedDelta],
        through: Option<&RunId>,
    ) -> StoreResult<bool> {
        let gone: Vec<i64> = folds.iter().flat_map(|fold| fold.gone.iter().copied()).collect();
        let texts: Vec<(i64, &str)> = folds.iter().map(|fold| (fold.seq, fold.data.as_str())).collect();
        let texts = encode("events", "data", conversation.as_str(), &texts)?;
        let (_turn, mut tx) = self.write_in_turn().await?;
        let removed = sqlx::query("DELETE FROM events WHERE conversation_id = ? AND seq IN (SELECT value FROM json_each(?))")
            .bind(conversation.as_str())
            .bind(json!(gone).to_string())
            .execute(&mut *tx)
            .await?
            .rows_affected();
        let kept = sqlx::query(
            "UPDATE events SET data = fold.data FROM (SELECT value ->> 0 AS seq, value ->> 1 AS data FROM json_each(?)) AS fold
             WHERE conversation_id = ? AND events.seq = fold.seq",
        )
        .bind(texts)
        .bind(conversation.as_str())
        .execute(&mut *tx)
        .await?
        .rows_affected();
        if usize::try_from(removed) != Ok(gone.len()) || usize::try_from(kept) != Ok(folds.len()) {
            return Ok(false);
        }
        sqlx::query(concat!("UPDATE runs SET folded_at = ", now!(), " WHERE id = ?"))
            .bind(through.map(RunId::as_str))
            .execute(&mut *tx)
            .await?;
        tx.commit().await?;
        Ok(true)
    }

    async fn idle_conversations(
        &self,
        tidying: Tidying,
        age_ms: u64,
        after: Option<&ConversationId>,
        limit: u32,
    ) -> StoreResult<Vec<(UserId, ConversationId)>> {
        let statement =
            format!("SELECT owner_id, id FROM conversations c WHERE id > ?2 AND {} ORDER BY id LIMIT ?3", condition(tidying));
        let found: Vec<(String, String)> = sqlx::query_as(AssertSqlSafe(statement))
            .bind(i64::try_from(age_ms).unwrap_or(i64::MAX))
            .bind(after.map_or("", ConversationId::as_str))
            .bind(limit)
            .fetch_all(self.reader())
            .await?;
        Ok(found.into_iter().map(|(owner, id)| (UserId::from_stored(owner), ConversationId::from_stored(id))).collect())
    }

    async fn archive_idle(&self, ids: &[ConversationId], age_ms: u64) -> StoreResult<Vec<StoredEvent>> {
        let ids: Vec<&str> = ids.iter().map(ConversationId::as_str).collect();
        let (_turn, mut tx) = self.write_in_turn().await?;
        let statement = format!(
            "UPDATE conversations AS c SET archived_at = {} WHERE id IN (SELECT value FROM json_each(?2)) AND {TO_ARCHIVE}
             RETURNING id, title, status, archived_at",
            now!()
        );
        let archived = sqlx::query_as(AssertSqlSafe(statement))
            .bind(i64::try_from(age_ms).unwrap_or(i64::MAX))
            .bind(json!(ids).to_string())
            .fetch_all(&mut *tx)
            .await?;
        let mut events = Vec::with_capacity(archived.len());
        for row in archived {
            let (id, event) = put_away(row)?;
            events.append(&mut append(&mut tx, &id, vec![event]).await?);
        }
        tx.commit().await?;
        Ok(events)
    }

    async fn delete_idle(&self, owner: &UserId, id: &ConversationId, tidying: Tidying, age_ms: u64) -> StoreResult<bool> {
        let (_turn, mut tx) = self.write_in_turn().await?;
        let statement = format!("SELECT EXISTS (SELECT 1 FROM conversations c WHERE id = ?2 AND {})", condition(tidying));
        let holds: bool = sqlx::query_scalar(AssertSqlSafe(statement))
            .bind(i64::try_from(age_ms).unwrap_or(i64::MAX))
            .bind(id.as_str())
            .fetch_one(&mut *tx)
            .await?;
        if !holds || delete(&mut tx, owner, id).await?.is_none() {
            return Ok(false);
        }
        tx.commit().await?;
        Ok(true)
    }

    async fn remove_unused_tool_sets(&self) -> StoreResult<u64> {
        // Looked for by a reader, for mostly there are none.
        let unused: Vec<String> = sqlx::query_scalar(
            "SELECT hash FROM tool_sets s WHERE NOT EXISTS (SELECT 1 FROM runs r WHERE r.tools_hash = s.hash) LIMIT ?",
        )
        .bind(TOOL_SETS_PIECE)
        .fetch_all(self.reader())
        .await?;
        if unused.is_empty() {
            return Ok(0);
        }
        let (_turn, mut tx) = self.write_in_turn().await?;
        let removed = sqlx::query(
            "DELETE FROM tool_sets WHERE hash IN (SELECT value FROM json_each(?))
               AND NOT EXISTS (SELECT 1 FROM runs r WHERE r.tools_hash = tool_sets.hash)",
        )
        .bind(json!(unused).to_string())
        .execute(&mut *tx)
        .await?;
        tx.commit().await?;
        Ok(removed.rows_affected())
    }
}

/// Of which conversations `c` it holds that they are to be tidied so, of which nothing has changed for `?1`.
fn condition(tidying: Tidying) -> &'static str {
    match tidying {
        Tidying::Archive => TO_ARCHIVE,
        Tidying::Delete => TO_DELETE,
        Tidying::DeleteEmpty => EMPTY,
    }
}

/// Conversations `c` in which nothing has happened for `?1`.
const TO_ARCHIVE: &str = concat!(
    "c.archived_at IS NULL AND c.pinned = 0 AND c.updated_at <= ",
    now!(),
    " - ?1 AND c.status IN ('idle', 'failed')
     AND NOT EXISTS (SELECT 1 FROM runs r WHERE r.conversation_id = c.id AND r.finished_at IS NULL)"
);

/// The same of those in which nothing was ever said, and that nobody has named or prepared for something.
const EMPTY: &str = concat!(
    "c.title = '' AND c.tags = '[]' AND c.system_prompt IS NULL AND c.instructions IS NULL AND c.forked_from IS NULL
     AND c.pinned = 0 AND c.updated_at <= ",
    now!(),
    " - ?1 AND NOT EXISTS (SELECT 1 FROM runs r WHERE r.conversation_id = c.id)
     AND NOT EXISTS (SELECT 1 FROM messages m WHERE m.conversation_id = c.id)"
);

/// The same of those that were put away that long ago.
const TO_DELETE: &str = concat!(
    "c.archived_at <= ",
    now!(),
    " - ?1 AND c.pinned = 0 AND c.updated_at <= ",
    now!(),
    " - ?1 AND c.status IN ('idle', 'failed')
     AND NOT EXISTS (SELECT 1 FROM runs r WHERE r.conversation_id = c.id AND r.finished_at IS NULL)"
);
