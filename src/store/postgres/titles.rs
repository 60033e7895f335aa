//! Titles that models make.

use async_trait::async_trait;
use sqlx::{Connection as _, PgConnection};

use super::PostgresStore;
use super::conversations::{append, lock_head};
use super::errors::retried;
use crate::domain::budget::Amount;
use crate::domain::conversation::ConversationStatus;
use crate::domain::event::StoredEvent;
use crate::domain::ids::{ConversationId, UserId};
use crate::store::{StoreResult, TitleMade, TitleStore, budget, compose, rows};

#[async_trait]
impl TitleStore for PostgresStore {
    async fn claim_title(&self, owner: &UserId, conversation: &ConversationId) -> StoreResult<Option<String>> {
        let title = sqlx::query_scalar(
            "UPDATE conversations SET title_by = 'asked' WHERE id = $1 AND owner_id = $2 AND title_by = 'words' RETURNING title",
        );
        Ok(title.bind(conversation.as_str()).bind(owner.as_str()).fetch_optional(&self.chores).await?)
    }

    async fn finish_title(&self, made: TitleMade) -> StoreResult<Vec<StoredEvent>> {
        retried(|| self.chores.ask(async |connection| finish(connection, &made).await)).await
    }
}

async fn finish(connection: &mut PgConnection, made: &TitleMade) -> StoreResult<Vec<StoredEvent>> {
    let id = made.conversation.as_str();
    let mut tx = connection.begin().await?;
    let Some(base) = lock_head(&mut tx, &made.owner, &made.conversation).await? else { return Ok(Vec::new()) };
    let (status, is_kept): (String, bool) = sqlx::query_as(
        "WITH found AS (SELECT id, $5::text IS NOT NULL AND title_by = 'asked' AND title = $6 AS kept FROM conversations WHERE id = $1)
         UPDATE conversations c SET title_usage = $2, title_model = $3,
             title_at = CASE WHEN $2::text IS NOT NULL THEN $4::bigint END,
             title = CASE WHEN found.kept THEN $5 ELSE c.title END,
             updated_at = CASE WHEN found.kept THEN $4 ELSE c.updated_at END
         FROM found WHERE c.id = found.id RETURNING c.status, coalesce(found.kept, false)",
    )
    .bind(id)
    .bind(made.usage.as_ref().map(|usage| rows::encode("conversations", "title_usage", id, usage)).transpose()?)
    .bind(&made.model)
    .bind(made.now.0)
    .bind(made.title.as_deref())
    .bind(&made.was)
    .fetch_one(&mut *tx)
    .await?;
    if let Some((run, amount)) = made.booked() {
        book_title(&mut tx, &made.owner, id, run.as_str(), amount).await?;
    }
    let mut events = Vec::new();
    if let Some(title) = made.title.as_ref().filter(|_| is_kept) {
        let status = rows::word("conversations", "status", id, &status, ConversationStatus::from_word)?;
        let updated = vec![compose::conversation_updated(title, status, made.now)];
        append(&mut tx, &made.conversation, base, &updated, &[]).await?;
        events = compose::numbered(&made.conversation, base, updated);
    }
    tx.commit().await?;
    Ok(events)
}

/// What was used for a title of a conversation, for the books of the run that it was made after.
async fn book_title(tx: &mut PgConnection, owner: &UserId, conversation: &str, run: &str, amount: Amount) -> StoreResult<()> {
    let (tokens, cost) = budget::parts(amount);
    sqlx::query(
        "INSERT INTO spending AS s (owner_id, day, run_id, conversation_id, tokens, cost)
         VALUES ($1, now_ms() / 86400000, $2, $3, $4, $5)
         ON CONFLICT (owner_id, day, run_id) DO UPDATE SET
             tokens = least(s.tokens + excluded.tokens, $6), cost = least(s.cost + excluded.cost, $6)",
    )
    .bind(owner.as_str())
    .bind(run)
    .bind(conversation)
    .bind(tokens)
    .bind(cost)
    .bind(i64::try_from(budget::MOST).unwrap_or(i64::MAX))
    .execute(tx)
    .await?;
    Ok(())
}
