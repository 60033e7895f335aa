//! Users, their keys, and what belongs to no aggregate.

use std::time::Duration;

use async_trait::async_trait;
use sqlx::Row as _;
use sqlx::postgres::PgRow;

use super::PostgresStore;
use crate::domain::ids::{KeyId, UserId};
use crate::domain::principal::{User, UserRole};
use crate::store::{CommonStore, Expired, KeyStore, RecordStore, Store, StoreError, StoreResult, StoredKey, rows};
use crate::support::clock::UnixMillis;
use crate::support::text::storable;

pub(super) fn user(row: &PgRow) -> StoreResult<User> {
    let id: String = row.try_get("id")?;
    let role: String = row.try_get("role")?;
    let role = rows::word("users", "role", &id, &role, UserRole::from_word)?;
    Ok(User { id: UserId::from_stored(id), name: row.try_get("name")?, role })
}

#[async_trait]
impl KeyStore for PostgresStore {
    async fn ensure_user(&self, id: UserId, name: &str, role: UserRole, now: UnixMillis) -> StoreResult<User> {
        let row = sqlx::query(
            "INSERT INTO users (id, name, role, created_at) VALUES ($1, $2, $3, $4)
             ON CONFLICT (name) DO UPDATE SET role = CASE WHEN excluded.role = 'admin' THEN 'admin' ELSE users.role END
             RETURNING id, name, role",
        )
        .bind(id.as_str())
        .bind(storable(name))
        .bind(role.as_str())
        .bind(now.0)
        .fetch_one(&self.chores)
        .await?;
        user(&row)
    }

    async fn create_key(&self, id: KeyId, user: &UserId, hash: &str, label: &str, now: UnixMillis) -> StoreResult<()> {
        sqlx::query("INSERT INTO api_keys (id, user_id, hash, label, created_at) VALUES ($1, $2, $3, $4, $5)")
            .bind(id.as_str())
            .bind(user.as_str())
            .bind(hash)
            .bind(storable(label))
            .bind(now.0)
            .execute(&self.chores)
            .await?;
        Ok(())
    }

    async fn user_by_key_hash(&self, hash: &str) -> StoreResult<Option<User>> {
        let row = sqlx::query(
            "SELECT u.id, u.name, u.role FROM api_keys k JOIN users u ON u.id = k.user_id
             WHERE k.hash = $1 AND k.revoked_at IS NULL",
        )
        .bind(storable(hash))
        .fetch_optional(&self.api)
        .await?;
        row.as_ref().map(user).transpose()
    }

    async fn has_keys(&self) -> StoreResult<bool> {
        Ok(sqlx::query_scalar("SELECT EXISTS (SELECT FROM api_keys WHERE revoked_at IS NULL)").fetch_one(&self.chores).await?)
    }

    async fn live_keys(&self, hashes: &[String]) -> StoreResult<Vec<String>> {
        let live = sqlx::query_scalar("SELECT hash FROM api_keys WHERE hash = ANY($1) AND revoked_at IS NULL");
        Ok(live.bind(hashes).fetch_all(&self.chores).await?)
    }

    async fn keys(&self) -> StoreResult<Vec<StoredKey>> {
        let found = sqlx::query(
            "SELECT k.id AS key_id, k.label, k.created_at, k.revoked_at, u.id, u.name, u.role
             FROM api_keys k JOIN users u ON u.id = k.user_id ORDER BY k.created_at, k.id",
        )
        .fetch_all(&self.chores)
        .await?;
        found.iter().map(key).collect()
    }

    async fn revoke_key(&self, id: &KeyId, now: UnixMillis) -> StoreResult<bool> {
        let revoked = sqlx::query("UPDATE api_keys SET revoked_at = $1 WHERE id = $2 AND revoked_at IS NULL")
            .bind(now.0)
            .bind(storable(id.as_str()))
            .execute(&self.chores)
            .await?;
        Ok(revoked.rows_affected() > 0)
    }
}

fn key(row: &PgRow) -> StoreResult<StoredKey> {
    Ok(StoredKey {
        id: KeyId::from_stored(row.try_get("key_id")?),
        label: row.try_get("label")?,
        user: user(row)?,
        created_at: UnixMillis(row.try_get("created_at")?),
        revoked_at: row.try_get::<Option<i64>, _>("revoked_at")?.map(UnixMillis),
    })
}

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
