//! Idempotency keys, read and written in the transaction of their effect.

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::connection::Tx;
use crate::store::rows::{decode, encode_storable};
use crate::store::{IdempotencyClaim, Keyed, StoreResult};
use crate::support::text::storable;

/// What came of an earlier request with the same key, if there was one.
pub(super) async fn earlier<T: DeserializeOwned>(tx: &mut Tx, claim: Option<&IdempotencyClaim>) -> StoreResult<Option<Keyed<T>>> {
    let Some(claim) = claim else { return Ok(None) };
    let row: Option<(String, String)> =
        sqlx::query_as("SELECT fingerprint, outcome FROM idempotency_keys WHERE owner_id = ? AND key = ?")
            .bind(claim.owner.as_str())
            .bind(storable(&claim.key))
            .fetch_optional(&mut **tx)
            .await?;
    let Some((fingerprint, outcome)) = row else { return Ok(None) };
    if fingerprint != claim.fingerprint {
        return Ok(Some(Keyed::Mismatch));
    }
    Ok(Some(Keyed::Replayed(decode("idempotency_keys", "outcome", &claim.key, &outcome)?)))
}

/// Keeps what came of a request.
pub(super) async fn keep<T: Serialize + Sync>(tx: &mut Tx, claim: Option<&IdempotencyClaim>, outcome: &T) -> StoreResult<()> {
    let Some(claim) = claim else { return Ok(()) };
    let insert =
        concat!("INSERT INTO idempotency_keys (owner_id, key, fingerprint, outcome, created_at) VALUES (?, ?, ?, ?, ", now!(), ")");
    sqlx::query(insert)
        .bind(claim.owner.as_str())
        .bind(storable(&claim.key))
        .bind(&claim.fingerprint)
        .bind(encode_storable("idempotency_keys", "outcome", &claim.key, outcome)?)
        .execute(&mut **tx)
        .await?;
    Ok(())
}
