//! Users and their keys.

use async_trait::async_trait;
use serde_json::json;
use sqlx::Row as _;
use sqlx::sqlite::SqliteRow;

use super::SqliteStore;
use crate::domain::ids::{KeyId, UserId};
use crate::domain::principal::{User, UserRole};
use crate::store::rows::word;
use crate::store::{KeyStore, StoreResult, StoredKey};
use crate::support::clock::UnixMillis;

#[async_trait]
impl KeyStore for SqliteStore {
    async fn ensure_user(&self, id: UserId, name: &str, role: UserRole, now: UnixMillis) -> StoreResult<User> {
        let (_turn, mut tx) = self.write_in_turn().await?;
        sqlx::query(
            "INSERT INTO users (id, name, role, created_at) VALUES (?, ?, ?, ?)
             ON CONFLICT (name) DO UPDATE SET role = excluded.role WHERE excluded.role = 'admin'",
        )
        .bind(id.as_str())
        .bind(name)
        .bind(role.as_str())
        .bind(now.0)
        .execute(&mut *tx)
        .await?;
        let row = sqlx::query("SELECT id, name, role FROM users WHERE name = ?").bind(name).fetch_one(&mut *tx).await?;
        tx.commit().await?;
        read_user(&row)
    }

    async fn create_key(&self, id: KeyId, user: &UserId, hash: &str, label: &str, now: UnixMillis) -> StoreResult<()> {
        let (_turn, mut tx) = self.write_in_turn().await?;
        sqlx::query("INSERT INTO api_keys (id, user_id, hash, label, created_at) VALUES (?, ?, ?, ?, ?)")
            .bind(id.as_str())
            .bind(user.as_str())
            .bind(hash)
            .bind(label)
            .bind(now.0)
            .execute(&mut *tx)
            .await?;
        Ok(tx.commit().await?)
    }

    async fn user_by_key_hash(&self, hash: &str) -> StoreResult<Option<User>> {
        let row = sqlx::query(
            "SELECT users.id, users.name, users.role FROM api_keys JOIN users ON users.id = api_keys.user_id
             WHERE api_keys.hash = ? AND api_keys.revoked_at IS NULL",
        )
        .bind(hash)
        .fetch_optional(self.reader())
        .await?;
        row.as_ref().map(read_user).transpose()
    }

    async fn has_keys(&self) -> StoreResult<bool> {
        let any = sqlx::query_scalar("SELECT EXISTS (SELECT 1 FROM api_keys WHERE revoked_at IS NULL)");
        Ok(any.fetch_one(self.reader()).await?)
    }

    async fn live_keys(&self, hashes: &[String]) -> StoreResult<Vec<String>> {
        let live =
            sqlx::query_scalar("SELECT hash FROM api_keys WHERE hash IN (SELECT value FROM json_each(?)) AND revoked_at IS NULL");
        Ok(live.bind(json!(hashes).to_string()).fetch_all(self.reader()).await?)
    }

    async fn keys(&self) -> StoreResult<Vec<StoredKey>> {
        let found = sqlx::query(
            "SELECT k.id AS key_id, k.label, k.created_at, k.revoked_at, u.id, u.name, u.role
             FROM api_keys k JOIN users u ON u.id = k.user_id ORDER BY k.created_at, k.id",
        )
        .fetch_all(self.reader())
        .await?;
        found.iter().map(read_key).collect()
    }

    async fn revoke_key(&self, id: &KeyId, now: UnixMillis) -> StoreResult<bool> {
        let (_turn, mut tx) = self.write_in_turn().await?;
        let revoked = sqlx::query("UPDATE api_keys SET revoked_at = ? WHERE id = ? AND revoked_at IS NULL")
            .bind(now.0)
            .bind(id.as_str())
            .execute(&mut *tx)
            .await?
            .rows_affected();
        tx.commit().await?;
        Ok(revoked > 0)
    }
}

fn read_key(row: &SqliteRow) -> StoreResult<StoredKey> {
    Ok(StoredKey {
        id: KeyId::from_stored(row.try_get("key_id")?),
        label: row.try_get("label")?,
        user: read_user(row)?,
        created_at: UnixMillis(row.try_get("created_at")?),
        revoked_at: row.try_get::<Option<i64>, _>("revoked_at")?.map(UnixMillis),
    })
}

pub(super) fn read_user(row: &SqliteRow) -> StoreResult<User> {
    let id: String = row.try_get("id")?;
    let role: &str = row.try_get("role")?;
    let role = word("users", "role", &id, role, UserRole::from_word)?;
    Ok(User { id: UserId::from_stored(id), name: row.try_get("name")?, role })
}
