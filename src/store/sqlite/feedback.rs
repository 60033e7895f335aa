//! What users think of answers.

use async_trait::async_trait;
use sqlx::AssertSqlSafe;

use super::connection::Tx;
use super::{SqliteStore, idempotency};
use crate::domain::feedback::{FeedbackRecord, Rating};
use crate::domain::ids::{ConversationId, MessageId, UserId};
use crate::store::feedback::{
    COLUMNS, FeedbackCursor, FeedbackFilter, FeedbackGiven, FeedbackStore, GiveFeedback, is_answer, page,
};
use crate::store::{IdempotencyClaim, Keyed, Page, PageRequest, StoreResult};
use crate::support::clock::UnixMillis;

async fn give_in(tx: &mut Tx, give: &GiveFeedback) -> StoreResult<FeedbackGiven> {
    let body: Option<String> = sqlx::query_scalar(
        "SELECT body FROM messages WHERE id = ? AND conversation_id = ? AND owner_id = ? AND superseded_by IS NULL",
    )
    .bind(give.message_id.as_str())
    .bind(give.conversation_id.as_str())
    .bind(give.owner.as_str())
    .fetch_optional(&mut **tx)
    .await?;
    let Some(body) = body else { return Ok(FeedbackGiven::NoMessage) };
    if !is_answer(&give.message_id, &body)? {
        return Ok(FeedbackGiven::NotAnAnswer);
    }
    sqlx::query("UPDATE messages SET rating = ?, comment = ?, rated_at = ?, reviewed_at = NULL, reviewed_by = NULL WHERE id = ?")
        .bind(give.rating.as_str())
        .bind(give.comment.as_deref())
        .bind(give.now.0)
        .bind(give.message_id.as_str())
        .execute(&mut **tx)
        .await?;
    Ok(FeedbackGiven::Kept(give.feedback()))
}

#[async_trait]
impl FeedbackStore for SqliteStore {
    async fn give_feedback(&self, give: GiveFeedback, idempotency: Option<IdempotencyClaim>) -> StoreResult<Keyed<FeedbackGiven>> {
        let (_turn, mut tx) = self.write_in_turn().await?;
        if let Some(earlier) = idempotency::earlier(&mut tx, idempotency.as_ref()).await? {
            return Ok(earlier);
        }
        let given = give_in(&mut tx, &give).await?;
        match &given {
            FeedbackGiven::Kept(_) => {
                idempotency::keep(&mut tx, idempotency.as_ref(), &given).await?;
                tx.commit().await?;
            }
            FeedbackGiven::NotAnAnswer | FeedbackGiven::NoMessage => {}
        }
        Ok(Keyed::Fresh(given))
    }

    async fn withdraw_feedback(&self, owner: &UserId, conversation: &ConversationId, message: &MessageId) -> StoreResult<bool> {
        let (_turn, mut tx) = self.write_in_turn().await?;
        let withdrawn = sqlx::query(
            "UPDATE messages SET rating = NULL, comment = NULL, rated_at = NULL, reviewed_at = NULL, reviewed_by = NULL
             WHERE id = ? AND conversation_id = ? AND owner_id = ? AND rated_at IS NOT NULL",
        )
        .bind(message.as_str())
        .bind(conversation.as_str())
        .bind(owner.as_str())
        .execute(&mut *tx)
        .await?;
        tx.commit().await?;
        Ok(withdrawn.rows_affected() > 0)
    }

    async fn review_feedback(
        &self,
        message: &MessageId,
        by: Option<&UserId>,
        now: UnixMillis,
    ) -> StoreResult<Option<FeedbackRecord>> {
        let (_turn, mut tx) = self.write_in_turn().await?;
        sqlx::query("UPDATE messages SET reviewed_at = ?2, reviewed_by = ?3 WHERE id = ?1 AND rated_at IS NOT NULL")
            .bind(message.as_str())
            .bind(by.map(|_| now.0))
            .bind(by.map(UserId::as_str))
            .execute(&mut *tx)
            .await?;
        let statement = format!("SELECT {COLUMNS} WHERE m.id = ?1 AND m.rated_at IS NOT NULL");
        let found = sqlx::query(AssertSqlSafe(statement)).bind(message.as_str()).fetch_all(&mut *tx).await?;
        tx.commit().await?;
        Ok(page(&found, 1)?.items.pop())
    }

    async fn feedback(&self, filter: &FeedbackFilter, page_of: &PageRequest<FeedbackCursor>) -> StoreResult<Page<FeedbackRecord>> {
        let after = page_of.after.as_ref().map_or((i64::MAX, "~"), |after| (after.at, after.id.as_str()));
        let limit = page_of.limit.clamp(1, 100);
        let whose = if filter.owner.is_some() { "m.owner_id = ?4" } else { "?4 IS NULL" };
        let statement = format!(
            "SELECT {COLUMNS} WHERE m.rated_at IS NOT NULL AND (m.rated_at, m.id) < (?1, ?2) AND (?3 IS NULL OR m.rating = ?3)
               AND {whose} AND (?6 IS NULL OR (m.reviewed_at IS NOT NULL) = ?6) ORDER BY m.rated_at DESC, m.id DESC LIMIT ?5"
        );
        let found = sqlx::query(AssertSqlSafe(statement))
            .bind(after.0)
            .bind(after.1)
            .bind(filter.rating.map(Rating::as_str))
            .bind(filter.owner.as_ref().map(UserId::as_str))
            .bind(i64::from(limit) + 1)
            .bind(filter.reviewed)
            .fetch_all(self.reader())
            .await?;
        page(&found, limit)
    }
}
