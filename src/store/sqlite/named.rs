//! What an owner keeps under names, each once.

use serde::Serialize;
use serde::de::DeserializeOwned;
use sqlx::{AssertSqlSafe, SqliteConnection};

use super::{SqliteStore, idempotency};
use crate::domain::ids::UserId;
use crate::store::{IdempotencyClaim, Keyed, NamedMade, StoreResult};

/// Something to make.
pub(super) struct Make<'a, I> {
    /// Where it is kept.
    pub table: &'static str,
    /// Whose it will be.
    pub owner: Option<&'a UserId>,
    /// How many the owner may have.
    pub most: u32,
    /// Its id.
    pub id: &'a I,
    /// The request's key.
    pub key: Option<&'a IdempotencyClaim>,
}

impl SqliteStore {
    /// Makes it by `insert`, which says whether the name was free.
    pub(super) async fn make<I: Clone + Serialize + DeserializeOwned + Sync>(
        &self,
        make: Make<'_, I>,
        insert: impl AsyncFnOnce(&mut SqliteConnection) -> StoreResult<bool>,
    ) -> StoreResult<Keyed<NamedMade<I>>> {
        let Make { table, owner, most, id, key } = make;
        let (_turn, mut tx) = self.write_in_turn().await?;
        if let Some(earlier) = idempotency::earlier(&mut tx, key).await? {
            return Ok(earlier);
        }
        let count = format!("SELECT count(*) FROM {table} WHERE coalesce(owner_id, '') = ?");
        let owner = owner.map_or("", UserId::as_str);
        let count: i64 = sqlx::query_scalar(AssertSqlSafe(count)).bind(owner).fetch_one(&mut *tx).await?;
        if count >= i64::from(most) {
            return Ok(Keyed::Fresh(NamedMade::TooMany));
        }
        if !insert(&mut tx).await? {
            return Ok(Keyed::Fresh(NamedMade::NameTaken));
        }
        let made = NamedMade::Made(id.clone());
        idempotency::keep(&mut tx, key, &made).await?;
        tx.commit().await?;
        Ok(Keyed::Fresh(made))
    }
}
