//! Lists of messages with their feedback.

use crate::domain::conversation::{Feedback, Message, Rating, Role};
use crate::domain::ids::MessageId;
use crate::store::sql::Row;
use crate::store::{BeforeCursor, Page, StoreResult, rows};
use crate::support::clock::UnixMillis;

/// A request for a page of messages that is read backwards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EarlierPage {
    /// The page ends before this message. The newest messages if absent.
    pub before: Option<BeforeCursor>,
    pub limit: u32,
    /// The page ends with the message at which its size reaches this number of bytes.
    pub bytes: usize,
}

/// Consecutive messages, read backwards.
#[derive(Debug, Clone, PartialEq)]
pub struct EarlierMessages {
    /// The messages, oldest first, each with the cursor of the messages before it.
    pub items: Vec<(BeforeCursor, Message)>,
    /// Whether earlier messages exist.
    pub earlier: bool,
}

impl EarlierMessages {
    /// Converts the messages to a page whose next page contains the messages before it.
    pub fn into_page(self) -> Page<Message> {
        let next = self.items.first().filter(|_| self.earlier).map(|(before, _)| before.to_string());
        Page { items: self.items.into_iter().map(|(_, message)| message).collect(), next }
    }
}

/// Returns whether a message has this role and is not internal. Only answers can have feedback, and only users' messages can be
/// edited.
pub fn has_visible_role(role: Role, id: &MessageId, body: &str) -> StoreResult<bool> {
    let message: Message = rows::decode("messages", "body", id.as_str(), body)?;
    Ok(message.role == role && !message.internal)
}

/// Reads a listed message from `id`, `body`, `rating`, `comment` and `rated_at`. `None` if the body was omitted.
pub fn listed(row: &Row) -> StoreResult<Option<Message>> {
    let id: String = row.get("id")?;
    let Some(body) = row.get::<Option<&str>>("body")? else { return Ok(None) };
    let message: Message = rows::decode("messages", "body", &id, body)?;
    let Some(at) = row.get::<Option<i64>>("rated_at")? else { return Ok(Some(message)) };
    let rating = rows::read_word(row, "messages", "rating", &id, Rating::from_name)?;
    let feedback = Feedback { rating, comment: row.get("comment")?, at: UnixMillis(at).to_rfc3339() };
    Ok(Some(Message { feedback: Some(Box::new(feedback)), ..message }))
}
