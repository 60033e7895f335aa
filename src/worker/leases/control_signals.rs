//! Delivers requests that concern runs under way to their drivers.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::worker::leases::registry::Registry;
use crate::worker::{WorkerDeps, WorkerOptions};

/// Reads requests on each wake-up, and every `control_poll` if other processes may store them, until `stop`.
pub async fn run(deps: &WorkerDeps, options: &WorkerOptions, registry: &Registry, stop: CancellationToken) {
    // With one process every request has a wake-up; polling is only a safety net.
    let poll = if deps.store.is_shared() { options.control_poll } else { Duration::from_secs(1) };
    loop {
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            () = deps.hub.control_signal().notified() => {}
            () = tokio::time::sleep(poll) => {}
        }
        let runs: Vec<_> = registry.all().into_iter().map(|active_lease| active_lease.fence.run_id).collect();
        if runs.is_empty() {
            continue;
        }
        match deps.store.control_signals(&runs).await {
            Ok(signals) => {
                for signal in signals {
                    let Some(active_lease) = registry.get(&signal.run_id) else { continue };
                    if signal.is_gone {
                        // The run cannot be written any more.
                        active_lease.lost.cancel();
                    } else {
                        active_lease.send_signal(signal);
                    }
                }
            }
            Err(error) => tracing::warn!(error = &error as &dyn std::error::Error, "control requests could not be read"),
        }
    }
}
