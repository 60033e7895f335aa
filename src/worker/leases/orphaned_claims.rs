//! Releases orphaned claims, and the claims of runs that were dropped although their worker has not crashed.
//!
//! An orphaned claim is a lease that the database granted to this node, and that no driver of this process knows. The reply to the
//! claim was lost, or the hand-off did not reach the worker. It is released at the [orphan age](WorkerOptions::orphan_age), or at
//! any age by a drain; otherwise it would expire and count as a crash.
//!
//! A reply that arrives after the release is harmless: its driver first loads the run, and a void fence loads no run. The lease of
//! a driver that has ended is no orphaned claim. It has to expire, since that driver may have crashed.
//!
//! Owns the release. Must not know when leases are renewed.

use std::time::Duration;

use crate::store::UnnamedLease;
use crate::worker::leases::registry::Registry;
use crate::worker::{WorkerDeps, WorkerOptions};

/// Records the orphaned claims among `unnamed` that are at least as old as `age`, for their release.
pub(super) fn record(registry: &Registry, unnamed: Vec<UnnamedLease>, age: Duration) {
    let old = unnamed.into_iter().filter(|lease| lease.age >= age).map(|lease| lease.fence);
    let orphaned: Vec<_> = old.filter(|fence| registry.is_orphaned(fence)).collect();
    if !orphaned.is_empty() {
        tracing::warn!(
            runs = orphaned.len(),
            "releasing orphaned claims: the database granted their leases and the replies were lost"
        );
        registry.keep_given_up(orphaned);
    }
}

/// Releases in the database the recorded orphaned claims, and the claims of dropped runs.
pub(super) async fn release(deps: &WorkerDeps, registry: &Registry) {
    let fences = registry.take_given_up();
    if fences.is_empty() {
        return;
    }
    let before = fences.len();
    let left = match deps.store.give_up_leases(&fences).await {
        // Nearly always empty, so a linear search is enough.
        Ok(left) => fences.into_iter().filter(|fence| left.contains(&fence.run_id)).collect(),
        Err(_) => fences,
    };
    if before > left.len() {
        tracing::info!(runs = before - left.len(), "dropped runs are in the queue again");
        deps.hub.queue_signal().notify_one();
    }
    registry.keep_given_up(left);
}

/// Releases the remaining claims at the end of the worker: those of runs that drivers dropped, and orphaned claims of any age. At
/// this point the worker awaits no reply to a claim.
pub async fn release_all(deps: &WorkerDeps, options: &WorkerOptions, registry: &Registry) {
    release(deps, registry).await;
    // Names no lease, so that no lease of a run that cannot be handed back is extended.
    if let Ok(renewal) = deps.store.renew_leases(&options.node, &[], 0, 0).await {
        record(registry, renewal.unnamed, Duration::ZERO);
    }
    release(deps, registry).await;
}
