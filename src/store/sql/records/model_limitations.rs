//! Limitations of models, learned from refused requests.
//!
//! Owns the table `model_limitations`. Must not know what a limitation says.

use crate::domain::model::LearnedLimitation;
use crate::store::sql::{Row, statements, values};
use crate::store::{RecordStore, StoreResult};
use crate::support::clock::UnixMillis;
use crate::support::text::storable_json;

const MAX_LIMITATIONS: i64 = 2_000;

statements! {
    LIST = ["SELECT model, limitation, change, expires_at FROM model_limitations
         WHERE provider = $1 AND (CAST($2 AS text) IS NULL OR model = $2) AND expires_at > ", now, "
         ORDER BY expires_at DESC, model, limitation LIMIT $3"];

    // `$2` is a JSON array of model, limitation, change and expiry.
    KEEP = ["INSERT INTO model_limitations (provider, model, limitation, change, expires_at)
         SELECT DISTINCT $1, e.value ->> 0, e.value ->> 1, e.value ->> 2, CAST(e.value ->> 3 AS bigint) FROM ", (elements "$2"), "
         WHERE true ON CONFLICT (provider, model, limitation) DO UPDATE SET expires_at = excluded.expires_at"];

    DELETE_EXPIRED = ["DELETE FROM model_limitations WHERE expires_at <= ", now];
}

/// Limitations of models, which belong to no owner. `provider` is a key that changes with the provider's URL, dialect or version.
impl dyn RecordStore + '_ {
    /// Returns the limitations of a model, or of all models of a provider, that have not expired.
    pub async fn model_limitations(&self, provider: &str, model: Option<&str>) -> StoreResult<Vec<LearnedLimitation>> {
        self.database().read_all(LIST, values![provider, model, MAX_LIMITATIONS], read).await
    }

    /// Stores limitations. A known one gets the new expiry.
    pub async fn keep_model_limitations(&self, provider: &str, learned: &[LearnedLimitation]) -> StoreResult<()> {
        let rows: Vec<_> =
            learned.iter().map(|known| serde_json::json!([known.model, known.limitation, known.change, known.until.0])).collect();
        let rows = storable_json(serde_json::Value::from(rows).to_string());
        self.database().execute(KEEP, values![provider, &rows]).await?;
        Ok(())
    }

    pub async fn remove_expired_model_limitations(&self) -> StoreResult<u64> {
        self.maintenance_database().execute(DELETE_EXPIRED, &[]).await
    }
}

fn read(row: &Row) -> StoreResult<LearnedLimitation> {
    Ok(LearnedLimitation {
        model: row.get("model")?,
        limitation: row.get("limitation")?,
        change: row.get("change")?,
        until: UnixMillis(row.get("expires_at")?),
    })
}
