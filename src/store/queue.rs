//! The queue of runs: the trait.

use async_trait::async_trait;

use super::{Claim, ControlSignal, Renewal, StoreResult, Sweep};
use crate::domain::ids::{NodeId, RunId};
use crate::domain::record::{Fence, RunRecord};

/// The queue of runs, used by workers only.
#[async_trait]
pub trait QueueStore: Send + Sync {
    /// Claims up to `limit` runs: raises the epoch, writes the lease, counts the attempt. Fair between owners (the one with
    /// the fewest live leases first), oldest first within one. No owner gets more live leases than the store was opened with a
    /// limit for. Losing a race is no error, only fewer rows. Of runs that are [suspected](super::SUSPECT_CRASHES) of killing their workers a
    /// node gets one, and the next when it has let go of that one, has [cleared](Self::clear_of_crashes) it, or has had it for
    /// [so long](super::SUSPECT_LEASES).
    async fn claim_runs(&self, node: &NodeId, limit: u32, lease_ms: u64) -> StoreResult<Vec<Claim>>;

    /// Raises the epoch of a run that its worker holds and goes on with. Whatever may still be under way under the old fence is
    /// written before this, or never. `None` if the fence is no longer the newest.
    ///
    /// A worker that has not heard the answer may ask again: if the newest fence is the one that follows, and the run has been
    /// claimed no more often than `attempt` says, nobody but this worker can have raised it, and it is given once more. Each claim counts
    /// an attempt, so that a fence of another claim is never taken for it.
    async fn raise_fence(&self, fence: &Fence, attempt: u32) -> StoreResult<Option<Fence>>;

    /// Says of a run that it goes on well: its present claim does not count as a crash, whatever becomes of it, and it is not suspected any
    /// more. To be said once for each claim. Nothing if the fence is no longer the newest.
    async fn clear_of_crashes(&self, fence: &Fence) -> StoreResult<()>;

    /// Loads a claimed run without what was said in its conversation: enough to end it, and so little that loading it kills nobody. `None` if
    /// the fence is no longer the newest.
    async fn load_bare(&self, fence: &Fence) -> StoreResult<Option<RunRecord>>;

    /// Loads a claimed run. `None` if the fence is no longer the newest.
    async fn load_run(&self, fence: &Fence) -> StoreResult<Option<RunRecord>>;

    /// Renews the leases that `node` knows in one statement, and lists the leases of the node that it did not name.
    ///
    /// A lease that expired longer than `grace_ms` ago is not revived. A lease is named by its run, whatever its epoch: the
    /// reply to a raised fence may be under way.
    async fn renew_leases(&self, node: &NodeId, known: &[Fence], lease_ms: u64, grace_ms: u64) -> StoreResult<Renewal>;

    /// Gives up leases that their worker could not renew because the database was away. It lives, so these claims do not count
    /// as crashes, and the runs can be claimed at once: for the reason for which they were claimed if they have not gone on since
    /// ([`Change::Started`](crate::domain::change::Change::Started)), and else as if they were handed back. Leases that somebody else has
    /// ended are left alone: repeating it changes nothing more. Returns the runs that still have theirs, because somebody else is at their
    /// rows: they are to be given up again.
    async fn give_up_leases(&self, fences: &[Fence]) -> StoreResult<Vec<RunId>>;

    /// Makes runs claimable whose lease has expired by the database's clock, at most `limit`, and fences off whoever held it.
    /// When more than half of all leases (and at least four) look expired at once, nothing is taken unless `despite_outage`. With a
    /// `limit` of 0 it only counts them.
    async fn sweep(&self, limit: u32, despite_outage: bool) -> StoreResult<Sweep>;

    /// Expires every lease that is not of `node`: SQLite has one server process, so all others are dead. No-op on Postgres.
    async fn expire_foreign_leases(&self, node: &NodeId) -> StoreResult<u64>;

    /// Requests that concern runs in progress: cancellations and messages to join. Asked for all runs of a node at once.
    async fn control_signals(&self, runs: &[RunId]) -> StoreResult<Vec<ControlSignal>>;

    /// When the next run becomes claimable by time alone, in milliseconds from now by the database's clock (0 = now). Runs whose
    /// owner has as many as it may have under way do not count.
    async fn next_claimable_in(&self) -> StoreResult<Option<u64>>;
}
