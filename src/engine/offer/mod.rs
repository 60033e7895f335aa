//! Which tools a model call is offered, of all that its run may use.
//!
//! What was chosen stands in the run's counters, so that whoever takes the run up offers the same; the choice is made anew when a
//! message joins. A tool that is not on offer may be called all the same, and is offered from then on.

pub mod categories;
pub mod choose;
pub mod pick;
pub mod query;
pub mod usable;
