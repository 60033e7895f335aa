//! The operations that Postgres carries out in its own way.
//!
//! Owns how often they are tried, and how long a message waits for its turn. Must not know their statements.

use std::time::Duration;

use async_trait::async_trait;

use super::PostgresStore;
use super::answer::ANSWER_LIMIT;
use super::errors::retried;
use crate::domain::ids::{ConversationId, UserId};
use crate::domain::run::record::RunWrite;
use crate::store::sql::{IdleFor, PerBackend};
use crate::store::{AcceptRun, Accepted, Committed, DeletedConversation, IdempotencyClaim, Keyed, Refused, StoreResult};

/// The longest that a message waits for its turn to be accepted.
const ACCEPT_WAIT: Duration = Duration::from_secs(30);

#[async_trait]
impl PerBackend for PostgresStore {
    fn owner_cap(&self) -> u32 {
        self.owner_cap
    }

    async fn accept(&self, accept: &AcceptRun, key: Option<&IdempotencyClaim>) -> StoreResult<Keyed<Accepted>> {
        // Requests that wait for their turn learn that the database is silent when those before them do.
        let accepted = self.api.unless_silent(ACCEPT_WAIT + ANSWER_LIMIT, async {
            let turn = tokio::time::timeout(ACCEPT_WAIT, self.accepting.acquire()).await;
            let Ok(Ok(_turn)) = turn else { return Err(sqlx::Error::PoolTimedOut.into()) };
            retried(|| Box::pin(self.accept(accept, key))).await
        });
        accepted.await
    }

    async fn delete(&self, owner: &UserId, id: &ConversationId, idle: Option<IdleFor>) -> StoreResult<Option<DeletedConversation>> {
        self.delete(owner, id, idle).await
    }

    async fn ready(&self) -> StoreResult<()> {
        if !self.log.is_fresh() {
            let cached = self.log.take().await?;
            self.log.keep(cached);
        }
        Ok(())
    }

    async fn commit(&self, writes: &[RunWrite]) -> StoreResult<Vec<Result<Committed, Refused>>> {
        self.commit_batch(writes).await
    }
}
