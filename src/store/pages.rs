//! Pages of lists, and the cursors that lead from one page to the next.

use std::fmt;
use std::str::FromStr;

use crate::domain::event::StoredEvent;
use crate::domain::ids::{CallId, ConversationId, FileId, InputId, MessageId, RunId};

/// A page of messages or events ends with the row that brings its data to so many bytes: rows can be large, and their number
/// alone bounds no memory.
pub const PAGE_BYTES: usize = 1024 * 1024;

/// [`PAGE_BYTES`] for a statement.
pub(super) const SQL_PAGE_BYTES: i64 = PAGE_BYTES as i64;

/// Whether there may be events after those of a page that was to hold at most `limit`.
pub fn is_full_page(events: &[StoredEvent], limit: u32) -> bool {
    events.len() >= limit as usize || events.iter().map(|event| event.data.len()).sum::<usize>() >= PAGE_BYTES
}

#[derive(Debug, Clone, PartialEq)]
pub struct Page<T> {
    pub items: Vec<T>,
    /// The keyset cursor of the next page, if there is one. Opaque to clients: the HTTP layer encodes it.
    pub next: Option<String>,
}

/// Which page is wanted of a list with cursors of type `C`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PageRequest<C> {
    /// How many rows, 1 to 100.
    pub limit: u32,
    pub after: Option<C>,
}

/// A text that is no cursor of the list it was given for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a cursor of this list")]
pub struct InvalidCursor;

/// The last row of a page that is ordered by time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TimeCursor<I> {
    /// The time that orders the list, in milliseconds. In the list of one conversation's runs, the `seq` of the run's first event.
    pub at: i64,
    /// The id, which orders rows of one time.
    pub id: I,
}

impl<I: fmt::Display> fmt::Display for TimeCursor<I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.at, self.id)
    }
}

impl<I: FromStr + fmt::Display> FromStr for TimeCursor<I> {
    type Err = InvalidCursor;

    fn from_str(text: &str) -> Result<Self, InvalidCursor> {
        let (at, id) = text.split_once(':').ok_or(InvalidCursor)?;
        let (at, id) = (at.parse().map_err(|_| InvalidCursor)?, id.parse().map_err(|_| InvalidCursor)?);
        written_by_us(Self { at, id }, text)
    }
}

pub type ConversationCursor = TimeCursor<ConversationId>;
pub type InputCursor = TimeCursor<InputId>;
pub type AuditCursor = TimeCursor<CallId>;
pub type FeedbackCursor = TimeCursor<MessageId>;
pub type RunCursor = TimeCursor<RunId>;

/// The last row of a page that is ordered by id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdCursor<I>(pub I);

impl<I: fmt::Display> fmt::Display for IdCursor<I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<I: FromStr> FromStr for IdCursor<I> {
    type Err = InvalidCursor;

    fn from_str(text: &str) -> Result<Self, InvalidCursor> {
        text.parse().map(Self).map_err(|_| InvalidCursor)
    }
}

pub type FileCursor = IdCursor<FileId>;
pub type SearchCursor = IdCursor<MessageId>;

/// The last message of a page, by its position, which counts from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MessageCursor(pub i64);

impl fmt::Display for MessageCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for MessageCursor {
    type Err = InvalidCursor;

    fn from_str(text: &str) -> Result<Self, InvalidCursor> {
        let position = text.parse().ok().filter(|position| *position > 0).ok_or(InvalidCursor)?;
        written_by_us(Self(position), text)
    }
}

/// The first message of a page that is read backwards: the messages before it come next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BeforeCursor(pub i64);

impl fmt::Display for BeforeCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The word tells it from a cursor of the messages after a place.
        write!(f, "before:{}", self.0)
    }
}

impl FromStr for BeforeCursor {
    type Err = InvalidCursor;

    fn from_str(text: &str) -> Result<Self, InvalidCursor> {
        let MessageCursor(position) = text.strip_prefix("before:").ok_or(InvalidCursor)?.parse()?;
        Ok(Self(position))
    }
}

/// Returns the page of rows that were asked for with one more than `limit`. `cursor` makes the cursor of the last one.
pub(super) fn page_of<T>(mut items: Vec<T>, limit: u32, cursor: impl Fn(&T) -> String) -> Page<T> {
    let has_more = items.len() > limit as usize;
    items.truncate(limit as usize);
    let next = items.last().filter(|_| has_more).map(cursor);
    Page { items, next }
}

/// Returns the page of rows with the times that order them, as [`page_of`] does.
pub(super) fn page_by_time<T, I: fmt::Display>(rows: Vec<(i64, T)>, limit: u32, id: impl Fn(&T) -> &I) -> Page<T> {
    let Page { items, next } = page_of(rows, limit, |(at, row)| TimeCursor { at: *at, id: id(row) }.to_string());
    Page { items: items.into_iter().map(|(_, row)| row).collect(), next }
}

/// Refuses a cursor that is spelled differently from ours: numbers have several spellings.
pub(super) fn written_by_us<C: fmt::Display>(cursor: C, text: &str) -> Result<C, InvalidCursor> {
    if cursor.to_string() == text { Ok(cursor) } else { Err(InvalidCursor) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cursors_round_trip_and_refuse_what_is_none() {
        let id = "conv_01980000000070008000000000000003";
        let cursor = ConversationCursor { at: 5, id: ConversationId::parse(id).unwrap() };
        assert_eq!(cursor.to_string().parse(), Ok(cursor));
        for bad in ["", "5", "abc", "x:conv_1", "5:conv_1", &format!("+5:{id}"), &format!("05:{id}"), &format!("5:{id}\0")] {
            assert_eq!(bad.parse::<ConversationCursor>(), Err(InvalidCursor), "{bad:?}");
        }
        assert_eq!("12".parse(), Ok(MessageCursor(12)));
        for bad in ["", "0", "-5", "+5", "05", "zzz", "1:2", "9223372036854775808", "1\0", "' OR 1=1"] {
            assert_eq!(bad.parse::<MessageCursor>(), Err(InvalidCursor), "{bad:?}");
        }
        assert_eq!("before:12".parse(), Ok(BeforeCursor(12)));
        assert_eq!(BeforeCursor(i64::MAX).to_string().parse(), Ok(BeforeCursor(i64::MAX)));
        for bad in ["", "before:", "12", "-12", "before:-12", "before:0", "before:05", "before:9223372036854775808"] {
            assert_eq!(bad.parse::<BeforeCursor>(), Err(InvalidCursor), "{bad:?}");
        }
    }
}
