//! Distributes committed events to the streams of this process, and carries wake-ups.
//!
//! Each subscription has a bounded queue. A lagging subscriber loses its queue, but no events: it then reads from the store
//! ([`Tail::Reread`]).

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, Weak};

use tokio::sync::Notify;

use crate::domain::conversation::ListHint;
use crate::domain::event::SharedEvent;
use crate::domain::ids::{ConversationId, UserId};
use crate::support::locks::lock;

use super::{HandOff, Lists};

/// Limits of one subscription's queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HubLimits {
    pub max_events: usize,
    /// In bytes of event data.
    pub max_bytes: usize,
}

impl Default for HubLimits {
    fn default() -> Self {
        Self { max_events: 256, max_bytes: 1024 * 1024 }
    }
}

/// An item from a subscription.
#[derive(Debug, Clone, PartialEq)]
pub enum Tail {
    /// New events, in order. May begin with events that the reader already has.
    Events(Vec<SharedEvent>),
    /// Something may have happened: read the store.
    Reread,
    /// The conversation was deleted. The subscription ends.
    Deleted,
    /// The server is shutting down. The subscription ends.
    Closed,
}

#[derive(Default)]
struct Queue {
    events: VecDeque<SharedEvent>,
    bytes: usize,
    must_reread: bool,
    /// [`Tail::Deleted`] or [`Tail::Closed`].
    end: Option<Tail>,
}

struct Listener {
    queue: Mutex<Queue>,
    wake: Notify,
}

/// Subscribers by number, in order of arrival.
type SubscriberMap = BTreeMap<u64, Weak<Listener>>;

#[derive(Default)]
struct Subscribers {
    listeners: SubscriberMap,
    /// Lagging subscribers, which will read the store anyway. They are skipped until they do.
    lagging: SubscriberMap,
    next_number: u64,
    published: i64,
}

/// Ordered, so that an action on all of them is reproducible.
type Listeners = BTreeMap<ConversationId, Subscribers>;

pub struct Hub {
    limits: HubLimits,
    listeners: Mutex<Listeners>,
    /// Conversations to whose logs other processes appended since the last read.
    grown: Mutex<BTreeSet<ConversationId>>,
    grown_signal: Notify,
    queue_signal: Notify,
    control_signal: Notify,
    hand_off: HandOff,
    lists: Arc<Lists>,
    announce: Mutex<Option<Announce>>,
    wake_elsewhere: Mutex<Option<RemoteWakeupSender>>,
}

impl Subscribers {
    fn listeners(&self) -> Vec<Arc<Listener>> {
        self.listeners.values().filter_map(Weak::upgrade).collect()
    }

    fn all(&self) -> Vec<Arc<Listener>> {
        self.listeners.values().chain(self.lagging.values()).filter_map(Weak::upgrade).collect()
    }

    fn is_empty(&self) -> bool {
        self.listeners.is_empty() && self.lagging.is_empty()
    }

    /// Skips lagging subscribers until they read from the store.
    fn set_lagging_aside(&mut self) {
        let lags = |listener: &Weak<Listener>| listener.upgrade().is_some_and(|listener| lock(&listener.queue).must_reread);
        self.lagging.extend(self.listeners.extract_if(.., |_, listener| lags(listener)));
    }

    fn take_back(&mut self, number: u64) {
        if let Some(listener) = self.lagging.remove(&number) {
            self.listeners.insert(number, listener);
        }
    }
}

type Announce = Arc<dyn Fn(&ConversationId) + Send + Sync>;

/// Wake-ups for other processes: for their workers, and for the feeds of owners.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RemoteWakeup {
    /// A run may have become claimable.
    Queue,
    /// A running run has a control request.
    Control,
    /// The feeds of an owner may have to show a change.
    List(ListHint),
}

type RemoteWakeupSender = Arc<dyn Fn(RemoteWakeup) + Send + Sync>;

impl Hub {
    pub fn new(limits: HubLimits) -> Arc<Self> {
        Arc::new(Self {
            limits,
            listeners: Mutex::default(),
            grown: Mutex::default(),
            grown_signal: Notify::new(),
            queue_signal: Notify::new(),
            control_signal: Notify::new(),
            hand_off: HandOff::default(),
            lists: Arc::new(Lists::new(limits.max_events)),
            announce: Mutex::default(),
            wake_elsewhere: Mutex::default(),
        })
    }

