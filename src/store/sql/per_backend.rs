//! The operations that each database carries out in its own way.
//!
//! Owns the seam between aggregates that are written once and statements that only one database has. Must not know any table.

use async_trait::async_trait;

use super::backend::Backend;
use super::statement::Statement;
use crate::domain::ids::{ConversationId, UserId};
use crate::domain::run::record::RunWrite;
use crate::store::{AcceptRun, Accepted, Committed, DeletedConversation, IdempotencyClaim, Keyed, Refused, StoreResult};

/// A condition of a deletion: its statement returns true for the age in milliseconds, `$1`, and the conversation's id, `$2`.
#[derive(Clone, Copy)]
pub struct IdleFor {
    pub statement: Statement,
    pub age_ms: u64,
}

/// A store whose hot paths are statements of its own database.
#[async_trait]
pub trait PerBackend: Backend {
    /// Returns the most runs of one owner that workers have at a time; 0 for no limit.
    fn owner_cap(&self) -> u32;

    async fn accept(&self, accept: &AcceptRun, key: Option<&IdempotencyClaim>) -> StoreResult<Keyed<Accepted>>;

    /// Deletes a conversation with all its rows, if the condition holds.
    async fn delete(&self, owner: &UserId, id: &ConversationId, idle: Option<IdleFor>) -> StoreResult<Option<DeletedConversation>>;

    /// Prepares a commit, as [`LogStore::ready`](crate::store::LogStore::ready) says.
    async fn ready(&self) -> StoreResult<()> {
        Ok(())
    }

    /// Commits writes of workers, as [`LogStore::commit`](crate::store::LogStore::commit) says.
    async fn commit(&self, writes: &[RunWrite]) -> StoreResult<Vec<Result<Committed, Refused>>>;
}
