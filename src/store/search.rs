//! Full-text search: the trait, and what both databases have in common.

use std::fmt;
use std::str::FromStr;

use async_trait::async_trait;

use super::{InvalidCursor, Page, PageRequest, StoreResult};
use crate::domain::ids::{MessageId, UserId};
use crate::domain::message::Message;
use crate::domain::search::Terms;

/// The last message of a page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SearchCursor(pub MessageId);

impl fmt::Display for SearchCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for SearchCursor {
    type Err = InvalidCursor;

    fn from_str(text: &str) -> Result<Self, InvalidCursor> {
        MessageId::parse(text).map(Self).map_err(|_| InvalidCursor)
    }
}

/// A message that has all that was looked for.
#[derive(Debug, Clone, PartialEq)]
pub struct Found {
    /// The message.
    pub message: Message,
    /// The title of its conversation.
    pub title: String,
}

/// The words of messages, always of one owner. The database itself notes them, when messages are stored.
#[async_trait]
pub trait SearchStore: Send + Sync {
    /// A page of messages that have all of the terms, newest first; neither superseded ones nor those that clients hide. `archived`
    /// says which conversations count.
    async fn search(
        &self,
        owner: &UserId,
        terms: &Terms,
        archived: Option<bool>,
        page: &PageRequest<SearchCursor>,
    ) -> StoreResult<Page<Found>>;
}
