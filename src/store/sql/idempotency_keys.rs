//! Idempotency keys, read and written in the transaction of their effect.

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::database::Database;
use super::row::Row;
use super::statement::statements;
use super::transaction::Transaction;
use super::value::values;
use crate::store::rows::{decode, encode_storable};
use crate::store::{IdempotencyKey, IdempotentOutcome, IdempotentResult, RecordStore, StoreResult};

statements! {
    RECORDED = ["SELECT fingerprint, outcome FROM idempotency_keys WHERE owner_id = $1 AND key = $2"];

    DELETE_EXPIRED = ["DELETE FROM idempotency_keys WHERE created_at <= ", now, " - $1"];

    RECORD = ["INSERT INTO idempotency_keys (owner_id, key, fingerprint, outcome, created_at) VALUES ($1, $2, $3, $4, ", now, ")"];
}

impl Database<'_> {
    /// Deletes keys that are at least `age_ms` old. Returns their number.
    pub async fn delete_expired_keys(self, age_ms: u64) -> StoreResult<u64> {
        self.execute(DELETE_EXPIRED, values![age_ms]).await
    }

    /// Runs a transaction that records its outcome under `key`, and repeats it if the database rolled it back.
    ///
    /// If the transaction violates a unique key, a request with the same idempotency key may have committed first. Then its outcome
    /// is returned. The caller composes the transaction: the compiler cannot show that the future of an async closure passed here
    /// is `Send`.
    pub async fn once<T: DeserializeOwned, F: Future<Output = IdempotentResult<T>>>(
        self,
        key: Option<&IdempotencyKey>,
        transaction: impl Fn() -> F,
    ) -> IdempotentResult<T> {
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

    /// Records the outcome of a request, and returns it.
    pub async fn record<T: Serialize + Sync>(&mut self, key: Option<&IdempotencyKey>, outcome: T) -> IdempotentResult<T> {
        if let Some(key) = key {
            let recorded = encode_storable("idempotency_keys", "outcome", &key.key, &outcome)?;
            self.write(RECORD, values![key.owner.as_str(), &key.key, &key.fingerprint, recorded]).await?;
        }
        Ok(IdempotentOutcome::Fresh(outcome))
    }
}

/// Returns the condition under which a transaction is committed: its outcome is new, and `is_stored`.
pub fn if_fresh<T>(is_stored: impl Fn(&T) -> bool) -> impl Fn(&IdempotentOutcome<T>) -> bool {
    move |outcome| matches!(outcome, IdempotentOutcome::Fresh(outcome) if is_stored(outcome))
}

/// Returns the outcome of a request that stores nothing, and so is not recorded.
pub fn refuse<T>(outcome: T) -> IdempotentResult<T> {
    Ok(IdempotentOutcome::Fresh(outcome))
}

fn read<T: DeserializeOwned>(row: Option<Row>, key: &IdempotencyKey) -> StoreResult<Option<IdempotentOutcome<T>>> {
    let Some(row) = row else { return Ok(None) };
    if row.get::<&str>("fingerprint")? != key.fingerprint {
        return Ok(Some(IdempotentOutcome::Mismatch));
    }
    Ok(Some(IdempotentOutcome::Replayed(decode("idempotency_keys", "outcome", &key.key, row.get("outcome")?)?)))
}
