//! Clone detection: notices a restored or copied database when it is opened.
//!
//! A copy is an earlier state of the database. Clients have seen events that it lacks, and its runs would repeat tool calls that
//! were made later. Therefore a server does not start on a copy until an operator accepts it. Then every conversation's log
//! continues at a number derived from the current time. The numbers of the lost events are never used again, and two accepted
//! copies have no numbers in common.

use super::error::StoreError;

/// How a copied database is treated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnClone {
    /// Opens the database without a check. For commands, which execute no runs.
    SkipCheck,
    #[default]
    Refuse,
    Accept,
    /// Accepts the database as a copy even if none was detected, because only the operator can know.
    AcceptUndetected,
}

/// Number of sequence numbers per millisecond.
///
/// No conversation stores events that fast. Every number stays below 2^53 until the year 2255, so that JavaScript represents it
/// exactly.
pub(super) const NUMBERS_PER_MS: i64 = 1_000;

/// The smallest increase of a log's sequence numbers. It applies if the clock is behind the newest number.
pub(super) const LEAST_JUMP: i64 = 1_000_000;

/// Returns the error for a copy that was not accepted.
pub(super) fn clone_error(evidence: &str) -> StoreError {
    StoreError::Copied(format!(
        "{evidence}: runs that continued elsewhere would run again. Stop every server of the original, then start one with \
         `capstan serve --accept-restore`, or run `capstan migrate --accept-restore` once"
    ))
}

/// Logs that a copy was accepted.
pub(super) fn log_accepted(conversations: u64) {
    tracing::warn!(
        conversations,
        "the database is an accepted copy: the logs of {conversations} conversations continue with higher sequence numbers"
    );
}
