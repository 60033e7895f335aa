//! Reads the changed items of owners' lists, for all feeds of this process.
//!
//! Each item is read once, however many feeds show it. Changes that follow each other closely are read together.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep, sleep_until};

use crate::domain::access::principal::Principal;
use crate::domain::conversation::list_item::ListHint;
use crate::domain::ids::{ConversationId, UserId};
use crate::live::{ListChange, ListSubscription, Lists};
use crate::service::Service;
use crate::store::{ServiceStore, StoreResult};

/// The delay in which hints gather, so that a burst of events costs one query.
const GATHER: Duration = Duration::from_millis(100);

/// Number of items in one query.
const ITEMS: usize = 100;

/// The time limit of a query. After it, the clients read their lists themselves.
const READ_LIMIT: Duration = Duration::from_secs(5);

/// The shortest interval of resets, after which all clients read their lists again.
const RESET_EVERY: Duration = Duration::from_secs(5);

impl Service {
    pub fn follow_list(&self, principal: &Principal) -> ListSubscription {
        self.hub.lists().subscribe(&principal.user_id)
    }
}

/// Sends changed items to the feeds of their owners. Resets the feeds if hints were lost. Behind a pooler no hint of another
/// process arrives, so the feeds are reset periodically. Never ends.
pub(super) async fn follow(store: &dyn ServiceStore, lists: &Lists) {
    let mut has_lost = store.is_pooled();
    let mut next_reset = Instant::now();
    loop {
        tokio::select! {
            () = lists.wait() => sleep(GATHER).await,
            () = sleep_until(next_reset), if has_lost => {}
        }
        let pending = lists.take_hints();
        has_lost |= pending.has_lost;
        match tokio::time::timeout(READ_LIMIT, send_changes(store, lists, pending.hints)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::debug!(error = &error as &dyn std::error::Error, "cannot read changed conversations: the feeds are reset");
                has_lost = true;
            }
            Err(_elapsed) => has_lost = true,
        }
        if has_lost && Instant::now() >= next_reset {
            lists.reset();
            has_lost = store.is_pooled();
            next_reset = Instant::now() + RESET_EVERY;
        }
    }
}

async fn send_changes(store: &dyn ServiceStore, lists: &Lists, hints: impl IntoIterator<Item = ListHint>) -> StoreResult<()> {
    let (mut changed, mut removed): (Vec<ConversationId>, Vec<(UserId, ConversationId)>) = Default::default();
    let owners = lists.owners();
    for hint in hints {
        match hint {
            ListHint::Changed(conversation) => changed.push(conversation),
            ListHint::Removed(conversation, owner) => removed.push((owner, conversation)),
            ListHint::Reviews(Some(owner)) => lists.send(&owner, &ListChange::ReviewsChanged),
            // Every user can read the reviews of servers for all users.
            ListHint::Reviews(None) => owners.iter().for_each(|owner| lists.send(owner, &ListChange::ReviewsChanged)),
        }
    }
    for ids in changed.chunks(ITEMS) {
        for (owner, item) in store.list_items(&owners, ids).await? {
            lists.send(&owner, &ListChange::Changed(Arc::new(item)));
        }
    }
    // Removals follow the items, which may have been read before the deletion.
    for (owner, conversation) in removed {
        lists.send(&owner, &ListChange::Removed(conversation));
    }
    Ok(())
}
