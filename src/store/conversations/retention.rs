//! Retention of logs, conversations and sets of tools: the trait and its values.

use async_trait::async_trait;

use crate::domain::conversation::fold::FoldedDelta;
use crate::domain::event::StoredEvent;
use crate::domain::ids::{ConversationId, RunId, UserId};
use crate::store::{StoreResult, Tidying};
use crate::support::clock::UnixMillis;

/// A run that ended, and its place in the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndedRun {
    pub id: RunId,
    pub conversation_id: ConversationId,
    pub owner: UserId,
    pub first_seq: i64,
    pub last_seq: i64,
    /// When it ended, by the database's clock.
    pub finished_at: UnixMillis,
}

/// How many rows have expired.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Expired {
    pub tickets: u64,
    pub records: u64,
    pub audit: u64,
    /// Rows of spending on days gone by.
    pub spending: u64,
    pub tool_sets: u64,
}

/// The most sets of tools that are removed at a time.
pub const TOOL_SETS_PIECE: i64 = 200;

/// Upkeep of old logs, conversations and sets of tools. No worker writes to the logs of ended runs, so none of this needs a fence.
#[async_trait]
pub trait RetentionStore: Send + Sync {
    /// Runs that ended at least `age_ms` ago by the database's clock and are not folded, by when they ended, at most `limit`,
    /// after the given one.
    async fn runs_to_fold(&self, age_ms: u64, after: Option<&EndedRun>, limit: u32) -> StoreResult<Vec<EndedRun>>;

    /// Replaces deltas by merged ones, and marks the run `through`, if there is one, as done, in one transaction. Returns false, and
    /// changes nothing, if the events have changed since the merge, or another process merges at this moment.
    async fn fold_deltas(&self, conversation: &ConversationId, folds: &[FoldedDelta], through: Option<&RunId>)
    -> StoreResult<bool>;

    /// Lists unpinned conversations, by id and after the given one, that have been idle for `age_ms` by the database's clock and
    /// to which `tidying` applies; at most `limit`.
    async fn idle_conversations(
        &self,
        tidying: Tidying,
        age_ms: u64,
        after: Option<&ConversationId>,
        limit: u32,
    ) -> StoreResult<Vec<(UserId, ConversationId)>>;

    /// Archives those of the conversations that are still idle. Returns the `conversation.updated` event of each.
    async fn archive_idle(&self, ids: &[ConversationId], age_ms: u64) -> StoreResult<Vec<StoredEvent>>;

    /// Deletes a conversation that is still idle, with all that belongs to it. Returns false if it is not.
    async fn delete_idle(&self, owner: &UserId, id: &ConversationId, tidying: Tidying, age_ms: u64) -> StoreResult<bool>;

    /// Removes sets of tools that no run names any more, at most [`TOOL_SETS_PIECE`]. Returns how many. A set that a run is just taking
    /// stays, or is made again by that run.
    async fn remove_unused_tool_sets(&self) -> StoreResult<u64>;
}
