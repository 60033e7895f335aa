//! Idempotency keys of requests, and answers that are replayed for them.

use super::{Error, Result, Service};
use crate::domain::ids::UserId;
use crate::store::{IdempotencyClaim, Keyed};
use crate::support::failpoint;

/// The idempotency key of a request, and the SHA-256 of what identifies the request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestKey {
    pub key: String,
    pub fingerprint: String,
}

/// Whether an answer was made now, or is that of an earlier request with the same idempotency key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Replay {
    Fresh,
    Replayed,
}

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
