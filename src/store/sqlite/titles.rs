//! Titles that models make.

use async_trait::async_trait;

use super::SqliteStore;
use super::connection::Tx;
use super::log::append;
use crate::domain::budget::Amount;
use crate::domain::conversation::ConversationStatus;
use crate::domain::event::StoredEvent;
use crate::domain::ids::{ConversationId, UserId};
use crate::store::{StoreResult, TitleMade, TitleStore, budget, compose, rows};

#[async_trait]
impl TitleStore for SqliteStore {
    async fn claim_title(&self, owner: &UserId, conversation: &ConversationId) -> StoreResult<Option<String>> {
        let (_turn, mut tx) = self.write_in_turn().await?;
        let title: Option<String> = sqlx::query_scalar(
            "UPDATE conversations SET title_by = 'asked' WHERE id = ? AND owner_id = ? AND title_by = 'words' RETURNING title",
        )
        .bind(conversation.as_str())
        .bind(owner.as_str())
        .fetch_optional(&mut *tx)
        .await?;
        tx.commit().await?;
        Ok(title)
    }

    async fn finish_title(&self, made: TitleMade) -> StoreResult<Vec<StoredEvent>> {
        let id = made.conversation.as_str();
        let (_turn, mut tx) = self.write_in_turn().await?;
        if let Some(usage) = &made.usage {
            sqlx::query("UPDATE conversations SET title_usage = ?, title_model = ?, title_at = ? WHERE id = ? AND owner_id = ?")
                .bind(rows::encode("conversations", "title_usage", id, usage)?)
                .bind(&made.model)
                .bind(made.now.0)
                .bind(id)
                .bind(made.owner.as_str())
                .execute(&mut *tx)
                .await?;
        }
        if let Some((run, amount)) = made.booked() {
            book_title(&mut tx, &made.owner, id, run.as_str(), amount).await?;
        }
        let mut events = Vec::new();
        if let Some(title) = &made.title {
            let status: Option<String> = sqlx::query_scalar(
                "UPDATE conversations SET title = ?1, updated_at = ?2
                 WHERE id = ?3 AND owner_id = ?4 AND title_by = 'asked' AND title = ?5 RETURNING status",
            )
            .bind(title)
            .bind(made.now.0)
            .bind(id)
            .bind(made.owner.as_str())
            .bind(&made.was)
            .fetch_optional(&mut *tx)
            .await?;
            if let Some(status) = status {
                let status = rows::word("conversations", "status", id, &status, ConversationStatus::from_word)?;
                let updated = compose::conversation_updated(title, status, made.now);
                events = append(&mut tx, &made.conversation, vec![updated]).await?;
            }
        }
        tx.commit().await?;
        Ok(events)
    }
}

/// What was used for a title of a conversation, for the books of the run that it was made after.
async fn book_title(tx: &mut Tx, owner: &UserId, conversation: &str, run: &str, amount: Amount) -> StoreResult<()> {
    let (tokens, cost) = budget::parts(amount);
    sqlx::query(concat!(
        "INSERT INTO spending (owner_id, day, run_id, conversation_id, tokens, cost) VALUES (?1, ",
        now!(),
        " / 86400000, ?2, ?3, ?4, ?5)
         ON CONFLICT (owner_id, day, run_id) DO UPDATE SET
             tokens = min(tokens + excluded.tokens, ?6), cost = min(cost + excluded.cost, ?6)"
    ))
    .bind(owner.as_str())
    .bind(run)
    .bind(conversation)
    .bind(tokens)
    .bind(cost)
    .bind(i64::try_from(budget::MOST).unwrap_or(i64::MAX))
    .execute(&mut **tx)
    .await?;
    Ok(())
}
