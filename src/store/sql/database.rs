//! One handle for statements on either database: reads, writes of one statement, and transactions.
//!
//! Owns the way to each pool, and what is retried. Must not know any table.

use sqlx::SqlSafeStr;

use super::row::{Row, the_row};
use super::statement::Statement;
use super::transaction::{PostgresTransaction, Transaction};
use super::value::{Value, postgres_query, sqlite_query};
use crate::store::StoreResult;
use crate::store::postgres::answer::{ANSWER_LIMIT, Line};
use crate::store::postgres::errors::retried;
use crate::store::sqlite::connection::SqliteStore;

#[derive(Clone, Copy)]
pub enum Database<'a> {
    Postgres(&'a Line),
    /// The writer of SQLite and its readers.
    Sqlite(&'a SqliteStore),
}

impl Database<'_> {
    /// Reads all rows of one statement.
    pub async fn fetch_all(self, statement: Statement, values: &[Value<'_>]) -> StoreResult<Vec<Row>> {
        let text = match self {
            Self::Postgres(_) => statement.postgres,
            Self::Sqlite(_) => statement.sqlite,
        };
        self.fetch_list(text, values).await
    }

    /// Reads all rows of a list, whose text is put together from our literals: one for each set of filters.
    pub async fn fetch_list(self, text: impl SqlSafeStr, values: &[Value<'_>]) -> StoreResult<Vec<Row>> {
        match self {
            Self::Postgres(line) => {
                let rows = postgres_query(text, values).fetch_all(line).await?;
                Ok(rows.into_iter().map(Row::Postgres).collect())
            }
            Self::Sqlite(store) => {
                let rows = sqlite_query(text, values).fetch_all(store.reader()).await?;
                Ok(rows.into_iter().map(Row::Sqlite).collect())
            }
        }
    }

    /// Reads the first row of one statement.
    pub async fn fetch_optional(self, statement: Statement, values: &[Value<'_>]) -> StoreResult<Option<Row>> {
        match self {
            Self::Postgres(line) => Ok(postgres_query(statement.postgres, values).fetch_optional(line).await?.map(Row::Postgres)),
            Self::Sqlite(store) => {
                Ok(sqlite_query(statement.sqlite, values).fetch_optional(store.reader()).await?.map(Row::Sqlite))
            }
        }
    }

    /// Reads the only row of one statement.
    pub async fn fetch_one(self, statement: Statement, values: &[Value<'_>]) -> StoreResult<Row> {
        the_row(self.fetch_optional(statement, values).await?)
    }

    /// Writes by one statement. Returns how many rows it changed.
    ///
    /// Postgres commits it by itself; SQLite begins a transaction, which waits for its turn.
    pub async fn execute(self, statement: Statement, values: &[Value<'_>]) -> StoreResult<u64> {
        match self {
            Self::Postgres(line) => Ok(postgres_query(statement.postgres, values).execute(line).await?.rows_affected()),
            Self::Sqlite(_) => {
                let mut tx = self.begin().await?;
                let changed = tx.execute(statement, values).await?;
                tx.commit().await?;
                Ok(changed)
            }
        }
    }

    /// Writes by one statement. Returns the first row that it returns.
    pub async fn returning(self, statement: Statement, values: &[Value<'_>]) -> StoreResult<Option<Row>> {
        match self {
            Self::Postgres(_) => self.fetch_optional(statement, values).await,
            Self::Sqlite(_) => {
                let mut tx = self.begin().await?;
                let row = tx.fetch_optional(statement, values).await?;
                tx.commit().await?;
                Ok(row)
            }
        }
    }

    /// Writes by one statement, and reads the first row of another one, in one transaction.
    pub async fn change(
        self,
        write: Statement,
        written: &[Value<'_>],
        read: Statement,
        wanted: &[Value<'_>],
    ) -> StoreResult<Option<Row>> {
        self.retry(|| async {
            let mut tx = self.begin().await?;
            tx.execute(write, written).await?;
            let row = tx.fetch_optional(read, wanted).await?;
            tx.commit().await?;
            Ok(row)
        })
        .await
    }

    /// Deletes a row by a secret, `values[0]`, and returns it. `exists` looks for the secret.
    ///
    /// SQLite asks a reader first, so that guesses do not queue for the writer.
    pub async fn take(self, exists: Statement, take: Statement, values: &[Value<'_>]) -> StoreResult<Option<Row>> {
        match self {
            Self::Postgres(_) => {}
            Self::Sqlite(_) => {
                let secret = values.get(..1).unwrap_or_default();
                if !self.fetch_one(exists, secret).await?.only::<bool>()? {
                    return Ok(None);
                }
            }
        }
        self.returning(take, values).await
    }

    /// Begins a transaction. On SQLite it waits for its turn.
    pub async fn begin(self) -> StoreResult<Transaction> {
        match self {
            Self::Postgres(line) => Ok(Transaction::Postgres(PostgresTransaction::begin(line).await?)),
            Self::Sqlite(store) => {
                let (turn, tx) = store.write_in_turn().await?;
                Ok(Transaction::Sqlite(tx, Some(turn)))
            }
        }
    }

    /// Begins a transaction of a worker. On SQLite it does not wait behind the requests whose turn it is.
    pub async fn begin_at_once(self) -> StoreResult<Transaction> {
        match self {
            Self::Postgres(_) => self.begin().await,
            Self::Sqlite(store) => Ok(Transaction::Sqlite(store.write().await?, None)),
        }
    }

    /// Runs a transaction, and again when the database rolled it back for the sake of another one.
    ///
    /// Postgres has [`ANSWER_LIMIT`] for each try as a whole.
    pub async fn retry<T, F: Future<Output = StoreResult<T>>>(self, transaction: impl Fn() -> F) -> StoreResult<T> {
        match self {
            // Boxed, because a wait for a future that was passed in has room for it twice.
            Self::Postgres(line) => retried(|| line.unless_silent(ANSWER_LIMIT, Box::pin(transaction()))).await,
            Self::Sqlite(_) => retried(transaction).await,
        }
    }
}
