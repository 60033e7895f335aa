//! The operations with a separate implementation on Postgres.
//!
//! Owns their retries, and how long an acceptance may wait for its turn. Must not know their statements.

use std::time::Duration;

use async_trait::async_trait;

use super::PostgresStore;
use super::errors::retry_transaction;
use super::timeouts::ANSWER_LIMIT;
use crate::domain::ids::{ConversationId, UserId};
use crate::domain::run::record::RunWrite;
use crate::store::sql::{IdleAge, PerBackend};
use crate::store::{
    AcceptOutcome, AcceptRun, CommitReceipt, DeletedConversation, IdempotencyKey, IdempotentResult, StoreResult, WriteRejection,
};

/// The time limit for an acceptance to get its turn.
const ACCEPT_WAIT: Duration = Duration::from_secs(30);

#[async_trait]
impl PerBackend for PostgresStore {
    fn owner_cap(&self) -> u32 {
        self.owner_cap
    }

    async fn accept(&self, accept: &AcceptRun, key: Option<&IdempotencyKey>) -> IdempotentResult<AcceptOutcome> {
        // Requests that wait for their turn fail like those before them when the database is silent.
        let accepted = self.api.unless_silent(ACCEPT_WAIT + ANSWER_LIMIT, async {
            let turn = tokio::time::timeout(ACCEPT_WAIT, self.accepting.acquire()).await;
            let Ok(Ok(_turn)) = turn else { return Err(sqlx::Error::PoolTimedOut.into()) };
            retry_transaction(|| Box::pin(self.accept(accept, key))).await
        });
        accepted.await
    }

    async fn delete(&self, owner: &UserId, id: &ConversationId, idle: Option<IdleAge>) -> StoreResult<Option<DeletedConversation>> {
        self.delete(owner, id, idle).await
    }

    async fn ready(&self) -> StoreResult<()> {
        if !self.log.is_fresh() {
            let cached = self.log.take().await?;
            self.log.keep(cached);
        }
        Ok(())
    }

    async fn commit(&self, writes: &[RunWrite]) -> StoreResult<Vec<Result<CommitReceipt, WriteRejection>>> {
        self.commit_batch(writes).await
    }
}
