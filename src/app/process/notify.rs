//! Wake-ups between processes on one Postgres, by NOTIFY and LISTEN.
//!
//! They may be lost, late or doubled: the pollers find the same things a little later. A process without peers announces only its
//! presence.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::StreamExt as _;
use secrecy::{ExposeSecret as _, SecretString};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::domain::ids::NodeId;
use crate::live::{Elsewhere, Hub, Signal};
use crate::store::StoreResult;
use crate::store::postgres::{Merger, Notice, PgNotifier};
use crate::support::locks::lock;

/// The least time between two notifications of one kind: a NOTIFY costs work in every listening process.
const MERGE: Duration = Duration::from_millis(20);

const PRESENCE_EVERY: Duration = Duration::from_secs(3);

/// How long without a peer until a process takes itself to be alone.
const ALONE_AFTER: Duration = Duration::from_secs(10);

#[derive(Default)]
struct Peers {
    heard: Mutex<Option<Instant>>,
    /// Makes this process announce itself at once, after a peer appeared or this process began to listen.
    changed: Signal,
}

impl Peers {
    fn any(&self) -> bool {
        let heard = *lock(&self.heard);
        heard.is_some_and(|at| at.elapsed() < ALONE_AFTER)
    }

    fn heard(&self) {
        let was_alone = !self.any();
        *lock(&self.heard) = Some(Instant::now());
        if was_alone {
            self.changed.notify();
        }
    }
}

#[derive(Default)]
struct Pending {
    logs: Merger,
    queue: bool,
    control: bool,
}

#[derive(Default)]
struct Outbox {
    pending: Mutex<Pending>,
    filled: Signal,
}

impl Outbox {
    fn put(&self, change: impl FnOnce(&mut Pending)) {
        change(&mut lock(&self.pending));
        self.filled.notify();
    }

    fn take(&self) -> Pending {
        std::mem::take(&mut lock(&self.pending))
    }
}

/// Starts both directions, which end with `stop` and reconnect by themselves.
pub fn start(tasks: &TaskTracker, url: &SecretString, node: &NodeId, hub: &Arc<Hub>, stop: &CancellationToken) -> StoreResult<()> {
    let notifier = PgNotifier::new(url.expose_secret(), node.as_str())?;
    let (outbox, peers) = (Arc::new(Outbox::default()), Arc::new(Peers::default()));
    let (logs, listeners) = (Arc::clone(&outbox), Arc::clone(&peers));
    hub.announce_with(Arc::new(move |conversation| {
        if listeners.any() {
            logs.put(|pending| pending.logs.add(conversation));
        }
    }));
    let (wakes, listeners) = (Arc::clone(&outbox), Arc::clone(&peers));
    hub.wake_elsewhere_with(Arc::new(move |what| {
        if listeners.any() {
            wakes.put(|pending| match what {
                Elsewhere::Queue => pending.queue = true,
                Elsewhere::Control => pending.control = true,
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

async fn announce(notifier: &PgNotifier, outbox: &Outbox) {
    loop {
        outbox.filled.wait().await;
        let mut pending = outbox.take();
        let announced = async {
            notifier.announce(&pending.logs.take()).await?;
            if pending.queue {
                notifier.announce_queue().await?;
            }
            if pending.control {
                notifier.announce_control().await?;
            }
            StoreResult::Ok(())
        };
        if let Err(error) = announced.await {
            tracing::debug!(error = &error as &dyn std::error::Error, "other processes were not notified, they poll");
        }
        tokio::time::sleep(MERGE).await;
    }
}

async fn show_presence(notifier: &PgNotifier, peers: &Peers) {
    loop {
        tokio::select! {
            () = peers.changed.wait() => {}
            () = tokio::time::sleep(PRESENCE_EVERY) => {}
        }
        if let Err(error) = notifier.announce_presence().await {
            tracing::debug!(error = &error as &dyn std::error::Error, "other processes were not told of this one");
        }
    }
}

async fn listen(notifier: &PgNotifier, hub: &Hub, peers: &Peers) {
    let mut notices = std::pin::pin!(notifier.listen());
    while let Some(notice) = notices.next().await {
        if notice != Notice::LogUnknown {
            peers.heard();
        }
        match notice {
            Notice::Log(conversations) => conversations.iter().for_each(|conversation| hub.has_grown(conversation)),
            // The poller finds out which logs have grown; re-reading all of them here would be a storm.
            Notice::LogUnknown => {
                peers.changed.notify();
                hub.queue_signal().notify();
                hub.control_signal().notify();
            }
            Notice::Queue => hub.queue_signal().notify(),
            Notice::Control => hub.control_signal().notify(),
            Notice::Present => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_process_is_alone_until_it_hears_of_another_and_again_when_it_hears_no_more() {
        let peers = Peers::default();
        assert!(!peers.any());
        peers.heard();
        peers.changed.wait().await;
        tokio::time::advance(ALONE_AFTER - Duration::from_millis(1)).await;
        assert!(peers.any());
        peers.heard();
        tokio::time::advance(ALONE_AFTER).await;
        assert!(!peers.any());
    }
}
