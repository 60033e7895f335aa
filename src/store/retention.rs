//! What becomes of old logs, conversations and sets of tools: the trait, and the values it works on.

use async_trait::async_trait;

use super::{StoreResult, Tidying, compose, rows};
use crate::domain::conversation::ConversationStatus;
use crate::domain::event::{NewEvent, StoredEvent};
use crate::domain::fold::FoldedDelta;
use crate::domain::ids::{ConversationId, RunId, UserId};
use crate::support::clock::UnixMillis;

/// A run that ended, and its place in the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndedRun {
    /// The run.
    pub id: RunId,
    /// Its conversation.
    pub conversation_id: ConversationId,
    /// Whose it is.
    pub owner: UserId,
    /// Its first event.
    pub first_seq: i64,
    /// Its last event.
    pub last_seq: i64,
    /// When it ended, by the database's clock.
    pub finished_at: UnixMillis,
}

/// How many rows have expired.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Expired {
    /// Tickets that nobody has used in time.
    pub tickets: u64,
    /// Idempotency records.
    pub records: u64,
    /// Rows of the audit of tool calls.
    pub audit: u64,
    /// Rows of what was spent on days gone by.
    pub spending: u64,
    /// Sets of tools that no run names any more.
    pub tool_sets: u64,
}

/// The most sets of tools that are removed at a time.
pub const TOOL_SETS_PIECE: i64 = 200;

/// What becomes of the logs of runs that ended long ago. Nobody writes to them any more, so none of this needs a fence.
#[async_trait]
pub trait RetentionStore: Send + Sync {
    /// Runs that ended at least `age_ms` ago by the database's clock and are not folded, by when they ended, at most `limit`,
    /// after the given one.
    async fn runs_to_fold(&self, age_ms: u64, after: Option<&EndedRun>, limit: u32) -> StoreResult<Vec<EndedRun>>;

    /// Puts deltas in the place of others, and notes that the run `through`, if there is one, needs no folding any more; in one
    /// transaction. False, and nothing is changed, if the events are no longer those that the folds were made from, or another
    /// process folds at this moment.
    async fn fold_deltas(&self, conversation: &ConversationId, folds: &[FoldedDelta], through: Option<&RunId>)
    -> StoreResult<bool>;

    /// Conversations, by id and after the given one, in which nothing has happened for `age_ms` by the database's clock, that are
    /// not pinned, have no run under way, and are to be tidied so; at most `limit`.
    async fn idle_conversations(
        &self,
        tidying: Tidying,
        age_ms: u64,
        after: Option<&ConversationId>,
        limit: u32,
    ) -> StoreResult<Vec<(UserId, ConversationId)>>;

    /// Puts those of these away of which that still holds. Returns the event of each, which says that it has changed.
    async fn archive_idle(&self, ids: &[ConversationId], age_ms: u64) -> StoreResult<Vec<StoredEvent>>;

    /// Deletes a conversation of which that still holds, with all that belongs to it. False if it does not.
    async fn delete_idle(&self, owner: &UserId, id: &ConversationId, tidying: Tidying, age_ms: u64) -> StoreResult<bool>;

    /// Removes sets of tools that no run names any more, at most [`TOOL_SETS_PIECE`]. Returns how many. One that a run is just taking as its
    /// own stays, or is made again by that run, whatever version its worker is of.
    async fn remove_unused_tool_sets(&self) -> StoreResult<u64>;
}

impl Expired {
    /// From counts in this order.
    pub(super) fn of((tickets, records, audit, spending, tool_sets): (i64, i64, i64, i64, i64)) -> Self {
        let count = |rows: i64| u64::try_from(rows).unwrap_or_default();
        let (tickets, records, audit) = (count(tickets), count(records), count(audit));
        Self { tickets, records, audit, spending: count(spending), tool_sets: count(tool_sets) }
    }
}

/// The event of a conversation that was put away by its age, of its id, title, status, and when that was.
pub(super) fn put_away((id, title, status, at): (String, String, String, i64)) -> StoreResult<(ConversationId, NewEvent)> {
    let status = rows::word("conversations", "status", &id, &status, ConversationStatus::from_word)?;
    Ok((ConversationId::from_stored(id), compose::conversation_updated(&title, status, UnixMillis(at))))
}
