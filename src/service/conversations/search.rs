//! Search in messages.

use crate::domain::access::principal::Principal;
use crate::domain::conversation::search::{FoundMessage, Terms};
use crate::service::conversations::snippet::snippet;
use crate::service::{Error, Page, PageRequest, Result, SearchCursor, Service};
use crate::support::text;

impl Service {
    /// Returns a page of messages that contain all words and phrases of `query`, newest first.
    pub async fn search(
        &self,
        principal: &Principal,
        query: &str,
        archived: Option<bool>,
        page: &PageRequest<SearchCursor>,
    ) -> Result<Page<FoundMessage>> {
        let terms = Terms::read(&text::storable(query)).map_err(Error::invalid)?;
        let found = self.store.search(&principal.user_id, &terms, archived, page).await?;
        let found_message = |found: crate::store::SearchHit| FoundMessage {
            snippet: snippet(&found.message.text(), &terms),
            message_id: found.message.id,
            conversation_id: found.message.conversation_id,
            title: found.title,
            run_id: found.message.run_id,
            role: found.message.role,
            created_at: found.message.created_at,
        };
        Ok(Page { items: found.items.into_iter().map(found_message).collect(), next: found.next })
    }
}
