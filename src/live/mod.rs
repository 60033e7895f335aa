//! Wake-ups and the tail of the log.
//!
//! Owns who listens to what. What is told here is a hint or a copy: the log in the store is the truth, and a reader that hears
//! nothing, or too late, reads there. One thing is more than that, a run that is handed to this process's worker in the moment in
//! which it was accepted: one that is not handed over is found by its lease. Must not know the store.

mod hub;
mod reception;
mod signal;

pub use hub::{Elsewhere, Hub, HubLimits, Subscription, Tail};
pub use reception::{Reception, Seat, TakenRun};
pub use signal::Signal;
