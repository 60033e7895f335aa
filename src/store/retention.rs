//! What retention works on.

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
