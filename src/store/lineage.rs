//! Telling a database from a copy of it that was put back or put elsewhere.
//!
//! A copy is a moment that has passed. Clients have seen events of after it, and what was called then would be called once more. So
//! a server does not start on one until somebody says so. Then the log of every conversation goes on at a number that is made of
//! the moment: what the lost events were called means nothing else, ever, and two copies that go on, each for itself, have no
//! numbers in common.

use super::StoreError;

/// What becomes of a database that looks like a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnCopy {
    /// Nobody looks. For commands, which work on nothing.
    Overlook,
    /// It is not opened.
    #[default]
    Refuse,
    /// It is the database from now on.
    Accept,
    /// The same, even if nothing tells that it is a copy: only the operator can know.
    AcceptUnseen,
}

/// How many numbers there are for the events of a millisecond. A conversation is far from having as many, and with this many every
/// number stays below 2^53 until the year 2255, so that JavaScript knows it exactly.
pub(super) const NUMBERS_PER_MS: i64 = 1_000;

/// How far a log jumps at least, should the clock be behind the last jump.
pub(super) const LEAST_JUMP: i64 = 1_000_000;

/// Why a copy is not opened.
pub(super) fn refused(what: &str) -> StoreError {
    StoreError::Copied(format!(
        "{what}: runs would go on that have gone on elsewhere. End every server that works on what this is a copy of, then start \
         one with `capstan serve --accept-restore`, or do `capstan migrate --accept-restore` once"
    ))
}

/// Says that a copy was accepted.
pub(super) fn tell(conversations: u64) {
    tracing::warn!(
        conversations,
        "the database is a copy that was accepted: the logs of {conversations} conversations go on under higher numbers"
    );
}
