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

/// Does `work`, which asks on an [`Asked`], within `limit`.
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

/// A connection on which an answer is awaited. It goes back to its pool after [`Asked::answered`], and is closed otherwise.
pub(super) struct Asked {
    connection: PoolConnection<Postgres>,
    is_answered: bool,
}

impl Asked {
    pub(super) async fn on(pool: &PgPool) -> StoreResult<Self> {
        Ok(Self { connection: pool.acquire().await?, is_answered: false })
    }

    pub(super) fn connection(&mut self) -> &mut PgConnection {
        &mut self.connection
    }

    /// Nothing more is awaited.
    pub(super) fn answered(mut self) {
        self.is_answered = true;
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        if !self.is_answered {
            self.connection.close_on_drop();
        }
    }
}
