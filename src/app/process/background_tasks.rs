//! Background tasks of a server: metrics, removal of old rows, and changes by other processes.

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
use crate::service::{CleanupCounts, CompactionMode, CompactionStep, DeltaCompactor, IdleAges, IdleCleanup, follow_logs};
use crate::store::{ExpiredRowCounts, RecordStore, RunStore, Store, StoreResult};

const COUNT_EVERY: Duration = Duration::from_secs(5);
const CLEAN_EVERY: Duration = Duration::from_secs(600);
const COMPACT_EVERY: Duration = Duration::from_secs(600);
const RETENTION_EVERY: Duration = Duration::from_secs(3_600);
const FILES_EVERY: Duration = Duration::from_secs(600);
const SNAPSHOTS_EVERY: Duration = Duration::from_secs(30);
const LOW_WATER_EVERY: Duration = Duration::from_secs(1);
const CLONE_MARK_EVERY: Duration = Duration::from_secs(60);
const LOGINS_EVERY: Duration = Duration::from_secs(600);

/// The age from which an open database transaction causes a warning. Ordinary long queries, such as reports, end earlier.
const OLD_SNAPSHOT: Duration = Duration::from_secs(300);

/// The delay after one step of a long task, as a multiple of the step's duration, so that others can use the database.
const PAUSE_FACTOR: u32 = 3;

/// The login at an MCP server is deleted if no process has had the server in its configuration for this time, in milliseconds. The server
/// may return: a rollback restores it, or a stopped process that has it starts again.
const UNCONFIGURED_MS: i64 = 24 * 60 * 60 * 1000;

/// How long an idempotency key is kept, in milliseconds.
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
        tasks.spawn(compact_deltas(Arc::clone(store), age_ms, stop.clone()));
    }
    tasks.spawn(apply_retention(Arc::clone(store), Arc::clone(hub), retention.idle_ages(), stop.clone()));
    tasks.spawn(sort_samples(metrics, stop.clone()));
    tasks.spawn(count_runs(store.clone(), stop.clone()));
    tasks.spawn(watch_snapshots(Arc::clone(store), stop.clone()));
    tasks.spawn(raise_low_water(Arc::clone(store), stop.clone()));
    tasks.spawn(clean(Arc::clone(store), days_ms(retention.audit_days), stop.clone()));
    tasks.spawn(remove_files(Arc::clone(store), days_ms(retention.unused_files_days), stop.clone()));
    tasks.spawn(write_clone_mark(Arc::clone(store), stop.clone()));
    tasks.spawn(follow_logs(store.clone(), Arc::clone(hub), stop.clone()));
}

/// Moves the samples of histograms into their buckets: until then each sample uses memory.
async fn sort_samples(handle: PrometheusHandle, stop: CancellationToken) {
    while pause(UPKEEP, &stop).await {
        handle.run_upkeep();
    }
}

async fn count_runs(store: Arc<dyn RunStore>, stop: CancellationToken) {
    let mut shown_statuses: Vec<String> = Vec::new();
    while pause(COUNT_EVERY, &stop).await {
        // The worker reports a database that does not answer. The gauges keep their last value.
        let Ok(counts) = store.run_counts().await else { continue };
        for status in shown_statuses.drain(..).filter(|status| counts.iter().all(|(other, _)| other != status)) {
            metrics::gauge!("capstan_runs", "status" => status).set(0.0);
        }
        for (status, count) in counts {
            metrics::gauge!("capstan_runs", "status" => status.clone()).set(count as f64);
            shown_statuses.push(status);
        }
    }
}

/// Warns once of an old database transaction, and again only after no old one was left.
async fn watch_snapshots(store: Arc<dyn Store>, stop: CancellationToken) {
    let mut was_warned = false;
    while pause(SNAPSHOTS_EVERY, &stop).await {
        // The worker reports a database that does not answer.
        let Ok(Some(age)) = store.oldest_snapshot().await else { continue };
        metrics::gauge!("capstan_database_oldest_snapshot_seconds").set(age.as_secs_f64());
        let is_old = age >= OLD_SNAPSHOT;
        if is_old && !was_warned {
            tracing::warn!(
                seconds = age.as_secs(),
                "a transaction of this database has been open for long: vacuum cannot remove rows that changed since; \
                 pg_stat_activity shows its session"
            );
        }
        was_warned = is_old;
    }
}

async fn raise_low_water(store: Arc<dyn Store>, stop: CancellationToken) {
    while pause(LOW_WATER_EVERY, &stop).await {
        // The worker reports a database that does not answer.
        if let Some(Err(error)) = stop.run_until_cancelled(store.raise_low_water()).await {
            tracing::debug!(error = &error as &dyn std::error::Error, "the low-water marks could not be raised");
        }
    }
}

async fn clean(store: Arc<dyn Store>, audit_ms: Option<u64>, stop: CancellationToken) {
    while pause(CLEAN_EVERY, &stop).await {
        for (row_kind, removed) in remove_expired(store.as_ref(), audit_ms).await {
            match removed {
                Ok(removed) => tracing::debug!(removed, "removed {row_kind}"),
                Err(error) => tracing::warn!(error = &error as &dyn std::error::Error, "{row_kind} could not be removed"),
            }
        }
    }
}

