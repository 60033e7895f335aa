//! The queue of runs: the trait.

use async_trait::async_trait;

use crate::domain::ids::{NodeId, RunId};
use crate::domain::run::record::{Fence, RunRecord};
use crate::store::{Claim, ControlSignal, Renewal, StoreResult, Sweep};

#[async_trait]
pub trait QueueStore: Send + Sync {
    /// Claims up to `limit` runs: raises the epoch, writes the lease, counts the attempt. A lost race is no error, only fewer rows.
    ///
    /// Fair between owners (fewest live leases first), oldest first within one. No owner gets more live leases than the store's limit.
    /// A node gets one run that is [suspected](crate::store::SUSPECT_CRASHES) of killing its workers. It gets the next when it has released or
    /// [cleared](Self::clear_of_crashes) that one, or has had it for [so long](crate::store::SUSPECT_LEASES).
    async fn claim_runs(&self, node: &NodeId, limit: u32, lease_ms: u64) -> StoreResult<Vec<Claim>>;

    /// Raises the epoch of a run that its worker continues. A write under the old fence is stored before this, or never. `None` if the
    /// fence is no longer the newest.
    ///
    /// A worker that has lost the reply may repeat the call. If the newest fence is the next one, and the run has been claimed no more
    /// often than `attempt` says, only this worker can have raised it, and it is returned again. Each claim counts an attempt, so the
    /// fence of another claim is never returned.
    async fn raise_fence(&self, fence: &Fence, attempt: u32) -> StoreResult<Option<Fence>>;

    /// Notes that a run goes on well: its present claim never counts as a crash, and it is not suspected any more. Called once for
    /// each claim. Does nothing if the fence is no longer the newest.
    async fn clear_of_crashes(&self, fence: &Fence) -> StoreResult<()>;

    /// Loads a claimed run without the messages of its conversation: enough to end it, and too little to crash a worker. `None` if the
    /// fence is no longer the newest.
    async fn load_bare(&self, fence: &Fence) -> StoreResult<Option<RunRecord>>;

    /// Loads a claimed run. `None` if the fence is no longer the newest.
    async fn load_run(&self, fence: &Fence) -> StoreResult<Option<RunRecord>>;

    /// Renews the leases that `node` knows in one statement, and lists the leases of the node that it did not name.
    ///
    /// A lease that expired longer than `grace_ms` ago is not revived. A lease is named by its run, not by its epoch:
    /// the reply to a raised fence may be under way.
    async fn renew_leases(&self, node: &NodeId, known: &[Fence], lease_ms: u64, grace_ms: u64) -> StoreResult<Renewal>;

    /// Gives up leases that their worker could not renew because the database was away. The worker lives, so these claims do not count
    /// as crashes, and the runs can be claimed at once. The claim cause stays if the run has not
    /// [started](crate::domain::run::change::Change::Started) since, and is a hand-back otherwise.
    ///
    /// Leases that have ended otherwise are ignored, so the call can be repeated. Returns the runs whose rows another transaction has
    /// locked: the caller gives them up again.
    async fn give_up_leases(&self, fences: &[Fence]) -> StoreResult<Vec<RunId>>;

    /// Makes runs claimable whose lease has expired by the database's clock, at most `limit`, and fences their workers off. When more
    /// than half of all leases (and at least four) look expired at once, none is taken unless `despite_outage`. A `limit` of 0 only
    /// counts.
    async fn sweep(&self, limit: u32, despite_outage: bool) -> StoreResult<Sweep>;

    /// Expires every lease that is not of `node`: SQLite has one server process, so all others are dead. No-op on Postgres.
    async fn expire_foreign_leases(&self, node: &NodeId) -> StoreResult<u64>;

    /// Returns cancellations and joined messages of runs under way, for all runs of a node at once.
    async fn control_signals(&self, runs: &[RunId]) -> StoreResult<Vec<ControlSignal>>;

    /// Returns when the next run becomes claimable by time alone, in milliseconds from now by the database's clock (0 = now). Runs of
    /// owners at their limit do not count.
    async fn next_claimable_in(&self) -> StoreResult<Option<u64>>;
}
