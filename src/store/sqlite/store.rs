//! Pings, cleaning, and the end of all connections: the parts of a store that belong to no aggregate.
//!
//! Owns no table. Must not know why anything is cleaned.

use std::sync::PoisonError;
use std::time::{Duration, Instant};

use async_trait::async_trait;

use super::SqliteStore;
use crate::store::error::damage_was_met;
use crate::store::sql::{Backend, count_expired};
use crate::store::{CommonStore, Expired, RecordStore, Store, StoreError, StoreResult};

/// A ping within this time after a write was taken is answered without another write: pings cannot keep the disk busy.
const PING_PAUSE: Duration = Duration::from_secs(1);

impl RecordStore for SqliteStore {}

#[async_trait]
impl CommonStore for SqliteStore {
    async fn ping(&self) -> StoreResult<()> {
        if damage_was_met() {
            return Err(StoreError::Damaged(sqlx::Error::Io(std::io::Error::other("it was met before"))));
        }
        let mut took_write = self.took_write.lock().await;
        if took_write.is_some_and(|at| at.elapsed() < PING_PAUSE) {
            return Ok(());
        }
        // Only a commit tells whether the disk takes one. This one changes nothing that is read.
        sqlx::query("PRAGMA user_version = 0").execute(&self.writer).await?;
        *took_write = Some(Instant::now());
        Ok(())
    }

    fn is_shared(&self) -> bool {
        false
    }

    fn caps_owners(&self) -> bool {
        self.owner_cap > 0
    }

    fn records(&self) -> &(dyn RecordStore + 'static) {
        self
    }
}

#[async_trait]
impl Store for SqliteStore {
    async fn remove_expired_idempotency(&self, age_ms: u64) -> StoreResult<u64> {
        Backend::chores(self).delete_expired_keys(age_ms).await
    }

    async fn count_expired(&self, keys_ms: u64, audit_ms: Option<u64>) -> StoreResult<Expired> {
        count_expired(Backend::chores(self), keys_ms, audit_ms).await
    }

    async fn leave_mark(&self) -> StoreResult<()> {
        match &self.clone_mark {
            Some(clone_mark) => clone_mark.leave(&self.writer).await,
            None => Ok(()),
        }
    }

    async fn close(&self) {
        if let Err(error) = self.leave_mark().await {
            tracing::warn!(error = &error as &dyn std::error::Error, "the last mark by which copies are noticed could not be left");
        }
        // The writer goes last: the last connection folds the write-ahead log into the file, which a reader may not do.
        self.readers.close().await;
        self.writer.close().await;
        self.lock.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}
