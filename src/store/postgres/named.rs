//! What an owner keeps under names, each once.

use serde::Serialize;
use serde::de::DeserializeOwned;
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};

use super::accept::record;
use super::cancel::store_key;
use super::conversations::recorded_key;
use crate::domain::ids::UserId;
use crate::store::{IdempotencyClaim, Keyed, NamedMade, StoreResult};

/// Something to make.
pub(super) struct Make<'a, I> {
    /// Where it is kept.
    pub table: &'static str,
    /// The number of the lock under which one of an owner's requests counts at a time: another one for each table.
    pub lock: i64,
    /// Whose it will be.
    pub owner: Option<&'a UserId>,
    /// How many the owner may have.
    pub most: u32,
    /// Its id.
    pub id: &'a I,
    /// The request's key.
    pub key: Option<&'a IdempotencyClaim>,
}

/// Makes it by `insert`, which says whether the name was free.
pub(super) async fn make<I: Clone + Serialize + DeserializeOwned>(
    connection: &mut PgConnection,
    make: Make<'_, I>,
    insert: impl AsyncFnOnce(&mut PgConnection) -> StoreResult<bool>,
) -> StoreResult<Keyed<NamedMade<I>>> {
    let Make { table, lock, owner, most, id, key } = make;
    let mut tx = connection.begin().await?;
    let owner = owner.map_or("", UserId::as_str);
    sqlx::query("SELECT pg_advisory_xact_lock(hashtextextended($1, $2))").bind(owner).bind(lock).execute(&mut *tx).await?;
    if let Some(key) = key
        && let Some(recorded) = recorded_key(&mut tx, key).await?
    {
        return Ok(recorded);
    }
    let count = format!("SELECT count(*) FROM {table} WHERE coalesce(owner_id, '') = $1");
    let count: i64 = sqlx::query_scalar(AssertSqlSafe(count)).bind(owner).fetch_one(&mut *tx).await?;
    if count >= i64::from(most) {
        return Ok(Keyed::Fresh(NamedMade::TooMany));
    }
    if !insert(&mut tx).await? {
        return Ok(Keyed::Fresh(NamedMade::NameTaken));
    }
    let made = NamedMade::Made(id.clone());
    store_key(&mut tx, record(key, &made)?).await?;
    tx.commit().await?;
    Ok(Keyed::Fresh(made))
}