/// Deletes logins at MCP servers that exist neither in a configuration nor in the store. Before the first deletion it waits, so that other
/// processes can first mark the servers in their configurations.
pub async fn forget_logins(store: Arc<dyn Store>, configured: Vec<McpServerId>, stop: CancellationToken) {
    loop {
        if let Err(error) = store.mark_mcp_tokens_configured(&configured).await {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "logins at MCP servers of the configuration could not be marked"
            );
        }
        if !pause(LOGINS_EVERY, &stop).await {
            return;
        }
        match store.forget_unseen_mcp_tokens(UNCONFIGURED_MS).await {
            Ok(0) => {}
            Ok(forgotten) => tracing::info!(forgotten, "removed logins at MCP servers that are no longer configured"),
            Err(error) => {
                tracing::warn!(error = &error as &dyn std::error::Error, "old logins at MCP servers could not be removed");
            }
        }
    }
}

/// Runs the first pass at the start, like [`compact_deltas`].
async fn remove_files(store: Arc<dyn Store>, age_ms: Option<u64>, stop: CancellationToken) {
    loop {
        match remove_unused_files(store.records(), age_ms).await {
            Ok(0) => {}
            Ok(removed) => tracing::info!(removed, "removed unused files"),
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

/// Removes old files that no message uses. Returns their number.
pub async fn remove_unused_files(store: &dyn RecordStore, age_ms: Option<u64>) -> StoreResult<u64> {
    let Some(age_ms) = age_ms else { return Ok(0) };
    remove_all(|| store.remove_unused_files(age_ms)).await
}

/// Removes expired rows. Returns the description and the number of each kind.
pub async fn remove_expired(store: &dyn Store, audit_ms: Option<u64>) -> [(&'static str, StoreResult<u64>); 6] {
    let records = store.records();
    let audit = match audit_ms {
        Some(age_ms) => remove_all(|| records.remove_old_audit(age_ms)).await,
        None => Ok(0),
    };
    let tickets = async {
        let shares = store.remove_expired_shares().await?;
        Ok(store.remove_expired_sessions().await? + store.remove_expired_tickets().await? + shares)
    };
    [
        ("expired tickets, sessions and shares", tickets.await),
        ("old idempotency records", store.remove_expired_idempotency(IDEMPOTENCY_MS).await),
        ("old audit records", audit),
        ("spending rows of past days", remove_all(|| store.remove_old_spending()).await),
        ("unused tool sets", remove_all(|| records.remove_unused_tool_sets()).await),
        ("expired limitations of models", store.remove_expired_model_limitations().await),
    ]
}

/// Counts the rows that [`remove_expired`] would remove.
pub async fn count_expired(store: &dyn Store, audit_ms: Option<u64>) -> StoreResult<ExpiredRowCounts> {
    store.count_expired(IDEMPOTENCY_MS, audit_ms).await
}

/// Repeats a removal, each time in its own transaction, until nothing is left. Returns the total.
async fn remove_all<F: Future<Output = StoreResult<u64>>>(remove_some: impl Fn() -> F) -> StoreResult<u64> {
    let mut removed = 0;
    loop {
        let count = remove_some().await?;
        removed += count;
        if count == 0 {
            return Ok(removed);
        }
    }
}

async fn write_clone_mark(store: Arc<dyn Store>, stop: CancellationToken) {
    while pause(CLONE_MARK_EVERY, &stop).await {
        if let Err(error) = store.leave_mark().await {
            tracing::warn!(error = &error as &dyn std::error::Error, "the mark for clone detection could not be written");
        }
    }
}

/// Runs the first pass at the start, for servers that never run long.
async fn compact_deltas(store: Arc<dyn Store>, age_ms: u64, stop: CancellationToken) {
    loop {
        let mut compactor = DeltaCompactor::new(store.clone(), age_ms, CompactionMode::Write);
        loop {
            let started_at = Instant::now();
            let step = compactor.step().await.map(|step| step == CompactionStep::Compacted);
            if !continue_after(step, started_at, "old deltas could not be compacted", &stop).await {
                break;
            }
        }
        if compactor.runs > 0 {
            tracing::info!(runs = compactor.runs, events = compactor.events, "compacted old deltas");
        }
        if !pause(COMPACT_EVERY, &stop).await {
            return;
        }
    }
}

/// Runs the first pass at the start, like [`compact_deltas`].
async fn apply_retention(store: Arc<dyn Store>, hub: Arc<Hub>, ages: IdleAges, stop: CancellationToken) {
    loop {
        let mut cleanup = IdleCleanup::new(store.clone(), Some(Arc::clone(&hub)), ages, CompactionMode::Write);
        loop {
            let started_at = Instant::now();
            let step = cleanup.step().await;
            if !continue_after(step, started_at, "old conversations could not be archived or deleted", &stop).await {
                break;
            }
        }
        let CleanupCounts { archived, deleted } = cleanup.counts;
        if archived + deleted > 0 {
            tracing::info!(archived, deleted, "archived and deleted old conversations");
        }
        if !pause(RETENTION_EVERY, &stop).await {
            return;
        }
    }
}

/// Pauses after a step that began at `started_at`. Returns whether the pass continues. Logs `failure` if the step failed.
async fn continue_after(step: StoreResult<bool>, started_at: Instant, failure: &str, stop: &CancellationToken) -> bool {
    match step {
        Ok(is_more) => is_more && pause(started_at.elapsed() * PAUSE_FACTOR, stop).await,
        Err(error) => {
            tracing::warn!(error = &error as &dyn std::error::Error, "{failure}; the next pass continues");
            false
        }
    }
}

/// Waits. Returns false if the process stops.
async fn pause(time: Duration, stop: &CancellationToken) -> bool {
    stop.run_until_cancelled(tokio::time::sleep(time)).await.is_some()
}
