//! The operations that each database implements separately.
//!
//! Owns the interface between shared aggregates and statements of one database. Must not know any table.

use async_trait::async_trait;

use super::backend::Backend;
use super::statement::Statement;
use crate::domain::ids::{ConversationId, UserId};
use crate::domain::run::record::RunWrite;
use crate::store::{
    AcceptOutcome, AcceptRun, CommitReceipt, DeletedConversation, IdempotencyKey, IdempotentResult, StoreResult, WriteRejection,
};

/// The condition of a deletion. Its statement returns true or false for the age in milliseconds, `$1`, and the conversation's id,
/// `$2`.
#[derive(Clone, Copy)]
pub struct IdleAge {
    pub statement: Statement,
    pub age_ms: u64,
}

/// A store whose hot paths use statements of its own database.
#[async_trait]
pub trait PerBackend: Backend {
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
    async fn commit(&self, writes: &[RunWrite]) -> StoreResult<Vec<Result<CommitReceipt, WriteRejection>>>;
}
