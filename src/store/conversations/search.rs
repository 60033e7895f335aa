//! Full-text search: the trait, and what both databases have in common.

use async_trait::async_trait;

use crate::domain::conversation::message::Message;
use crate::domain::conversation::search::Terms;
use crate::domain::ids::UserId;
use crate::store::{Page, PageRequest, SearchCursor, StoreResult};

/// A message that has all that was looked for.
#[derive(Debug, Clone, PartialEq)]
pub struct Found {
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
