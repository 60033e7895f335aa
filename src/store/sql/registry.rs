//! Lists the statements of every aggregate, for the test that prepares them on both databases.
//!
//! Owns the list of modules. Must not know what any statement does.

use super::statement::Statement;
use super::{
    budget, conversation_rows, conversations, copy, grants, idempotency, input, log, providers, rewind, run_rows, runs, search,
    summaries,
};

/// Returns the statements of each aggregate with the name of its module.
#[must_use]
pub fn statements() -> Vec<(&'static str, &'static [Statement])> {
    vec![
        ("budget", budget::STATEMENTS),
        ("conversation_rows", conversation_rows::STATEMENTS),
        ("conversations", conversations::STATEMENTS),
        ("copy", copy::STATEMENTS),
        ("grants", grants::STATEMENTS),
        ("idempotency", idempotency::STATEMENTS),
        ("input", input::STATEMENTS),
        ("log", log::STATEMENTS),
        ("providers", providers::STATEMENTS),
        ("rewind", rewind::STATEMENTS),
        ("run_rows", run_rows::STATEMENTS),
        ("runs", runs::STATEMENTS),
        ("search", search::STATEMENTS),
        ("summaries", summaries::STATEMENTS),
    ]
}
