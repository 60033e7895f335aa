//! Removes and compacts old data: deltas of ended runs, old conversations, expired rows.

pub(super) mod retention;
pub(super) mod tidy;
