//! Renews leases, and drops runs whose lease cannot be renewed.
//!
//! A run that is dropped because the database is unavailable does not count as a crash. Its worker reports it as soon as the
//! database answers, and the run can be claimed at once. A worker that was itself too slow to renew does not report the run.
//! Otherwise a run that blocks its worker would be retried without end.

use std::collections::HashSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;

use crate::store::Renewal;
use crate::support::locks::lock;
use crate::worker::leases::orphaned_claims;
use crate::worker::leases::registry::Registry;
use crate::worker::{WorkerDeps, WorkerOptions};

/// A lease that expired this long ago may still be renewed if no other worker claimed the run.
const GRACE: Duration = Duration::from_secs(2);

/// Renews all leases of this node every `renew`, until `stop`. A run is lost if it is no longer held, or its lease was not renewed
/// for `self_stop` by the monotonic clock. The driver of a lost run stops at once and writes no more.
pub async fn run(deps: &WorkerDeps, options: &WorkerOptions, registry: &Registry, stop: CancellationToken) {
    let mut tick = tokio::time::interval(options.renew);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let database = Database::default();
    let watchdog = watch(options, registry, &database);
    tokio::pin!(watchdog);
    loop {
        let round = async {
            tick.tick().await;
            renew(deps, options, registry, &database).await;
            // After the renewal, because leases that are still held are more urgent.
            orphaned_claims::release(deps, registry).await;
        };
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            () = &mut watchdog => return,
            () = round => {}
        }
    }
}

/// The state of the database, by its replies to renewals.
#[derive(Default)]
struct Database {
    /// Whether the last renewal failed.
    last_renewal_failed: AtomicBool,
    /// When the pending renewal was sent.
    pending_since: Mutex<Option<Instant>>,
}

impl Database {
    /// Returns whether the database prevents renewals: it failed, or has not answered for `limit` while this process was running since
    /// `awake_since`.
    fn is_unresponsive(&self, limit: Duration, awake_since: Instant) -> bool {
        let pending_since = *lock(&self.pending_since);
        self.last_renewal_failed.load(Ordering::Relaxed)
            || pending_since.is_some_and(|pending_since| pending_since.max(awake_since).elapsed() > limit)
    }
}

async fn renew(deps: &WorkerDeps, options: &WorkerOptions, registry: &Registry, database: &Database) {
    let (ended, active_lease) = (registry.ended(), registry.all());
    let sent_at = Instant::now();
    let fences: Vec<_> = active_lease.iter().map(|active_lease| active_lease.fence.clone()).collect();
    *lock(&database.pending_since) = Some(sent_at);
    let answer = deps.store.renew_leases(&options.node, &fences, millis(options.lease), millis(GRACE)).await;
    *lock(&database.pending_since) = None;
    // Without a lease to renew, a failure says nothing about later leases.
    database.last_renewal_failed.store(answer.is_err() && !active_lease.is_empty(), Ordering::Relaxed);
    match answer {
        Ok(Renewal { renewed, unnamed }) => {
            let took = sent_at.elapsed();
            if took > options.renew {
                tracing::warn!(
                    took_ms = millis(took),
                    runs = fences.len(),
                    "leases were renewed late: the database is slow, and the worker drops runs if it becomes slower"
                );
            }
            let renewed: HashSet<_> = renewed.into_iter().collect();
            for run in active_lease {
                if renewed.contains(&run.fence.run_id) {
                    run.renewed(sent_at);
                } else if !run.is_releasing() && registry.get(&run.fence.run_id).is_some_and(|now| now.fence == run.fence) {
                    // A run that ended while the request was pending is not lost.
                    run.span.in_scope(|| tracing::warn!("lease lost"));
                    run.lost.cancel();
                }
            }
            registry.forget_ended(&ended, &fences, &unnamed);
            orphaned_claims::record(registry, unnamed, options.orphan_age());
        }
        Err(error) if !fences.is_empty() => {
            tracing::warn!(error = &error as &dyn std::error::Error, runs = fences.len(), "leases could not be renewed");
        }
        Err(error) => tracing::debug!(error = &error as &dyn std::error::Error, "orphaned claims could not be searched for"),
    }
}

/// Drops the runs whose lease was not renewed in time.
async fn watch(options: &WorkerOptions, registry: &Registry, database: &Database) {
    let pace = options.self_stop / 14;
    let mut tick = tokio::time::interval(pace);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut looked_at, mut awake_since) = (Instant::now(), Instant::now());
    loop {
        tick.tick().await;
        if looked_at.elapsed() > pace * 3 {
            // The process was suspended, or blocked by one of its runs: the database did not cause that time.
            awake_since = Instant::now();
        }
        looked_at = Instant::now();
        for run in registry.all() {
            if !run.lost.is_cancelled() && !run.is_fresh(options.self_stop) {
                run.span.in_scope(|| tracing::warn!("lease not renewed in time, dropping the run"));
                if database.is_unresponsive(options.renew, awake_since) {
                    run.mark_lost_to_outage();
                } else {
                    run.lost.cancel();
                }
            }
        }
    }
}

pub fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
