//! A connection that its users keep between uses, out of its pool.
//!
//! The pool tests each connection that comes back, which is one more round trip at the very moment in which somebody waits for
//! what comes next. Where only one connection is used most of the time, it stays here; whoever finds it gone takes another from
//! the pool.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sqlx::pool::PoolConnection;
use sqlx::postgres::PgConnection;
use sqlx::{Connection as _, Postgres};
use tokio::time::Instant;

use super::answer::{ANSWER_LIMIT, Line};
use crate::store::StoreResult;

/// A connection that was idle for longer is tested before it is used again.
pub(super) const TEST_AFTER_IDLE: Duration = Duration::from_secs(5);

/// A connection goes back to its pool now and then, which knows when one is too old.
const KEEP_FOR: Duration = Duration::from_secs(600);

/// See the module documentation.
pub(super) struct Kept {
    line: Line,
    resting: Mutex<Option<Taken>>,
}

/// A connection that was taken. Dropping it gives it back to the pool, which closes it if it is broken. It is closed at once if an
/// answer is awaited on it.
pub(super) struct Taken {
    pub(super) connection: PoolConnection<Postgres>,
    is_answered: bool,
    since: Instant,
    used_at: Instant,
}

impl Taken {
    fn may_stay(&self) -> bool {
        self.since.elapsed() < KEEP_FOR
    }

    fn is_fresh(&self) -> bool {
        self.used_at.elapsed() < TEST_AFTER_IDLE
    }

    /// Asks on the connection, which is closed if nobody waits for the answer any more.
    pub(super) async fn ask<T>(&mut self, work: impl AsyncFnOnce(&mut PgConnection) -> T) -> T {
        self.is_answered = false;
        let answer = work(&mut self.connection).await;
        self.is_answered = true;
        answer
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        if !self.is_answered {
            self.connection.close_on_drop();
        }
    }
}

impl Kept {
    pub(super) fn new(line: Line) -> Self {
        Self { line, resting: Mutex::default() }
    }

    /// The kept connection, or else one of the pool.
    pub(super) async fn take(&self) -> StoreResult<Taken> {
        let resting = self.resting().take();
        if let Some(mut taken) = resting.filter(Taken::may_stay) {
            if taken.is_fresh() {
                return Ok(taken);
            }
            let test = taken.ask(async |connection| connection.ping().await);
            if let Ok(Ok(())) = tokio::time::timeout(ANSWER_LIMIT, test).await {
                return Ok(taken);
            }
            // The pool would wait for the answer that does not come.
            taken.connection.close_on_drop();
        }
        let connection = self.line.pool.acquire().await?;
        Ok(Taken { connection, is_answered: true, since: Instant::now(), used_at: Instant::now() })
    }

    /// Whether a connection is there that was used just now.
    pub(super) fn is_fresh(&self) -> bool {
        self.resting().as_ref().is_some_and(|taken| taken.may_stay() && taken.is_fresh())
    }

    /// Keeps a connection in which nothing is under way for the next one who asks.
    pub(super) fn keep(&self, mut taken: Taken) {
        taken.used_at = Instant::now();
        let before = self.resting().replace(taken);
        // Dropped outside of the lock.
        drop(before);
    }

    /// Gives the connection back: a pool does not close while one is out.
    pub(super) fn release(&self) {
        let resting = self.resting().take();
        drop(resting);
    }

    fn resting(&self) -> MutexGuard<'_, Option<Taken>> {
        self.resting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