    /// Sets the callback for conversations to which this process appended events.
    pub fn announce_with(&self, announce: Announce) {
        *lock(&self.announce) = Some(announce);
    }

    pub fn wake_elsewhere_with(&self, wake: RemoteWakeupSender) {
        *lock(&self.wake_elsewhere) = Some(wake);
    }

    /// Distributes committed events of a conversation to local subscribers, and announces them to other nodes. Must be called after
    /// the commit, in `seq` order.
    pub fn publish(&self, conversation: &ConversationId, events: &[SharedEvent]) {
        if events.is_empty() {
            return;
        }
        self.relay(conversation, events);
        if events.iter().any(|event| event.changes_list()) {
            self.list_changed(conversation);
        }
        let announce = lock(&self.announce).clone();
        if let Some(announce) = announce {
            announce(conversation);
        }
    }

    /// Distributes committed events of any process to local subscribers, without an announcement to other nodes.
    pub fn relay(&self, conversation: &ConversationId, events: &[SharedEvent]) {
        let Some(last) = events.last() else { return };
        let bytes: usize = events.iter().map(|event| event.data.len()).sum();
        let mut has_lagging = false;
        for listener in self.listeners_for(conversation, last.seq) {
            let mut queue = lock(&listener.queue);
            if queue.must_reread {
                has_lagging = true;
                continue;
            }
            if queue.events.len() + events.len() > self.limits.max_events || queue.bytes + bytes > self.limits.max_bytes {
                queue.events.clear();
                queue.bytes = 0;
                queue.must_reread = true;
            } else {
                queue.bytes += bytes;
                queue.events.extend(events.iter().cloned());
            }
            drop(queue);
            listener.wake.notify_one();
        }
        if has_lagging && let Some(subscribers) = lock(&self.listeners).get_mut(conversation) {
            subscribers.set_lagging_aside();
        }
    }

    /// Records that another process appended to a log. The caller of [`Hub::foreign_appends`] reads it once for all subscribers.
    pub fn has_grown(&self, conversation: &ConversationId) {
        if lock(&self.listeners).contains_key(conversation) {
            lock(&self.grown).insert(conversation.clone());
            self.grown_signal.notify_one();
        }
    }

    /// Waits for logs to which other processes appended, and returns each with [`Hub::published`]. Cancel-safe.
    pub async fn foreign_appends(&self) -> Vec<(ConversationId, i64)> {
        loop {
            self.grown_signal.notified().await;
            let grown = std::mem::take(&mut *lock(&self.grown));
            let listeners = lock(&self.listeners);
            let heard = |conversation: ConversationId| {
                let published = listeners.get(&conversation)?.published;
                Some((conversation, published))
            };
            let grown: Vec<_> = grown.into_iter().filter_map(heard).collect();
            if !grown.is_empty() {
                return grown;
            }
        }
    }

    /// Tells all subscribers to read the store, whose log reaches at least `head`. Events up to `head` count as published.
    pub fn read_until(&self, conversation: &ConversationId, head: i64) {
        if let Some(subscribers) = lock(&self.listeners).get_mut(conversation) {
            subscribers.published = subscribers.published.max(head);
        }
        self.hint(conversation);
    }

    /// Tells all subscribers of a conversation to read the store.
    pub fn hint(&self, conversation: &ConversationId) {
        for listener in self.of(conversation) {
            lock(&listener.queue).must_reread = true;
            listener.wake.notify_one();
        }
    }

    /// Records that the log ends at `head`, before events that were published. The database has lost confirmed commits, as after a
    /// failover to a lagging replica.
    pub fn log_truncated(&self, conversation: &ConversationId, head: i64) {
        if let Some(subscribers) = lock(&self.listeners).get_mut(conversation) {
            subscribers.published = head;
        }
        self.hint(conversation);
    }

    /// Ends the subscriptions of a deleted conversation, and removes it from the list of its owner.
    pub fn deleted(&self, owner: &UserId, conversation: &ConversationId) {
        self.end(conversation, &Tail::Deleted);
        self.hint_list(ListHint::Removed(conversation.clone(), owner.clone()));
    }

    /// Tells the feeds of all nodes that the item of a conversation in its owner's list may have changed. Must be called after the
    /// commit.
    pub fn list_changed(&self, conversation: &ConversationId) {
        self.hint_list(ListHint::Changed(conversation.clone()));
    }

