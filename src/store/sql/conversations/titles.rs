//! Titles that models generate.
//!
//! Owns the columns of `conversations` that record a title's origin. Must not know when a title is generated.

use async_trait::async_trait;

use crate::domain::conversation::ConversationStatus;
use crate::domain::event::StoredEvent;
use crate::domain::ids::{ConversationId, UserId};
use crate::store::rows::{encode, parse_word};
use crate::store::runs::{budget, created_rows};
use crate::store::sql::{Backend, Transaction, statements, values};
use crate::store::{GeneratedTitle, StoreResult, TitleStore};

const TABLE: &str = "conversations";

statements! {
    CLAIM = ["UPDATE conversations SET title_by = 'asked' WHERE id = $1 AND owner_id = $2 AND title_by = 'words' RETURNING title"];

    BOOK_USAGE = ["UPDATE conversations SET title_usage = $2, title_model = $3, title_at = $4 WHERE id = $1"];

    // A title has no reservation. Its cost is added to what its run has spent today.
    BOOK_SPENDING = ["INSERT INTO spending AS s (owner_id, day, run_id, conversation_id, tokens, cost)
         VALUES ($1, ", now, " / 86400000, $2, $3, $4, $5)
         ON CONFLICT (owner_id, day, run_id) DO UPDATE SET
             tokens = ", least, "(s.tokens + excluded.tokens, $6), cost = ", least, "(s.cost + excluded.cost, $6)"];

    SET_TITLE = ["UPDATE conversations SET title = $2, updated_at = $3 WHERE id = $1 AND title_by = 'asked' AND title = $4
         RETURNING status"];
}

#[async_trait]
impl<B: Backend> TitleStore for B {
    async fn claim_title(&self, owner: &UserId, conversation: &ConversationId) -> StoreResult<Option<String>> {
        let row = self.maintenance_database().returning(CLAIM, values![conversation.as_str(), owner.as_str()]).await?;
        Ok(row.map(|row| row.only()).transpose()?)
    }

    async fn finish_title(&self, generated: GeneratedTitle) -> StoreResult<Vec<StoredEvent>> {
        let database = self.maintenance_database();
        database.retry(|| database.transaction(async |tx| finish(tx, &generated).await, |_| true)).await
    }
}

async fn finish(tx: &mut Transaction, generated: &GeneratedTitle) -> StoreResult<Vec<StoredEvent>> {
    let id = generated.conversation.as_str();
    let head = tx.lock_head(&generated.owner, &generated.conversation).await?;
    // The spending of the day counts even if the conversation was deleted.
    if let Some((run, amount)) = generated.booked() {
        let (tokens, cost) = budget::parts(amount);
        tx.execute(BOOK_SPENDING, values![generated.owner.as_str(), run.as_str(), id, tokens, cost, budget::MAX_CHARGED]).await?;
    }
    let mut events = Vec::new();
    if let Some(base) = head {
        if let Some(usage) = &generated.usage {
            let usage = encode(TABLE, "title_usage", id, usage)?;
            tx.execute(BOOK_USAGE, values![id, usage, &generated.model, generated.now]).await?;
        }
        if let Some(title) = &generated.title
            && let Some(row) = tx.fetch_optional(SET_TITLE, values![id, title, generated.now, &generated.was]).await?
        {
            let status = parse_word(TABLE, "status", id, row.only()?, ConversationStatus::from_name)?;
            let updated = vec![created_rows::conversation_updated(title, status, generated.now)];
            events = tx.append(&generated.conversation, base, updated).await?;
        }
    }
    Ok(events)
}
