//! Messages as they are listed: what was said, with what its user thinks of it.

use sqlx::{ColumnIndex, Decode, Row, Type};

use super::feedback::rating;
use super::{StoreResult, rows};
use crate::domain::feedback::Feedback;
use crate::domain::message::Message;
use crate::support::clock::UnixMillis;

/// The newest messages of a conversation.
#[derive(Debug, Clone, PartialEq)]
pub struct NewestMessages {
    /// The messages, oldest first.
    pub items: Vec<Message>,
    /// Whether there are earlier ones.
    pub earlier: bool,
}

impl NewestMessages {
    /// Reads rows as [`listed`] does, newest first. One beyond the limit, or without its body, only shows that there is more.
    pub(super) fn read<'r, R>(found: &'r [R], limit: u32) -> StoreResult<Self>
    where
        R: Row,
        &'static str: ColumnIndex<R>,
        String: Decode<'r, R::Database> + Type<R::Database>,
        i64: Decode<'r, R::Database> + Type<R::Database>,
    {
        let rows = found.iter().take(limit as usize);
        let mut items = rows.map_while(|row| listed(row).transpose()).collect::<StoreResult<Vec<_>>>()?;
        items.reverse();
        Ok(Self { earlier: found.len() > items.len(), items })
    }
}

/// A message as it is listed, from `id`, `body`, `rating`, `comment` and `rated_at`. `None` if the body was left out.
pub(super) fn listed<'r, R>(row: &'r R) -> StoreResult<Option<Message>>
where
    R: Row,
    &'static str: ColumnIndex<R>,
    String: Decode<'r, R::Database> + Type<R::Database>,
    i64: Decode<'r, R::Database> + Type<R::Database>,
{
    let id: String = row.try_get("id")?;
    let Some(body) = row.try_get::<Option<String>, _>("body")? else { return Ok(None) };
    let message: Message = rows::decode("messages", "body", &id, &body)?;
    let Some(at) = row.try_get::<Option<i64>, _>("rated_at")? else { return Ok(Some(message)) };
    let feedback = Feedback { rating: rating(row, &id)?, comment: row.try_get("comment")?, at: UnixMillis(at).to_rfc3339() };
    Ok(Some(Message { feedback: Some(Box::new(feedback)), ..message }))
}
