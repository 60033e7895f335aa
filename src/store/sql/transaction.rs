//! Transactions on either database.
//!
//! Owns the beginning and the end of transactions. Must not know any table.

use sqlx::pool::PoolConnection;
use sqlx::postgres::{PgConnection, Postgres};
use sqlx::sqlite::SqliteConnection;
use sqlx::{Connection as _, raw_sql};
use tokio::sync::OwnedSemaphorePermit;

use super::pooler;
use super::row::{Row, the_row};
use super::statement::Statement;
use super::value::{Value, add_to_batch, postgres_query, sqlite_query, values};
use crate::store::postgres::timeouts::{ANSWER_LIMIT, GuardedPool};
use crate::store::sqlite::batch::Batch;
use crate::store::sqlite::connection::Tx;
use crate::store::{StoreError, StoreResult};

/// A write transaction. Dropping it without a commit rolls it back.
pub enum Transaction {
    Postgres(PostgresTransaction),
    Sqlite(SqliteTransaction),
}

/// A transaction on the only writer of SQLite.
pub struct SqliteTransaction {
    tx: Tx,
    /// The statements of [`Transaction::write`] that have not been executed yet.
    deferred: Batch,
    /// The permit of its request. A worker needs no permit.
    _turn: Option<OwnedSemaphorePermit>,
}

/// Limit of deferred statements, so that a copy of many messages does not gather in memory, and the connection keeps few texts.
const MAX_DEFERRED: usize = 8;

impl SqliteTransaction {
    pub fn new(tx: Tx, turn: Option<OwnedSemaphorePermit>) -> Self {
        Self { tx, deferred: Batch::default(), _turn: turn }
    }

    /// Executes the deferred statements. Returns the connection for the next one.
    async fn connection(&mut self) -> StoreResult<&mut SqliteConnection> {
        self.deferred.run(&mut self.tx).await?;
        Ok(&mut self.tx)
    }
}

/// A transaction on a pool's connection. The connection is closed if the transaction neither commits nor rolls back.
///
/// Otherwise the pool would wait for an answer before it gives the connection to the next caller. A lost database never answers.
pub struct PostgresTransaction {
    connection: PoolConnection<Postgres>,
    guarded_pool: GuardedPool,
    is_open: bool,
}

impl PostgresTransaction {
    pub async fn begin(guarded_pool: &GuardedPool) -> StoreResult<Self> {
        let transaction = guarded_pool.unless_silent(ANSWER_LIMIT, async {
            let connection = guarded_pool.connection().await?;
            let mut transaction = Self { connection, guarded_pool: guarded_pool.clone(), is_open: true };
            raw_sql(if guarded_pool.is_pooled() { pooler::BEGIN } else { "BEGIN" }).execute(&mut *transaction.connection).await?;
            Ok::<_, sqlx::Error>(transaction)
        });
        Ok(transaction.await?)
    }

    /// Executes `work`, which may use statements of Postgres only, on the connection. An error ends the transaction.
    ///
    /// If the database itself returned the error, the transaction is rolled back at once, and the pool reuses the connection.
    pub async fn work<T>(&mut self, work: impl AsyncFnOnce(&mut PgConnection) -> StoreResult<T>) -> StoreResult<T> {
        if !self.is_open {
            return Err(StoreError::Statement(sqlx::Error::Protocol("the transaction has already ended".to_owned())));
        }
        let answer = self.guarded_pool.unless_silent(ANSWER_LIMIT, work(&mut self.connection)).await;
        if answer.as_ref().is_err_and(StoreError::is_answered) {
            self.is_open = self
                .guarded_pool
                .unless_silent(ANSWER_LIMIT, finish(&mut self.connection, &self.guarded_pool, "ROLLBACK"))
                .await
                .is_err();
        }
        answer
    }

    async fn end(mut self, command: &'static str) -> StoreResult<()> {
        let guarded_pool = self.guarded_pool.clone();
        self.work(async |connection| Ok(finish(connection, &guarded_pool, command).await?)).await?;
        self.is_open = false;
        Ok(())
    }
}

