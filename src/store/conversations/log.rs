//! The event log: the trait.

use async_trait::async_trait;

use crate::domain::event::StoredEvent;
use crate::domain::ids::{ConversationId, UserId};
use crate::domain::run::RunWrite;
use crate::store::{CommitResults, LogBounds, StoreResult};

/// The event log. A worker changes the rows of its run only through it. Use cases and the queue make all other changes.
#[async_trait]
#[warn(missing_docs)]
pub trait LogStore: Send + Sync {
    /// Waits until the next commit can probably be sent at once. The log writer collects writes after this wait. After an outage,
    /// writes that were collected earlier would come too late: their runs were released meanwhile.
    async fn ready(&self) -> StoreResult<()> {
        Ok(())
    }

    /// Commits several writes in one transaction. Each write is tested by its own fence: a fenced write has no effect, and the
    /// others are committed. The results are in the order of the writes.
    ///
    /// A batch may contain several writes of one run, which are applied in order. A write may violate a rule of the rows: a tool
    /// call that starts twice, a second outcome, a message that exists already. The store refuses such a write like a fenced one,
    /// so that the other writes of the batch are committed.
    async fn commit(&self, writes: &[RunWrite]) -> StoreResult<CommitResults>;

    /// Returns events after `after`, oldest first, at most `limit` (1 to 1,000). The page ends early when it contains
    /// [`PAGE_BYTES`](crate::store::PAGE_BYTES) of data: [`is_full_page`](crate::store::is_full_page) returns whether more may
    /// follow. Empty for another owner's conversation.
    async fn events(&self, owner: &UserId, conversation: &ConversationId, after: i64, limit: u32) -> StoreResult<Vec<StoredEvent>>;

    /// Returns the bounds of the log. `None` for a conversation that is missing or belongs to another owner.
    async fn log_bounds(&self, owner: &UserId, conversation: &ConversationId) -> StoreResult<Option<LogBounds>>;

    /// Returns the newest `seq` of each conversation that has one. For live tails, which serve all owners.
    async fn heads(&self, conversations: &[ConversationId]) -> StoreResult<Vec<(ConversationId, i64)>>;

    /// Returns the events of each log after its given `seq`, at most `limit` per log, as pages of [`LogStore::events`]. Omits logs
    /// without such events. For live tails, which serve all owners.
    async fn events_after(
        &self,
        after: &[(ConversationId, i64)],
        limit: u32,
    ) -> StoreResult<Vec<(ConversationId, Vec<StoredEvent>)>>;
}
