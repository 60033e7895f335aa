//! Hands an accepted run directly to the worker of this process.
//!
//! Most messages arrive while the local worker has a free slot. The claim is then stored together with the message, and the loaded
//! run is handed over. A run that is claimed but not handed over is an orphaned claim, which the heartbeat releases. This module
//! must not know the store.

use std::sync::{Arc, Mutex};

use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use crate::domain::ids::NodeId;
use crate::domain::run::FirstClaim;
use crate::domain::trace::TraceId;
use crate::support::locks::lock;

pub struct HandedRun {
    pub claim: FirstClaim,
    pub trace: TraceId,
    pub slot: OwnedSemaphorePermit,
}

#[derive(Clone)]
struct Offer {
    node: NodeId,
    lease_ms: u64,
    slots: Arc<Semaphore>,
    /// Slots that are kept free for queued runs, so that new runs do not starve them.
    for_queue: usize,
    runs: mpsc::UnboundedSender<HandedRun>,
}

#[derive(Default)]
pub struct HandOff {
    offer: Mutex<Option<Offer>>,
}

impl HandOff {
    /// Allows hand-offs to `node` while more than `for_queue` of its slots are free.
    pub fn open(&self, node: NodeId, lease_ms: u64, slots: Arc<Semaphore>, for_queue: usize) -> mpsc::UnboundedReceiver<HandedRun> {
        let (runs, handed) = mpsc::unbounded_channel();
        *lock(&self.offer) = Some(Offer { node, lease_ms, slots, for_queue, runs });
        handed
    }

    /// Stops reserving slots. The receiver ends when all reserved slots are used or dropped.
    pub fn close(&self) {
        *lock(&self.offer) = None;
    }

    /// Reserves a slot for a run that is about to be accepted. `None` without a worker, or without enough free slots.
    pub fn reserve(&self) -> Option<ReservedSlot> {
        let offer = lock(&self.offer).clone()?;
        if offer.slots.available_permits() <= offer.for_queue {
            return None;
        }
        let slot = Arc::clone(&offer.slots).try_acquire_owned().ok()?;
        Some(ReservedSlot { offer, slot })
    }
}

/// A slot that is reserved for a run. Dropping it frees the slot.
pub struct ReservedSlot {
    offer: Offer,
    slot: OwnedSemaphorePermit,
}

impl ReservedSlot {
    pub fn node(&self) -> &NodeId {
        &self.offer.node
    }

    pub fn lease_ms(&self) -> u64 {
        self.offer.lease_ms
    }

    /// Hands over the run, whose claim is stored.
    pub fn hand_over(self, claim: FirstClaim, trace: TraceId) {
        let Self { offer, slot } = self;
        if offer.runs.send(HandedRun { claim, trace, slot }).is_err() {
            tracing::warn!(
                "a run was handed to a worker that has ended; it is claimed again when its lease is released or expires"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::support::ids::SequentialIds;

    #[tokio::test]
    async fn slots_are_reserved_while_the_queue_keeps_its_share() {
        let hand_off = HandOff::default();
        assert!(hand_off.reserve().is_none(), "no worker");
        let slots = Arc::new(Semaphore::new(3));
        let node = NodeId::generate(&SequentialIds::default());
        let mut handed = hand_off.open(node.clone(), 10_000, Arc::clone(&slots), 1);
        let (one, two) = (hand_off.reserve().unwrap(), hand_off.reserve().unwrap());
        assert_eq!((one.node(), one.lease_ms(), slots.available_permits()), (&node, 10_000, 1));
        assert!(hand_off.reserve().is_none(), "the last slot is kept for the queue");
        drop(one);
        assert_eq!(slots.available_permits(), 2);
        hand_off.close();
        assert!(hand_off.reserve().is_none());
        drop(two);
        assert!(handed.recv().await.is_none());
    }
}