/// Ends a transaction. Behind a pooler, its prepared statements end with it.
async fn finish(connection: &mut PgConnection, guarded_pool: &GuardedPool, command: &'static str) -> Result<(), sqlx::Error> {
    if guarded_pool.is_pooled() {
        connection.clear_cached_statements().await?;
    }
    raw_sql(command).execute(connection).await?;
    Ok(())
}

impl Drop for PostgresTransaction {
    fn drop(&mut self) {
        if self.is_open {
            self.connection.close_on_drop();
        }
    }
}

/// Holds a lock of the database until the transaction ends.
const LOCK: Statement = Statement::of_postgres("LOCK", "SELECT pg_advisory_xact_lock(hashtextextended($1, $2))");

/// Takes the same lock, unless another transaction holds it.
const TRY_LOCK: Statement = Statement::of_postgres("TRY_LOCK", "SELECT pg_try_advisory_xact_lock(hashtextextended($1, $2))");

impl Transaction {
    /// Waits for the lock with this number of this owner, and holds it until the end of the transaction.
    ///
    /// SQLite needs no lock, because its write transactions run one after another.
    pub async fn lock(&mut self, owner: &str, number: i64) -> StoreResult<()> {
        if matches!(self, Self::Postgres(_)) {
            self.execute(LOCK, values![owner, number]).await?;
        }
        Ok(())
    }

    /// Takes the lock with this number of this owner until the end of the transaction. Returns false if another transaction holds
    /// it.
    pub async fn try_lock(&mut self, owner: &str, number: i64) -> StoreResult<bool> {
        match self {
            Self::Postgres(_) => Ok(self.fetch_one(TRY_LOCK, values![owner, number]).await?.only()?),
            Self::Sqlite(..) => Ok(true),
        }
    }

    /// Executes a setting or lock that only Postgres needs.
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

