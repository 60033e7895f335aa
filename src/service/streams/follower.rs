//! Follows the logs that other processes write to, for all streams of this process.
//!
//! Each log is read once, however many streams follow it. A stream that lags, or finds a gap, reads the store by itself.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt as _, stream};
use tokio_util::sync::CancellationToken;

use crate::domain::event::SharedEvent;
use crate::domain::ids::ConversationId;
use crate::live::Hub;
use crate::service::streams::list_follower;
use crate::store::{LogStore, ServiceStore, StoreResult, is_full_page};

/// The polling interval for heads of watched logs if other processes may write.
const EVERY: Duration = Duration::from_millis(250);

/// The polling interval of a single process. It publishes the events that it stores, unless a task ends between the two steps.
const EVERY_ALONE: Duration = Duration::from_secs(2);

/// Number of events in one read of a log: the capacity of a subscriber's queue.
const NEWS: u32 = 256;

/// Number of logs in one query. Together they have at most 16 MiB.
const LOGS: usize = 16;

const AT_A_TIME: usize = 4;

/// The time limit of a query. After it, the subscribers read for themselves, so that a stuck connection delays only the streams
/// that wait for it.
const PATIENCE: Duration = Duration::from_secs(1);

/// Reads the logs that are known to have grown. Also polls the heads of all watched logs in one query, every 250 ms (2 s if the
/// store is not [`CommonStore::is_shared`](crate::store::CommonStore::is_shared)). Notifications are faster, but optional. Reads
/// and polls do not wait for each other. Also reads the changed items of lists that have feeds. Ends with `stop`.
pub async fn follow_logs(store: Arc<dyn ServiceStore>, hub: Arc<Hub>, stop: CancellationToken) {
    let every = if store.is_shared() { EVERY } else { EVERY_ALONE };
    let lists = list_follower::follow(store.as_ref(), hub.lists());
    stop.run_until_cancelled(async { tokio::join!(follow(store.as_ref(), &hub, every), lists) }).await;
}

async fn follow(store: &dyn LogStore, hub: &Hub, every: Duration) {
    let polling = async {
        let mut poll = Poll { store, hub, seen_heads: HashMap::new(), is_failing: false };
        let mut ticks = tokio::time::interval(every);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            poll.heads().await;
        }
    };
    let relaying = async {
        loop {
            let grown = hub.foreign_appends().await;
            let relayed = |logs| relay_in_time(store, hub, logs);
            stream::iter(grown.chunks(LOGS)).for_each_concurrent(AT_A_TIME, relayed).await;
        }
    };
    tokio::select! {
        biased;
        never = relaying => never,
        never = polling => never,
    }
}

/// Relays new events of some logs, or tells their subscribers to read for themselves.
async fn relay_in_time(store: &dyn LogStore, hub: &Hub, logs: &[(ConversationId, i64)]) {
    match tokio::time::timeout(PATIENCE, relay_news(store, hub, logs)).await {
        Ok(Ok(())) => return,
        Ok(Err(error)) => tracing::debug!(
            error = &error as &dyn std::error::Error,
            "cannot read new events for all streams: each stream reads for itself"
        ),
        Err(_elapsed) => tracing::debug!(logs = logs.len(), "reading new events timed out: each stream reads for itself"),
    }
    logs.iter().for_each(|(conversation, _)| hub.hint(conversation));
}

pub(in crate::service) async fn relay_news(store: &dyn LogStore, hub: &Hub, logs: &[(ConversationId, i64)]) -> StoreResult<()> {
    let (known, unknown): (Vec<_>, Vec<_>) = logs.iter().cloned().partition(|(_, published)| *published > 0);
    if !unknown.is_empty() {
        // The positions of the subscribers are unknown here, so each of them reads once. After that, events are relayed.
        let unknown: Vec<ConversationId> = unknown.into_iter().map(|(conversation, _)| conversation).collect();
        for (conversation, head) in store.heads(&unknown).await? {
            hub.read_until(&conversation, head);
        }
    }
    if known.is_empty() {
        return Ok(());
    }
    for (conversation, events) in store.events_after(&known, NEWS).await? {
        let goes_on = is_full_page(&events, NEWS);
        let events: Vec<SharedEvent> = events.into_iter().map(Arc::new).collect();
        hub.relay(&conversation, &events);
        if goes_on {
            hub.has_grown(&conversation);
        }
    }
    Ok(())
}

struct Poll<'a> {
    store: &'a dyn LogStore,
    hub: &'a Hub,
    /// The heads of the last poll.
    seen_heads: HashMap<ConversationId, i64>,
    is_failing: bool,
}

