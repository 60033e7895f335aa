//! What a serving process does beside serving: metrics, old rows, and news from other processes.

use std::sync::Arc;
use std::time::Duration;

use metrics_exporter_prometheus::PrometheusHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::config::RetentionConfig;
use super::telemetry::UPKEEP;
use crate::domain::ids::McpServerId;
use crate::live::Hub;
use crate::service::{FoldMode, FoldStep, Folder, Tidied, Tidier, TidyAges, follow_logs};
use crate::store::{AuditStore, BudgetStore, Expired, FileStore, RetentionStore, RunStore, Store, StoreResult};

/// How often runs are counted by their status, for the gauge of them.
const COUNT_EVERY: Duration = Duration::from_secs(5);

/// How often old idempotency records, tickets and the like are removed.
const CLEAN_EVERY: Duration = Duration::from_secs(600);

/// How often runs are looked for whose deltas have become old.
const FOLD_EVERY: Duration = Duration::from_secs(600);

/// How often conversations are looked for in which nothing has happened for long.
const TIDY_EVERY: Duration = Duration::from_secs(3_600);

/// How often files are looked for that no message has.
const FILES_EVERY: Duration = Duration::from_secs(600);

/// How often somebody is looked for who holds a snapshot of the database open.
const SNAPSHOTS_EVERY: Duration = Duration::from_secs(30);

/// How often it is found out from where on the queue is to be read.
const LOW_WATER_EVERY: Duration = Duration::from_secs(1);

/// How old a snapshot may become before the log tells of it: longer than a report takes.
const OLD_SNAPSHOT: Duration = Duration::from_secs(300);

/// How many times as long as a piece of folding took is the rest after it, in which the database is there for others.
const FOLD_REST: u32 = 3;

/// How often a mark is left by which older copies of the database are noticed.
const MARK_EVERY: Duration = Duration::from_secs(60);

/// How often logins are looked for at MCP servers that nobody has in a configuration any more.
const LOGINS_EVERY: Duration = Duration::from_secs(600);

/// How long none of all processes has a server in its configuration until the login there is forgotten, in milliseconds: a
/// configuration may be taken back, and processes with another one may be down for a while.
const UNSEEN_MS: i64 = 24 * 60 * 60 * 1000;

/// How long an idempotency key is remembered, in milliseconds.
const REMEMBERED_MS: u64 = 24 * 60 * 60 * 1000;

/// Starts the tasks; they end with `stop`.
pub fn start(
    tasks: &TaskTracker,
    store: &Arc<dyn Store>,
    hub: &Arc<Hub>,
    metrics: PrometheusHandle,
    retention: &RetentionConfig,
    stop: &CancellationToken,
) {
    if let Some(age_ms) = retention.deltas_ms() {
        tasks.spawn(fold(Arc::clone(store), age_ms, stop.clone()));
    }
    tasks.spawn(tidy(Arc::clone(store), Arc::clone(hub), retention.tidy_ages(), stop.clone()));
    tasks.spawn(sort_samples(metrics, stop.clone()));
    tasks.spawn(count_runs(store.clone(), stop.clone()));
    tasks.spawn(watch_snapshots(Arc::clone(store), stop.clone()));
    tasks.spawn(raise_low_water(Arc::clone(store), stop.clone()));
    tasks.spawn(clean(Arc::clone(store), retention.audit_ms(), stop.clone()));
    tasks.spawn(remove_files(Arc::clone(store), retention.unused_files_ms(), stop.clone()));
    tasks.spawn(mark(Arc::clone(store), stop.clone()));
    tasks.spawn(follow_logs(store.clone(), Arc::clone(hub), stop.clone()));
}

/// Puts the samples of histograms into their buckets: until then, each takes room of its own.
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
            #[expect(clippy::cast_precision_loss, reason = "nobody has 2^52 runs")]
            metrics::gauge!("capstan_runs", "status" => status.clone()).set(count as f64);
            shown.push(status);
        }
    }
}

