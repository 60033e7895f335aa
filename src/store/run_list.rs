//! Lists of runs: filters, cursors and the statement that both backends send.

use std::fmt;
use std::str::FromStr;

use super::pages::written_by_us;
use super::rows::{RUN_COLUMNS, RunRow};
use super::{InvalidCursor, Page, StoreResult};
use crate::domain::ids::{ConversationId, RunId};
use crate::domain::run::{Run, RunStatus};
use crate::support::clock::UnixMillis;

/// Selects runs of one owner.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RunFilter {
    /// Runs of this conversation, by their order in it; of all conversations, by the time they were accepted, if `None`.
    pub conversation: Option<ConversationId>,
    /// Runs with this status.
    pub status: Option<RunStatus>,
    /// Runs of the agent with this name.
    pub agent: Option<String>,
    /// Runs accepted at this time or later.
    pub created_from: Option<UnixMillis>,
    /// Runs accepted before this time.
    pub created_before: Option<UnixMillis>,
}

impl RunFilter {
    /// Returns the column that orders the list.
    fn order(&self) -> &'static str {
        match self.conversation {
            Some(_) => "first_seq",
            None => "created_at",
        }
    }

    /// Returns the statement for a page. Its parameters are the owner, the limit, the conversation, the cursor's place and id, the status,
    /// the agent, and the times. It names only those that the filter uses: a condition that is always true would mislead the planner.
    pub(super) fn statement(&self, after: Option<&RunCursor>) -> String {
        let order = self.order();
        let conditions = [
            self.conversation.as_ref().map(|_| " AND conversation_id = $3".to_owned()),
            after.map(|_| format!(" AND ({order}, id) < ($4, $5)")),
            self.status.map(|_| " AND status = $6".to_owned()),
            self.agent.as_ref().map(|_| " AND agent = $7".to_owned()),
            self.created_from.map(|_| " AND created_at >= $8".to_owned()),
            self.created_before.map(|_| " AND created_at < $9".to_owned()),
        ];
        let conditions: String = conditions.into_iter().flatten().collect();
        format!("SELECT {RUN_COLUMNS} FROM runs WHERE owner_id = $1{conditions} ORDER BY {order} DESC, id DESC LIMIT $2")
    }

    /// Makes a page of the rows that the statement found, which are one more than `limit` if another page follows.
    pub(super) fn page(&self, mut found: Vec<RunRow>, limit: usize) -> StoreResult<Page<Run>> {
        let more = found.len() > limit;
        found.truncate(limit);
        let next = found.last().filter(|_| more).map(|last| RunCursor {
            place: if self.conversation.is_some() { last.first_seq } else { last.created_at },
            id: last.run_id(),
        });
        let items = found.into_iter().map(RunRow::into_run).collect::<StoreResult<Vec<_>>>()?;
        Ok(Page { items, next: next.map(|next| next.to_string()) })
    }
}

/// The last run of a page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunCursor {
    /// Its place: the `seq` of its first event in the list of a conversation, and else the time it was accepted, in milliseconds.
    pub place: i64,
    /// Its id, which orders runs of one place.
    pub id: RunId,
}

impl fmt::Display for RunCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.place, self.id)
    }
}

impl FromStr for RunCursor {
    type Err = InvalidCursor;

    fn from_str(text: &str) -> Result<Self, InvalidCursor> {
        let (place, id) = text.split_once(':').ok_or(InvalidCursor)?;
        let place = place.parse().map_err(|_| InvalidCursor)?;
        written_by_us(Self { place, id: RunId::parse(id).map_err(|_| InvalidCursor)? }, text)
    }
}
