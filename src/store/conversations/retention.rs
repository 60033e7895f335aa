//! Retention of logs, conversations and tool sets: the values.

use crate::domain::ids::{ConversationId, RunId, UserId};
use crate::support::clock::UnixMillis;

/// A run that has ended, with its range in the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndedRun {
    pub id: RunId,
    pub conversation_id: ConversationId,
    pub owner: UserId,
    pub first_seq: i64,
    pub last_seq: i64,
    /// The end of the run, by the database's clock.
    pub finished_at: UnixMillis,
}

/// Numbers of expired rows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ExpiredRowCounts {
    /// Stream tickets, sessions of browsers, and shares of conversations.
    pub tickets: u64,
    pub records: u64,
    pub audit: u64,
    /// Spending rows from before yesterday.
    pub spending: u64,
    pub tool_sets: u64,
    /// Learned limitations of models.
    pub limitations: u64,
}

/// Limit of tool sets removed in one call.
pub const TOOL_SETS_PIECE: i64 = 200;
