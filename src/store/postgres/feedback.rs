//! What users think of answers.

use async_trait::async_trait;
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};

use super::PostgresStore;
use super::accept::record;
use super::cancel::store_key;
use super::conversations::recorded_key;
use super::errors::retried;
use crate::domain::feedback::{FeedbackRecord, Rating};
use crate::domain::ids::{ConversationId, MessageId, UserId};
use crate::store::feedback::{
    COLUMNS, FeedbackCursor, FeedbackFilter, FeedbackGiven, FeedbackStore, GiveFeedback, is_answer, page,
};
use crate::store::{IdempotencyClaim, Keyed, Page, PageRequest, StoreResult};
use crate::support::clock::UnixMillis;

impl PostgresStore {
    async fn give(&self, give: &GiveFeedback, key: Option<&IdempotencyClaim>) -> StoreResult<Keyed<FeedbackGiven>> {
        let given = self.api.ask(async |connection| {
            let mut tx = connection.begin().await?;
            let given = give_in(&mut tx, give, key).await?;
            match &given {
                Keyed::Fresh(FeedbackGiven::Kept(_)) => tx.commit().await?,
                Keyed::Fresh(_) | Keyed::Replayed(_) | Keyed::Mismatch => tx.rollback().await?,
            }
            Ok(given)
        });
        self.or_recorded(given.await, key).await
    }
}

async fn give_in(tx: &mut PgConnection, give: &GiveFeedback, key: Option<&IdempotencyClaim>) -> StoreResult<Keyed<FeedbackGiven>> {
    // A request with the same key waits here for the one that came first. A conversation that is being deleted has no owner, though
    // its messages still have.
    let body: Option<String> = sqlx::query_scalar(
        "SELECT m.body FROM messages m JOIN conversations c ON c.id = m.conversation_id
         WHERE m.id = $1 AND m.conversation_id = $2 AND c.owner_id = $3 AND m.superseded_by IS NULL FOR NO KEY UPDATE OF m",
    )
    .bind(give.message_id.as_str())
    .bind(give.conversation_id.as_str())
    .bind(give.owner.as_str())
    .fetch_optional(&mut *tx)
    .await?;
    if let Some(key) = key
        && let Some(recorded) = recorded_key(tx, key).await?
    {
        return Ok(recorded);
    }
    let Some(body) = body else { return Ok(Keyed::Fresh(FeedbackGiven::NoMessage)) };
    if !is_answer(&give.message_id, &body)? {
        return Ok(Keyed::Fresh(FeedbackGiven::NotAnAnswer));
    }
    sqlx::query(
        "UPDATE messages SET rating = $1, comment = $2, rated_at = $3, reviewed_at = NULL, reviewed_by = NULL WHERE id = $4",
    )
    .bind(give.rating.as_str())
    .bind(give.comment.as_deref())
    .bind(give.now.0)
    .bind(give.message_id.as_str())
    .execute(&mut *tx)
    .await?;
    let given = FeedbackGiven::Kept(give.feedback());
    store_key(tx, record(key, &given)?).await?;
    Ok(Keyed::Fresh(given))
}

#[async_trait]
impl FeedbackStore for PostgresStore {
    async fn give_feedback(&self, give: GiveFeedback, idempotency: Option<IdempotencyClaim>) -> StoreResult<Keyed<FeedbackGiven>> {
        retried(|| self.give(&give, idempotency.as_ref())).await
    }

    async fn withdraw_feedback(&self, owner: &UserId, conversation: &ConversationId, message: &MessageId) -> StoreResult<bool> {
        let withdrawn = sqlx::query(
            "UPDATE messages m SET rating = NULL, comment = NULL, rated_at = NULL, reviewed_at = NULL, reviewed_by = NULL FROM conversations c
             WHERE m.id = $1 AND m.conversation_id = $2 AND m.rated_at IS NOT NULL AND c.id = m.conversation_id AND c.owner_id = $3",
        )
        .bind(message.as_str())
        .bind(conversation.as_str())
        .bind(owner.as_str())
        .execute(&self.api)
        .await?;
        Ok(withdrawn.rows_affected() > 0)
    }

    async fn review_feedback(
        &self,
        message: &MessageId,
        by: Option<&UserId>,
        now: UnixMillis,
    ) -> StoreResult<Option<FeedbackRecord>> {
        sqlx::query("UPDATE messages SET reviewed_at = $2, reviewed_by = $3 WHERE id = $1 AND rated_at IS NOT NULL")
            .bind(message.as_str())
            .bind(by.map(|_| now.0))
            .bind(by.map(UserId::as_str))
            .execute(&self.api)
            .await?;
        let statement = format!("SELECT {COLUMNS} WHERE m.id = $1 AND m.rated_at IS NOT NULL");
        let found = sqlx::query(AssertSqlSafe(statement)).bind(message.as_str()).fetch_all(&self.api).await?;
        Ok(page(&found, 1)?.items.pop())
    }

    async fn feedback(&self, filter: &FeedbackFilter, page_of: &PageRequest<FeedbackCursor>) -> StoreResult<Page<FeedbackRecord>> {
        let after = page_of.after.as_ref().map_or((i64::MAX, "~"), |after| (after.at, after.id.as_str()));
        let limit = page_of.limit.clamp(1, 100);
        let whose = if filter.owner.is_some() { "m.owner_id = $4" } else { "$4::text IS NULL" };
        let statement = format!(
            "SELECT {COLUMNS} WHERE m.rated_at IS NOT NULL AND (m.rated_at, m.id) < ($1, $2) AND ($3::text IS NULL OR m.rating = $3)
               AND {whose} AND ($6::boolean IS NULL OR (m.reviewed_at IS NOT NULL) = $6) ORDER BY m.rated_at DESC, m.id DESC LIMIT $5"
        );
        let found = sqlx::query(AssertSqlSafe(statement))
            .bind(after.0)
            .bind(after.1)
            .bind(filter.rating.map(Rating::as_str))
            .bind(filter.owner.as_ref().map(UserId::as_str))
            .bind(i64::from(limit) + 1)
            .bind(filter.reviewed)
            .fetch_all(&self.api)
            .await?;
        page(&found, limit)
    }
}
