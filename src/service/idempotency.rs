//! Idempotency keys of requests, and answers that are replayed for them.

use super::{Error, Result, Service};
use crate::domain::ids::UserId;
use crate::store::{IdempotencyClaim, Keyed};
use crate::support::failpoint;

/// An idempotency key as a wire gave it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestKey {
    /// The key, 1 to 255 characters.
    pub key: String,
    /// SHA-256 of what makes the request this request.
    pub fingerprint: String,
}

/// Whether an answer was made now or is one of before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Replay {
    /// Made now.
    Fresh,
    /// The answer to an earlier request with the same idempotency key.
    Replayed,
}

/// Takes the outcome apart; a mismatch is an error.
pub(super) fn keyed<T>(outcome: Keyed<T>) -> Result<(T, Replay)> {
    match outcome {
        Keyed::Fresh(value) => Ok((value, Replay::Fresh)),
        Keyed::Replayed(value) => Ok((value, Replay::Replayed)),
        Keyed::Mismatch => Err(Error::IdempotencyMismatch),
    }
}

impl Service {
    pub(super) fn claim(&self, owner: &UserId, key: Option<RequestKey>) -> Option<IdempotencyClaim> {
        let key = key.filter(|_| !failpoint::is_planted("key-dropped"));
        key.map(|RequestKey { key, fingerprint }| IdempotencyClaim { owner: owner.clone(), key, fingerprint })
    }
}
