//! What belongs to no aggregate: pings, cleaning, and the end of all connections.
//!
//! Owns no table. Must not know why anything is cleaned.

use std::time::Duration;

use async_trait::async_trait;

use super::PostgresStore;
use crate::store::{CommonStore, Expired, RecordStore, Store, StoreError, StoreResult};

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
        // Sessions of other roles are only visible to a member of pg_read_all_stats.
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
        let removed = sqlx::query("DELETE FROM idempotency_keys WHERE created_at <= (SELECT now_ms()) - $1");
        let removed = removed.bind(i64::try_from(age_ms).unwrap_or(i64::MAX)).execute(&self.chores).await?;
        Ok(removed.rows_affected())
    }

    async fn count_expired(&self, keys_ms: u64, audit_ms: Option<u64>) -> StoreResult<Expired> {
        let counts = sqlx::query_as(
            "SELECT (SELECT count(*) FROM stream_tickets WHERE expires_at <= (SELECT now_ms())),
                 (SELECT count(*) FROM idempotency_keys WHERE created_at <= (SELECT now_ms()) - $1::bigint),
                 (SELECT count(*) FROM tool_audit WHERE at <= (SELECT now_ms()) - $2::bigint),
                 (SELECT count(*) FROM spending WHERE day < now_ms() / 86400000 - 1),
                 (SELECT count(*) FROM tool_sets s WHERE NOT EXISTS (SELECT FROM runs r WHERE r.tools_hash = s.hash))",
        )
        .bind(i64::try_from(keys_ms).unwrap_or(i64::MAX))
        .bind(audit_ms.map(|age| i64::try_from(age).unwrap_or(i64::MAX)))
        .fetch_one(&self.chores)
        .await?;
        Ok(Expired::of(counts))
    }

    async fn close(&self) {
        self.close_pools().await;
    }
}
