//! The event log: the trait.

use async_trait::async_trait;

use crate::domain::event::StoredEvent;
use crate::domain::ids::{ConversationId, UserId};
use crate::domain::run::record::RunWrite;
use crate::store::{Committed, LogBounds, Refused, StoreResult};

/// The log: the only way in which a worker changes the rows of a run that it holds. Use cases and the queue change the rest.
#[async_trait]
pub trait LogStore: Send + Sync {
    /// Waits until the next commit can be sent at once, as far as that can be known. The log writer gathers writes after this: earlier
    /// ones would be sent when the database is back, for runs that were given up meanwhile.
    async fn ready(&self) -> StoreResult<()> {
        Ok(())
    }

    /// Commits many writes in one transaction. Each is tested by its fence on its own: a fenced one leaves nothing, the others
    /// are committed. The answers are in the order of the writes.
    ///
    /// Several writes of one run may be in a batch; they are carried out in order. A write may break a rule of the rows: a tool call
    /// started twice, a second outcome, a message that is there already. Such a write is answered and treated like a fenced one,
    /// so that it cannot take its neighbours with it.
    async fn commit(&self, writes: &[RunWrite]) -> StoreResult<Vec<Result<Committed, Refused>>>;

    /// Events after `after`, oldest first, at most `limit` (1 to 1,000). The page ends early when it holds [`PAGE_BYTES`](crate::store::PAGE_BYTES) of data:
    /// [`is_full_page`](crate::store::is_full_page) knows whether to ask again.
    /// No events for another owner's conversation.
    async fn events(&self, owner: &UserId, conversation: &ConversationId, after: i64, limit: u32) -> StoreResult<Vec<StoredEvent>>;

    /// Returns the bounds of the log. `None` for a conversation that is missing or another owner's.
    async fn log_bounds(&self, owner: &UserId, conversation: &ConversationId) -> StoreResult<Option<LogBounds>>;

    /// Returns the newest `seq` of each conversation that has one. For live tails, which know no owners.
    async fn heads(&self, conversations: &[ConversationId]) -> StoreResult<Vec<(ConversationId, i64)>>;

    /// Returns the events of each log after the `seq` beside it, as pages of [`LogStore::events`] of at most `limit` events. Logs
    /// without such events are left out. For live tails, which know no owners.
    async fn news(&self, after: &[(ConversationId, i64)], limit: u32) -> StoreResult<Vec<(ConversationId, Vec<StoredEvent>)>>;
}
