//! Hands committed events to the streams of this process, and carries wake-ups.
//!
//! Each subscription has a bounded queue. A lagging subscriber loses the queue, not events: it is told to read from the store
//! ([`Tail::Reread`]).

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, Weak};

use tokio::sync::Notify;

use crate::domain::event::SharedEvent;
use crate::domain::ids::{ConversationId, RunId};
use crate::support::locks::lock;

use super::{HandOff, Signal};

/// Bounds of one subscription's queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HubLimits {
    pub max_events: usize,
    /// Of event data.
    pub max_bytes: usize,
}

impl Default for HubLimits {
    fn default() -> Self {
        Self { max_events: 256, max_bytes: 1024 * 1024 }
    }
}

/// News of a subscription.
#[derive(Debug, Clone, PartialEq)]
pub enum Tail {
    /// New events, in order. May begin with events that the reader already has.
    Events(Vec<SharedEvent>),
    /// Something may have happened; the store knows what.
    Reread,
    /// The conversation was deleted; nothing more will come.
    Deleted,
    /// The server is shutting down; nothing more will come from here.
    Closed,
}

#[derive(Default)]
struct Queue {
    events: VecDeque<SharedEvent>,
    bytes: usize,
    reread: bool,
    /// [`Tail::Deleted`] or [`Tail::Closed`].
    end: Option<Tail>,
}

struct Listener {
    queue: Mutex<Queue>,
    wake: Notify,
}

/// Subscribers in the order of their arrival.
type SubscriberMap = BTreeMap<u64, Weak<Listener>>;

/// The subscribers of one conversation.
#[derive(Default)]
struct Subscribers {
    listeners: SubscriberMap,
    /// Subscribers that will read from the store anyway, and are skipped until they do.
    lagging: SubscriberMap,
    next_number: u64,
    /// The newest published `seq`.
    published: i64,
}

/// Ordered, so that what is done to all of them is reproducible.
type Listeners = BTreeMap<ConversationId, Subscribers>;

pub struct Hub {
    limits: HubLimits,
    listeners: Mutex<Listeners>,
    /// Logs that other processes appended to, and that were not read since.
    grown: Mutex<BTreeSet<ConversationId>>,
    grown_signal: Signal,
    queue_signal: Signal,
    control_signal: Signal,
    hand_off: HandOff,
    /// Tells other nodes about events of this one.
    announce: Mutex<Option<Announce>>,
    wake_elsewhere: Mutex<Option<WakeElsewhere>>,
}

impl Subscribers {
    fn present(&self) -> Vec<Arc<Listener>> {
        self.listeners.values().filter_map(Weak::upgrade).collect()
    }

    fn all(&self) -> Vec<Arc<Listener>> {
        self.listeners.values().chain(self.lagging.values()).filter_map(Weak::upgrade).collect()
    }

    fn is_empty(&self) -> bool {
        self.listeners.is_empty() && self.lagging.is_empty()
    }

    /// Puts lagging subscribers aside until they read from the store.
    fn set_lagging_aside(&mut self) {
        let lags = |listener: &Weak<Listener>| listener.upgrade().is_some_and(|listener| lock(&listener.queue).reread);
        self.lagging.extend(self.listeners.extract_if(.., |_, listener| lags(listener)));
    }

    fn take_back(&mut self, number: u64) {
        if let Some(listener) = self.lagging.remove(&number) {
            self.listeners.insert(number, listener);
        }
    }
}

type Announce = Arc<dyn Fn(&ConversationId) + Send + Sync>;

/// Wake-ups for workers of other processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Elsewhere {
    /// A run may have become claimable.
    Queue,
    /// A run in progress has a control request.
    Control,
}

type WakeElsewhere = Arc<dyn Fn(Elsewhere) + Send + Sync>;

impl Hub {
    pub fn new(limits: HubLimits) -> Arc<Self> {
        Arc::new(Self {
            limits,
            listeners: Mutex::default(),
            grown: Mutex::default(),
            grown_signal: Signal::default(),
            queue_signal: Signal::default(),
            control_signal: Signal::default(),
            hand_off: HandOff::default(),
            announce: Mutex::default(),
            wake_elsewhere: Mutex::default(),
        })
    }

    /// Sets a callback for each conversation that got events from this process.
    pub fn announce_with(&self, announce: Announce) {
        *lock(&self.announce) = Some(announce);
    }

    /// Sets a callback to wake workers of other processes.
    pub fn wake_elsewhere_with(&self, wake: WakeElsewhere) {
        *lock(&self.wake_elsewhere) = Some(wake);
    }

    /// Hands committed events of a conversation to its subscribers here, and announces them to other nodes. Called after the
    /// commit, in `seq` order.
    pub fn publish(&self, conversation: &ConversationId, events: &[SharedEvent]) {
        if events.is_empty() {
            return;
        }
        self.relay(conversation, events);
        let announce = lock(&self.announce).clone();
        if let Some(announce) = announce {
            announce(conversation);
        }
    }

