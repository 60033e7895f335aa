//! Hands committed events to the streams of this process, and carries wake-ups.
//!
//! Each subscription has a bounded queue of its own. A reader that is too slow for it loses the queue, not events: it is told
//! to read from the store ([`Tail::Reread`]).

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tokio::sync::Notify;

use crate::domain::event::SharedEvent;
use crate::domain::ids::{ConversationId, RunId};

use super::{HandOff, Signal};

/// Bounds of one subscription's queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HubLimits {
    /// Events.
    pub max_events: usize,
    /// Bytes of event data.
    pub max_bytes: usize,
}

impl Default for HubLimits {
    fn default() -> Self {
        Self { max_events: 256, max_bytes: 1024 * 1024 }
    }
}

/// What a subscription hears.
#[derive(Debug, Clone, PartialEq)]
pub enum Tail {
    /// New events, in order. May begin with some that the reader has already.
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
    end: Option<Ending>,
}

/// Why nothing more will come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ending {
    Deleted,
    Closed,
}

struct Listener {
    queue: Mutex<Queue>,
    wake: Notify,
}

/// Listeners by the order in which they came.
type Crowd = BTreeMap<u64, Weak<Listener>>;

/// Who listens to one conversation.
#[derive(Default)]
struct Audience {
    /// Those who hear of each event.
    listeners: Crowd,
    /// Those who will read from the store anyway, and cost nothing until they do.
    lagging: Crowd,
    next_number: u64,
    /// The newest `seq` that those who listen have been told of.
    published: i64,
}

/// In an order that the same ids always give, so that what is done to all of them can be repeated exactly.
type Listeners = BTreeMap<ConversationId, Audience>;

/// See the module documentation.
pub struct Hub {
    limits: HubLimits,
    listeners: Mutex<Listeners>,
    /// Logs that have grown in other processes since they were last looked at.
    grown: Mutex<BTreeSet<ConversationId>>,
    grown_signal: Signal,
    queue_signal: Signal,
    control_signal: Signal,
    hand_off: HandOff,
    /// Called with the conversations of each published batch; wakes other nodes.
    announce: Mutex<Option<Announce>>,
    /// Called when workers of other nodes may have something to do.
    wake_elsewhere: Mutex<Option<WakeElsewhere>>,
}

impl Audience {
    fn present(&self) -> Vec<Arc<Listener>> {
        self.listeners.values().filter_map(Weak::upgrade).collect()
    }

    fn all(&self) -> Vec<Arc<Listener>> {
        self.listeners.values().chain(self.lagging.values()).filter_map(Weak::upgrade).collect()
    }

    fn is_empty(&self) -> bool {
        self.listeners.is_empty() && self.lagging.is_empty()
    }

    /// Puts those aside who have not begun to read from the store since they began to lag.
    fn put_laggards_aside(&mut self) {
        let lags = |listener: &Weak<Listener>| listener.upgrade().is_some_and(|listener| lock(&listener.queue).reread);
        self.lagging.extend(self.listeners.extract_if(.., |_, listener| lags(listener)));
    }

    /// Whoever begins to read from the store hears of all that comes from then on.
    fn take_back(&mut self, number: u64) {
        if let Some(listener) = self.lagging.remove(&number) {
            self.listeners.insert(number, listener);
        }
    }
}

type Announce = Arc<dyn Fn(&ConversationId) + Send + Sync>;

/// What workers of other processes may have to look at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Elsewhere {
    /// A run may have become claimable.
    Queue,
    /// A run in progress has a control request.
    Control,
}

