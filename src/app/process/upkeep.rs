//! Background tasks of a server: metrics, removal of old rows, and news from other processes.

use std::sync::Arc;
use std::time::Duration;

use metrics_exporter_prometheus::PrometheusHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::app::config::{RetentionConfig, days_ms};
use crate::app::process::telemetry::UPKEEP;
use crate::domain::ids::McpServerId;
use crate::live::Hub;
use crate::service::{FoldMode, FoldStep, Folder, Tidied, Tidier, TidyAges, follow_logs};
use crate::store::{Expired, FileStore, RunStore, Store, StoreResult};

const COUNT_EVERY: Duration = Duration::from_secs(5);
const CLEAN_EVERY: Duration = Duration::from_secs(600);
const FOLD_EVERY: Duration = Duration::from_secs(600);
const TIDY_EVERY: Duration = Duration::from_secs(3_600);
const FILES_EVERY: Duration = Duration::from_secs(600);
const SNAPSHOTS_EVERY: Duration = Duration::from_secs(30);
const LOW_WATER_EVERY: Duration = Duration::from_secs(1);
const MARK_EVERY: Duration = Duration::from_secs(60);
const LOGINS_EVERY: Duration = Duration::from_secs(600);

/// The age of a snapshot from which on the log tells of it: longer than a report takes.
const OLD_SNAPSHOT: Duration = Duration::from_secs(300);

/// The pause after one step of a long job, as a multiple of the step's duration: the database is free for others meanwhile.
const PAUSE_FACTOR: u32 = 3;

/// Milliseconds without any process that configures an MCP server until the login there is deleted. A configuration may be rolled
/// back, and processes with another one may be down for a while.
const UNSEEN_MS: i64 = 24 * 60 * 60 * 1000;

/// Milliseconds that an idempotency key is kept.
const IDEMPOTENCY_MS: u64 = 24 * 60 * 60 * 1000;

/// Starts the tasks; they end with `stop`.
pub fn start(
    tasks: &TaskTracker,
    store: &Arc<dyn Store>,
    hub: &Arc<Hub>,
    metrics: PrometheusHandle,
    retention: &RetentionConfig,
    stop: &CancellationToken,
) {
    if let Some(age_ms) = days_ms(retention.deltas_days) {
        tasks.spawn(fold(Arc::clone(store), age_ms, stop.clone()));
    }
    tasks.spawn(tidy(Arc::clone(store), Arc::clone(hub), retention.tidy_ages(), stop.clone()));
    tasks.spawn(sort_samples(metrics, stop.clone()));
    tasks.spawn(count_runs(store.clone(), stop.clone()));
    tasks.spawn(watch_snapshots(Arc::clone(store), stop.clone()));
    tasks.spawn(raise_low_water(Arc::clone(store), stop.clone()));
    tasks.spawn(clean(Arc::clone(store), days_ms(retention.audit_days), stop.clone()));
    tasks.spawn(remove_files(Arc::clone(store), days_ms(retention.unused_files_days), stop.clone()));
    tasks.spawn(mark(Arc::clone(store), stop.clone()));
    tasks.spawn(follow_logs(store.clone(), Arc::clone(hub), stop.clone()));
}

/// Puts the samples of histograms into their buckets: until then each takes memory of its own.
async fn sort_samples(handle: PrometheusHandle, stop: CancellationToken) {
    while pause(UPKEEP, &stop).await {
        handle.run_upkeep();
    }
}

async fn count_runs(store: Arc<dyn RunStore>, stop: CancellationToken) {
    let mut shown: Vec<String> = Vec::new();
    while pause(COUNT_EVERY, &stop).await {
        // A database that does not answer is the worker's to report; the gauges keep their last value.
        let Ok(counts) = store.run_counts().await else { continue };
        for status in shown.drain(..).filter(|status| counts.iter().all(|(other, _)| other != status)) {
            metrics::gauge!("capstan_runs", "status" => status).set(0.0);
        }
        for (status, count) in counts {
            metrics::gauge!("capstan_runs", "status" => status.clone()).set(count as f64);
            shown.push(status);
        }
    }
}

/// Warns of a snapshot that is held open for long, once until none is left.
async fn watch_snapshots(store: Arc<dyn Store>, stop: CancellationToken) {
    let mut told = false;
    while pause(SNAPSHOTS_EVERY, &stop).await {
        // A database that does not answer is the worker's to report.
        let Ok(Some(age)) = store.oldest_snapshot().await else { continue };
        metrics::gauge!("capstan_database_oldest_snapshot_seconds").set(age.as_secs_f64());
        let is_old = age >= OLD_SNAPSHOT;
        if is_old && !told {
            tracing::warn!(
                seconds = age.as_secs(),
                "a transaction of this database has been open for long: rows that change meanwhile cannot be cleaned away; \
                 pg_stat_activity says who"
            );
        }
        told = is_old;
    }
}

async fn raise_low_water(store: Arc<dyn Store>, stop: CancellationToken) {
    while pause(LOW_WATER_EVERY, &stop).await {
        // A database that does not answer is the worker's to report.
        if let Some(Err(error)) = stop.run_until_cancelled(store.raise_low_water()).await {
            tracing::debug!(error = &error as &dyn std::error::Error, "the queue could not be looked through");
        }
    }
}

async fn clean(store: Arc<dyn Store>, audit_ms: Option<u64>, stop: CancellationToken) {
    while pause(CLEAN_EVERY, &stop).await {
        for (what, removed) in remove_expired(store.as_ref(), audit_ms).await {
            match removed {
                Ok(removed) => tracing::debug!(removed, "removed {what}"),
                Err(error) => tracing::warn!(error = &error as &dyn std::error::Error, "{what} could not be removed"),
            }
        }
    }
}

