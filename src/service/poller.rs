//! Finds events that nobody here has told of.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::domain::ids::ConversationId;
use crate::live::Hub;
use crate::store::Store;

/// How often the heads of watched logs are read where other processes may write to them.
const EVERY: Duration = Duration::from_millis(250);

/// The same for a process that is alone: what it stores it also publishes, unless a task dies between the two.
const EVERY_ALONE: Duration = Duration::from_secs(2);

/// Asks the store every 250 ms (2 s if it is not [`Store::is_shared`]), in one query, how far the logs are that somebody here
/// listens to, and hints at those with news. Notifications are faster, and only an addition to it. Ends with `stop`.
pub async fn poll_heads(store: Arc<dyn Store>, hub: Arc<Hub>, stop: CancellationToken) {
    let mut seen: HashMap<ConversationId, i64> = HashMap::new();
    let mut ticks = tokio::time::interval(if store.is_shared() { EVERY } else { EVERY_ALONE });
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut failing = false;
    loop {
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            _ = ticks.tick() => {}
        }
        let watched = hub.watched();
        if watched.is_empty() {
            seen.clear();
            continue;
        }
        // Before the heads are read: what was published is in the log by then.
        let published: Vec<i64> = watched.iter().map(|conversation| hub.published(conversation)).collect();
        let heads = match store.heads(&watched).await {
            Ok(heads) => heads,
            Err(error) => {
                if !failing {
                    tracing::warn!(error = &error as &dyn std::error::Error, "cannot poll for events that were not published here");
                }
                failing = true;
                continue;
            }
        };
        failing = false;
        let heads: HashMap<ConversationId, i64> = heads.into_iter().collect();
        for (conversation, published) in watched.iter().zip(published) {
            let before = seen.get(conversation).copied().unwrap_or(-1);
            match heads.get(conversation) {
                // Logs only grow.
                Some(head) if *head < before.max(published) => {
                    tracing::error!(conversation.id = %conversation, head, "the database has lost events that it had confirmed");
                    hub.went_back(conversation, *head);
                }
                // What this process published needs no hint: its listeners have it.
                Some(head) if *head > before.max(hub.published(conversation)) => {
                    hub.hint(conversation);
                }
                // It has no log. Either another node deleted it, perhaps before this loop ever saw it, or it is being made
                // here at this moment. The listeners read the store, which knows.
                None => hub.hint(conversation),
                Some(_) => {}
            }
        }
        seen = heads;
    }
}
