//! Wake-ups and the tail of the log.
//!
//! Owns who listens to what. Everything here is a hint or a copy: the log in the store is the truth, and a reader that hears
//! nothing, or too late, reads there. Must not know the store.

mod hub;
mod reception;
mod signal;

pub use hub::{Elsewhere, Hub, HubLimits, Subscription, Tail};
pub use reception::{Reception, Seat, TakenRun};
pub use signal::Signal;
