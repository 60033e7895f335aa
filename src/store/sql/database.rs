//! One interface for statements on either database: reads, single-statement writes, and transactions.
//!
//! Owns the selection of the pool, and the retries. Must not know any table.

use sqlx::SqlSafeStr;

use super::row::{Row, the_row};
use super::statement::Statement;
use super::transaction::{PostgresTransaction, SqliteTransaction, Transaction};
use super::value::{Value, postgres_query, sqlite_query};
use crate::store::StoreResult;
use crate::store::postgres::errors::retry_transaction;
use crate::store::postgres::timeouts::{ANSWER_LIMIT, GuardedPool};
use crate::store::sqlite::connection::SqliteStore;

#[derive(Clone, Copy)]
pub enum Database<'a> {
    Postgres(&'a GuardedPool),
    /// The writer connection of SQLite and its readers.
    Sqlite(&'a SqliteStore),
}

impl Database<'_> {
    pub async fn fetch_all(self, statement: Statement, values: &[Value<'_>]) -> StoreResult<Vec<Row>> {
        let text = match self {
            Self::Postgres(_) => statement.postgres,
            Self::Sqlite(_) => statement.sqlite,
        };
        self.fetch_list(text, values).await
    }

    /// Reads all rows of a statement that the caller composes from literals, such as one text for each set of filters.
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

    pub async fn fetch_optional(self, statement: Statement, values: &[Value<'_>]) -> StoreResult<Option<Row>> {
        match self {
            Self::Postgres(line) => Ok(postgres_query(statement.postgres, values).fetch_optional(line).await?.map(Row::Postgres)),
            Self::Sqlite(store) => {
                Ok(sqlite_query(statement.sqlite, values).fetch_optional(store.reader()).await?.map(Row::Sqlite))
            }
        }
    }

    pub async fn read_all<T>(
        self,
        statement: Statement,
        values: &[Value<'_>],
        read: impl Fn(&Row) -> StoreResult<T>,
    ) -> StoreResult<Vec<T>> {
        self.fetch_all(statement, values).await?.iter().map(read).collect()
    }

    pub async fn read_optional<T>(
        self,
        statement: Statement,
        values: &[Value<'_>],
        read: impl FnOnce(&Row) -> StoreResult<T>,
    ) -> StoreResult<Option<T>> {
        self.fetch_optional(statement, values).await?.as_ref().map(read).transpose()
    }

    pub async fn fetch_one(self, statement: Statement, values: &[Value<'_>]) -> StoreResult<Row> {
        the_row(self.fetch_optional(statement, values).await?)
    }

    /// Executes a single-statement write. Returns the number of changed rows.
    ///
    /// Postgres commits it implicitly. SQLite begins a transaction, which waits for its turn.
    pub async fn execute(self, statement: Statement, values: &[Value<'_>]) -> StoreResult<u64> {
        match self {
            Self::Postgres(line) => Ok(postgres_query(statement.postgres, values).execute(line).await?.rows_affected()),
            Self::Sqlite(_) => self.transaction(async |tx| tx.execute(statement, values).await, |_| true).await,
        }
    }

    /// Executes a single-statement write. Returns its first row.
    pub async fn returning(self, statement: Statement, values: &[Value<'_>]) -> StoreResult<Option<Row>> {
        match self {
            Self::Postgres(_) => self.fetch_optional(statement, values).await,
            Self::Sqlite(_) => self.transaction(async |tx| tx.fetch_optional(statement, values).await, |_| true).await,
        }
    }

    /// Executes a write, and then reads the first row of another statement, in one transaction.
    pub async fn change(
        self,
        write: Statement,
        written: &[Value<'_>],
        read: Statement,
        read_values: &[Value<'_>],
    ) -> StoreResult<Option<Row>> {
        let work = async |tx: &mut Transaction| {
            tx.execute(write, written).await?;
            tx.fetch_optional(read, read_values).await
        };
        self.retry(|| self.transaction(work, |_| true)).await
    }

    /// Deletes a row by its secret, `values[0]`, and returns it. `exists` tests whether a row has the secret.
    ///
    /// On SQLite, a reader runs `exists` first, so that guesses of secrets do not use the writer.
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
                Ok(Transaction::Sqlite(SqliteTransaction::new(tx, Some(turn))))
            }
        }
    }

    /// Begins a transaction of a worker. On SQLite it has priority over waiting requests.
    pub async fn begin_at_once(self) -> StoreResult<Transaction> {
        match self {
            Self::Postgres(_) => self.begin().await,
            Self::Sqlite(store) => Ok(Transaction::Sqlite(SqliteTransaction::new(store.write().await?, None))),
        }
    }

    /// Runs a transaction of a request, and [ends](Transaction::end) it with the outcome of `work`.
    pub async fn transaction<T>(
        self,
        work: impl AsyncFnOnce(&mut Transaction) -> StoreResult<T>,
        is_stored: impl FnOnce(&T) -> bool,
    ) -> StoreResult<T> {
        let mut tx = self.begin().await?;
        let outcome = work(&mut tx).await;
        tx.end(outcome, is_stored).await
    }

    /// Runs a transaction, and repeats it if the database rolled it back because of another transaction.
    ///
    /// On Postgres, each attempt is limited to [`ANSWER_LIMIT`].
    pub async fn retry<T, F: Future<Output = StoreResult<T>>>(self, transaction: impl Fn() -> F) -> StoreResult<T> {
        match self {
            // Boxed, because the future of the wait would contain the passed future twice.
            Self::Postgres(line) => retry_transaction(|| line.unless_silent(ANSWER_LIMIT, Box::pin(transaction()))).await,
            Self::Sqlite(_) => retry_transaction(transaction).await,
        }
    }
}
