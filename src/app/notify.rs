//! Hints between processes on one Postgres: what is announced here is heard there, and the other way round.
//!
//! Everything here may be lost, late or doubled: the pollers find the same things a little later.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::StreamExt as _;
use secrecy::{ExposeSecret as _, SecretString};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::domain::ids::NodeId;
use crate::live::{Elsewhere, Hub, Signal};
use crate::store::StoreResult;
use crate::store::postgres::{Merger, Notice, PgNotifier};

/// The least time between two notifications of one kind: a NOTIFY costs every listening process something.
const MERGE: Duration = Duration::from_millis(20);

/// What has to be said.
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
        change(&mut self.pending.lock().unwrap_or_else(PoisonError::into_inner));
        self.filled.notify();
    }

    fn take(&self) -> Pending {
        std::mem::take(&mut self.pending.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Starts both directions; they end with `stop`. Connects by itself, and again whenever it has to.
///
/// # Errors
/// If the URL is none of Postgres.
pub fn start(tasks: &TaskTracker, url: &SecretString, node: &NodeId, hub: &Arc<Hub>, stop: &CancellationToken) -> StoreResult<()> {
    let notifier = PgNotifier::new(url.expose_secret(), node.as_str())?;
    let outbox = Arc::new(Outbox::default());
    let logs = Arc::clone(&outbox);
    hub.announce_with(Arc::new(move |conversation| logs.put(|pending| pending.logs.add(conversation))));
    let wakes = Arc::clone(&outbox);
    hub.wake_elsewhere_with(Arc::new(move |what| {
        wakes.put(|pending| match what {
            Elsewhere::Queue => pending.queue = true,
            Elsewhere::Control => pending.control = true,
        });
    }));
    let (hub, say, hear) = (Arc::clone(hub), notifier.clone(), stop.clone());
    let stop = stop.clone();
    tasks.spawn(async move {
        tokio::select! {
            () = stop.cancelled() => {}
            () = announce(&say, &outbox) => {}
        }
    });
    tasks.spawn(async move {
        tokio::select! {
            () = hear.cancelled() => {}
            () = listen(&notifier, &hub) => {}
        }
        notifier.close().await;
    });
    Ok(())
}

async fn announce(notifier: &PgNotifier, outbox: &Outbox) {
    loop {
        outbox.filled.wait().await;
        let mut pending = outbox.take();
        let said = async {
            notifier.announce(&pending.logs.take()).await?;
            if pending.queue {
                notifier.announce_queue().await?;
            }
            if pending.control {
                notifier.announce_control().await?;
            }
            StoreResult::Ok(())
        };
        if let Err(error) = said.await {
            tracing::debug!(error = &error as &dyn std::error::Error, "other processes were not notified, they poll");
        }
        tokio::time::sleep(MERGE).await;
    }
}

async fn listen(notifier: &PgNotifier, hub: &Hub) {
    let mut notices = std::pin::pin!(notifier.listen());
    while let Some(notice) = notices.next().await {
        match notice {
            Notice::Log(conversations) => conversations.iter().for_each(|conversation| hub.hint(conversation)),
            // Which logs have grown the poller finds out; re-reading all of them here would be a storm.
            Notice::LogUnknown => {
                hub.queue_signal().notify();
                hub.control_signal().notify();
            }
            Notice::Queue => hub.queue_signal().notify(),
            Notice::Control => hub.control_signal().notify(),
        }
    }
}