    /// Tells the feeds of all nodes that the tool reviews of this owner's servers may have changed; `None` for servers that all
    /// users may use. Must be called after the commit.
    pub fn reviews_changed(&self, owner: Option<&UserId>) {
        self.hint_list(ListHint::Reviews(owner.cloned()));
    }

    fn hint_list(&self, hint: ListHint) {
        self.lists.add_hint(hint.clone());
        self.wake(RemoteWakeup::List(hint));
    }

    pub fn lists(&self) -> &Arc<Lists> {
        &self.lists
    }

    pub fn close_all(&self) {
        for conversation in self.watched() {
            self.end(&conversation, &Tail::Closed);
        }
    }

    fn end(&self, conversation: &ConversationId, end: &Tail) {
        for listener in self.of(conversation) {
            lock(&listener.queue).end.get_or_insert_with(|| end.clone());
            listener.wake.notify_one();
        }
    }

    /// Returns the conversations that have subscribers.
    pub fn watched(&self) -> Vec<ConversationId> {
        let mut listeners = lock(&self.listeners);
        listeners.retain(|_, subscribers| {
            subscribers.listeners.retain(|_, listener| listener.strong_count() > 0);
            subscribers.lagging.retain(|_, listener| listener.strong_count() > 0);
            !subscribers.is_empty()
        });
        listeners.keys().cloned().collect()
    }

    /// Returns the newest published `seq` of a conversation with subscribers; 0 if there is none.
    pub fn published(&self, conversation: &ConversationId) -> i64 {
        lock(&self.listeners).get(conversation).map_or(0, |subscribers| subscribers.published)
    }

    /// Subscribes to a conversation. A reader subscribes before it reads the store, so that it misses no event.
    pub fn subscribe(self: &Arc<Self>, conversation: &ConversationId) -> Subscription {
        let listener = Arc::new(Listener { queue: Mutex::default(), wake: Notify::new() });
        let mut listeners = lock(&self.listeners);
        let subscribers = listeners.entry(conversation.clone()).or_default();
        let number = subscribers.next_number;
        subscribers.next_number += 1;
        subscribers.listeners.insert(number, Arc::downgrade(&listener));
        drop(listeners);
        Subscription { hub: Arc::clone(self), conversation: conversation.clone(), number, listener }
    }

    /// Notified when a run may have become claimable.
    pub fn queue_signal(&self) -> &Notify {
        &self.queue_signal
    }

    /// Notified when a running run may have a cancellation or a new message.
    pub fn control_signal(&self) -> &Notify {
        &self.control_signal
    }

    pub fn hand_off(&self) -> &HandOff {
        &self.hand_off
    }

    /// Wakes local and remote workers, because a run may have become claimable.
    pub fn notify_queue(&self) {
        self.queue_signal.notify_one();
        self.wake(RemoteWakeup::Queue);
    }

    /// Wakes local and remote workers, because a running run has a control request in the store.
    pub fn notify_control(&self) {
        self.control_signal.notify_one();
        self.wake(RemoteWakeup::Control);
    }

    fn wake(&self, wakeup: RemoteWakeup) {
        let wake = lock(&self.wake_elsewhere).clone();
        if let Some(wake) = wake {
            wake(wakeup);
        }
    }

    fn of(&self, conversation: &ConversationId) -> Vec<Arc<Listener>> {
        lock(&self.listeners).get(conversation).map(Subscribers::all).unwrap_or_default()
    }

    /// Records that events up to `seq` are published, and returns the subscribers of the conversation.
    fn listeners_for(&self, conversation: &ConversationId, seq: i64) -> Vec<Arc<Listener>> {
        let mut listeners = lock(&self.listeners);
        let Some(subscribers) = listeners.get_mut(conversation) else { return Vec::new() };
        subscribers.published = subscribers.published.max(seq);
        subscribers.listeners()
    }
}

/// A reader of the live tail. Dropping it ends the subscription.
pub struct Subscription {
    hub: Arc<Hub>,
    conversation: ConversationId,
    number: u64,
    listener: Arc<Listener>,
}

impl Subscription {
    /// Waits for the next item. Cancel-safe.
    pub async fn next(&self) -> Tail {
        loop {
            if self.is_to_reread() {
                return Tail::Reread;
            }
            {
                let mut queue = lock(&self.listener.queue);
                if !queue.events.is_empty() {
                    queue.bytes = 0;
                    return Tail::Events(std::mem::take(&mut queue.events).into());
                }
                if let Some(end) = &queue.end {
                    return end.clone();
                }
            }
            self.listener.wake.notified().await;
        }
    }

