//! Limits on how long an answer of the database is waited for.
//!
//! The database ends a statement that takes too long itself; this is for one that is gone without a word, of which no time-out
//! of its own would ever tell. What it was asked on is closed then: the pool would wait for the same answer before it gives the
//! connection to anybody else.

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

/// The longest wait of anybody: longer than the database's own time-outs.
pub(in crate::store) const ANSWER_LIMIT: Duration = Duration::from_secs(15);

/// The longest wait for a renewal: another one on another connection still comes in time to keep the runs.
pub(super) const RENEWAL_LIMIT: Duration = Duration::from_secs(3);

/// Does `work`, which [asks](ask), within `limit`.
///
/// # Errors
/// Those of `work`, and [`StoreError::Unavailable`](crate::store::StoreError::Unavailable) after the limit. What was asked may
/// have been done then, or may still be.
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

/// Asks on a connection of the pool. It goes back when the answer is there, and is closed if nobody waits for it any more.
pub(super) async fn ask<T>(line: &Line, work: impl AsyncFnOnce(&mut PgConnection) -> StoreResult<T>) -> StoreResult<T> {
    let mut asked = line.acquire().await?;
    let answer = work(&mut asked.connection).await;
    asked.is_answered = true;
    if answer.is_ok() {
        line.pulse.beat();
    }
    answer
}

/// How often it is looked for an answer before a database is silent. A process that gets no processor for seconds finds the answers
/// when it goes on: what it slept through counts as one look.
const LOOKS: u32 = 10;

/// When the database last answered anybody in this process.
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

/// A pool, and how long those who use it bear that the database is silent.
///
/// Silent is who answers nobody: a statement that is merely slow, or waits for its turn, does not fail as long as others get their
/// answers, up to [`ANSWER_LIMIT`]. Used as an executor, a line waits for a whole answer in this way.
#[derive(Debug, Clone)]
pub(in crate::store) struct Line {
    pub(in crate::store) pool: PgPool,
    silence: Duration,
    pulse: Arc<Pulse>,
}

impl Line {
    /// `silence` is how long nobody may have been answered.
    pub(super) fn new(pool: PgPool, silence: Duration) -> Self {
        Self { pool, silence, pulse: Arc::new(Pulse(Mutex::new(Instant::now()))) }
    }

    /// Another pool, or other patience, at the same database.
    pub(super) fn beside(&self, pool: PgPool, silence: Duration) -> Self {
        Self { pool, silence, pulse: Arc::clone(&self.pulse) }
    }

    /// [Asks](ask), unless the database is silent.
    ///
    /// # Errors
    /// Those of `work`, and [`StoreError::Unavailable`](crate::store::StoreError::Unavailable) without an answer. What was asked
    /// may have been done then, or may still be.
    pub(super) async fn ask<T>(&self, work: impl AsyncFnOnce(&mut PgConnection) -> StoreResult<T>) -> StoreResult<T> {
        // Boxed, because whoever waits for a future that it was given has room for it twice.
        self.unless_silent(ANSWER_LIMIT, Box::pin(ask(self, work))).await
    }

    /// Does `work` within `limit`, unless the database becomes silent.
    ///
    /// # Errors
    /// Those of `work`, and the error of a connection that timed out.
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

    async fn acquire(&self) -> Result<Asked, Error> {
        Ok(Asked { connection: self.pool.acquire().await?, is_answered: false })
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
            let mut asked = self.acquire().await?;
            let answer: Result<Vec<_>, Error> = asked.connection.fetch_many(query).try_collect().await;
            asked.is_answered = true;
            answer
        });
        StreamExt::boxed(whole.map_ok(|answer| stream::iter(answer.into_iter().map(Ok))).try_flatten_stream())
    }

    fn fetch_optional<'e, 'q: 'e, E>(self, query: E) -> BoxFuture<'e, Result<Option<PgRow>, Error>>
    where
        'p: 'e,
        E: 'q + Execute<'q, Postgres>,
    {
        let row = self.unless_silent(ANSWER_LIMIT, async move {
            let mut asked = self.acquire().await?;
            let answer = asked.connection.fetch_optional(query).await;
            asked.is_answered = true;
            answer
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

        // As long as anybody gets an answer, whoever has none waits as long as a statement may take.
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
