//! A cached connection beside its pool.
//!
//! The pool tests each connection that comes back: one more round trip at the moment in which the next caller waits. Where mostly one
//! connection is used, it stays here. A caller that finds the cache empty takes another connection from the pool.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sqlx::Connection as _;
use sqlx::postgres::PgConnection;
use tokio::time::Instant;

use super::answer::{ANSWER_LIMIT, GuardedConnection, Line};
use crate::store::StoreResult;

/// A connection that was idle for longer is tested before it is used again.
pub(super) const TEST_AFTER_IDLE: Duration = Duration::from_secs(5);

/// After this time a connection goes back to its pool, which knows when one is too old.
const KEEP_FOR: Duration = Duration::from_secs(600);

pub(super) struct ConnectionCache {
    line: Line,
    idle: Mutex<Option<CachedConnection>>,
}

/// A connection that was taken. Dropping it gives it back to the pool.
pub(super) struct CachedConnection {
    connection: GuardedConnection,
    since: Instant,
    used_at: Instant,
}

impl CachedConnection {
    fn may_stay(&self) -> bool {
        self.since.elapsed() < KEEP_FOR
    }

    fn is_fresh(&self) -> bool {
        self.used_at.elapsed() < TEST_AFTER_IDLE
    }

    pub(super) async fn ask<T>(&mut self, work: impl AsyncFnOnce(&mut PgConnection) -> T) -> T {
        self.connection.ask(work).await
    }
}

impl ConnectionCache {
    pub(super) fn new(line: Line) -> Self {
        Self { line, idle: Mutex::default() }
    }

    /// Takes the cached connection, or else one of the pool.
    pub(super) async fn take(&self) -> StoreResult<CachedConnection> {
        let idle = self.idle().take();
        if let Some(mut cached) = idle.filter(CachedConnection::may_stay) {
            if cached.is_fresh() {
                return Ok(cached);
            }
            let test = cached.ask(async |connection| connection.ping().await);
            match tokio::time::timeout(ANSWER_LIMIT, test).await {
                Ok(Ok(())) => return Ok(cached),
                // The pool would wait for an answer that does not come.
                Ok(Err(_)) | Err(_) => cached.connection.close_on_drop(),
            }
        }
        let connection = self.line.acquire().await?;
        Ok(CachedConnection { connection, since: Instant::now(), used_at: Instant::now() })
    }

    /// Returns whether a connection is cached that was used just now.
    pub(super) fn is_fresh(&self) -> bool {
        self.idle().as_ref().is_some_and(|cached| cached.may_stay() && cached.is_fresh())
    }

    /// Caches a connection on which no answer is awaited.
    pub(super) fn keep(&self, mut cached: CachedConnection) {
        cached.used_at = Instant::now();
        let before = self.idle().replace(cached);
        // Dropped outside of the lock.
        drop(before);
    }

    /// Gives the connection back: a pool does not close while one is out.
    pub(super) fn release(&self) {
        let idle = self.idle().take();
        drop(idle);
    }

    fn idle(&self) -> MutexGuard<'_, Option<CachedConnection>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
