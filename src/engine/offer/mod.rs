//! Which tools a model call is offered, of all that its run may use.
//!
//! The selection is stored in the run's counters, so that the next claim offers the same; it is made anew when a message joins. A
//! tool that is not on offer may be called all the same, and is offered from then on.

pub mod categories;
pub mod choose;
pub mod pick;
pub mod query;
pub mod usable;
