//! The operations of use cases that Postgres carries out in its own way.
//!
//! Owns how often they are tried, and how long a message waits for its turn. Must not know their statements.

use std::time::Duration;

use async_trait::async_trait;

use super::PostgresStore;
use super::answer::ANSWER_LIMIT;
use super::errors::retried;
use super::resume::call_batch;
use crate::domain::ids::{CallId, ConversationId, RunId, UserId};
use crate::store::rows::ConversationRow;
use crate::store::sql::PerBackend;
use crate::store::{
    AcceptRun, Accepted, CallBatch, Cancelled, ConversationCursor, ConversationFilter, Created, DeletedConversation,
    IdempotencyClaim, Keyed, NewConversation, ResumeRun, Resumed, StoreResult,
};
use crate::support::clock::UnixMillis;

/// The longest that a message waits for its turn to be accepted.
const ACCEPT_WAIT: Duration = Duration::from_secs(30);

#[async_trait]
impl PerBackend for PostgresStore {
    fn owner_cap(&self) -> u32 {
        self.owner_cap
    }

    async fn create(&self, new: &NewConversation, key: Option<&IdempotencyClaim>) -> StoreResult<Keyed<Created>> {
        retried(|| self.make_conversation(new, key)).await
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
        self.delete(owner, id).await
    }

    async fn accept(&self, accept: &AcceptRun, key: Option<&IdempotencyClaim>) -> StoreResult<Keyed<Accepted>> {
        // Requests that wait for their turn learn that the database is silent when those before them do.
        let accepted = self.api.unless_silent(ACCEPT_WAIT + ANSWER_LIMIT, async {
            let turn = tokio::time::timeout(ACCEPT_WAIT, self.accepting.acquire()).await;
            let Ok(Ok(_turn)) = turn else { return Err(sqlx::Error::PoolTimedOut.into()) };
            retried(|| self.accept(accept, key)).await
        });
        accepted.await
    }

    async fn cancel(
        &self,
        owner: &UserId,
        id: &RunId,
        by: &str,
        now: UnixMillis,
        key: Option<&IdempotencyClaim>,
    ) -> StoreResult<Keyed<Cancelled>> {
        retried(|| self.cancel(owner, id, by, now, key)).await
    }

    async fn resume(&self, resume: &ResumeRun, key: Option<&IdempotencyClaim>) -> StoreResult<Keyed<Resumed>> {
        retried(|| self.resume(resume, key)).await
    }

    async fn call_batch(&self, owner: &UserId, run: &RunId, call: &CallId) -> StoreResult<Option<CallBatch>> {
        self.api.ask(async |connection| call_batch(connection, owner, run, call).await).await
    }
}
