//! Lists the statements of every aggregate, for the test that prepares them on both databases.
//!
//! Owns the list of modules. Must not know what any statement does.

use super::statement::Statement;
use super::{idempotency, providers};

/// Returns the statements of each aggregate with the name of its module.
#[must_use]
pub fn statements() -> Vec<(&'static str, &'static [Statement])> {
    vec![("idempotency", idempotency::STATEMENTS), ("providers", providers::STATEMENTS)]
}
