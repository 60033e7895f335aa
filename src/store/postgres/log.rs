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

    async fn news(&self, after: &[(ConversationId, i64)], limit: u32) -> StoreResult<Vec<(ConversationId, Vec<StoredEvent>)>> {
        let found = sqlx::query(
            "SELECT w.id, e.seq, e.run_id, e.attempt, e.kind, e.at, e.data
             FROM unnest($1::text[], $2::bigint[]) AS w (id, seq) CROSS JOIN LATERAL (
                 SELECT page.*, sum(octet_length(data)) OVER (ORDER BY seq) - octet_length(data) AS before FROM (
                     SELECT seq, run_id, attempt, kind, at, data FROM events
                     WHERE conversation_id = w.id AND seq > w.seq ORDER BY seq LIMIT $3
                 ) page
             ) e WHERE e.before < $4 ORDER BY w.id, e.seq",
        )
        .bind(after.iter().map(|(conversation, _)| conversation.as_str()).collect::<Vec<_>>())
        .bind(after.iter().map(|(_, seq)| *seq).collect::<Vec<_>>())
        .bind(i64::from(limit.clamp(1, 1000)))
        .bind(SQL_PAGE_BYTES)
        .fetch_all(&self.chores)
        .await?;
        let mut news: Vec<(ConversationId, Vec<StoredEvent>)> = Vec::new();
        for row in &found {
            let id: &str = row.try_get("id")?;
            if news.last().is_none_or(|(conversation, _)| conversation.as_str() != id) {
                news.push((ConversationId::from_stored(id.to_owned()), Vec::new()));
            }
            if let Some((conversation, events)) = news.last_mut() {
                events.push(rows::read_event(row, conversation)?);
            }
        }
        Ok(news)
    }
}
