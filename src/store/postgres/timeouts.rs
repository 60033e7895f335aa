//! Time limits for answers of the database.
//!
//! The database itself ends a statement that takes too long. These limits are for a database that stops answering. Then the
//! connection is closed: otherwise the pool would wait for the same answer before it gives the connection to the next caller.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::stream::BoxStream;
use futures_util::{StreamExt, TryFutureExt as _, TryStreamExt as _, stream};
use sqlx::pool::PoolConnection;
use sqlx::postgres::{PgConnection, PgPool, PgQueryResult, PgRow, PgStatement, PgTypeInfo};
use sqlx::{Either, Error, Execute, Executor, Postgres, SqlStr};
use tokio::time::Instant;

use crate::store::StoreResult;
use crate::store::sql::pooler;
use crate::support::locks::lock;

/// The limit of any caller. Longer than the database's own timeouts.
pub const ANSWER_LIMIT: Duration = Duration::from_secs(15);

/// The limit of a lease renewal. Another attempt on another connection can still renew the leases in time.
pub(super) const RENEWAL_LIMIT: Duration = Duration::from_secs(3);

/// Performs `work`, which uses [`ask`], within `limit`. After the limit, the database may have done the work, or may still do it.
pub async fn with_deadline<T>(limit: Duration, work: impl Future<Output = StoreResult<T>>) -> StoreResult<T> {
    match tokio::time::timeout(limit, work).await {
        Ok(outcome) => outcome,
        Err(_) => Err(no_answer(limit).into()),
    }
}

fn no_answer(after: Duration) -> Error {
    let words = format!("the database has not answered for {} ms", after.as_millis());
    Error::Io(std::io::Error::new(std::io::ErrorKind::TimedOut, words))
}

/// Performs work on a connection of the pool. The connection is returned with the answer, and closed if the caller stops waiting.
pub(super) async fn ask<T>(
    guarded_pool: &GuardedPool,
    work: impl AsyncFnOnce(&mut PgConnection) -> StoreResult<T>,
) -> StoreResult<T> {
    let answer = guarded_pool.acquire().await?.ask(work).await;
    if answer.is_ok() {
        guarded_pool.last_reply.record();
    }
    answer
}

/// Number of checks without an answer after which a database counts as silent. A process that gets no CPU for seconds finds the
/// answers when it continues: that time counts as one check.
const CHECKS: u32 = 10;

/// The time of the database's last answer to any caller of this process.
#[derive(Debug)]
struct LastReply(Mutex<Instant>);

impl LastReply {
    fn record(&self) {
        *lock(&self.0) = Instant::now();
    }

    fn last_reply_at(&self) -> Instant {
        *lock(&self.0)
    }
}

/// A pool with a limit for a silent database.
///
/// A database is silent if it answers no caller. While other callers get answers, a slow or waiting statement does not fail before
/// [`ANSWER_LIMIT`]. As an executor, it applies the limit to a complete answer.
#[derive(Debug, Clone)]
pub struct GuardedPool {
    pub(in crate::store) pool: PgPool,
    silence: Duration,
    last_reply: Arc<LastReply>,
    /// Whether a pooler is in front of the database. See [`pooler`].
    is_pooled: bool,
}

impl GuardedPool {
    /// `silence` is the time without any answer after which the database counts as silent.
    pub(super) fn new(pool: PgPool, silence: Duration, is_pooled: bool) -> Self {
        Self { pool, silence, last_reply: Arc::new(LastReply(Mutex::new(Instant::now()))), is_pooled }
    }

    /// Returns another pool of the same database, with another limit.
    pub(super) fn with_pool(&self, pool: PgPool, silence: Duration) -> Self {
        Self { pool, silence, last_reply: Arc::clone(&self.last_reply), is_pooled: self.is_pooled }
    }

    pub(in crate::store) fn is_pooled(&self) -> bool {
        self.is_pooled
    }

