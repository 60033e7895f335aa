//! Selects the tools of a model call among all that its run may use. Must not know how tools are executed.
//!
//! The run's counters store the selection, so that the next claim offers the same tools. When a message joins, the tools are
//! selected again. A model may also call a tool that is not on offer; the tool is on offer from then on.

pub mod categories;
pub mod query;
pub mod store_selection;
pub mod usable;
