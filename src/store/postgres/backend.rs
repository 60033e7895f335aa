//! The operations with a separate implementation on Postgres.
//!
//! Owns their retries, and how long an acceptance may wait for its turn. Must not know their statements.

use std::time::Duration;

use async_trait::async_trait;

use super::PostgresStore;
use super::delete::{remove_rest, take_away};
use super::errors::retry_transaction;
use super::timeouts::ANSWER_LIMIT;
use crate::domain::ids::{ConversationId, UserId};
use crate::domain::run::RunWrite;
use crate::store::sql::{Backend, Database, IdleAge};
use crate::store::{AcceptOutcome, AcceptRun, CommitResults, DeletedConversation, IdempotencyKey, IdempotentResult, StoreResult};

/// The time limit for an acceptance to get its turn.
const ACCEPT_WAIT: Duration = Duration::from_secs(30);

#[async_trait]
impl Backend for PostgresStore {
    fn database(&self) -> Database<'_> {
        Database::Postgres(&self.api)
    }

    fn maintenance_database(&self) -> Database<'_> {
        Database::Postgres(&self.chores)
    }

    fn worker(&self) -> Database<'_> {
        Database::Postgres(&self.worker)
    }

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
        // No client waits for a conditional deletion.
        let guarded_pool = if idle.is_some() { &self.chores } else { &self.api };
        let database = Database::Postgres(guarded_pool);
        let work = || database.transaction(async |tx| take_away(tx, owner, id, idle).await, Option::is_some);
        let deleted = database.retry(work).await?;
        if deleted.is_some()
            && let Err(error) = remove_rest(guarded_pool, id.as_str()).await
        {
            tracing::warn!(error = &error as &dyn std::error::Error, "the rest of a deleted conversation is removed later");
        }
        Ok(deleted)
    }

    async fn ready(&self) -> StoreResult<()> {
        if !self.log.is_fresh() {
            let cached = self.log.take().await?;
            self.log.keep(cached);
        }
        Ok(())
    }

    async fn commit(&self, writes: &[RunWrite]) -> StoreResult<CommitResults> {
        self.commit_batch(writes).await
    }
}
