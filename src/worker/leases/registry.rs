//! The registry of the runs that this process has claimed.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::Span;

use crate::domain::ids::RunId;
use crate::domain::run::Fence;
use crate::store::{ControlSignal, UnnamedLease};
use crate::support::locks::lock;

/// A claimed run, as the heartbeat and the control task see it.
#[derive(Clone)]
pub struct ActiveLease {
    pub fence: Fence,
    /// Cancelled when this process no longer holds the run: stop at once and write no more.
    pub lost: CancellationToken,
    /// The run's span, for log lines of other tasks.
    pub span: Span,
    // Boxed, because a channel reserves space for many signals, and most runs never get one.
    control: mpsc::Sender<Box<ControlSignal>>,
    lease: Arc<Lease>,
}

struct Lease {
    renewed_at: Mutex<Instant>,
    /// Whether a write that gives up the lease, or its fence, is pending.
    is_releasing: AtomicBool,
    /// Whether the lease was lost because the database was unavailable.
    is_excused: AtomicBool,
}

impl ActiveLease {
    /// Stores the time of a renewal, whose request was sent at `at`.
    pub fn renewed(&self, at: Instant) {
        *lock(&self.lease.renewed_at) = at;
    }

    /// Returns whether the lease was renewed less than `limit` ago, by the monotonic clock. A process that was suspended detects this way
    /// that it must not act.
    pub fn is_fresh(&self, limit: Duration) -> bool {
        lock(&self.lease.renewed_at).elapsed() < limit
    }

    /// Sets whether the driver is about to give the lease up, or to continue under another fence.
    pub fn set_releasing(&self, is_releasing: bool) {
        self.lease.is_releasing.store(is_releasing, Ordering::Release);
    }

    /// Returns whether the lease under this fence may have ended because its holder gave it up. If not, the next write detects it.
    pub fn is_releasing(&self) -> bool {
        self.lease.is_releasing.load(Ordering::Acquire)
    }

    /// Stops the driver of the run, whose lease is then given up without counting a crash. Callers use it if the database is
    /// unavailable, or the run could not be handed back at the end of the worker.
    pub fn mark_lost_to_outage(&self) {
        self.lease.is_excused.store(true, Ordering::Release);
        self.lost.cancel();
    }

    /// Sends a signal to the driver. If its mailbox is full, the next poll repeats the signal.
    pub fn send_signal(&self, signal: ControlSignal) {
        let _ = self.control.try_send(Box::new(signal));
    }
}

#[derive(Clone, Default)]
pub struct Registry {
    /// Ordered, so that actions on all of them are reproducible.
    runs: Arc<Mutex<BTreeMap<RunId, ActiveLease>>>,
    /// Fences that this process gave up without a crash, which the database does not know yet.
    given_up: Arc<Mutex<Vec<Fence>>>,
    /// Runs whose drivers have ended, as long as the database may have their leases. Such a lease is no orphaned claim: the driver may have
    /// crashed, and then the lease has to expire.
    ended: Arc<Mutex<EndedRuns>>,
}

/// The newest epoch under which a driver of each run has ended.
pub type EndedRuns = BTreeMap<RunId, i64>;

impl Registry {
    /// Adds a run that was claimed by a request sent at `claimed_at`. Dropping the guard removes it, also after a panic of its driver: the
    /// lease then expires.
    ///
    /// A process may claim a run again that it lost without noticing, and a handed-over claim may arrive after that. The claim with the
    /// higher epoch applies, and the other one is lost from the start.
    pub fn add(&self, fence: Fence, claimed_at: Instant, span: Span) -> (ActiveLeaseGuard, mpsc::Receiver<Box<ControlSignal>>) {
        let (control, mailbox) = mpsc::channel(8);
        let lost = CancellationToken::new();
        let lease = Arc::new(Lease {
            renewed_at: Mutex::new(claimed_at),
            is_releasing: AtomicBool::new(false),
            is_excused: AtomicBool::new(false),
        });
        let active_lease = ActiveLease { fence, lost, span, control, lease };
        match lock(&self.runs).entry(active_lease.fence.run_id.clone()) {
            Entry::Vacant(free) => {
                free.insert(active_lease.clone());
            }
            Entry::Occupied(newer) if newer.get().fence.epoch > active_lease.fence.epoch => active_lease.lost.cancel(),
            Entry::Occupied(mut older) => older.insert(active_lease.clone()).lost.cancel(),
        }
        (ActiveLeaseGuard { registry: self.clone(), active_lease }, mailbox)
    }