impl Poll<'_> {
    async fn heads(&mut self) {
        let hub = self.hub;
        let watched = hub.watched();
        if watched.is_empty() {
            self.seen_heads.clear();
            return;
        }
        // `published` is read before the heads, so that every published event is in the log.
        let published: Vec<i64> = watched.iter().map(|conversation| hub.published(conversation)).collect();
        let heads = match self.store.heads(&watched).await {
            Ok(heads) => heads,
            Err(error) => {
                if !std::mem::replace(&mut self.is_failing, true) {
                    tracing::warn!(error = &error as &dyn std::error::Error, "cannot poll for events that were not published here");
                }
                return;
            }
        };
        self.is_failing = false;
        let heads: HashMap<ConversationId, i64> = heads.into_iter().collect();
        for (conversation, published) in watched.iter().zip(published) {
            let before = self.seen_heads.get(conversation).copied().unwrap_or(-1);
            match heads.get(conversation) {
                // A log never becomes shorter.
                Some(head) if *head < before.max(published) => {
                    tracing::error!(conversation.id = %conversation, head, "the database has lost events that it had confirmed");
                    hub.log_truncated(conversation, *head);
                }
                // Events that this process published need no hint: the subscribers have received them.
                Some(head) if *head > before.max(hub.published(conversation)) => hub.has_grown(conversation),
                // The conversation has no log: another node has deleted it, or it is just being created here. The subscribers find
                // out from the store.
                None => hub.hint(conversation),
                Some(_) => {}
            }
        }
        self.seen_heads = heads;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use async_trait::async_trait;
    use tokio::time::Instant;

    use super::*;
    use crate::domain::event::StoredEvent;
    use crate::domain::ids::UserId;
    use crate::domain::run::record::RunWrite;
    use crate::live::{HubLimits, Tail};
    use crate::store::{CommitReceipt, LogBounds, WriteRejection};
    use crate::support::clock::UnixMillis;

    /// A store that is slow to return heads, and has one more event of each requested log, or never answers.
    struct Slow {
        heads: Duration,
        hangs: Option<ConversationId>,
        asked: Mutex<usize>,
        newest: Mutex<i64>,
    }

    impl Slow {
        fn new(heads: Duration, hangs: Option<ConversationId>) -> Self {
            Self { heads, hangs, asked: Mutex::default(), newest: Mutex::new(1) }
        }
    }

    #[async_trait]
    impl LogStore for Slow {
        async fn commit(&self, _: &[RunWrite]) -> StoreResult<Vec<Result<CommitReceipt, WriteRejection>>> {
            Ok(Vec::new())
        }

        async fn events(&self, _: &UserId, _: &ConversationId, _: i64, _: u32) -> StoreResult<Vec<StoredEvent>> {
            Ok(Vec::new())
        }

        async fn log_bounds(&self, _: &UserId, _: &ConversationId) -> StoreResult<Option<LogBounds>> {
            Ok(None)
        }

        async fn heads(&self, logs: &[ConversationId]) -> StoreResult<Vec<(ConversationId, i64)>> {
            *self.asked.lock().unwrap() += 1;
            tokio::time::sleep(self.heads).await;
            Ok(logs.iter().map(|log| (log.clone(), *self.newest.lock().unwrap())).collect())
        }

        async fn events_after(
            &self,
            after: &[(ConversationId, i64)],
            _: u32,
        ) -> StoreResult<Vec<(ConversationId, Vec<StoredEvent>)>> {
            if after.iter().any(|(log, _)| Some(log) == self.hangs.as_ref()) {
                std::future::pending::<()>().await;
            }
            *self.newest.lock().unwrap() = after.iter().map(|(_, seq)| seq + 1).max().unwrap();
            Ok(after.iter().map(|(log, seq)| (log.clone(), vec![event(log, seq + 1)])).collect())
        }
    }

    fn log(number: u8) -> ConversationId {
        ConversationId::parse(&format!("conv_019800000000700080000000000000{number:02x}")).unwrap()
    }

    fn event(log: &ConversationId, seq: i64) -> StoredEvent {
        StoredEvent {
            seq,
            kind: "part.delta".into(),
            conversation_id: log.clone(),
            run_id: None,
            attempt: 1,
            at: UnixMillis(0),
            data: "{}".into(),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn growth_is_reported_despite_a_slow_full_scan() {
        let store = Slow::new(Duration::from_millis(400), None);
        let hub = Hub::new(HubLimits::default());
        let tail = hub.subscribe(&log(0));
        hub.publish(&log(0), &[Arc::new(event(&log(0), 1))]);
        tail.next().await;
        let told = async {
            for seq in 2..20 {
                tokio::time::sleep(Duration::from_millis(100)).await;
                let grown = Instant::now();
                hub.has_grown(&log(0));
                assert_eq!(tail.next().await, Tail::Events(vec![Arc::new(event(&log(0), seq))]));
                assert!(grown.elapsed() < Duration::from_millis(50), "{:?} for event {seq}", grown.elapsed());
            }
        };
        tokio::select! {
            () = told => {}
            () = follow(&store, &hub, EVERY) => {}
        }
        assert!(*store.asked.lock().unwrap() >= 4, "all logs were polled meanwhile");
    }

    #[tokio::test(start_paused = true)]
    async fn hanging_read_delays_other_streams_briefly() {
        let store = Slow::new(Duration::ZERO, Some(log(0)));
        let hub = Hub::new(HubLimits::default());
        // One log more than fits into one query.
        let tails: Vec<_> = (0..=16).map(|number| hub.subscribe(&log(number))).collect();
        for (number, tail) in (0..).zip(&tails) {
            hub.publish(&log(number), &[Arc::new(event(&log(number), 1))]);
            tail.next().await;
            hub.has_grown(&log(number));
        }
        let told = async {
            let began = Instant::now();
            assert_eq!(tails[16].next().await, Tail::Events(vec![Arc::new(event(&log(16), 2))]));
            assert!(began.elapsed() < Duration::from_millis(50), "{:?}", began.elapsed());
            assert_eq!(tails[0].next().await, Tail::Reread);
            assert!(began.elapsed() <= PATIENCE + Duration::from_millis(50), "{:?}", began.elapsed());
        };
        tokio::select! {
            () = told => {}
            () = follow(&store, &hub, Duration::from_secs(3_600)) => {}
        }
    }
}
