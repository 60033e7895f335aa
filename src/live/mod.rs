//! Wake-ups and the tail of the log.
//!
//! Owns who listens to what. What is told here is a hint or a copy: the log in the store is the truth, and a reader that hears
//! nothing, or too late, reads there. One thing is more than that: the hand-off of an accepted run to this process's worker. Must
//! not know the store.

mod handoff;
mod hub;
mod signal;

pub use handoff::{HandOff, HandedRun, ReservedSlot};
pub use hub::{Elsewhere, Hub, HubLimits, Subscription, Tail};
pub use signal::Signal;
