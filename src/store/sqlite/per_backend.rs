//! The operations of use cases that SQLite carries out in its own way.
//!
//! Owns the transaction around each. Must not know their statements.

use async_trait::async_trait;

use super::resume::{call_batch, resume_in};
use super::{SqliteStore, conversations, idempotency};
use crate::domain::ids::{CallId, ConversationId, RunId, UserId};
use crate::store::rows::ConversationRow;
use crate::store::sql::PerBackend;
use crate::store::{
    AcceptRun, Accepted, CallBatch, Cancelled, ConversationCursor, ConversationFilter, Created, DeletedConversation,
    IdempotencyClaim, Keyed, NewConversation, ResumeRun, Resumed, StoreResult,
};
use crate::support::clock::UnixMillis;

#[async_trait]
impl PerBackend for SqliteStore {
    fn owner_cap(&self) -> u32 {
        self.owner_cap
    }

    async fn create(&self, new: &NewConversation, key: Option<&IdempotencyClaim>) -> StoreResult<Keyed<Created>> {
        let (_turn, mut tx) = self.write_in_turn().await?;
        if let Some(earlier) = idempotency::earlier(&mut tx, key).await? {
            return Ok(earlier);
        }
        let created = conversations::create_in(&mut tx, new).await?;
        match &created {
            Created::Conversation(_) => {
                idempotency::keep(&mut tx, key, &created).await?;
                tx.commit().await?;
            }
            // Dropping the transaction rolls it back.
            Created::Exists | Created::TooMany => {}
        }
        Ok(Keyed::Fresh(created))
    }

    async fn list(
        &self,
        owner: &UserId,
        filter: &ConversationFilter,
        after: Option<&ConversationCursor>,
        limit: usize,
    ) -> StoreResult<Vec<ConversationRow>> {
        self.list_conversations(owner, filter, after, limit).await
    }

    async fn delete(&self, owner: &UserId, id: &ConversationId) -> StoreResult<Option<DeletedConversation>> {
        let (_turn, mut tx) = self.write_in_turn().await?;
        let deleted = conversations::delete(&mut tx, owner, id).await?;
        if deleted.is_some() {
            tx.commit().await?;
        }
        Ok(deleted)
    }

    async fn accept(&self, accept: &AcceptRun, key: Option<&IdempotencyClaim>) -> StoreResult<Keyed<Accepted>> {
        self.accept(accept, key).await
    }

    async fn cancel(
        &self,
        owner: &UserId,
        id: &RunId,
        by: &str,
        now: UnixMillis,
        key: Option<&IdempotencyClaim>,
    ) -> StoreResult<Keyed<Cancelled>> {
        self.cancel(owner, id, by, now, key).await
    }

    async fn resume(&self, resume: &ResumeRun, key: Option<&IdempotencyClaim>) -> StoreResult<Keyed<Resumed>> {
        let (_turn, mut tx) = self.write_in_turn().await?;
        if let Some(earlier) = idempotency::earlier(&mut tx, key).await? {
            return Ok(earlier);
        }
        let resumed = resume_in(&mut tx, resume).await?;
        match &resumed {
            Resumed::Run { .. } => {
                idempotency::keep(&mut tx, key, &resumed).await?;
                tx.commit().await?;
            }
            Resumed::NotResumable { .. } | Resumed::TakenBack | Resumed::TooManyRuns | Resumed::NoRun => {}
        }
        Ok(Keyed::Fresh(resumed))
    }

    async fn call_batch(&self, owner: &UserId, run: &RunId, call: &CallId) -> StoreResult<Option<CallBatch>> {
        call_batch(&mut self.read().await?, owner, run, call).await
    }
}
