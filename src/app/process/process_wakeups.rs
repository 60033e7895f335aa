//! Wake-ups between processes on one Postgres database, by NOTIFY and LISTEN.
//!
//! They may be lost, late or repeated: polling finds the same changes a little later. A process without peers only announces its
//! presence.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::StreamExt as _;
use secrecy::{ExposeSecret as _, SecretString};
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::domain::conversation::list_item::ListHint;
use crate::domain::ids::NodeId;
use crate::live::{Hub, RemoteWakeup};
use crate::store::StoreResult;
use crate::store::postgres::{Notice, NotificationBatch, PgNotifier};
use crate::support::locks::lock;

/// The shortest interval of notifications of one kind, because each one costs work in every listening process.
const MERGE: Duration = Duration::from_millis(20);

const PRESENCE_EVERY: Duration = Duration::from_secs(3);

/// How long a process must see no peer before it considers itself alone.
const ALONE_AFTER: Duration = Duration::from_secs(10);

#[derive(Default)]
struct PeerPresence {
    heard: Mutex<Option<Instant>>,
    /// Makes this process announce itself at once, after a peer appeared or this process began to listen.
    changed: Notify,
}

impl PeerPresence {
    fn has_peers(&self) -> bool {
        let heard = *lock(&self.heard);
        heard.is_some_and(|at| at.elapsed() < ALONE_AFTER)
    }

    fn mark_alive(&self) {
        let was_alone = !self.has_peers();
        *lock(&self.heard) = Some(Instant::now());
        if was_alone {
            self.changed.notify_one();
        }
    }
}

#[derive(Default)]
struct Pending {
    logs: NotificationBatch,
    lists: BTreeSet<ListHint>,
    queue: bool,
    control: bool,
}

#[derive(Default)]
struct PendingNotifications {
    pending: Mutex<Pending>,
    filled: Notify,
}

impl PendingNotifications {
    fn change_pending(&self, change: impl FnOnce(&mut Pending)) {
        change(&mut lock(&self.pending));
        self.filled.notify_one();
    }

    fn take(&self) -> Pending {
        std::mem::take(&mut lock(&self.pending))
    }
}

/// Starts sending and receiving. Both reconnect automatically, and end with `stop`.
pub fn start(tasks: &TaskTracker, url: &SecretString, node: &NodeId, hub: &Arc<Hub>, stop: &CancellationToken) -> StoreResult<()> {
    let notifier = PgNotifier::new(url.expose_secret(), node.as_str())?;
    let (outbox, peers) = (Arc::new(PendingNotifications::default()), Arc::new(PeerPresence::default()));
    let (logs, listeners) = (Arc::clone(&outbox), Arc::clone(&peers));
    hub.announce_with(Arc::new(move |conversation| {
        if listeners.has_peers() {
            logs.change_pending(|pending| pending.logs.add(conversation));
        }
    }));
    let (wakes, listeners) = (Arc::clone(&outbox), Arc::clone(&peers));
    hub.wake_elsewhere_with(Arc::new(move |wakeup| {
        if listeners.has_peers() {
            wakes.change_pending(|pending| match wakeup {
                RemoteWakeup::Queue => pending.queue = true,
                RemoteWakeup::Control => pending.control = true,
                RemoteWakeup::List(hint) => {
                    pending.lists.insert(hint);
                }
            });
        }
    }));
    let (hub, stop) = (Arc::clone(hub), stop.clone());
    tasks.spawn(async move {
        tokio::select! {
            () = stop.cancelled() => {}
            () = announce(&notifier, &outbox) => {}
            () = show_presence(&notifier, &peers) => {}
            () = listen(&notifier, &hub, &peers) => {}
        }
        notifier.close().await;
    });
    Ok(())
}

async fn announce(notifier: &PgNotifier, outbox: &PendingNotifications) {
    loop {
        outbox.filled.notified().await;
        let mut pending = outbox.take();
        let announced = async {
            notifier.announce(&pending.logs.take()).await?;
            notifier.announce_lists(&pending.lists).await?;
            if pending.queue {
                notifier.announce_queue().await?;
            }
            if pending.control {
                notifier.announce_control().await?;
            }
            StoreResult::Ok(())
        };
        if let Err(error) = announced.await {
            tracing::debug!(
                error = &error as &dyn std::error::Error,
                "notification failed: other processes notice the change by polling"
            );
        }
        tokio::time::sleep(MERGE).await;
    }
}

async fn show_presence(notifier: &PgNotifier, peers: &PeerPresence) {
    loop {
        tokio::select! {
            () = peers.changed.notified() => {}
            () = tokio::time::sleep(PRESENCE_EVERY) => {}
        }
        if let Err(error) = notifier.announce_presence().await {
            tracing::debug!(error = &error as &dyn std::error::Error, "announcing this process to other processes failed");
        }
    }
}

async fn listen(notifier: &PgNotifier, hub: &Hub, peers: &PeerPresence) {
    let mut notices = std::pin::pin!(notifier.listen());
    while let Some(notice) = notices.next().await {
        if notice != Notice::LogUnknown {
            peers.mark_alive();
        }
        match notice {
            Notice::Log(conversations) => conversations.iter().for_each(|conversation| hub.has_grown(conversation)),
            // Polling finds the logs that have grown. Reading all of them here would overload the database.
            Notice::LogUnknown => {
                peers.changed.notify_one();
                hub.queue_signal().notify_one();
                hub.control_signal().notify_one();
                hub.lists().lose_hints();
            }
            Notice::List(hints) => hints.into_iter().for_each(|hint| hub.lists().add_hint(hint)),
            Notice::ListUnknown => hub.lists().lose_hints(),
            Notice::Queue => hub.queue_signal().notify_one(),
            Notice::Control => hub.control_signal().notify_one(),
            Notice::Present => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn process_is_alone_unless_another_one_announces_itself() {
        let peers = PeerPresence::default();
        assert!(!peers.has_peers());
        peers.mark_alive();
        peers.changed.notified().await;
        tokio::time::advance(ALONE_AFTER - Duration::from_millis(1)).await;
        assert!(peers.has_peers());
        peers.mark_alive();
        tokio::time::advance(ALONE_AFTER).await;
        assert!(!peers.has_peers());
    }
}
