//! Wake-ups, the live tail of the log, and the hand-off of accepted runs to this process's worker.
//!
//! Wake-ups and events here are hints and copies: the log in the store is the truth, and a reader that misses something reads
//! there. Must not know the store.

mod handoff;
mod hub;
mod signal;

pub use handoff::{HandOff, HandedRun, ReservedSlot};
pub use hub::{Elsewhere, Hub, HubLimits, Subscription, Tail};
pub use signal::Signal;
