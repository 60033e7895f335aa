//! Limits on how long an answer of the database is waited for.
//!
//! The database ends a statement that takes too long itself; this is for one that is gone without a word, of which no time-out
//! of its own would ever tell. What it was asked on is closed then: the pool would wait for the same answer before it gives the
//! connection to anybody else.

use std::time::Duration;

use sqlx::pool::PoolConnection;
use sqlx::postgres::{PgConnection, PgPool};
use sqlx::{Error, Postgres};

use crate::store::{StoreError, StoreResult};

/// The longest wait of a worker: longer than the database's own time-outs.
pub(super) const ANSWER_LIMIT: Duration = Duration::from_secs(15);

/// The longest wait for a renewal: another one on another connection still comes in time to keep the runs.
pub(super) const RENEWAL_LIMIT: Duration = Duration::from_secs(3);

/// Does `work`, which [asks](ask), within `limit`.
///
/// # Errors
/// Those of `work`, and [`StoreError::Unavailable`] after the limit. What was asked may have been done then, or may still be.
pub(super) async fn within<T>(limit: Duration, work: impl Future<Output = StoreResult<T>>) -> StoreResult<T> {
    match tokio::time::timeout(limit, work).await {
        Ok(outcome) => outcome,
        Err(_) => {
            let words = format!("the database has not answered for {} seconds", limit.as_secs());
            Err(StoreError::Unavailable(Error::Io(std::io::Error::new(std::io::ErrorKind::TimedOut, words))))
        }
    }
}

/// Asks on a connection of the pool. It goes back when the answer is there, and is closed if nobody waits for it any more.
pub(super) async fn ask<T>(pool: &PgPool, work: impl AsyncFnOnce(&mut PgConnection) -> StoreResult<T>) -> StoreResult<T> {
    let mut asked = Asked { connection: pool.acquire().await?, is_answered: false };
    let answer = work(&mut asked.connection).await;
    asked.is_answered = true;
    answer
}

/// A connection on which an answer is awaited.
struct Asked {
    connection: PoolConnection<Postgres>,
    is_answered: bool,
}

impl Drop for Asked {
    fn drop(&mut self) {
        if !self.is_answered {
            self.connection.close_on_drop();
        }
    }
}
