//! Limits on how long an answer of the database is waited for.
//!
//! The database itself ends a statement that takes too long. These limits are for a database that is gone without a word. The
//! connection is closed then: the pool would wait for the same answer before it gives the connection to the next caller.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::stream::BoxStream;
use futures_util::{StreamExt, TryFutureExt as _, TryStreamExt as _, stream};
use sqlx::pool::PoolConnection;
use sqlx::postgres::{PgConnection, PgPool, PgQueryResult, PgRow, PgStatement, PgTypeInfo};
use sqlx::{Either, Error, Execute, Executor, Postgres, SqlStr};
use tokio::time::Instant;

use crate::store::StoreResult;

/// The longest wait of any caller: longer than the database's own timeouts.
pub(in crate::store) const ANSWER_LIMIT: Duration = Duration::from_secs(15);

/// The longest wait for a renewal: another one on another connection still comes in time to keep the runs.
pub(super) const RENEWAL_LIMIT: Duration = Duration::from_secs(3);

/// Does `work`, which [asks](ask), within `limit`.
/// After the limit, the work may have been done or may still be.
pub(in crate::store) async fn within<T>(limit: Duration, work: impl Future<Output = StoreResult<T>>) -> StoreResult<T> {
    match tokio::time::timeout(limit, work).await {
        Ok(outcome) => outcome,
        Err(_) => Err(no_answer(limit).into()),
    }
}

fn no_answer(after: Duration) -> Error {
    let words = format!("the database has not answered for {} ms", after.as_millis());
    Error::Io(std::io::Error::new(std::io::ErrorKind::TimedOut, words))
}

/// Works on a connection of the pool. It goes back with the answer, and is closed if the caller stops waiting.
pub(super) async fn ask<T>(line: &Line, work: impl AsyncFnOnce(&mut PgConnection) -> StoreResult<T>) -> StoreResult<T> {
    let answer = line.acquire().await?.ask(work).await;
    if answer.is_ok() {
        line.pulse.beat();
    }
    answer
}

/// The number of looks without an answer after which a database counts as silent. A process that gets no processor for seconds finds
/// the answers when it goes on: that time counts as one look.
const LOOKS: u32 = 10;

/// When the database last answered a caller of this process.
#[derive(Debug)]
struct Pulse(Mutex<Instant>);

