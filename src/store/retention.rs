//! What retention works on.

use sqlx::{ColumnIndex, Decode, Row, Type};

use super::{StoreResult, compose, rows};
use crate::domain::conversation::ConversationStatus;
use crate::domain::event::NewEvent;
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

/// Reads a row with `id, conversation_id, first_seq, last_seq, finished_at`.
pub(super) fn read_ended_run<'r, R>(row: &'r R) -> Result<EndedRun, sqlx::Error>
where
    R: Row,
    &'static str: ColumnIndex<R>,
    String: Decode<'r, R::Database> + Type<R::Database>,
    i64: Decode<'r, R::Database> + Type<R::Database>,
{
    Ok(EndedRun {
        id: RunId::from_stored(row.try_get("id")?),
        conversation_id: ConversationId::from_stored(row.try_get("conversation_id")?),
        owner: UserId::from_stored(row.try_get("owner_id")?),
        first_seq: row.try_get("first_seq")?,
        last_seq: row.try_get("last_seq")?,
        finished_at: UnixMillis(row.try_get("finished_at")?),
    })
}
