//! Pings, cleaning, and closing: the operations that belong to no aggregate.

use std::time::Duration;

use async_trait::async_trait;

use super::PostgresStore;
use crate::store::sql::{Backend, count_expired};
use crate::store::{CommonStore, ExpiredRowCounts, RecordStore, Store, StoreError, StoreResult};

#[async_trait]
impl CommonStore for PostgresStore {
    async fn ping(&self) -> StoreResult<()> {
        let read_only: bool =
            sqlx::query_scalar("SELECT current_setting('transaction_read_only')::boolean").fetch_one(&self.api).await?;
        if read_only {
            return Err(StoreError::Unavailable(sqlx::Error::Io(std::io::Error::new(
                std::io::ErrorKind::ReadOnlyFilesystem,
                "the database is read-only",
            ))));
        }
        Ok(())
    }

    fn is_shared(&self) -> bool {
        true
    }

    fn is_pooled(&self) -> bool {
        self.api.is_pooled()
    }

    fn caps_owners(&self) -> bool {
        self.owner_cap > 0
    }

    fn records(&self) -> &(dyn RecordStore + 'static) {
        self
    }
}

#[async_trait]
impl Store for PostgresStore {
    async fn oldest_snapshot(&self) -> StoreResult<Option<Duration>> {
        // Only a member of pg_read_all_stats sees the sessions of other roles.
        let age: Option<i64> = sqlx::query_scalar(
            "SELECT CAST(extract(epoch FROM max(clock_timestamp() - xact_start)) * 1000 AS bigint) FROM pg_stat_activity
             WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type <> 'autovacuum worker'
                 AND (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL)",
        )
        .fetch_one(&self.chores)
        .await?;
        Ok(Some(Duration::from_millis(age.and_then(|age| u64::try_from(age).ok()).unwrap_or(0))))
    }

    async fn raise_low_water(&self) -> StoreResult<()> {
        self.low_water.raise(&self.chores).await
    }

    async fn remove_expired_idempotency(&self, age_ms: u64) -> StoreResult<u64> {
        self.finish_deletions().await?;
        Backend::maintenance_database(self).delete_expired_keys(age_ms).await
    }

    async fn count_expired(&self, keys_ms: u64, audit_ms: Option<u64>) -> StoreResult<ExpiredRowCounts> {
        count_expired(Backend::maintenance_database(self), keys_ms, audit_ms).await
    }

    async fn close(&self) {
        self.accept.release();
        self.log.release();
        self.api.pool.close().await;
        self.worker.pool.close().await;
        self.lease.pool.close().await;
    }
}
