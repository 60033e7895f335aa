//! Pings, cleaning, and closing: the operations that belong to no aggregate.
//!
//! Owns no table. Must not know why anything is cleaned.

use std::time::{Duration, Instant};

use async_trait::async_trait;

use super::SqliteStore;
use crate::store::error::damage_was_met;
use crate::store::sql::{Backend, count_expired};
use crate::store::{CommonStore, ExpiredRowCounts, RecordStore, Store, StoreError, StoreResult};
use crate::support::locks::lock;

/// A ping within this time after a successful write needs no other write, so that pings do not load the disk.
const PING_PAUSE: Duration = Duration::from_secs(1);

#[async_trait]
impl CommonStore for SqliteStore {
    async fn ping(&self) -> StoreResult<()> {
        if damage_was_met() {
            return Err(StoreError::Damaged(sqlx::Error::Io(std::io::Error::other("damage was found before"))));
        }
        let mut took_write = self.took_write.lock().await;
        if took_write.is_some_and(|at| at.elapsed() < PING_PAUSE) {
            return Ok(());
        }
        // Only a commit shows whether the disk accepts writes. This one changes nothing that is read.
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
        Backend::maintenance_database(self).delete_expired_keys(age_ms).await
    }

    async fn count_expired(&self, keys_ms: u64, audit_ms: Option<u64>) -> StoreResult<ExpiredRowCounts> {
        count_expired(Backend::maintenance_database(self), keys_ms, audit_ms).await
    }

    async fn leave_mark(&self) -> StoreResult<()> {
        match &self.marker_writer {
            Some(marker_writer) => marker_writer.write_marker(&self.writer).await,
            None => Ok(()),
        }
    }

    async fn close(&self) {
        if let Err(error) = self.leave_mark().await {
            tracing::warn!(error = &error as &dyn std::error::Error, "the last mark for clone detection could not be written");
        }
        // The writer closes last: the last connection checkpoints the write-ahead log, which a reader cannot do.
        self.readers.close().await;
        self.writer.close().await;
        lock(&self.lock).take();
    }
}
