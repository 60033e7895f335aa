//! Transactions on either database.
//!
//! Owns how a transaction begins and ends. Must not know any table.

use sqlx::pool::PoolConnection;
use sqlx::postgres::{PgConnection, Postgres};
use sqlx::raw_sql;
use tokio::sync::OwnedSemaphorePermit;

use super::row::{Row, the_row};
use super::statement::Statement;
use super::value::{Value, postgres_query, sqlite_query};
use crate::store::postgres::answer::{ANSWER_LIMIT, Line};
use crate::store::sqlite::connection::Tx;
use crate::store::{StoreError, StoreResult};

/// A transaction that writes. Unless it is committed, it is undone when it is dropped.
pub enum Transaction {
    Postgres(PostgresTransaction),
    /// On the writer of SQLite, which nothing else uses meanwhile, and the turn of its request, which a worker does not need.
    Sqlite(Tx, Option<OwnedSemaphorePermit>),
}

/// A transaction on a connection of a pool, which is closed if the transaction does not come to its end.
///
/// Otherwise the pool would wait for an answer of a database that may be gone before it gives the connection to the next caller.
pub struct PostgresTransaction {
    connection: PoolConnection<Postgres>,
    line: Line,
    is_open: bool,
}

impl PostgresTransaction {
    pub async fn begin(line: &Line) -> StoreResult<Self> {
        let begun = line.unless_silent(ANSWER_LIMIT, async {
            let connection = line.pool.acquire().await?;
            let mut begun = Self { connection, line: line.clone(), is_open: true };
            raw_sql("BEGIN").execute(&mut *begun.connection).await?;
            Ok::<_, sqlx::Error>(begun)
        });
        Ok(begun.await?)
    }

    /// Works on the connection itself, by statements of Postgres alone. An error of the database ends the transaction.
    ///
    /// A database that has answered undoes the transaction at once, and the connection is good for the next one.
    pub async fn work<T>(&mut self, work: impl AsyncFnOnce(&mut PgConnection) -> StoreResult<T>) -> StoreResult<T> {
        if !self.is_open {
            return Err(StoreError::Statement(sqlx::Error::Protocol("the transaction is over".to_owned())));
        }
        let answer = self.line.unless_silent(ANSWER_LIMIT, work(&mut self.connection)).await;
        if answer.as_ref().is_err_and(StoreError::is_answer_of_database) {
            let undone = self.line.unless_silent(ANSWER_LIMIT, raw_sql("ROLLBACK").execute(&mut *self.connection)).await;
            self.is_open = undone.is_err();
        }
        answer
    }

    async fn end(mut self, command: &'static str) -> StoreResult<()> {
        self.work(async |connection| {
            raw_sql(command).execute(connection).await?;
            Ok(())
        })
        .await?;
        self.is_open = false;
        Ok(())
    }
}

impl Drop for PostgresTransaction {
    fn drop(&mut self) {
        if self.is_open {
            self.connection.close_on_drop();
        }
    }
}

/// Holds a lock of the database until the transaction ends.
const LOCK: &str = "SELECT pg_advisory_xact_lock(hashtextextended($1, $2))";

/// Takes the same lock, unless another transaction holds it.
const TRY_LOCK: &str = "SELECT pg_try_advisory_xact_lock(hashtextextended($1, $2))";

impl Transaction {
    /// Waits until no other transaction holds the lock of this number for this owner, and holds it until the end.
    ///
    /// SQLite needs no lock: its transactions that write come one after the other.
    pub async fn lock(&mut self, owner: &str, number: i64) -> StoreResult<()> {
        match self {
            Self::Postgres(tx) => {
                tx.work(async |connection| {
                    sqlx::query(LOCK).bind(owner).bind(number).execute(connection).await?;
                    Ok(())
                })
                .await
            }
            Self::Sqlite(..) => Ok(()),
        }
    }

    /// Takes the lock of this number for this owner until the end. Returns false if another transaction holds it.
    pub async fn try_lock(&mut self, owner: &str, number: i64) -> StoreResult<bool> {
        match self {
            Self::Postgres(tx) => {
                tx.work(async |connection| Ok(sqlx::query_scalar(TRY_LOCK).bind(owner).bind(number).fetch_one(connection).await?))
                    .await
            }
            Self::Sqlite(..) => Ok(true),
        }
    }

    /// Executes settings and locks of Postgres, which SQLite does not need.
    pub async fn on_postgres(&mut self, statements: &'static str) -> StoreResult<()> {
        match self {
            Self::Postgres(tx) => {
                tx.work(async |connection| {
                    raw_sql(statements).execute(connection).await?;
                    Ok(())
                })
                .await
            }
            Self::Sqlite(..) => Ok(()),
        }
    }

    /// Returns all rows of a statement.
    pub async fn fetch_all(&mut self, statement: Statement, values: &[Value<'_>]) -> StoreResult<Vec<Row>> {
        match self {
            Self::Postgres(tx) => {
                let rows =
                    tx.work(async |connection| Ok(postgres_query(statement.postgres, values).fetch_all(connection).await?)).await?;
                Ok(rows.into_iter().map(Row::Postgres).collect())
            }
            Self::Sqlite(tx, _) => {
                let rows = sqlite_query(statement.sqlite, values).fetch_all(&mut **tx).await?;
                Ok(rows.into_iter().map(Row::Sqlite).collect())
            }
        }
    }

    /// Returns the first row of a statement.
    pub async fn fetch_optional(&mut self, statement: Statement, values: &[Value<'_>]) -> StoreResult<Option<Row>> {
        match self {
            Self::Postgres(tx) => {
                let row =
                    tx.work(async |connection| Ok(postgres_query(statement.postgres, values).fetch_optional(connection).await?));
                Ok(row.await?.map(Row::Postgres))
            }
            Self::Sqlite(tx, _) => Ok(sqlite_query(statement.sqlite, values).fetch_optional(&mut **tx).await?.map(Row::Sqlite)),
        }
    }

    /// Returns the only row of a statement.
    pub async fn fetch_one(&mut self, statement: Statement, values: &[Value<'_>]) -> StoreResult<Row> {
        the_row(self.fetch_optional(statement, values).await?)
    }

    /// Executes a statement. Returns how many rows it changed.
    pub async fn execute(&mut self, statement: Statement, values: &[Value<'_>]) -> StoreResult<u64> {
        match self {
            Self::Postgres(tx) => {
                let done = tx.work(async |connection| Ok(postgres_query(statement.postgres, values).execute(connection).await?));
                Ok(done.await?.rows_affected())
            }
            Self::Sqlite(tx, _) => Ok(sqlite_query(statement.sqlite, values).execute(&mut **tx).await?.rows_affected()),
        }
    }

    pub async fn commit(self) -> StoreResult<()> {
        match self {
            Self::Postgres(tx) => tx.end("COMMIT").await,
            Self::Sqlite(tx, _turn) => Ok(tx.commit().await?),
        }
    }

    /// Undoes what was written. Dropping the transaction does so, too, at the price of its connection.
    pub async fn rollback(self) -> StoreResult<()> {
        match self {
            // An error of the database has undone it already.
            Self::Postgres(tx) if !tx.is_open => Ok(()),
            Self::Postgres(tx) => tx.end("ROLLBACK").await,
            Self::Sqlite(tx, _turn) => Ok(tx.rollback().await?),
        }
    }
}