    /// Performs `work` as [`ask`] does, unless the database is silent. Without an answer, the database may have done the work, or
    /// may still do it.
    pub(super) async fn ask<T>(&self, work: impl AsyncFnOnce(&mut PgConnection) -> StoreResult<T>) -> StoreResult<T> {
        // Boxed, because the future of the wait would contain the passed future twice.
        self.unless_silent(ANSWER_LIMIT, Box::pin(ask(self, work))).await
    }

    /// Performs `work` within `limit`, unless the database becomes silent.
    pub(in crate::store) async fn unless_silent<T, E: From<Error>>(
        &self,
        limit: Duration,
        work: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        let started_at = Instant::now();
        let silent = async {
            let (mut silent_checks, mut seen_reply) = (0, self.last_reply.last_reply_at());
            while silent_checks < CHECKS && started_at.elapsed() < limit {
                tokio::time::sleep(self.silence / CHECKS).await;
                let last_reply_at = self.last_reply.last_reply_at();
                silent_checks = if last_reply_at == seen_reply { silent_checks + 1 } else { 0 };
                seen_reply = last_reply_at;
            }
        };
        tokio::select! {
            // An answer that has arrived counts, even if it is read late.
            biased;
            outcome = work => {
                if outcome.is_ok() {
                    self.last_reply.record();
                }
                outcome
            }
            () = silent => Err(no_answer(started_at.elapsed()).into()),
        }
    }

    pub(super) async fn acquire(&self) -> Result<GuardedConnection, Error> {
        Ok(GuardedConnection { connection: self.connection().await?, is_answered: true, is_pooled: self.is_pooled })
    }

    /// Takes a connection from the pool.
    ///
    /// The future is boxed, because it contains the handshake of a new connection, about 29 KB. In a release build it would be a part
    /// of each future that uses the database, and so of each run and request.
    pub(in crate::store) async fn connection(&self) -> Result<PoolConnection<Postgres>, Error> {
        Box::pin(self.pool.acquire()).await
    }
}

impl<'p> Executor<'p> for &'p GuardedPool {
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

/// A connection that is returned to its pool, or closed if it is dropped while an answer is expected.
pub(super) struct GuardedConnection {
    connection: PoolConnection<Postgres>,
    is_answered: bool,
    is_pooled: bool,
}

impl GuardedConnection {
    pub(super) async fn ask<T, E: From<Error>>(
        &mut self,
        work: impl AsyncFnOnce(&mut PgConnection) -> Result<T, E>,
    ) -> Result<T, E> {
        self.is_answered = false;
        let answer = match self.is_pooled {
            false => work(&mut self.connection).await,
            true => pooler::in_transaction(&mut self.connection, work).await,
        };
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
    async fn wait_ends_only_if_all_connections_are_silent() {
        let pool = PgPool::connect_lazy("postgres://nobody@localhost/none").unwrap();
        let guarded_pool = GuardedPool::new(pool.clone(), Duration::from_millis(1_500), false);
        let never = || guarded_pool.unless_silent(ANSWER_LIMIT, std::future::pending::<Result<(), Error>>());
        let started_at = Instant::now();
        assert!(never().await.is_err());
        assert!(started_at.elapsed() >= Duration::from_millis(1_500) && started_at.elapsed() < Duration::from_millis(1_700));

        // While any statement gets an answer, a statement without one may wait for the statement timeout.
        let other = guarded_pool.with_pool(pool, ANSWER_LIMIT);
        let answers = async {
            loop {
                tokio::time::sleep(Duration::from_secs(1)).await;
                other.unless_silent(ANSWER_LIMIT, async { Ok::<_, Error>(()) }).await.unwrap();
            }
        };
        let started_at = Instant::now();
        tokio::select! {
            outcome = never() => assert!(outcome.is_err()),
            () = answers => {}
        }
        assert!(started_at.elapsed() >= ANSWER_LIMIT && started_at.elapsed() < ANSWER_LIMIT + Duration::from_secs(1));
    }
}
