//! Idempotency keys, read and written in the transaction of their effect.
//!
//! Owns the table `idempotency_keys`. Must not know what the outcomes mean.

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::database::Database;
use super::row::Row;
use super::statement::statements;
use super::transaction::Transaction;
use super::value::values;
use crate::store::rows::{decode, encode_storable};
use crate::store::{IdempotencyKey, IdempotentOutcome, RecordStore, StoreResult};

statements! {
    RECORDED = ["SELECT fingerprint, outcome FROM idempotency_keys WHERE owner_id = $1 AND key = $2"];

    DELETE_EXPIRED = ["DELETE FROM idempotency_keys WHERE created_at <= ", now, " - $1"];

    RECORD = ["INSERT INTO idempotency_keys (owner_id, key, fingerprint, outcome, created_at) VALUES ($1, $2, $3, $4, ", now, ")"];
}

impl Database<'_> {
    /// Deletes keys of this age. Returns how many.
    pub async fn delete_expired_keys(self, age_ms: u64) -> StoreResult<u64> {
        self.execute(DELETE_EXPIRED, values![age_ms]).await
    }

    /// Runs a transaction that records its outcome under `key`, and repeats it if the database rolled it back.
    ///
    /// If a row exists already, a request with the same key may have committed first without a lock. Then its outcome is returned.
    pub async fn once<T: DeserializeOwned, F: Future<Output = StoreResult<IdempotentOutcome<T>>>>(
        self,
        key: Option<&IdempotencyKey>,
        transaction: impl Fn() -> F,
    ) -> StoreResult<IdempotentOutcome<T>> {
        let outcome = self.retry(transaction).await;
        match (outcome, key) {
            (Err(error), Some(key)) if error.is_unique_violation() => self.recorded(key).await?.ok_or(error),
            (outcome, _) => outcome,
        }
    }

    async fn recorded<T: DeserializeOwned>(self, key: &IdempotencyKey) -> StoreResult<Option<IdempotentOutcome<T>>> {
        read(self.fetch_optional(RECORDED, values![key.owner.as_str(), &key.key]).await?, key)
    }
}

impl dyn RecordStore + '_ {
    /// Returns the recorded outcome of an earlier request with the same key.
    pub async fn recorded<T: DeserializeOwned>(&self, key: &IdempotencyKey) -> StoreResult<Option<IdempotentOutcome<T>>> {
        self.database().recorded(key).await
    }
}

impl Transaction {
    /// Returns the recorded outcome of an earlier request with the same key.
    pub async fn recorded<T: DeserializeOwned>(
        &mut self,
        key: Option<&IdempotencyKey>,
    ) -> StoreResult<Option<IdempotentOutcome<T>>> {
        let Some(key) = key else { return Ok(None) };
        read(self.fetch_optional(RECORDED, values![key.owner.as_str(), &key.key]).await?, key)
    }

    /// Records the outcome of a request.
    pub async fn record<T: Serialize + Sync>(&mut self, key: Option<&IdempotencyKey>, outcome: &T) -> StoreResult<()> {
        let Some(key) = key else { return Ok(()) };
        let outcome = encode_storable("idempotency_keys", "outcome", &key.key, outcome)?;
        self.execute(RECORD, values![key.owner.as_str(), &key.key, &key.fingerprint, outcome]).await?;
        Ok(())
    }
}

fn read<T: DeserializeOwned>(row: Option<Row>, key: &IdempotencyKey) -> StoreResult<Option<IdempotentOutcome<T>>> {
    let Some(row) = row else { return Ok(None) };
    if row.get::<&str>("fingerprint")? != key.fingerprint {
        return Ok(Some(IdempotentOutcome::Mismatch));
    }
    Ok(Some(IdempotentOutcome::Replayed(decode("idempotency_keys", "outcome", &key.key, row.get("outcome")?)?)))
}
