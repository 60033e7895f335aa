//! Messages as they are listed: what was said, with what its user thinks of it.

use crate::domain::conversation::feedback::{Feedback, Rating};
use crate::domain::conversation::message::Message;
use crate::store::sql::Row;
use crate::store::{BeforeCursor, Page, StoreResult, rows};
use crate::support::clock::UnixMillis;

/// Which messages are read backwards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EarlierPage {
    /// The messages before this place; the newest ones if absent.
    pub before: Option<BeforeCursor>,
    pub limit: u32,
    /// The page ends with the message that brings its data to so many bytes.
    pub bytes: usize,
}

/// Messages that follow each other, read backwards.
#[derive(Debug, Clone, PartialEq)]
pub struct EarlierMessages {
    /// The messages, oldest first, each with the cursor of those before it.
    pub items: Vec<(BeforeCursor, Message)>,
    /// Whether there are messages before these.
    pub earlier: bool,
}

impl EarlierMessages {
    /// The messages as a page whose next one is of the messages before it.
    pub fn into_page(self) -> Page<Message> {
        let next = self.items.first().filter(|_| self.earlier).map(|(before, _)| before.to_string());
        Page { items: self.items.into_iter().map(|(_, message)| message).collect(), next }
    }
}

/// Reads a message as it is listed, from `id`, `body`, `rating`, `comment` and `rated_at`. `None` if the body was left out.
pub(in crate::store) fn listed(row: &Row) -> StoreResult<Option<Message>> {
    let id: String = row.get("id")?;
    let Some(body) = row.get::<Option<&str>>("body")? else { return Ok(None) };
    let message: Message = rows::decode("messages", "body", &id, body)?;
    let Some(at) = row.get::<Option<i64>>("rated_at")? else { return Ok(Some(message)) };
    let rating = rows::read_word(row, "messages", "rating", &id, Rating::from_word)?;
    let feedback = Feedback { rating, comment: row.get("comment")?, at: UnixMillis(at).to_rfc3339() };
    Ok(Some(Message { feedback: Some(Box::new(feedback)), ..message }))
}
