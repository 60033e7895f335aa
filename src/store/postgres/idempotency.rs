//! Idempotency keys in the statements that only Postgres has.
//!
//! Owns how the hot path reads and writes a key. Must not know what the outcomes mean.

use sqlx::PgConnection;

use super::PostgresStore;
use super::errors::is_unique_violation;
use crate::store::{IdempotencyClaim, Keyed, StoreError, StoreResult, rows};
use crate::support::text::storable;

impl PostgresStore {
    /// Returns the outcome of a transaction that writes `key`.
    ///
    /// If the transaction met a row that is there already, another request with the same key may have come first, which no lock
    /// has kept apart. Then that request's outcome is returned.
    pub(super) async fn or_recorded<T: serde::de::DeserializeOwned>(
        &self,
        outcome: StoreResult<Keyed<T>>,
        key: Option<&IdempotencyClaim>,
    ) -> StoreResult<Keyed<T>> {
        match outcome {
            Err(StoreError::Statement(error)) if is_unique_violation(&error) => match self.recorded(key).await? {
                Some(recorded) => Ok(recorded),
                None => Err(StoreError::Statement(error)),
            },
            Ok(_) | Err(_) => outcome,
        }
    }

    /// Returns the outcome of an earlier request with the same key.
    pub(super) async fn recorded<T: serde::de::DeserializeOwned>(
        &self,
        key: Option<&IdempotencyClaim>,
    ) -> StoreResult<Option<Keyed<T>>> {
        let Some(key) = key else { return Ok(None) };
        self.api.ask(async |connection| recorded_key(connection, key).await).await
    }
}

/// Returns the outcome of an earlier request with the same key, as the current transaction sees it.
pub(super) async fn recorded_key<T: serde::de::DeserializeOwned>(
    connection: &mut PgConnection,
    key: &IdempotencyClaim,
) -> StoreResult<Option<Keyed<T>>> {
    let found: Option<(String, String)> =
        sqlx::query_as("SELECT fingerprint, outcome FROM idempotency_keys WHERE owner_id = $1 AND key = $2")
            .bind(key.owner.as_str())
            .bind(storable(&key.key))
            .fetch_optional(connection)
            .await?;
    let Some((fingerprint, outcome)) = found else { return Ok(None) };
    if fingerprint != key.fingerprint {
        return Ok(Some(Keyed::Mismatch));
    }
    Ok(Some(Keyed::Replayed(rows::decode("idempotency_keys", "outcome", &key.key, &outcome)?)))
}

/// Encodes the outcome that is replayed when the key comes again.
pub(super) fn record<'a, T: serde::Serialize>(
    key: Option<&'a IdempotencyClaim>,
    outcome: &T,
) -> StoreResult<Option<(&'a IdempotencyClaim, String)>> {
    let Some(key) = key else { return Ok(None) };
    Ok(Some((key, rows::encode_storable("idempotency_keys", "outcome", &key.key, outcome)?)))
}

/// Stores a key by a statement of its own.
pub(super) async fn store_key(connection: &mut PgConnection, record: Option<(&IdempotencyClaim, String)>) -> StoreResult<()> {
    let Some((key, outcome)) = record else { return Ok(()) };
    sqlx::query("INSERT INTO idempotency_keys (owner_id, key, fingerprint, outcome, created_at) VALUES ($1, $2, $3, $4, now_ms())")
        .bind(key.owner.as_str())
        .bind(storable(&key.key))
        .bind(&key.fingerprint)
        .bind(outcome)
        .execute(connection)
        .await?;
    Ok(())
}
