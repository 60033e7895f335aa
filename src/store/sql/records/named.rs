//! Rows that an owner keeps under names, each name once: limits, and names that are taken.
//!
//! Owns the order of lock, replay, count and insert. Must not know any table.

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::domain::ids::UserId;
use crate::store::sql::database::Database;
use crate::store::sql::row::Row;
use crate::store::sql::statement::Statement;
use crate::store::sql::transaction::Transaction;
use crate::store::sql::value::{Value, values};
use crate::store::{IdempotencyClaim, Keyed, NamedChanged, NamedMade, StoreResult};

/// A row to make under a name.
pub struct NamedRow<'a, I> {
    /// Counts the rows of an owner, `$1`, which is empty for the server's.
    pub count: Statement,
    /// The number of the lock under which one request of an owner counts at a time: another one for each table.
    pub lock: i64,
    pub owner: Option<&'a UserId>,
    pub most: u32,
    pub id: &'a I,
    pub key: Option<&'a IdempotencyClaim>,
}

/// Returns the owner as statements compare it: empty for the server.
pub fn owner_text(owner: Option<&UserId>) -> &str {
    owner.map_or("", UserId::as_str)
}

impl Database<'_> {
    /// Makes a row by these statements, of which the first one writes nothing if the name is taken.
    pub async fn create_named<I: Clone + Serialize + DeserializeOwned + Sync>(
        self,
        row: NamedRow<'_, I>,
        inserts: &[(Statement, &[Value<'_>])],
    ) -> StoreResult<Keyed<NamedMade<I>>> {
        self.once(row.key, || async {
            let mut tx = self.begin().await?;
            let made = create_named_in(&mut tx, &row, inserts).await?;
            tx.finish(made, |made| matches!(made, NamedMade::Made(_))).await
        })
        .await
    }

    /// Changes a row by one statement that returns its new version.
    pub async fn change_named(self, statement: Statement, values: &[Value<'_>]) -> StoreResult<NamedChanged> {
        changed(self.returning(statement, values).await)
    }
}

async fn create_named_in<I: Clone + Serialize + DeserializeOwned + Sync>(
    tx: &mut Transaction,
    row: &NamedRow<'_, I>,
    inserts: &[(Statement, &[Value<'_>])],
) -> StoreResult<Keyed<NamedMade<I>>> {
    let NamedRow { count, lock, owner, most, id, key } = *row;
    let owner = owner_text(owner);
    tx.lock(owner, lock).await?;
    if let Some(recorded) = tx.recorded(key).await? {
        return Ok(recorded);
    }
    if tx.fetch_one(count, values![owner]).await?.only::<i64>()? >= i64::from(most) {
        return Ok(Keyed::Fresh(NamedMade::TooMany));
    }
    for (insert, values) in inserts {
        if tx.execute(*insert, values).await? == 0 {
            return Ok(Keyed::Fresh(NamedMade::NameTaken));
        }
    }
    let made = NamedMade::Made(id.clone());
    tx.record(key, &made).await?;
    Ok(Keyed::Fresh(made))
}

impl Transaction {
    /// Changes a row by one statement that returns its new version. A transaction in which a name was taken can only end.
    pub async fn change_named(&mut self, statement: Statement, values: &[Value<'_>]) -> StoreResult<NamedChanged> {
        changed(self.fetch_optional(statement, values).await)
    }
}

fn changed(row: StoreResult<Option<Row>>) -> StoreResult<NamedChanged> {
    match row {
        Ok(Some(row)) => Ok(NamedChanged::Changed(row.only()?)),
        Ok(None) => Ok(NamedChanged::Stale),
        Err(error) if error.is_unique_violation() => Ok(NamedChanged::NameTaken),
        Err(error) => Err(error),
    }
}
