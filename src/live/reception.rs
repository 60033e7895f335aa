//! Where the worker of this process takes runs on in the moment in which they are accepted.
//!
//! Most messages come while a worker here has room. Its claim is then written together with the message, and the run is handed
//! over with all that its driver needs, instead of waiting in the queue for the same worker to find it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{OwnedRwLockReadGuard, OwnedRwLockWriteGuard, OwnedSemaphorePermit, RwLock, Semaphore, mpsc};
use tokio::time::Instant;

use crate::domain::ids::NodeId;
use crate::domain::record::FirstClaim;
use crate::domain::trace::TraceId;

/// A run that a worker has taken on.
pub struct TakenRun {
    /// Its claim.
    pub claim: FirstClaim,
    /// The trace of the request that started it.
    pub trace: TraceId,
    /// The worker's slot that was kept for it.
    pub slot: OwnedSemaphorePermit,
    /// To be dropped when the worker knows the run.
    pub unknown: OwnedRwLockReadGuard<()>,
}

#[derive(Clone)]
struct Desk {
    node: NodeId,
    lease_ms: u64,
    slots: Arc<Semaphore>,
    /// Slots that are left for runs from the queue: whoever waits there is not to be overtaken by those who come.
    for_queue: usize,
    runs: mpsc::UnboundedSender<TakenRun>,
}

/// See the module documentation.
#[derive(Default)]
pub struct Reception {
    desk: Mutex<Option<Desk>>,
    /// Read by each run on its way from its acceptance to the worker.
    under_way: Arc<RwLock<()>>,
    /// Since when there may be a run that was accepted for the worker without anybody having heard of it.
    unheard_since: Mutex<Option<Instant>>,
}

impl Reception {
    /// Lets runs be taken on for `node` as long as more than `for_queue` of its slots are free.
    pub fn open(&self, node: NodeId, lease_ms: u64, slots: Arc<Semaphore>, for_queue: usize) -> mpsc::UnboundedReceiver<TakenRun> {
        let (runs, taken) = mpsc::unbounded_channel();
        *self.desk() = Some(Desk { node, lease_ms, slots, for_queue, runs });
        taken
    }

    /// Takes nothing on any more. The receiver ends when those who have a seat have used it or given it up.
    pub fn close(&self) {
        *self.desk() = None;
    }

    /// Waits until the worker knows every run that was taken on for it. Nothing is taken on while somebody waits for this, nor as long as
    /// the guard is kept: what a worker's node has claimed then, and the worker does not know, nobody will hand over.
    pub async fn pause(&self) -> OwnedRwLockWriteGuard<()> {
        Arc::clone(&self.under_way).write_owned().await
    }

    /// Keeps a slot for a run that is about to be accepted. `None` if there is no worker here, not much room, or a
    /// [pause](Self::pause).
    #[must_use]
    pub fn reserve(&self) -> Option<Seat> {
        let desk = self.desk().clone()?;
        if desk.slots.available_permits() <= desk.for_queue {
            return None;
        }
        let unknown = Arc::clone(&self.under_way).try_read_owned().ok()?;
        let slot = Arc::clone(&desk.slots).try_acquire_owned().ok()?;
        Some(Seat { desk, slot, unknown, reserved_at: Instant::now() })
    }

    /// Says that the store may have claimed a run for the worker, and that its answer was lost.
    pub fn lose(&self, seat: Seat) {
        let mut since = self.unheard_since();
        // Seats are not lost in the order in which they were taken.
        *since = Some(since.map_or(seat.reserved_at, |known| known.min(seat.reserved_at)));
    }

    /// Since when that may be so, once.
    pub fn take_lost(&self) -> Option<Instant> {
        self.unheard_since().take()
    }

    fn unheard_since(&self) -> MutexGuard<'_, Option<Instant>> {
        self.unheard_since.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn desk(&self) -> MutexGuard<'_, Option<Desk>> {
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A slot that is kept for a run. Dropping it frees the slot.
pub struct Seat {
    desk: Desk,
    slot: OwnedSemaphorePermit,
    unknown: OwnedRwLockReadGuard<()>,
    reserved_at: Instant,
}

impl Seat {
    /// Whose lease it will be.
    #[must_use]
    pub fn node(&self) -> &NodeId {
        &self.desk.node
    }

    /// How long the lease is to last at first.
    #[must_use]
    pub fn lease_ms(&self) -> u64 {
        self.desk.lease_ms
    }

    /// Hands over the run, whose claim is stored. Should the worker be gone, its lease expires and another takes it.
    pub fn take(self, claim: FirstClaim, trace: TraceId) {
        let Self { desk, slot, unknown, reserved_at: _ } = self;
        if desk.runs.send(TakenRun { claim, trace, slot, unknown }).is_err() {
            tracing::warn!("a run was taken on by a worker that has ended; it is resumed when its lease expires");
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;
    use crate::domain::ids::{ConversationId, RunId};
    use crate::domain::record::Fence;
    use crate::support::ids::SequentialIds;

    #[tokio::test]
    async fn seats_are_given_while_there_is_room_beside_the_queue() {
        let reception = Reception::default();
        assert!(reception.reserve().is_none(), "no worker");
        let slots = Arc::new(Semaphore::new(3));
        let node = NodeId::generate(&SequentialIds::default());
        let mut taken = reception.open(node.clone(), 10_000, Arc::clone(&slots), 1);
        let (one, two) = (reception.reserve().unwrap(), reception.reserve().unwrap());
        assert_eq!((one.node(), one.lease_ms(), slots.available_permits()), (&node, 10_000, 1));
        assert!(reception.reserve().is_none(), "the last slot is for the queue");
        drop(one);
        assert_eq!(slots.available_permits(), 2);
        reception.close();
        assert!(reception.reserve().is_none());
        drop(two);
        assert!(taken.recv().await.is_none());
    }

    #[tokio::test]
    async fn a_pause_begins_when_the_worker_knows_what_was_taken_on() {
        let ids = SequentialIds::default();
        let reception = Reception::default();
        let mut taken = reception.open(NodeId::generate(&ids), 10_000, Arc::new(Semaphore::new(3)), 0);
        let seat = reception.reserve().unwrap();
        let mut pause = std::pin::pin!(reception.pause());
        assert!(pause.as_mut().now_or_never().is_none(), "a run is being accepted");
        assert!(reception.reserve().is_none(), "no other one is");
        let fence = Fence { run_id: RunId::generate(&ids), conversation_id: ConversationId::generate(&ids), epoch: 1 };
        seat.take(FirstClaim { fence, claimed_at: Instant::now().into_std(), record: None }, TraceId::generate(&ids));
        assert!(pause.as_mut().now_or_never().is_none(), "it is on its way");
        drop(taken.recv().await.unwrap());
        let guard = pause.await;
        assert!(reception.reserve().is_none());
        drop(guard);
        let (first, second) = (reception.reserve().unwrap(), reception.reserve().unwrap());
        let since = first.reserved_at;
        assert_eq!(reception.take_lost(), None);
        reception.lose(second);
        reception.lose(first);
        assert_eq!((reception.take_lost(), reception.take_lost()), (Some(since), None));
    }
}
