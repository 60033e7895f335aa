//! Pages of lists, and their cursors.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::domain::event::StoredEvent;
use crate::domain::ids::{CallId, ConversationId, FileId, InputId, KeyId, MessageId, RunId, ShareId};

/// A page of messages or events ends with the row at which its size reaches this number of bytes. Rows can be large, so a number of
/// rows does not limit memory.
pub const PAGE_BYTES: usize = 1024 * 1024;

/// [`PAGE_BYTES`] as a parameter of statements.
pub(super) const SQL_PAGE_BYTES: i64 = PAGE_BYTES as i64;

/// Returns whether more events may follow a page that was limited to `limit`.
pub fn is_full_page(events: &[StoredEvent], limit: u32) -> bool {
    events.len() >= limit as usize || events.iter().map(|event| event.data.len()).sum::<usize>() >= PAGE_BYTES
}

#[derive(Debug, Clone, PartialEq)]
pub struct Page<T> {
    pub items: Vec<T>,
    /// The keyset cursor of the next page, if there is one. Opaque to clients: the HTTP layer encodes it.
    pub next: Option<String>,
}

/// A request for a page of a list with cursors of type `C`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PageRequest<C> {
    /// Number of rows, 1 to 100.
    pub limit: u32,
    pub after: Option<C>,
}

/// A text that is not a cursor of the list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a cursor of this list")]
pub struct InvalidCursor;

/// Implements the text form of cursors: JSON. Rejects any other spelling than the one that this server writes.
macro_rules! cursor_text {
    ($($cursor:ident $(<$id:ident>)?),+) => {$(
        impl$(<$id: serde::Serialize>)? std::fmt::Display for $cursor$(<$id>)? {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(&serde_json::to_string(self).map_err(|_| std::fmt::Error)?)
            }
        }

        impl$(<$id: serde::Serialize + serde::de::DeserializeOwned>)? std::str::FromStr for $cursor$(<$id>)? {
            type Err = $crate::store::InvalidCursor;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                let cursor: Option<Self> = serde_json::from_str(text).ok();
                cursor.filter(|cursor| cursor.to_string() == text).ok_or($crate::store::InvalidCursor)
            }
        }
    )+};
}
pub(super) use cursor_text;

cursor_text!(TimeCursor<I>, IdCursor<I>);

/// The cursor of a list that is ordered by time: its last row.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimeCursor<I> {
    /// The time that orders the list, in milliseconds. For the runs of one conversation, the `seq` of the run's first event.
    pub at: i64,
    /// The id, which orders rows of the same time.
    pub id: I,
}

pub type ConversationCursor = TimeCursor<ConversationId>;
pub type InputCursor = TimeCursor<InputId>;
pub type AuditCursor = TimeCursor<CallId>;
pub type FeedbackCursor = TimeCursor<MessageId>;
pub type RunCursor = TimeCursor<RunId>;
pub type KeyCursor = TimeCursor<KeyId>;
pub type ShareCursor = TimeCursor<ShareId>;

/// The cursor of a list that is ordered by id: its last row.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdCursor<I>(pub I);

pub type FileCursor = IdCursor<FileId>;
pub type SearchCursor = IdCursor<MessageId>;
/// The name of a user is unique.
pub type UserCursor = IdCursor<String>;

/// The cursor of a list of messages: the position of the last one, counted from 1.
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
        // Rejects other spellings of the number, such as `+1` and `01`.
        Some(Self(position)).filter(|cursor| cursor.to_string() == text).ok_or(InvalidCursor)
    }
}

/// The cursor of a list that is read backwards: the position of the page's first message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BeforeCursor(pub i64);

impl fmt::Display for BeforeCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The prefix distinguishes it from a cursor for later messages.
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

/// Returns the page of rows that were read with a limit of `limit` + 1. `cursor` creates the cursor of the last row.
pub(super) fn page_of<T>(mut items: Vec<T>, limit: u32, cursor: impl Fn(&T) -> String) -> Page<T> {
    let has_more = items.len() > limit as usize;
    items.truncate(limit as usize);
    let next = items.last().filter(|_| has_more).map(cursor);
    Page { items, next }
}

/// Returns the page of rows with their times, as [`page_of`] does.
pub(super) fn page_by_time<T, I: Serialize>(rows: Vec<(i64, T)>, limit: u32, id: impl Fn(&T) -> &I) -> Page<T> {
    let Page { items, next } = page_of(rows, limit, |(at, row)| TimeCursor { at: *at, id: id(row) }.to_string());
    Page { items: items.into_iter().map(|(_, row)| row).collect(), next }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cursors_round_trip_and_refuse_what_is_none() {
        let id = "conv_01980000000070008000000000000003";
        let cursor = ConversationCursor { at: 5, id: ConversationId::parse(id).unwrap() };
        assert_eq!(cursor.to_string().parse::<ConversationCursor>().as_ref(), Ok(&cursor));
        let form = |at: &str| format!(r#"{{"at":{at},"id":"{id}"}}"#);
        assert_eq!(form("5").parse(), Ok(cursor));
        for bad in ["", "5", "abc", r#"{"at":5,"id":"conv_1"}"#, r#"{"at":5}"#, &form("05"), &form(" 5"), &(form("5") + "\0")] {
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
