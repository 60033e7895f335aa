//! The log of one owner: a reader cannot request events of another owner.

use std::sync::Arc;

use crate::domain::event::StoredEvent;
use crate::domain::ids::{ConversationId, UserId};
use crate::store::{LogBounds, LogStore, StoreResult};

/// Number of events in one read, unless they are large: see [`PAGE_BYTES`](crate::store::PAGE_BYTES).
pub(in crate::service) const PAGE: u32 = 500;

#[derive(Clone)]
pub(in crate::service) struct OwnedLog {
    store: Arc<dyn LogStore>,
    owner: UserId,
}

impl OwnedLog {
    pub(in crate::service) fn new(store: Arc<dyn LogStore>, owner: UserId) -> Self {
        Self { store, owner }
    }

    pub(in crate::service) fn owner(&self) -> &UserId {
        &self.owner
    }

    pub(in crate::service) async fn events(
        &self,
        conversation: &ConversationId,
        after: i64,
        limit: u32,
    ) -> StoreResult<Vec<StoredEvent>> {
        self.store.events(&self.owner, conversation, after, limit).await
    }

    pub(in crate::service) async fn bounds(&self, conversation: &ConversationId) -> StoreResult<Option<LogBounds>> {
        self.store.log_bounds(&self.owner, conversation).await
    }
}
