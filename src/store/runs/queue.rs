//! The queue of runs: the trait.

use async_trait::async_trait;

use crate::domain::conversation::Message;
use crate::domain::ids::{NodeId, RunId};
use crate::domain::run::{Fence, RunRecord};
use crate::store::{Claim, Renewal, StoreResult, Sweep};

/// Claims runs, keeps their leases, and delivers control signals to their workers.
#[async_trait]
#[warn(missing_docs)]
pub trait QueueStore: Send + Sync {
    /// Claims up to `limit` runs: increments the epoch, creates the lease, counts the attempt. A lost race is not an error, but
    /// reduces the result.
    ///
    /// Fair between owners (fewest live leases first), oldest first for one owner. No owner gets more live leases than the store's
    /// limit. A node gets one run that is [suspected](crate::store::SUSPECT_CRASHES) of crashing its workers. It gets the next one
    /// after it has released or [cleared](Self::clear_of_crashes) that run, or has held it for [this
    /// long](crate::store::SUSPECT_LEASES).
    async fn claim_runs(&self, node: &NodeId, limit: u32, lease_ms: u64) -> StoreResult<Vec<Claim>>;

    /// Raises the epoch of a run that its worker continues. After this, a write under the old fence is either stored or impossible.
    /// `None` if the fence is not the newest.
    ///
    /// A worker that has lost the reply may repeat the call. If the newest fence is the next one, and the run was claimed no more
    /// often than `attempt`, only this worker can have raised it, so it is returned again. Each claim counts an attempt, so the
    /// fence of another claim is never returned.
    async fn raise_fence(&self, fence: &Fence, attempt: u32) -> StoreResult<Option<Fence>>;

    /// Records that a run makes progress: its current claim never counts as a crash, and it is no longer suspected. Called once per
    /// claim. Does nothing if the fence is not the newest.
    async fn clear_of_crashes(&self, fence: &Fence) -> StoreResult<()>;

    /// Loads a claimed run without the messages of its conversation: enough to end the run, but too little to crash a worker.
    /// `None` if the fence is not the newest.
    async fn load_bare(&self, fence: &Fence) -> StoreResult<Option<RunRecord>>;

    /// Loads a claimed run. `None` if the fence is not the newest.
    async fn load_run(&self, fence: &Fence) -> StoreResult<Option<RunRecord>>;

    /// Renews the leases that `node` knows in one statement, and returns the leases of the node that were not named.
    ///
    /// A lease that expired more than `grace_ms` ago, or has another epoch, is not renewed. A lease with another epoch still counts
    /// as named, because the reply to a raised fence may be on its way.
    async fn renew_leases(&self, node: &NodeId, known: &[Fence], lease_ms: u64, grace_ms: u64) -> StoreResult<Renewal>;

    /// Releases leases that their worker could not renew because the database was unavailable. The worker is alive, so these claims
    /// do not count as crashes, and the runs can be claimed at once. The claim cause stays if the run has not
    /// [started](crate::domain::run::change::Change::Start) since, and is a hand-back otherwise.
    ///
    /// Ignores leases that have ended otherwise, so the call can be repeated. Returns the runs whose rows another transaction has
    /// locked: the caller repeats the call for them.
    async fn give_up_leases(&self, fences: &[Fence]) -> StoreResult<Vec<RunId>>;

    /// Makes runs claimable whose lease has expired by the database's clock, at most `limit`, and fences their workers. If more
    /// than half of all leases (and at least four) seem expired at once, it takes none unless `despite_outage`. It also takes none
    /// if the database answered too slowly, because renewals were then late too. With a `limit` of 0, only counts.
    async fn sweep_expired_leases(&self, limit: u32, despite_outage: bool) -> StoreResult<Sweep>;

    /// Expires every lease that does not belong to `node`. SQLite has one server process, so all other workers are gone. Does
    /// nothing on Postgres.
    async fn expire_foreign_leases(&self, node: &NodeId) -> StoreResult<u64>;

    /// Returns cancellations and joined messages of running runs, for all runs of a node at once.
    async fn control_signals(&self, runs: &[RunId]) -> StoreResult<Vec<ControlSignal>>;

    /// Returns the milliseconds until the next run becomes claimable by time alone, by the database's clock (0 for now). Ignores
    /// runs of owners at their limit.
    async fn next_claimable_in(&self) -> StoreResult<Option<u64>>;
}

/// A request that concerns a running run.
#[derive(Debug, Clone, PartialEq)]
pub struct ControlSignal {
    pub run_id: RunId,
    /// The user who requested the cancellation of the run.
    pub cancel_by: Option<String>,
    /// Messages that joined the run since it was accepted, oldest first. The worker drops those that it knows.
    pub joined: Vec<Message>,
    /// Whether a message that joined the run is unreadable. The run cannot continue without it, and cannot be loaded either.
    pub is_damaged: bool,
    /// Whether the run is gone: its conversation was deleted.
    pub is_gone: bool,
}

impl ControlSignal {
    /// Adds a user message, if it is readable.
    pub(in crate::store) fn join(&mut self, message: StoreResult<Message>) {
        match message {
            // Internal messages have the role `user`, too.
            Ok(message) if message.internal => {}
            Ok(message) => self.joined.push(message),
            // The worker cannot load the run, and that error contains the reason.
            Err(_) => self.is_damaged = true,
        }
    }

    /// Returns whether the signal requires an action.
    pub(in crate::store) fn has_changes(&self) -> bool {
        self.is_gone || self.is_damaged || self.cancel_by.is_some() || !self.joined.is_empty()
    }
}
