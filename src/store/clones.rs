//! Clone detection: notices a restored or copied database when it is opened.
//!
//! Owns what an operator may decide and by how much the numbers jump. Must not know how a backend notices a copy.
//!
//! A copy is a past moment. Clients have seen later events, and tool calls made since then would be made once more, so a server does
//! not start on a copy until an operator accepts it. Then the log of every conversation goes on at a number made of the moment. The
//! numbers of the lost events never get another meaning, and two accepted copies have no numbers in common.

use super::error::StoreError;

/// How a copied database is treated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnCopy {
    /// Opens it unchecked. For commands, which execute no runs.
    Overlook,
    #[default]
    Refuse,
    Accept,
    /// Accepts it even if no copy is noticed: only the operator can know.
    AcceptUnseen,
}

/// The numbers for the events of a millisecond.
///
/// A conversation is far from having as many. Every number stays below 2^53 until the year 2255, so that JavaScript knows it exactly.
pub(super) const NUMBERS_PER_MS: i64 = 1_000;

/// The smallest jump of a log, for a clock that is behind the last jump.
pub(super) const LEAST_JUMP: i64 = 1_000_000;

/// Returns the refusal of a copy.
pub(super) fn refused(what: &str) -> StoreError {
    StoreError::Copied(format!(
        "{what}: runs would go on that have gone on elsewhere. End every server that works on what this is a copy of, then start \
         one with `capstan serve --accept-restore`, or do `capstan migrate --accept-restore` once"
    ))
}

/// Logs that a copy was accepted.
pub(super) fn log_accepted(conversations: u64) {
    tracing::warn!(
        conversations,
        "the database is a copy that was accepted: the logs of {conversations} conversations go on under higher numbers"
    );
}
