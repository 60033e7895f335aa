//! `Backend`: the interface between the aggregates in `sql` and the two stores.
//!
//! Owns the list of operations that each database implements separately. Must not know any table.

use async_trait::async_trait;

use super::database::Database;
use super::statement::Statement;
use crate::domain::ids::{ConversationId, UserId};
use crate::domain::run::RunWrite;
use crate::store::{AcceptOutcome, AcceptRun, CommitResults, DeletedConversation, IdempotencyKey, IdempotentResult, StoreResult};

/// The condition of a deletion. Its statement takes the age in milliseconds (`$1`) and the conversation's id (`$2`), and returns a
/// boolean.
#[derive(Clone, Copy)]
pub struct IdleAge {
    pub statement: Statement,
    pub age_ms: u64,
}

/// A store on one database. It implements the hot paths with separate statements. The traits in `sql` are implemented for every
/// backend.
#[async_trait]
pub trait Backend: Send + Sync {
    /// Returns the database for requests, whose clients wait.
    fn database(&self) -> Database<'_>;

    /// Returns the database for background work, which may take longer.
    fn maintenance_database(&self) -> Database<'_> {
        self.database()
    }

    /// Returns the database for workers, whose leases depend on its answers.
    fn worker(&self) -> Database<'_> {
        self.database()
    }

    /// Returns the limit of an owner's runs that workers hold at a time; 0 for no limit.
    fn owner_cap(&self) -> u32;

    async fn accept(&self, accept: &AcceptRun, key: Option<&IdempotencyKey>) -> IdempotentResult<AcceptOutcome>;

    /// Deletes a conversation with all its rows, if the condition is true.
    async fn delete(&self, owner: &UserId, id: &ConversationId, idle: Option<IdleAge>) -> StoreResult<Option<DeletedConversation>>;

    /// Waits until a commit can be sent, see [`LogStore::ready`](crate::store::LogStore::ready).
    async fn ready(&self) -> StoreResult<()> {
        Ok(())
    }

    /// Commits writes of workers, see [`LogStore::commit`](crate::store::LogStore::commit).
    async fn commit(&self, writes: &[RunWrite]) -> StoreResult<CommitResults>;
}
