//! The operations with a separate implementation on SQLite.
//!
//! Owns the call of each. Must not know their statements.

use async_trait::async_trait;

use super::SqliteStore;
use crate::domain::ids::{ConversationId, UserId};
use crate::domain::run::record::RunWrite;
use crate::store::sql::{Backend as _, IdleAge, PerBackend, accept_once};
use crate::store::{
    AcceptOutcome, AcceptRun, CommitReceipt, DeletedConversation, IdempotencyKey, IdempotentOutcome, IdempotentResult, StoreResult,
    WriteRejection,
};

#[async_trait]
impl PerBackend for SqliteStore {
    fn owner_cap(&self) -> u32 {
        self.owner_cap
    }

    async fn accept(&self, accept: &AcceptRun, key: Option<&IdempotencyKey>) -> IdempotentResult<AcceptOutcome> {
        Ok(accept_once(self.database(), accept, key).await?.unwrap_or(IdempotentOutcome::Fresh(AcceptOutcome::NoConversation)))
    }

    async fn delete(&self, owner: &UserId, id: &ConversationId, idle: Option<IdleAge>) -> StoreResult<Option<DeletedConversation>> {
        self.delete(owner, id, idle).await
    }

    async fn commit(&self, writes: &[RunWrite]) -> StoreResult<Vec<Result<CommitReceipt, WriteRejection>>> {
        self.commit_batch(writes).await
    }
}