    pub async fn fetch_all(&mut self, statement: Statement, values: &[Value<'_>]) -> StoreResult<Vec<Row>> {
        match self {
            Self::Postgres(tx) => {
                let rows =
                    tx.work(async |connection| Ok(postgres_query(statement.postgres, values).fetch_all(connection).await?)).await?;
                Ok(rows.into_iter().map(Row::Postgres).collect())
            }
            Self::Sqlite(tx) => {
                let rows = sqlite_query(statement.sqlite, values).fetch_all(tx.connection().await?).await?;
                Ok(rows.into_iter().map(Row::Sqlite).collect())
            }
        }
    }

    pub async fn fetch_optional(&mut self, statement: Statement, values: &[Value<'_>]) -> StoreResult<Option<Row>> {
        match self {
            Self::Postgres(tx) => {
                let row =
                    tx.work(async |connection| Ok(postgres_query(statement.postgres, values).fetch_optional(connection).await?));
                Ok(row.await?.map(Row::Postgres))
            }
            Self::Sqlite(tx) => {
                let row = sqlite_query(statement.sqlite, values).fetch_optional(tx.connection().await?).await?;
                Ok(row.map(Row::Sqlite))
            }
        }
    }

    pub async fn fetch_one(&mut self, statement: Statement, values: &[Value<'_>]) -> StoreResult<Row> {
        the_row(self.fetch_optional(statement, values).await?)
    }

    /// Executes a statement. Returns the number of changed rows.
    pub async fn execute(&mut self, statement: Statement, values: &[Value<'_>]) -> StoreResult<u64> {
        match self {
            Self::Postgres(tx) => {
                let done = tx.work(async |connection| Ok(postgres_query(statement.postgres, values).execute(connection).await?));
                Ok(done.await?.rows_affected())
            }
            Self::Sqlite(tx) => Ok(sqlite_query(statement.sqlite, values).execute(tx.connection().await?).await?.rows_affected()),
        }
    }

    /// Executes a statement whose number of changed rows is not needed.
    ///
    /// SQLite defers up to [`MAX_DEFERRED`] of them to the next other statement or the commit, and returns their errors there. One
    /// message to the thread of the connection takes longer than most statements, and all deferred statements are one message.
    pub async fn write(&mut self, statement: Statement, values: &[Value<'_>]) -> StoreResult<()> {
        match self {
            Self::Postgres(_) => self.execute(statement, values).await.map(drop),
            Self::Sqlite(tx) => {
                add_to_batch(&mut tx.deferred, statement.sqlite, values);
                if tx.deferred.len() >= MAX_DEFERRED {
                    tx.connection().await?;
                }
                Ok(())
            }
        }
    }

    pub async fn commit(self) -> StoreResult<()> {
        match self {
            Self::Postgres(tx) => tx.end("COMMIT").await,
            Self::Sqlite(mut tx) => {
                tx.connection().await?;
                Ok(tx.tx.commit().await?)
            }
        }
    }

    /// Commits if the outcome `is_stored`, and rolls back otherwise. Returns the outcome.
    pub async fn end<T>(self, outcome: StoreResult<T>, is_stored: impl FnOnce(&T) -> bool) -> StoreResult<T> {
        match &outcome {
            Ok(outcome) if is_stored(outcome) => self.commit().await?,
            Ok(_) => self.rollback().await?,
            // The caller needs the first error.
            Err(error) if error.is_answered() => drop(self.rollback().await),
            Err(_) => {}
        }
        outcome
    }

    /// Rolls the transaction back. Dropping the transaction does so too, but on Postgres it closes the connection.
    pub async fn rollback(self) -> StoreResult<()> {
        match self {
            // An error has rolled it back already.
            Self::Postgres(tx) if !tx.is_open => Ok(()),
            Self::Postgres(tx) => tx.end("ROLLBACK").await,
            Self::Sqlite(tx) => Ok(tx.tx.rollback().await?),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::sqlite::SqliteStore;
    use crate::store::{Store as _, StoreOptions};

    const fn statement(name: &'static str, sqlite: &'static str) -> Statement {
        Statement { name, postgres: "", sqlite }
    }

    const CREATE: Statement = statement("CREATE", "CREATE TABLE t (n INTEGER PRIMARY KEY)");
    const INSERT: Statement = statement("INSERT", "INSERT INTO t SELECT $1 WHERE $1 = $1");
    const COUNT: Statement = statement("COUNT", "SELECT count(*) FROM t");

    #[tokio::test]
    async fn deferred_writes_precede_reads_and_fail_at_the_commit() {
        let folder = tempfile::tempdir().unwrap();
        let url = format!("sqlite:{}", folder.path().join("deferred.db").display());
        let store = SqliteStore::connect(&url, &StoreOptions::default()).await.unwrap();
        let begin = async || Transaction::Sqlite(SqliteTransaction::new(store.write().await.unwrap(), None));
        let count = async |tx: &mut Transaction| tx.fetch_one(COUNT, &[]).await.unwrap().only::<i64>().unwrap();
        let mut tx = begin().await;
        tx.execute(CREATE, &[]).await.unwrap();
        let writes = i64::try_from(MAX_DEFERRED).unwrap() + 2;
        for n in 0..writes {
            tx.write(INSERT, values![n]).await.unwrap();
        }
        assert_eq!(count(&mut tx).await, writes);
        tx.write(INSERT, values![writes]).await.unwrap();
        tx.commit().await.unwrap();

        let mut tx = begin().await;
        tx.write(INSERT, values![100_i64]).await.unwrap();
        tx.write(INSERT, values![writes]).await.unwrap();
        assert!(tx.commit().await.unwrap_err().is_unique_violation());
        let mut tx = begin().await;
        tx.write(INSERT, values![200_i64]).await.unwrap();
        tx.write(INSERT, &[]).await.unwrap();
        assert!(format!("{:?}", tx.commit().await.unwrap_err()).contains("the value of $1 is missing"));
        let mut tx = begin().await;
        assert_eq!(count(&mut tx).await, writes + 1, "what failed is rolled back");
        tx.rollback().await.unwrap();
        store.close().await;
    }
}