type WakeElsewhere = Arc<dyn Fn(Elsewhere) + Send + Sync>;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Hub {
    /// A hub without listeners.
    #[must_use]
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

    /// Sets what is told about each conversation that got events from this process.
    pub fn announce_with(&self, announce: Announce) {
        *lock(&self.announce) = Some(announce);
    }

    /// Sets what is told when workers of other processes may have something to do.
    pub fn wake_elsewhere_with(&self, wake: WakeElsewhere) {
        *lock(&self.wake_elsewhere) = Some(wake);
    }

    /// Hands committed events of one conversation to its listeners. Call it after the commit, in `seq` order.
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

    /// The same with events that another process has committed, which nobody else has to hear of from here.
    pub fn relay(&self, conversation: &ConversationId, events: &[SharedEvent]) {
        let Some(last) = events.last() else { return };
        let bytes: usize = events.iter().map(|event| event.data.len()).sum();
        let mut has_laggards = false;
        for listener in self.heard(conversation, last.seq) {
            let mut queue = lock(&listener.queue);
            if queue.reread {
                has_laggards = true;
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
        if has_laggards && let Some(audience) = lock(&self.listeners).get_mut(conversation) {
            audience.put_laggards_aside();
        }
    }

    /// Says that the log of a conversation has grown in another process. Whoever waits for [`Hub::grown`] reads it once for all who
    /// listen here.
    pub fn has_grown(&self, conversation: &ConversationId) {
        if lock(&self.listeners).contains_key(conversation) {
            lock(&self.grown).insert(conversation.clone());
            self.grown_signal.notify();
        }
    }

    /// Waits for logs that have grown in other processes. Each comes with [`Hub::published`].
    /// Cancel-safe.
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

    /// Has all who listen read the store, in which the log reaches to `head` or beyond. What comes after it can be relayed.
    pub fn read_until(&self, conversation: &ConversationId, head: i64) {
        if let Some(audience) = lock(&self.listeners).get_mut(conversation) {
            audience.published = audience.published.max(head);
        }
        self.hint(conversation);
    }

    /// Says that something may have happened in a conversation, without saying what: all who listen read the store.
    pub fn hint(&self, conversation: &ConversationId) {
        for listener in self.of(conversation) {
            lock(&listener.queue).reread = true;
            listener.wake.notify_one();
        }
    }

    /// Says that the log of a conversation ends at `head` though more of it was published: the database has lost commits that it had
    /// confirmed, as after a failover to a replica that was behind.
    pub fn went_back(&self, conversation: &ConversationId, head: i64) {
        if let Some(audience) = lock(&self.listeners).get_mut(conversation) {
            audience.published = head;
        }
        self.hint(conversation);
    }

    /// Ends the subscriptions of a conversation that was deleted.
    pub fn deleted(&self, conversation: &ConversationId) {
        self.end(conversation, Ending::Deleted);
    }

    /// Ends all subscriptions, because the server ends.
    pub fn close_all(&self) {
        for conversation in self.watched() {
            self.end(&conversation, Ending::Closed);
        }
    }

    fn end(&self, conversation: &ConversationId, ending: Ending) {
        for listener in self.of(conversation) {
            lock(&listener.queue).end.get_or_insert(ending);
            listener.wake.notify_one();
        }
    }

    /// The conversations that somebody listens to.
    #[must_use]
    pub fn watched(&self) -> Vec<ConversationId> {
        let mut listeners = lock(&self.listeners);
        listeners.retain(|_, audience| {
            audience.listeners.retain(|_, listener| listener.strong_count() > 0);
            audience.lagging.retain(|_, listener| listener.strong_count() > 0);
            !audience.is_empty()
        });
        listeners.keys().cloned().collect()
    }

    /// The newest `seq` that was told of in a conversation since somebody began to listen to it; 0 if none was.
    #[must_use]
    pub fn published(&self, conversation: &ConversationId) -> i64 {
        lock(&self.listeners).get(conversation).map_or(0, |audience| audience.published)
    }

    /// Listens to a conversation from now on. Subscribe first, then read the store: nothing falls between.
    #[must_use]
    pub fn subscribe(self: &Arc<Self>, conversation: &ConversationId) -> Subscription {
        let listener = Arc::new(Listener { queue: Mutex::default(), wake: Notify::new() });
        let mut listeners = lock(&self.listeners);
        let audience = listeners.entry(conversation.clone()).or_default();
        let number = audience.next_number;
        audience.next_number += 1;
        audience.listeners.insert(number, Arc::downgrade(&listener));
        drop(listeners);
        Subscription { hub: Arc::clone(self), conversation: conversation.clone(), number, listener }
    }

    /// Woken when a run may have become claimable.
    #[must_use]
    pub fn queue_signal(&self) -> &Signal {
        &self.queue_signal
    }

    /// Woken when a run in progress may have been asked to end or to take in a message.
    #[must_use]
    pub fn control_signal(&self) -> &Signal {
        &self.control_signal
    }

    /// Returns the way of accepted runs to the worker of this process.
    #[must_use]
    pub fn hand_off(&self) -> &HandOff {
        &self.hand_off
    }

    /// Says that a run may have become claimable, here and elsewhere.
    pub fn notify_queue(&self) {
        self.queue_signal.notify();
        self.wake(Elsewhere::Queue);
    }

    /// Says that `_run` has a control request waiting in the store, here and elsewhere.
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
        lock(&self.listeners).get(conversation).map(Audience::all).unwrap_or_default()
    }

    /// Those who listen to a conversation, noting that they hear of events up to `seq`.
    fn heard(&self, conversation: &ConversationId, seq: i64) -> Vec<Arc<Listener>> {
        let mut listeners = lock(&self.listeners);
        let Some(audience) = listeners.get_mut(conversation) else { return Vec::new() };
        audience.published = audience.published.max(seq);
        audience.present()
    }
}

/// One reader's place at the tail. Dropping it ends it.
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
                match queue.end {
                    Some(Ending::Deleted) => return Tail::Deleted,
                    Some(Ending::Closed) => return Tail::Closed,
                    None => {}
                }
            }
            self.listener.wake.notified().await;
        }
    }

    /// Whether the store is to be read. From now on the queue holds what comes after that.
    fn is_to_reread(&self) -> bool {
        if !lock(&self.listener.queue).reread {
            return false;
        }
        // Both locks, in the order in which laggards are put aside: nobody is put aside who has just begun to read.
        let mut listeners = lock(&self.hub.listeners);
        let mut queue = lock(&self.listener.queue);
        queue.reread = false;
        queue.events.clear();
        queue.bytes = 0;
        if let Some(audience) = listeners.get_mut(&self.conversation) {
            audience.take_back(self.number);
        }
        true
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        let mut listeners = lock(&self.hub.listeners);
        if let Some(audience) = listeners.get_mut(&self.conversation) {
            audience.listeners.remove(&self.number);
            audience.lagging.remove(&self.number);
            if audience.is_empty() {
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
            let audience = &listeners[&conversation()];
            (audience.listeners.len(), audience.lagging.len())
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
