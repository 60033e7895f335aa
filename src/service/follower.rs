//! Follows, for all streams of this process, the logs that other processes write to.
//!
//! Each log is read once, however many listen to it. Whoever is behind, or finds a hole, reads the store by itself.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::domain::event::SharedEvent;
use crate::domain::ids::ConversationId;
use crate::live::Hub;
use crate::store::{LogStore, Store, StoreResult, is_full_page};

/// How often the heads of watched logs are read where other processes may write to them.
const EVERY: Duration = Duration::from_millis(250);

/// The same for a process that is alone: what it stores it also publishes, unless a task dies between the two.
const EVERY_ALONE: Duration = Duration::from_secs(2);

/// Events of a log that are read at a time: what the queue of a listener holds.
const NEWS: u32 = 256;

/// Logs that are read at a time. Together they are 16 MiB at most.
const LOGS: usize = 16;

/// Reads the logs of which it hears that they have grown, and asks the store every 250 ms (2 s if it is not
/// [`Store::is_shared`]), in one query, how far those are that somebody here listens to. Notifications are faster, and only an
/// addition to it. Ends with `stop`.
pub async fn follow_logs(store: Arc<dyn Store>, hub: Arc<Hub>, stop: CancellationToken) {
    let mut poll = Poll { store: Arc::clone(&store), hub: Arc::clone(&hub), seen: HashMap::new(), failing: false };
    let mut ticks = tokio::time::interval(if store.is_shared() { EVERY } else { EVERY_ALONE });
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            _ = ticks.tick() => poll.heads().await,
            grown = hub.grown() => {
                for logs in grown.chunks(LOGS) {
                    if let Err(error) = relay_news(store.as_ref(), &hub, logs).await {
                        tracing::debug!(error = &error as &dyn std::error::Error, "streams read for themselves");
                        logs.iter().for_each(|(conversation, _)| hub.hint(conversation));
                    }
                }
            }
        }
    }
}

/// Reads what is new in some logs, and hands it to those who listen.
pub(super) async fn relay_news(store: &dyn LogStore, hub: &Hub, logs: &[(ConversationId, i64)]) -> StoreResult<()> {
    let (known, unknown): (Vec<_>, Vec<_>) = logs.iter().cloned().partition(|(_, published)| *published > 0);
    if !unknown.is_empty() {
        // How far those who listen have read is not known here, so each reads once; from there on they are told.
        let unknown: Vec<ConversationId> = unknown.into_iter().map(|(conversation, _)| conversation).collect();
        for (conversation, head) in store.heads(&unknown).await? {
            hub.read_until(&conversation, head);
        }
    }
    if known.is_empty() {
        return Ok(());
    }
    for (conversation, events) in store.news(&known, NEWS).await? {
        let goes_on = is_full_page(&events, NEWS);
        let events: Vec<SharedEvent> = events.into_iter().map(Arc::new).collect();
        hub.relay(&conversation, &events);
        if goes_on {
            hub.has_grown(&conversation);
        }
    }
    Ok(())
}

struct Poll {
    store: Arc<dyn Store>,
    hub: Arc<Hub>,
    /// The heads as they were last found.
    seen: HashMap<ConversationId, i64>,
    failing: bool,
}

impl Poll {
    async fn heads(&mut self) {
        let hub = &self.hub;
        let watched = hub.watched();
        if watched.is_empty() {
            self.seen.clear();
            return;
        }
        // Before the heads are read: what was published is in the log by then.
        let published: Vec<i64> = watched.iter().map(|conversation| hub.published(conversation)).collect();
        let heads = match self.store.heads(&watched).await {
            Ok(heads) => heads,
            Err(error) => {
                if !self.failing {
                    tracing::warn!(error = &error as &dyn std::error::Error, "cannot poll for events that were not published here");
                }
                self.failing = true;
                return;
            }
        };
        self.failing = false;
        let heads: HashMap<ConversationId, i64> = heads.into_iter().collect();
        for (conversation, published) in watched.iter().zip(published) {
            let before = self.seen.get(conversation).copied().unwrap_or(-1);
            match heads.get(conversation) {
                // Logs only grow.
                Some(head) if *head < before.max(published) => {
                    tracing::error!(conversation.id = %conversation, head, "the database has lost events that it had confirmed");
                    hub.went_back(conversation, *head);
                }
                // What this process published needs no hint: its listeners have it.
                Some(head) if *head > before.max(hub.published(conversation)) => hub.has_grown(conversation),
                // It has no log. Either another node deleted it, perhaps before this loop ever saw it, or it is being made
                // here at this moment. The listeners read the store, which knows.
                None => hub.hint(conversation),
                Some(_) => {}
            }
        }
        self.seen = heads;
    }
}