    /// Hands events that another process has committed to the subscribers here.
    pub fn relay(&self, conversation: &ConversationId, events: &[SharedEvent]) {
        let Some(last) = events.last() else { return };
        let bytes: usize = events.iter().map(|event| event.data.len()).sum();
        let mut has_lagging = false;
        for listener in self.heard(conversation, last.seq) {
            let mut queue = lock(&listener.queue);
            if queue.reread {
                has_lagging = true;
                continue;
            }
            if queue.events.len() + events.len() > self.limits.max_events || queue.bytes + bytes > self.limits.max_bytes {
                queue.events.clear();
                queue.bytes = 0;
                queue.reread = true;
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

    /// Notes that another process appended to a log, which the waiter of [`Hub::grown`] reads once for all subscribers.
    pub fn has_grown(&self, conversation: &ConversationId) {
        if lock(&self.listeners).contains_key(conversation) {
            lock(&self.grown).insert(conversation.clone());
            self.grown_signal.notify();
        }
    }

    /// Waits for logs that other processes appended to, each with [`Hub::published`]. Cancel-safe.
    pub async fn grown(&self) -> Vec<(ConversationId, i64)> {
        loop {
            self.grown_signal.wait().await;
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

    /// Has all subscribers read the store, where the log reaches to `head` or beyond. Later events can be relayed.
    pub fn read_until(&self, conversation: &ConversationId, head: i64) {
        if let Some(subscribers) = lock(&self.listeners).get_mut(conversation) {
            subscribers.published = subscribers.published.max(head);
        }
        self.hint(conversation);
    }

    /// Has all subscribers of a conversation read the store.
    pub fn hint(&self, conversation: &ConversationId) {
        for listener in self.of(conversation) {
            lock(&listener.queue).reread = true;
            listener.wake.notify_one();
        }
    }

    /// Notes that the log ends at `head`, before what was published: the database has lost confirmed commits, as after a failover
    /// to a lagging replica.
    pub fn went_back(&self, conversation: &ConversationId, head: i64) {
        if let Some(subscribers) = lock(&self.listeners).get_mut(conversation) {
            subscribers.published = head;
        }
        self.hint(conversation);
    }

    /// Ends the subscriptions of a conversation that was deleted.
    pub fn deleted(&self, conversation: &ConversationId) {
        self.end(conversation, &Tail::Deleted);
    }

    /// Ends all subscriptions, at shutdown.
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

    /// Returns the conversations with subscribers.
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

    /// Subscribes to a conversation. Subscribe first, then read the store, so that no event is missed.
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

    /// Woken when a run may have become claimable.
    pub fn queue_signal(&self) -> &Signal {
        &self.queue_signal
    }

    /// Woken when a run in progress may have been asked to end or to take in a message.
    pub fn control_signal(&self) -> &Signal {
        &self.control_signal
    }

    pub fn hand_off(&self) -> &HandOff {
        &self.hand_off
    }

    /// Wakes workers here and elsewhere, because a run may have become claimable.
    pub fn notify_queue(&self) {
        self.queue_signal.notify();
        self.wake(Elsewhere::Queue);
    }

    /// Wakes workers here and elsewhere, because `_run` has a control request in the store.
    pub fn notify_control(&self, _run: &RunId) {
        self.control_signal.notify();
        self.wake(Elsewhere::Control);
    }

    fn wake(&self, what: Elsewhere) {
        let wake = lock(&self.wake_elsewhere).clone();
        if let Some(wake) = wake {
            wake(what);
        }
    }

    fn of(&self, conversation: &ConversationId) -> Vec<Arc<Listener>> {
        lock(&self.listeners).get(conversation).map(Subscribers::all).unwrap_or_default()
    }

    /// Returns the subscribers of a conversation, to which events up to `seq` are published.
    fn heard(&self, conversation: &ConversationId, seq: i64) -> Vec<Arc<Listener>> {
        let mut listeners = lock(&self.listeners);
        let Some(subscribers) = listeners.get_mut(conversation) else { return Vec::new() };
        subscribers.published = subscribers.published.max(seq);
        subscribers.present()
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
    /// Waits for news. Cancel-safe.
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

    /// Returns whether the store is to be read. The queue then holds later events.
    fn is_to_reread(&self) -> bool {
        if !lock(&self.listener.queue).reread {
            return false;
        }
        // Both locks, in the order of `set_lagging_aside`, so that a subscriber that begins to read is not put aside.
        let mut listeners = lock(&self.hub.listeners);
        let mut queue = lock(&self.listener.queue);
        queue.reread = false;
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
    async fn a_slow_reader_is_told_to_reread() {
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
    async fn who_lags_costs_nothing_and_loses_nothing() {
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

        // Aside, it still hears of hints, and of the end.
        for seq in 6..9 {
            hub.publish(&conversation(), &[event(seq)]);
        }
        hub.hint(&conversation());
        hub.deleted(&conversation());
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
