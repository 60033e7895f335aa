//! Removes and compacts old data: deltas of ended runs, old conversations, expired rows.
//!
//! Owns the steps of each pass. Must not know when a pass runs.

pub(super) mod delta_compaction;
pub(super) mod retention;
