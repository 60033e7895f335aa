//! Reading the log.

use async_trait::async_trait;
use sqlx::Row as _;

use super::PostgresStore;
use crate::domain::event::StoredEvent;
use crate::domain::ids::{ConversationId, UserId};
use crate::domain::record::RunWrite;
use crate::store::{Committed, LogBounds, LogStore, Refused, SQL_PAGE_BYTES, StoreResult, rows};

#[async_trait]
impl LogStore for PostgresStore {
    async fn ready(&self) -> StoreResult<()> {
        if !self.log.is_fresh() {
            let taken = self.log.take().await?;
            self.log.keep(taken);
        }
        Ok(())
    }

    async fn commit(&self, writes: &[RunWrite]) -> StoreResult<Vec<Result<Committed, Refused>>> {
        self.commit_batch(writes).await
    }

    async fn events(&self, owner: &UserId, conversation: &ConversationId, after: i64, limit: u32) -> StoreResult<Vec<StoredEvent>> {
        let found = sqlx::query(
            "SELECT seq, run_id, attempt, kind, at, data FROM (
                 SELECT page.*, sum(octet_length(data)) OVER (ORDER BY seq) - octet_length(data) AS before FROM (
                     SELECT seq, run_id, attempt, kind, at, data FROM events
                     WHERE conversation_id = $1 AND owner_id = $5 AND seq > $2 ORDER BY seq LIMIT $3
                 ) page
             ) page WHERE before < $4 ORDER BY seq",
        )
        .bind(conversation.as_str())
        .bind(after)
        .bind(i64::from(limit.clamp(1, 1000)))
        .bind(SQL_PAGE_BYTES)
        .bind(owner.as_str())
        .fetch_all(&self.api)
        .await?;
        found.iter().map(|row| Ok(rows::read_event(row, conversation)?)).collect()
    }

    async fn log_bounds(&self, owner: &UserId, conversation: &ConversationId) -> StoreResult<Option<LogBounds>> {
        let found: Option<(i64, Option<i64>)> = sqlx::query_as(
            "SELECT last_seq, (SELECT min(seq) FROM events e WHERE e.conversation_id = h.conversation_id)
             FROM conversation_heads h WHERE conversation_id = $1 AND owner_id = $2",
        )
        .bind(conversation.as_str())
        .bind(owner.as_str())
        .fetch_optional(&self.api)
        .await?;
        Ok(found.map(|(head, oldest)| LogBounds { oldest: oldest.unwrap_or(head + 1), head }))
    }

    async fn heads(&self, conversations: &[ConversationId]) -> StoreResult<Vec<(ConversationId, i64)>> {
        if conversations.is_empty() {
            return Ok(Vec::new());
        }
        let found = sqlx::query("SELECT conversation_id, last_seq FROM conversation_heads WHERE conversation_id = ANY($1::text[])")
            .bind(conversations.iter().map(ConversationId::as_str).collect::<Vec<_>>())
            .fetch_all(&self.chores)
            .await?;
        found
            .iter()
            .map(|row| Ok((ConversationId::from_stored(row.try_get("conversation_id")?), row.try_get("last_seq")?)))
            .collect()
    }
}
