//! Rows with a name that is unique per owner: limits, and names in use.
//!
//! Owns the order of lock, replay, count and insert. Must not know any table.

use std::fmt::Display;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::domain::ids::UserId;
use crate::store::pages::page_of;
use crate::store::sql::{Database, Row, Statement, Transaction, Value, if_fresh, refuse, values};
use crate::store::{
    CreateNamedOutcome, IdempotencyKey, IdempotentResult, NameCursor, Page, PageRequest, StoreResult, UpdateNamedOutcome,
};

pub struct NamedRow<'a, I> {
    /// Counts the rows of an owner, `$1`, which is empty for the server.
    pub count: Statement,
    /// The number of the lock that allows one request per owner to count at a time. Each table has its own.
    pub lock: i64,
    pub owner: Option<&'a UserId>,
    pub most: u32,
    pub id: &'a I,
}

/// Returns the owner as statements compare it: empty for the server.
pub fn owner_text(owner: Option<&UserId>) -> &str {
    owner.map_or("", UserId::as_str)
}

impl Database<'_> {
    /// Creates a row with these statements. The first one writes nothing if the name exists.
    pub async fn create_named<I: Clone + Serialize + DeserializeOwned + Sync>(
        self,
        row: NamedRow<'_, I>,
        inserts: &[(Statement, &[Value<'_>])],
        key: Option<IdempotencyKey>,
    ) -> IdempotentResult<CreateNamedOutcome<I>> {
        let is_made = |outcome: &CreateNamedOutcome<I>| matches!(outcome, CreateNamedOutcome::Made(_));
        let key = key.as_ref();
        let work = || self.transaction(async |tx| create_named_in(tx, &row, inserts, key).await, if_fresh(is_made));
        self.once(key, work).await
    }

    /// Reads a page of the rows that `viewer` may see, by name.
    pub async fn named_page<T, I: Display + Serialize>(
        self,
        page: Statement,
        viewer: &UserId,
        page_request: &PageRequest<NameCursor<I>>,
        read: fn(&Row) -> StoreResult<T>,
        cursor: fn(&T) -> NameCursor<I>,
    ) -> StoreResult<Page<T>> {
        let limit = page_request.limit.clamp(1, 100);
        let (name, id) = page_request.after.as_ref().map_or(("", String::new()), |after| (&after.name, after.id.to_string()));
        let rows = self.read_all(page, values![viewer.as_str(), name, &id, limit + 1], read).await?;
        Ok(page_of(rows, limit, |last| cursor(last).to_string()))
    }

    /// Changes a row with a statement that returns its new version.
    pub async fn change_named(self, statement: Statement, values: &[Value<'_>]) -> StoreResult<UpdateNamedOutcome> {
        changed(self.returning(statement, values).await)
    }
}

async fn create_named_in<I: Clone + Serialize + DeserializeOwned + Sync>(
    tx: &mut Transaction,
    row: &NamedRow<'_, I>,
    inserts: &[(Statement, &[Value<'_>])],
    key: Option<&IdempotencyKey>,
) -> IdempotentResult<CreateNamedOutcome<I>> {
    let NamedRow { count, lock, owner, most, id } = *row;
    let owner = owner_text(owner);
    tx.lock(owner, lock).await?;
    if let Some(recorded) = tx.recorded(key).await? {
        return Ok(recorded);
    }
    if tx.fetch_one(count, values![owner]).await?.only::<i64>()? >= i64::from(most) {
        return refuse(CreateNamedOutcome::TooMany);
    }
    for (insert, values) in inserts {
        if tx.execute(*insert, values).await? == 0 {
            return refuse(CreateNamedOutcome::NameTaken);
        }
    }
    tx.record(key, CreateNamedOutcome::Made(id.clone())).await
}

impl Transaction {
    /// Changes a row with a statement that returns its new version. After a name conflict, the transaction can only be rolled back.
    pub async fn change_named(&mut self, statement: Statement, values: &[Value<'_>]) -> StoreResult<UpdateNamedOutcome> {
        changed(self.fetch_optional(statement, values).await)
    }
}

fn changed(row: StoreResult<Option<Row>>) -> StoreResult<UpdateNamedOutcome> {
    match row {
        Ok(Some(row)) => Ok(UpdateNamedOutcome::Changed(row.only()?)),
        Ok(None) => Ok(UpdateNamedOutcome::Stale),
        Err(error) if error.is_unique_violation() => Ok(UpdateNamedOutcome::NameTaken),
        Err(error) => Err(error),
    }
}