/// Deletes logins at MCP servers that no process has, neither from its configuration nor from the API. The first pass waits, so that
/// other processes can mark theirs.
pub async fn forget_logins(store: Arc<dyn Store>, configured: Vec<McpServerId>, stop: CancellationToken) {
    loop {
        if let Err(error) = store.see_mcp_tokens(&configured).await {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "logins at MCP servers of the configuration could not be marked"
            );
        }
        if !pause(LOGINS_EVERY, &stop).await {
            return;
        }
        match store.forget_unseen_mcp_tokens(UNSEEN_MS).await {
            Ok(0) => {}
            Ok(forgotten) => tracing::info!(forgotten, "forgot logins at MCP servers that are not configured any more"),
            Err(error) => {
                tracing::warn!(error = &error as &dyn std::error::Error, "old logins at MCP servers could not be forgotten");
            }
        }
    }
}

/// Runs a pass at the start, like [`fold`].
async fn remove_files(store: Arc<dyn Store>, age_ms: Option<u64>, stop: CancellationToken) {
    loop {
        match remove_unused_files(store.records(), age_ms).await {
            Ok(0) => {}
            Ok(removed) => tracing::info!(removed, "removed files that no message has"),
            Err(error) => tracing::warn!(error = &error as &dyn std::error::Error, "unused files could not be removed"),
        }
        if let Ok(bytes) = store.file_bytes().await {
            metrics::gauge!("capstan_file_bytes").set(bytes as f64);
        }
        if !pause(FILES_EVERY, &stop).await {
            return;
        }
    }
}

/// Removes files that no message has and that are old enough. Returns how many.
pub async fn remove_unused_files(store: &dyn FileStore, age_ms: Option<u64>) -> StoreResult<u64> {
    let Some(age_ms) = age_ms else { return Ok(0) };
    to_the_end(|| store.remove_unused_files(age_ms)).await
}

/// Removes expired rows. Returns for each kind of them the words of messages and how many were removed.
pub async fn remove_expired(store: &dyn Store, audit_ms: Option<u64>) -> [(&'static str, StoreResult<u64>); 5] {
    let records = store.records();
    let audit = match audit_ms {
        Some(age_ms) => to_the_end(|| records.remove_old_audit(age_ms)).await,
        None => Ok(0),
    };
    [
        ("expired tickets", store.remove_expired_tickets().await),
        ("old idempotency records", store.remove_expired_idempotency(IDEMPOTENCY_MS).await),
        ("old rows of the audit", audit),
        ("what budgets of days gone by have counted", to_the_end(|| store.remove_old_spending()).await),
        ("sets of tools that no run names", to_the_end(|| records.remove_unused_tool_sets()).await),
    ]
}

/// Counts the rows that [`remove_expired`] would remove.
pub async fn count_expired(store: &dyn Store, audit_ms: Option<u64>) -> StoreResult<Expired> {
    store.count_expired(IDEMPOTENCY_MS, audit_ms).await
}

/// Repeats a removal, each time in a transaction of its own, until nothing is left. Returns how much was removed.
async fn to_the_end<F: Future<Output = StoreResult<u64>>>(piece: impl Fn() -> F) -> StoreResult<u64> {
    let mut removed = 0;
    loop {
        let gone = piece().await?;
        removed += gone;
        if gone == 0 {
            return Ok(removed);
        }
    }
}

async fn mark(store: Arc<dyn Store>, stop: CancellationToken) {
    while pause(MARK_EVERY, &stop).await {
        if let Err(error) = store.leave_mark().await {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "no mark could be left by which older copies of the database are noticed"
            );
        }
    }
}

/// Runs a pass at the start, for servers that never live long.
async fn fold(store: Arc<dyn Store>, age_ms: u64, stop: CancellationToken) {
    loop {
        let mut folder = Folder::new(store.clone(), age_ms, FoldMode::Fold);
        loop {
            let begun = Instant::now();
            let step = folder.step().await.map(|step| step == FoldStep::Went);
            if !goes_on(step, begun, "old deltas could not be folded", &stop).await {
                break;
            }
        }
        if folder.runs > 0 {
            tracing::info!(runs = folder.runs, events = folder.events, "folded old deltas");
        }
        if !pause(FOLD_EVERY, &stop).await {
            return;
        }
    }
}

/// Runs a pass at the start, like [`fold`].
async fn tidy(store: Arc<dyn Store>, hub: Arc<Hub>, ages: TidyAges, stop: CancellationToken) {
    loop {
        let mut tidier = Tidier::new(store.clone(), Some(Arc::clone(&hub)), ages, FoldMode::Fold);
        loop {
            let begun = Instant::now();
            let step = tidier.step().await;
            if !goes_on(step, begun, "old conversations could not be tidied", &stop).await {
                break;
            }
        }
        let Tidied { archived, deleted } = tidier.tidied;
        if archived + deleted > 0 {
            tracing::info!(archived, deleted, "tidied old conversations");
        }
        if !pause(TIDY_EVERY, &stop).await {
            return;
        }
    }
}

/// Pauses after a step that began at `begun`. Returns whether the pass goes on. `failure` is logged if the step failed.
async fn goes_on(step: StoreResult<bool>, begun: Instant, failure: &str, stop: &CancellationToken) -> bool {
    match step {
        Ok(is_more) => is_more && pause(begun.elapsed() * PAUSE_FACTOR, stop).await,
        Err(error) => {
            tracing::warn!(error = &error as &dyn std::error::Error, "{failure}; the next pass goes on");
            false
        }
    }
}

/// Waits. Returns false if the process stops.
async fn pause(time: Duration, stop: &CancellationToken) -> bool {
    stop.run_until_cancelled(tokio::time::sleep(time)).await.is_some()
}