    pub fn all(&self) -> Vec<ActiveLease> {
        lock(&self.runs).values().cloned().collect()
    }

    /// Removes and returns the fences that this process gave up without a crash: orphaned claims, and
    /// [excused](ActiveLease::mark_lost_to_outage) runs whose drivers have ended.
    pub fn take_given_up(&self) -> Vec<Fence> {
        let mut given_up = std::mem::take(&mut *lock(&self.given_up));
        // A later claim may have the same epoch, if both were made within a microsecond, or the clock was set back.
        let runs = lock(&self.runs);
        given_up.retain(|fence| runs.get(&fence.run_id).is_none_or(|active_lease| active_lease.fence.epoch != fence.epoch));
        given_up
    }

    /// Adds fences that must be reported to the database.
    pub fn keep_given_up(&self, fences: Vec<Fence>) {
        let mut given_up = lock(&self.given_up);
        for fence in fences {
            if !given_up.contains(&fence) {
                given_up.push(fence);
            }
        }
    }

    /// Returns the runs whose drivers have ended, for [`Self::forget_ended`].
    pub fn ended(&self) -> EndedRuns {
        lock(&self.ended).clone()
    }

    /// Removes the runs of `ended` whose leases have ended. `ended` was read before the request for `unnamed`. Keeps `named` runs,
    /// because the database does not return their leases. A run whose driver is ending is named and in `ended` for a moment.
    pub fn forget_ended(&self, ended: &EndedRuns, named: &[Fence], unnamed: &[UnnamedLease]) {
        let named: BTreeSet<_> = named.iter().map(|fence| &fence.run_id).collect();
        let leases: EndedRuns = unnamed.iter().map(|lease| (lease.fence.run_id.clone(), lease.fence.epoch)).collect();
        lock(&self.ended).retain(|run, epoch| {
            let has_ended_since = ended.get(run) != Some(&*epoch);
            has_ended_since || named.contains(run) || leases.get(run).is_some_and(|lease| *lease <= *epoch)
        });
    }

    /// Returns whether no driver of this process ever had this claim.
    pub fn is_orphaned(&self, fence: &Fence) -> bool {
        // `runs` is read before `ended`, because a driver that ends is added to `ended` before it is removed from `runs`.
        let is_held = lock(&self.runs).contains_key(&fence.run_id);
        !is_held && lock(&self.ended).get(&fence.run_id).is_none_or(|ended| fence.epoch > *ended)
    }

    pub fn len(&self) -> usize {
        lock(&self.runs).len()
    }

    pub fn get(&self, run: &RunId) -> Option<ActiveLease> {
        lock(&self.runs).get(run).cloned()
    }
}

/// Keeps a run in the registry.
pub struct ActiveLeaseGuard {
    registry: Registry,
    pub active_lease: ActiveLease,
}

impl ActiveLeaseGuard {
    /// Continues under a newer fence of the same claim. A concurrent renewal uses either fence.
    pub fn continue_under(&mut self, fence: Fence) {
        let mut runs = lock(&self.registry.runs);
        if let Some(known) = runs.get_mut(&fence.run_id).filter(|known| known.fence == self.active_lease.fence) {
            known.fence = fence.clone();
        }
        self.active_lease.fence = fence;
    }
}

