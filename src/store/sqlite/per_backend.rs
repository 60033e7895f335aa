//! The operations that SQLite carries out in its own way.
//!
//! Owns the way to each. Must not know their statements.

use async_trait::async_trait;

use super::SqliteStore;
use crate::domain::ids::{ConversationId, UserId};
use crate::domain::run::record::RunWrite;
use crate::store::sql::{Backend as _, IdleFor, PerBackend, accept_once};
use crate::store::{AcceptRun, Accepted, Committed, DeletedConversation, IdempotencyClaim, Keyed, Refused, StoreResult};

#[async_trait]
impl PerBackend for SqliteStore {
    fn owner_cap(&self) -> u32 {
        self.owner_cap
    }

    async fn accept(&self, accept: &AcceptRun, key: Option<&IdempotencyClaim>) -> StoreResult<Keyed<Accepted>> {
        Ok(accept_once(self.database(), accept, key).await?.unwrap_or(Keyed::Fresh(Accepted::NoConversation)))
    }

    async fn delete(&self, owner: &UserId, id: &ConversationId, idle: Option<IdleFor>) -> StoreResult<Option<DeletedConversation>> {
        self.delete(owner, id, idle).await
    }

    async fn commit(&self, writes: &[RunWrite]) -> StoreResult<Vec<Result<Committed, Refused>>> {
        self.commit_batch(writes).await
    }
}
