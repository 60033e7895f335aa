//! What a serving process does beside serving: metrics, old rows, and news from other processes.

use std::sync::Arc;
use std::time::Duration;

use metrics_exporter_prometheus::PrometheusHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::parts::Sources;
use super::telemetry::UPKEEP;
use crate::live::Hub;
use crate::service::poll_heads;
use crate::store::Store;
use crate::support::clock::{SharedClock, UnixMillis};

/// How often old idempotency records and tickets are removed.
const CLEAN_EVERY: Duration = Duration::from_secs(600);

/// How long an idempotency key is remembered, in milliseconds.
const REMEMBERED_MS: i64 = 24 * 60 * 60 * 1000;

/// Starts the tasks; they end with `stop`.
pub fn start(
    tasks: &TaskTracker,
    store: &Arc<dyn Store>,
    hub: &Arc<Hub>,
    metrics: PrometheusHandle,
    sources: &Sources,
    stop: &CancellationToken,
) {
    tasks.spawn(count_runs(Arc::clone(store), metrics, stop.clone()));
    tasks.spawn(clean(Arc::clone(store), Arc::clone(&sources.clock), stop.clone()));
    tasks.spawn(poll_heads(Arc::clone(store), Arc::clone(hub), stop.clone()));
}

async fn count_runs(store: Arc<dyn Store>, handle: PrometheusHandle, stop: CancellationToken) {
    let mut shown: Vec<String> = Vec::new();
    while pause(UPKEEP, &stop).await {
        handle.run_upkeep();
        // A database that does not answer is the worker's to report; the gauges keep their last value.
        let Ok(counts) = store.run_counts().await else { continue };
        for status in shown.drain(..).filter(|status| counts.iter().all(|(other, _)| other != status)) {
            metrics::gauge!("capstan_runs", "status" => status).set(0.0);
        }
        for (status, count) in counts {
            #[expect(clippy::cast_precision_loss, reason = "nobody has 2^52 runs")]
            metrics::gauge!("capstan_runs", "status" => status.clone()).set(count as f64);
            shown.push(status);
        }
    }
}

async fn clean(store: Arc<dyn Store>, clock: SharedClock, stop: CancellationToken) {
    while pause(CLEAN_EVERY, &stop).await {
        match store.remove_expired_tickets().await {
            Ok(removed) => tracing::debug!(removed, "removed tickets that nobody used"),
            Err(error) => tracing::warn!(error = &error as &dyn std::error::Error, "old tickets could not be removed"),
        }
        match store.remove_expired_idempotency(UnixMillis(clock.now().0 - REMEMBERED_MS)).await {
            Ok(removed) => tracing::debug!(removed, "removed old idempotency records"),
            Err(error) => tracing::warn!(error = &error as &dyn std::error::Error, "old idempotency records could not be removed"),
        }
    }
}

/// Waits; false if it is time to end.
async fn pause(time: Duration, stop: &CancellationToken) -> bool {
    tokio::select! {
        () = stop.cancelled() => false,
        () = tokio::time::sleep(time) => true,
    }
}
