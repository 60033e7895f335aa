//! Idempotency keys of requests, and replayed responses.

use serde::de::IgnoredAny;

use super::{Error, Result, Service};
use crate::domain::access::principal::Principal;
use crate::domain::ids::UserId;
use crate::store::{IdempotencyKey, IdempotentOutcome};
use crate::support::failpoint;

/// The idempotency key of a request, and the SHA-256 of the request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestKey {
    pub key: String,
    pub fingerprint: String,
}

/// Whether a response is fresh, or replayed from an earlier request with the same idempotency key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Replay {
    Fresh,
    Replayed,
}

pub(super) fn outcome_or_conflict<T>(outcome: IdempotentOutcome<T>) -> Result<(T, Replay)> {
    match outcome {
        IdempotentOutcome::Fresh(value) => Ok((value, Replay::Fresh)),
        IdempotentOutcome::Replayed(value) => Ok((value, Replay::Replayed)),
        IdempotentOutcome::Mismatch => Err(Error::IdempotencyMismatch),
    }
}

impl Service {
    pub(super) fn claim(&self, owner: &UserId, key: Option<RequestKey>) -> Option<IdempotencyKey> {
        let key = key.filter(|_| !failpoint::is_planted("key-dropped"));
        key.map(|RequestKey { key, fingerprint }| IdempotencyKey { owner: owner.clone(), key, fingerprint })
    }

    /// Returns whether an earlier request with this key was accepted. Fails if it was another request.
    pub async fn is_repeated(&self, principal: &Principal, key: Option<RequestKey>) -> Result<bool> {
        let Some(key) = self.claim(&principal.user_id, key) else { return Ok(false) };
        let recorded = self.store.recorded::<IgnoredAny>(&key).await?;
        Ok(recorded.map(outcome_or_conflict).transpose()?.is_some())
    }
}