impl Pulse {
    fn beat(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    fn last(&self) -> Instant {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A pool, and how long its users wait for a silent database.
///
/// A database is silent if it answers no caller. A statement that is slow, or waits for its turn, does not fail while other callers get
/// answers, up to [`ANSWER_LIMIT`]. Used as an executor, a line waits for a whole answer in this way.
#[derive(Debug, Clone)]
pub struct Line {
    pub(in crate::store) pool: PgPool,
    silence: Duration,
    pulse: Arc<Pulse>,
}

impl Line {
    /// `silence` is how long the database may answer no caller.
    pub(super) fn new(pool: PgPool, silence: Duration) -> Self {
        Self { pool, silence, pulse: Arc::new(Pulse(Mutex::new(Instant::now()))) }
    }

    /// Returns a line with another pool or another limit at the same database.
    pub(super) fn beside(&self, pool: PgPool, silence: Duration) -> Self {
        Self { pool, silence, pulse: Arc::clone(&self.pulse) }
    }

    /// [Asks](ask), unless the database is silent. Without an answer, the work may have been done or may still be.
    pub(super) async fn ask<T>(&self, work: impl AsyncFnOnce(&mut PgConnection) -> StoreResult<T>) -> StoreResult<T> {
        // Boxed, because a wait for a future that was passed in has room for it twice.
        self.unless_silent(ANSWER_LIMIT, Box::pin(ask(self, work))).await
    }

    /// Does `work` within `limit`, unless the database becomes silent.
    pub(in crate::store) async fn unless_silent<T, E: From<Error>>(
        &self,
        limit: Duration,
        work: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        let begun = Instant::now();
        let silent = async {
            let (mut quiet, mut heard) = (0, self.pulse.last());
            while quiet < LOOKS && begun.elapsed() < limit {
                tokio::time::sleep(self.silence / LOOKS).await;
                let last = self.pulse.last();
                quiet = if last == heard { quiet + 1 } else { 0 };
                heard = last;
            }
        };
        tokio::select! {
            // An answer that is there counts, however late it is looked at.
            biased;
            outcome = work => {
                if outcome.is_ok() {
                    self.pulse.beat();
                }
                outcome
            }
            () = silent => Err(no_answer(begun.elapsed()).into()),
        }
    }

    pub(super) async fn acquire(&self) -> Result<GuardedConnection, Error> {
        Ok(GuardedConnection { connection: self.pool.acquire().await?, is_answered: true })
    }
}

impl<'p> Executor<'p> for &'p Line {
    type Database = Postgres;

    fn fetch_many<'e, 'q: 'e, E>(self, query: E) -> BoxStream<'e, Result<Either<PgQueryResult, PgRow>, Error>>
    where
        'p: 'e,
        E: 'q + Execute<'q, Postgres>,
    {
        let whole = self.unless_silent(ANSWER_LIMIT, async move {
            self.acquire().await?.ask(async |connection| connection.fetch_many(query).try_collect::<Vec<_>>().await).await
        });
        StreamExt::boxed(whole.map_ok(|answer| stream::iter(answer.into_iter().map(Ok))).try_flatten_stream())
    }

    fn fetch_optional<'e, 'q: 'e, E>(self, query: E) -> BoxFuture<'e, Result<Option<PgRow>, Error>>
    where
        'p: 'e,
        E: 'q + Execute<'q, Postgres>,
    {
        let row = self.unless_silent(ANSWER_LIMIT, async move {
            self.acquire().await?.ask(async |connection| connection.fetch_optional(query).await).await
        });
        Box::pin(row)
    }

    fn prepare_with<'e>(self, sql: SqlStr, parameters: &'e [PgTypeInfo]) -> BoxFuture<'e, Result<PgStatement, Error>>
    where
        'p: 'e,
    {
        self.pool.prepare_with(sql, parameters)
    }
}

/// A connection that goes back to its pool, or is closed if it is dropped while an answer is awaited on it.
pub(super) struct GuardedConnection {
    connection: PoolConnection<Postgres>,
    is_answered: bool,
}

impl GuardedConnection {
    pub(super) async fn ask<T>(&mut self, work: impl AsyncFnOnce(&mut PgConnection) -> T) -> T {
        self.is_answered = false;
        let answer = work(&mut self.connection).await;
        self.is_answered = true;
        answer
    }

    pub(super) fn close_on_drop(&mut self) {
        self.is_answered = false;
    }
}

impl Drop for GuardedConnection {
    fn drop(&mut self) {
        if !self.is_answered {
            self.connection.close_on_drop();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn only_silence_towards_everybody_ends_a_wait() {
        let pool = PgPool::connect_lazy("postgres://nobody@localhost/none").unwrap();
        let line = Line::new(pool.clone(), Duration::from_millis(1_500));
        let never = || line.unless_silent(ANSWER_LIMIT, std::future::pending::<Result<(), Error>>());
        let begun = Instant::now();
        assert!(never().await.is_err());
        assert!(begun.elapsed() >= Duration::from_millis(1_500) && begun.elapsed() < Duration::from_millis(1_700));

        // While any statement gets an answer, a statement without one may wait for the statement timeout.
        let other = line.beside(pool, ANSWER_LIMIT);
        let answers = async {
            loop {
                tokio::time::sleep(Duration::from_secs(1)).await;
                other.unless_silent(ANSWER_LIMIT, async { Ok::<_, Error>(()) }).await.unwrap();
            }
        };
        let begun = Instant::now();
        tokio::select! {
            outcome = never() => assert!(outcome.is_err()),
            () = answers => {}
        }
        assert!(begun.elapsed() >= ANSWER_LIMIT && begun.elapsed() < ANSWER_LIMIT + Duration::from_secs(1));
    }
}
