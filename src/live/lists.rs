//! Distributes changes of lists of conversations, and of tool reviews, to the owners' feeds of this process.
//!
//! Most hints name a conversation. Its item is read once for all feeds, by the caller of [`Lists::take_hints`]. Each feed has a
//! bounded queue: a lagging feed loses its queue, and its client then reads the list again ([`ListChange::Reset`]). Without feeds,
//! a hint costs one look at an empty map.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, Weak};

use tokio::sync::Notify;

use crate::domain::conversation::{ListHint, ListItem};
use crate::domain::ids::{ConversationId, UserId};
use crate::support::locks::lock;

/// Limit of pending hints. Above it, every feed is reset.
const MAX_HINTS: usize = 1_000;

#[derive(Debug, Clone, PartialEq)]
pub enum ListChange {
    /// The conversation was created or changed.
    Changed(Arc<ListItem>),
    /// The conversation was deleted.
    Removed(ConversationId),
    /// The tool reviews that the owner can read may have changed.
    ReviewsChanged,
    /// Changes may be missing: the client reads the list again.
    Reset,
}

impl ListChange {
    fn conversation(&self) -> Option<&ConversationId> {
        match self {
            Self::Changed(item) => Some(&item.conversation.id),
            Self::Removed(conversation) => Some(conversation),
            Self::ReviewsChanged | Self::Reset => None,
        }
    }
}

#[derive(Debug, Default, PartialEq, Eq)]
pub struct PendingHints {
    pub hints: BTreeSet<ListHint>,
    pub has_lost: bool,
}

#[derive(Default)]
struct Feed {
    queue: Mutex<Vec<ListChange>>,
    wake: Notify,
}

pub struct Lists {
    /// Limit of one feed's queue.
    max_changes: usize,
    feeds: Mutex<BTreeMap<UserId, Vec<Weak<Feed>>>>,
    pending: Mutex<PendingHints>,
    signal: Notify,
}

impl Lists {
    pub(super) fn new(max_changes: usize) -> Self {
        Self { max_changes, feeds: Mutex::default(), pending: Mutex::default(), signal: Notify::new() }
    }

    pub fn add_hint(&self, hint: ListHint) {
        if lock(&self.feeds).is_empty() {
            return;
        }
        let mut pending = lock(&self.pending);
        if pending.hints.len() < MAX_HINTS {
            pending.hints.insert(hint);
        } else {
            pending.has_lost = true;
        }
        drop(pending);
        self.signal.notify_one();
    }

    pub fn lose_hints(&self) {
        lock(&self.pending).has_lost = true;
        self.signal.notify_one();
    }

    /// Waits until hints are pending.
    pub async fn wait(&self) {
        self.signal.notified().await;
    }

    pub fn take_hints(&self) -> PendingHints {
        std::mem::take(&mut lock(&self.pending))
    }

    /// Returns the owners that have feeds.
    pub fn owners(&self) -> Vec<UserId> {
        lock(&self.feeds).keys().cloned().collect()
    }

    /// Sends a change to the feeds of an owner. It replaces an earlier change of the same conversation, or of the tool reviews.
    pub fn send(&self, owner: &UserId, change: &ListChange) {
        let feeds: Vec<_> = lock(&self.feeds).get(owner).into_iter().flatten().filter_map(Weak::upgrade).collect();
        for feed in feeds {
            let mut queue = lock(&feed.queue);
            if queue.first() != Some(&ListChange::Reset) {
                queue.retain(|earlier| earlier.conversation() != change.conversation());
                queue.push(change.clone());
            }
            if queue.len() > self.max_changes || *change == ListChange::Reset {
                *queue = vec![ListChange::Reset];
            }
            drop(queue);
            feed.wake.notify_one();
        }
    }

    pub fn reset(&self) {
        for owner in self.owners() {
            self.send(&owner, &ListChange::Reset);
        }
    }

    /// Subscribes to the list of an owner. A client subscribes before it reads the list, so that it misses no change.
    pub fn subscribe(self: &Arc<Self>, owner: &UserId) -> ListSubscription {
        let feed = Arc::new(Feed::default());
        lock(&self.feeds).entry(owner.clone()).or_default().push(Arc::downgrade(&feed));
        ListSubscription { lists: Arc::clone(self), owner: owner.clone(), feed }
    }
}

/// A reader of an owner's list. Dropping it ends the subscription.
pub struct ListSubscription {
    lists: Arc<Lists>,
    owner: UserId,
    feed: Arc<Feed>,
}

impl ListSubscription {
    /// Waits for the next changes, at least one. Cancel-safe.
    pub async fn next(&self) -> Vec<ListChange> {
        loop {
            let changes = std::mem::take(&mut *lock(&self.feed.queue));
            if !changes.is_empty() {
                return changes;
            }
            self.feed.wake.notified().await;
        }
    }
}

impl Drop for ListSubscription {
    fn drop(&mut self) {
        let mut feeds = lock(&self.lists.feeds);
        if let Some(of_owner) = feeds.get_mut(&self.owner) {
            of_owner.retain(|feed| !std::ptr::eq(feed.as_ptr(), Arc::as_ptr(&self.feed)));
            if of_owner.is_empty() {
                feeds.remove(&self.owner);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::support::ids::SequentialIds;

    fn removed(number: u32) -> ListChange {
        ListChange::Removed(ConversationId::from_stored(format!("conv_{number}")))
    }

    fn hint(number: usize) -> ListHint {
        ListHint::Changed(ConversationId::from_stored(format!("conv_{number}")))
    }

    #[tokio::test]
    async fn lagging_feed_is_reset_and_goes_on() {
        let lists = Arc::new(Lists::new(2));
        let ids = SequentialIds::default();
        let (owner, other) = (UserId::generate(&ids), UserId::generate(&ids));
        let (slow, fast, foreign) = (lists.subscribe(&owner), lists.subscribe(&owner), lists.subscribe(&other));
        for number in [1, 2, 1] {
            lists.send(&owner, &removed(number));
        }
        assert_eq!(fast.next().await, [removed(2), removed(1)], "the newest change of each conversation");
        for change in [ListChange::ReviewsChanged, removed(6), ListChange::ReviewsChanged] {
            lists.send(&other, &change);
        }
        assert_eq!(foreign.next().await, [removed(6), ListChange::ReviewsChanged]);
        lists.send(&owner, &removed(3));
        lists.send(&owner, &removed(4));
        assert_eq!(slow.next().await, [ListChange::Reset]);
        assert_eq!(fast.next().await, [removed(3), removed(4)]);
        lists.send(&owner, &removed(5));
        assert_eq!(slow.next().await, [removed(5)]);
        lists.reset();
        assert_eq!(foreign.next().await, [ListChange::Reset], "nothing of another owner came before");
    }

    #[test]
    fn hints_cost_nothing_without_feeds() {
        let lists = Arc::new(Lists::new(2));
        lists.add_hint(hint(0));
        assert_eq!(lists.take_hints(), PendingHints::default());
        let feed = lists.subscribe(&UserId::generate(&SequentialIds::default()));
        for number in 0..=MAX_HINTS {
            lists.add_hint(hint(number));
        }
        let pending = lists.take_hints();
        assert_eq!((pending.hints.len(), pending.has_lost), (MAX_HINTS, true));
        drop(feed);
        assert_eq!(lists.owners(), []);
    }
}