impl Drop for ActiveLeaseGuard {
    fn drop(&mut self) {
        let fence = &self.active_lease.fence;
        // The fence may have been raised, and the reply lost.
        let raised = self.active_lease.is_releasing().then(|| Fence { epoch: fence.epoch + 1, ..fence.clone() });
        let newest = raised.as_ref().unwrap_or(fence).epoch;
        lock(&self.registry.ended).entry(fence.run_id.clone()).and_modify(|epoch| *epoch = newest.max(*epoch)).or_insert(newest);
        let mut runs = lock(&self.registry.runs);
        // This process may have claimed the run again in the meantime.
        if runs.get(&fence.run_id).is_some_and(|active_lease| active_lease.fence == *fence) {
            runs.remove(&fence.run_id);
        }
        drop(runs);
        if self.active_lease.lease.is_excused.load(Ordering::Acquire) {
            self.registry.keep_given_up(std::iter::once(fence.clone()).chain(raised).collect());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::ids::ConversationId;

    fn fence(epoch: i64) -> Fence {
        let run_id = RunId::from_stored("run_1".to_owned());
        Fence { run_id, conversation_id: ConversationId::from_stored("conv_1".to_owned()), epoch }
    }

    #[tokio::test]
    async fn of_two_claims_the_newer_one_counts_whichever_comes_first() {
        for epochs in [[1, 2], [2, 1]] {
            let registry = Registry::default();
            let guards = epochs.map(|epoch| registry.add(fence(epoch), Instant::now(), Span::none()).0);
            for guard in &guards {
                assert_eq!(guard.active_lease.lost.is_cancelled(), guard.active_lease.fence.epoch == 1, "{epochs:?}");
            }
            let known = || registry.get(&fence(0).run_id).map(|active_lease| active_lease.fence.epoch);
            assert_eq!(known(), Some(2), "{epochs:?}");
            let [first, second] = guards;
            let (older, newer) = if first.active_lease.fence.epoch == 1 { (first, second) } else { (second, first) };
            drop(older);
            assert_eq!(known(), Some(2), "the older one takes only itself out");
            drop(newer);
            assert_eq!(registry.len(), 0);
        }
    }

    #[tokio::test]
    async fn lease_of_an_ended_driver_is_not_orphaned() {
        let registry = Registry::default();
        let unnamed = |epoch: i64| UnnamedLease { fence: fence(epoch), age: Duration::ZERO };
        assert!(registry.is_orphaned(&fence(1)));
        let (guard, _mailbox) = registry.add(fence(1), Instant::now(), Span::none());
        assert!(!registry.is_orphaned(&fence(1)) && !registry.is_orphaned(&fence(2)), "the run has a driver");
        let before = registry.ended();
        drop(guard);
        assert!(!registry.is_orphaned(&fence(1)) && registry.is_orphaned(&fence(2)), "only the newer claim is unknown");
        registry.forget_ended(&before, &[], &[]);
        assert!(!registry.is_orphaned(&fence(1)), "it ended after the database was asked");
        registry.forget_ended(&registry.ended(), &[fence(1)], &[]);
        assert!(!registry.is_orphaned(&fence(1)), "its lease was named, and is listed nowhere");
        registry.forget_ended(&registry.ended(), &[], &[unnamed(1)]);
        assert!(!registry.is_orphaned(&fence(1)), "the lease is left");
        registry.forget_ended(&registry.ended(), &[], &[unnamed(2)]);
        assert!(registry.is_orphaned(&fence(1)), "the lease is gone");
    }

    #[tokio::test]
    async fn raised_fence_of_an_ended_driver_is_not_orphaned() {
        let registry = Registry::default();
        let (guard, _mailbox) = registry.add(fence(1), Instant::now(), Span::none());
        guard.active_lease.set_releasing(true);
        drop(guard);
        assert!(!registry.is_orphaned(&fence(1)) && !registry.is_orphaned(&fence(2)));
    }

    #[tokio::test]
    async fn a_run_is_known_by_the_fence_that_it_goes_on_under() {
        let registry = Registry::default();
        let (mut guard, _mailbox) = registry.add(fence(1), Instant::now(), Span::none());
        guard.continue_under(fence(2));
        assert_eq!(registry.get(&fence(0).run_id).map(|active_lease| active_lease.fence), Some(fence(2)));
        drop(guard);
        assert_eq!(registry.len(), 0);
    }
}
