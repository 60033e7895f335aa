//! Wake-ups, the live tail of the log, changes of lists, and the hand-off of accepted runs to this process's worker.
//!
//! Wake-ups here are hints, and events are copies. The log in the store is the truth, and a reader that misses something reads it
//! there. This module must not know the store.

mod handoff;
mod hub;
mod lists;

pub use handoff::{HandOff, HandedRun, ReservedSlot};
pub use hub::{Hub, HubLimits, RemoteWakeup, Subscription, Tail};
pub use lists::{ListChange, ListSubscription, Lists};
