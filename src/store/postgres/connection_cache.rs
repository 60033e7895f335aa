//! One cached connection in front of a pool.
//!
//! The pool tests every returned connection, which costs a round trip while the next caller waits. If usually one connection is in
//! use, it is cached here. A caller that finds the cache empty uses the pool.

use std::sync::Mutex;
use std::time::Duration;

use sqlx::Connection as _;
use sqlx::postgres::PgConnection;
use tokio::time::Instant;

use super::timeouts::{ANSWER_LIMIT, GuardedConnection, GuardedPool};
use crate::store::StoreResult;
use crate::support::locks::lock;

/// A cached connection that was idle for longer is tested before it is used.
pub(super) const TEST_AFTER_IDLE: Duration = Duration::from_secs(5);

/// After this time the connection is returned to its pool, which closes old connections.
const KEEP_FOR: Duration = Duration::from_secs(600);

pub(super) struct ConnectionCache {
    guarded_pool: GuardedPool,
    idle: Mutex<Option<CachedConnection>>,
}

/// A connection in use. Dropping it returns it to the pool.
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

    pub(super) async fn ask<T, E: From<sqlx::Error>>(
        &mut self,
        work: impl AsyncFnOnce(&mut PgConnection) -> Result<T, E>,
    ) -> Result<T, E> {
        self.connection.ask(work).await
    }
}

impl ConnectionCache {
    pub(super) fn new(guarded_pool: GuardedPool) -> Self {
        Self { guarded_pool, idle: Mutex::default() }
    }

    /// Takes the cached connection, or else a connection of the pool.
    pub(super) async fn take(&self) -> StoreResult<CachedConnection> {
        let idle = lock(&self.idle).take();
        if let Some(mut cached) = idle.filter(CachedConnection::may_stay) {
            if cached.is_fresh() {
                return Ok(cached);
            }
            let test = cached.ask(async |connection| connection.ping().await);
            match tokio::time::timeout(ANSWER_LIMIT, test).await {
                Ok(Ok(())) => return Ok(cached),
                // The pool would wait for an answer that does not arrive.
                Ok(Err(_)) | Err(_) => cached.connection.close_on_drop(),
            }
        }
        let connection = self.guarded_pool.acquire().await?;
        Ok(CachedConnection { connection, since: Instant::now(), used_at: Instant::now() })
    }

    /// Returns whether a recently used connection is cached.
    pub(super) fn is_fresh(&self) -> bool {
        lock(&self.idle).as_ref().is_some_and(|cached| cached.may_stay() && cached.is_fresh())
    }

    /// Caches a connection on which no answer is pending.
    pub(super) fn keep(&self, mut cached: CachedConnection) {
        cached.used_at = Instant::now();
        let before = lock(&self.idle).replace(cached);
        // Dropped after the lock is released.
        drop(before);
    }

    /// Returns the connection to the pool. The pool cannot close before that.
    pub(super) fn release(&self) {
        let idle = lock(&self.idle).take();
        drop(idle);
    }
}