/// Tells that snapshots are held open for long, once until none is any more.
async fn watch_snapshots(store: Arc<dyn Store>, stop: CancellationToken) {
    let mut told = false;
    while pause(SNAPSHOTS_EVERY, &stop).await {
        // A database that does not answer is the worker's to report.
        let Ok(Some(age)) = store.oldest_snapshot().await else { continue };
        metrics::gauge!("capstan_database_oldest_snapshot_seconds").set(age.as_secs_f64());
        let is_old = age >= OLD_SNAPSHOT;
        if is_old && !told {
            let seconds = age.as_secs();
            tracing::warn!(
                seconds,
                "somebody holds a transaction of this database open: rows that change meanwhile cannot be cleaned away; \
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
        match remove_old_audit(store.records(), audit_ms).await {
            Ok(removed) => tracing::debug!(removed, "removed old rows of the audit"),
            Err(error) => tracing::warn!(error = &error as &dyn std::error::Error, "old rows of the audit could not be removed"),
        }
        match remove_old_spending(store.as_ref()).await {
            Ok(removed) => tracing::debug!(removed, "removed what budgets of days gone by have counted"),
            Err(error) => {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "what budgets of days gone by have counted could not be removed"
                );
            }
        }
        match remove_unused_tool_sets(store.records()).await {
            Ok(removed) => tracing::debug!(removed, "removed sets of tools that no run names"),
            Err(error) => {
                tracing::warn!(error = &error as &dyn std::error::Error, "sets of tools that no run names could not be removed");
            }
        }
        let (tickets, records) = remove_expired(store.as_ref()).await;
        match tickets {
            Ok(removed) => tracing::debug!(removed, "removed tickets that nobody used"),
            Err(error) => tracing::warn!(error = &error as &dyn std::error::Error, "old tickets could not be removed"),
        }
        match records {
            Ok(removed) => tracing::debug!(removed, "removed old idempotency records"),
            Err(error) => tracing::warn!(error = &error as &dyn std::error::Error, "old idempotency records could not be removed"),
        }
    }
}

/// Forgets logins at MCP servers that are neither kept nor `configured`, here or in another process. Others have time to say what
/// they have: nothing is forgotten at the start.
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

/// Begins with a pass at the start, like [`fold`].
async fn remove_files(store: Arc<dyn Store>, age_ms: Option<u64>, stop: CancellationToken) {
    loop {
        match remove_unused_files(store.records(), age_ms).await {
            Ok(0) => {}
            Ok(removed) => tracing::info!(removed, "removed files that no message has"),
            Err(error) => tracing::warn!(error = &error as &dyn std::error::Error, "unused files could not be removed"),
        }
        if let Ok(bytes) = store.file_bytes().await {
            #[expect(clippy::cast_precision_loss, reason = "nobody has 2^52 bytes")]
            metrics::gauge!("capstan_file_bytes").set(bytes as f64);
        }
        if !pause(FILES_EVERY, &stop).await {
            return;
        }
    }
}

/// Removes files that no message has and that are old enough, piece by piece. Returns how many.
pub async fn remove_unused_files(store: &dyn FileStore, age_ms: Option<u64>) -> StoreResult<u64> {
    let Some(age_ms) = age_ms else { return Ok(0) };
    to_the_end(|| store.remove_unused_files(age_ms)).await
}

/// Removes tickets and idempotency records that are of no use any more. Returns how many of each.
pub async fn remove_expired(store: &dyn Store) -> (StoreResult<u64>, StoreResult<u64>) {
    (store.remove_expired_tickets().await, store.remove_expired_idempotency(REMEMBERED_MS).await)
}

/// How many rows there are that [`remove_expired`], [`remove_old_audit`], [`remove_old_spending`] and [`remove_unused_tool_sets`] would
/// remove.
pub async fn count_expired(store: &dyn Store, audit_ms: Option<u64>) -> StoreResult<Expired> {
    store.count_expired(REMEMBERED_MS, audit_ms).await
}

/// Removes rows of the audit that are old enough, piece by piece. Returns how many.
pub async fn remove_old_audit(store: &dyn AuditStore, age_ms: Option<u64>) -> StoreResult<u64> {
    let Some(age_ms) = age_ms else { return Ok(0) };
    to_the_end(|| store.remove_old_audit(age_ms)).await
}

/// Removes what budgets of days gone by have counted, piece by piece. Returns how many rows.
pub async fn remove_old_spending(store: &dyn BudgetStore) -> StoreResult<u64> {
    to_the_end(|| store.remove_old_spending()).await
}

/// Removes sets of tools that no run names any more, piece by piece. Returns how many.
pub async fn remove_unused_tool_sets(store: &dyn RetentionStore) -> StoreResult<u64> {
    to_the_end(|| store.remove_unused_tool_sets()).await
}

/// Removes piece by piece until nothing is left. Returns how much.
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

/// Begins with a pass at the start, for servers that never live long.
async fn fold(store: Arc<dyn Store>, age_ms: u64, stop: CancellationToken) {
    loop {
        let mut folder = Folder::new(store.clone(), age_ms, FoldMode::Fold);
        loop {
            let begun = Instant::now();
            match folder.step().await {
                Ok(FoldStep::Went) if pause(begun.elapsed() * FOLD_REST, &stop).await => {}
                Ok(FoldStep::Went | FoldStep::Taken | FoldStep::Done) => break,
                Err(error) => {
                    tracing::warn!(
                        error = &error as &dyn std::error::Error,
                        "old deltas could not be folded; the next pass goes on"
                    );
                    break;
                }
            }
        }
        if folder.runs() > 0 {
            tracing::info!(runs = folder.runs(), events = folder.events(), "folded old deltas");
        }
        if !pause(FOLD_EVERY, &stop).await {
            return;
        }
    }
}

/// Begins with a pass at the start, like [`fold`].
async fn tidy(store: Arc<dyn Store>, hub: Arc<Hub>, ages: TidyAges, stop: CancellationToken) {
    loop {
        let mut tidier = Tidier::new(store.clone(), Some(Arc::clone(&hub)), ages, FoldMode::Fold);
        loop {
            let begun = Instant::now();
            match tidier.step().await {
                Ok(true) if pause(begun.elapsed() * FOLD_REST, &stop).await => {}
                Ok(_) => break,
                Err(error) => {
                    let error = &error as &dyn std::error::Error;
                    tracing::warn!(error, "old conversations could not be tidied; the next pass goes on");
                    break;
                }
            }
        }
        let Tidied { archived, deleted } = tidier.tidied();
        if archived + deleted > 0 {
            tracing::info!(archived, deleted, "tidied old conversations");
        }
        if !pause(TIDY_EVERY, &stop).await {
            return;
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
