//! The operations that each database carries out in its own way.
//!
//! Owns the seam between aggregates that are written once and statements that only one database has. Must not know any table.

use async_trait::async_trait;

use super::backend::Backend;
use super::statement::Statement;
use crate::domain::ids::{ConversationId, UserId};
use crate::domain::run::record::RunWrite;
use crate::store::{AcceptRun, Accepted, Committed, DeletedConversation, IdempotencyClaim, Keyed, Refused, StoreResult};

/// A store whose hot paths are statements of its own database.
#[async_trait]
pub trait PerBackend: Backend {
    /// Returns the most runs of one owner that workers have at a time; 0 for no limit.
    fn owner_cap(&self) -> u32;

    async fn accept(&self, accept: &AcceptRun, key: Option<&IdempotencyClaim>) -> StoreResult<Keyed<Accepted>>;

    /// Deletes a conversation with all its rows. With a statement and an age in milliseconds, only if the statement returns true for
    /// the age, `$1`, and the id, `$2`.
    async fn delete(
        &self,
        owner: &UserId,
        id: &ConversationId,
        only_if: Option<(Statement, u64)>,
    ) -> StoreResult<Option<DeletedConversation>>;

    /// Prepares a commit, as [`LogStore::ready`](crate::store::LogStore::ready) says.
    async fn ready(&self) -> StoreResult<()> {
        Ok(())
    }

    /// Commits writes of workers, as [`LogStore::commit`](crate::store::LogStore::commit) says.
    async fn commit(&self, writes: &[RunWrite]) -> StoreResult<Vec<Result<Committed, Refused>>>;
}