    /// Returns whether the reader must read the store. The queue then contains only later events.
    fn is_to_reread(&self) -> bool {
        if !lock(&self.listener.queue).must_reread {
            return false;
        }
        // Takes both locks in the order of `set_lagging_aside`, so that a subscriber that begins to read is not skipped.
        let mut listeners = lock(&self.hub.listeners);
        let mut queue = lock(&self.listener.queue);
        queue.must_reread = false;
        queue.events.clear();
        queue.bytes = 0;
        if let Some(subscribers) = listeners.get_mut(&self.conversation) {
            subscribers.take_back(self.number);
        }
        true
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        let mut listeners = lock(&self.hub.listeners);
        if let Some(subscribers) = listeners.get_mut(&self.conversation) {
            subscribers.listeners.remove(&self.number);
            subscribers.lagging.remove(&self.number);
            if subscribers.is_empty() {
                listeners.remove(&self.conversation);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::event::StoredEvent;
    use crate::support::clock::UnixMillis;

    fn conversation() -> ConversationId {
        ConversationId::parse("conv_01980000000070008000000000000003").unwrap()
    }

    fn event(seq: i64) -> SharedEvent {
        Arc::new(StoredEvent {
            seq,
            kind: "part.delta".into(),
            conversation_id: conversation(),
            run_id: None,
            attempt: 0,
            at: UnixMillis(0),
            data: "{}".to_owned(),
        })
    }

    #[tokio::test]
    async fn lagging_subscriber_is_sent_to_the_store() {
        let hub = Hub::new(HubLimits { max_events: 2, max_bytes: 1000 });
        let slow = hub.subscribe(&conversation());
        let fast = hub.subscribe(&conversation());
        hub.publish(&conversation(), &[event(1), event(2)]);
        assert_eq!(fast.next().await, Tail::Events(vec![event(1), event(2)]));
        hub.publish(&conversation(), &[event(3)]);
        assert_eq!(slow.next().await, Tail::Reread);
        assert_eq!(fast.next().await, Tail::Events(vec![event(3)]));
        hub.publish(&conversation(), &[event(4)]);
        assert_eq!(slow.next().await, Tail::Events(vec![event(4)]));
        hub.close_all();
        assert_eq!(slow.next().await, Tail::Closed);
    }

    #[tokio::test]
    async fn lagging_subscriber_holds_no_memory_and_misses_nothing() {
        let hub = Hub::new(HubLimits { max_events: 1, max_bytes: 1000 });
        let slow = hub.subscribe(&conversation());
        let aside = || {
            let listeners = lock(&hub.listeners);
            let subscribers = &listeners[&conversation()];
            (subscribers.listeners.len(), subscribers.lagging.len())
        };
        hub.publish(&conversation(), &[event(1)]);
        hub.publish(&conversation(), &[event(2)]);
        hub.publish(&conversation(), &[event(3)]);
        assert_eq!(aside(), (0, 1));
        hub.publish(&conversation(), &[event(4)]);
        assert_eq!(hub.published(&conversation()), 4);
        assert_eq!(hub.watched(), [conversation()]);
        assert_eq!(slow.next().await, Tail::Reread);
        assert_eq!(aside(), (1, 0));
        hub.publish(&conversation(), &[event(5)]);
        assert_eq!(slow.next().await, Tail::Events(vec![event(5)]));

        // A skipped subscriber still receives hints, and the end.
        for seq in 6..9 {
            hub.publish(&conversation(), &[event(seq)]);
        }
        hub.hint(&conversation());
        hub.deleted(&UserId::from_stored("user_1".to_owned()), &conversation());
        assert_eq!(slow.next().await, Tail::Reread);
        assert_eq!(slow.next().await, Tail::Deleted);
        for seq in 9..12 {
            hub.publish(&conversation(), &[event(seq)]);
        }
        assert_eq!(aside(), (0, 1));
        drop(slow);
        assert!(lock(&hub.listeners).is_empty());
    }

    #[tokio::test]
    async fn a_dropped_reader_leaves_nothing_behind() {
        let hub = Hub::new(HubLimits::default());
        drop(hub.subscribe(&conversation()));
        assert!(lock(&hub.listeners).is_empty());
        assert!(hub.watched().is_empty());
    }
}
