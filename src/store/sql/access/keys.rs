//! Users and their keys.
//!
//! Owns the table `api_keys`, and how users are made. Must not know how a key is hashed.

use async_trait::async_trait;

use crate::domain::access::principal::{User, UserRole};
use crate::domain::ids::{KeyId, UserId};
use crate::store::rows::word;
use crate::store::sql::backend::Backend;
use crate::store::sql::row::{Row, the_row};
use crate::store::sql::statement::statements;
use crate::store::sql::value::{Value, values};
use crate::store::{KeyStore, StoreResult, StoredKey};
use crate::support::clock::UnixMillis;

statements! {
    ENSURE_USER = ["INSERT INTO users (id, name, role, created_at) VALUES ($1, $2, $3, $4)
         ON CONFLICT (name) DO UPDATE SET role = CASE WHEN excluded.role = 'admin' THEN 'admin' ELSE users.role END
         RETURNING id, name, role"];

    INSERT = ["INSERT INTO api_keys (id, user_id, hash, label, created_at) VALUES ($1, $2, $3, $4, $5)"];

    USER_BY_HASH = ["SELECT u.id, u.name, u.role FROM api_keys k JOIN users u ON u.id = k.user_id
         WHERE k.hash = $1 AND k.revoked_at IS NULL"];

    EXISTS = ["SELECT EXISTS (SELECT 1 FROM api_keys WHERE revoked_at IS NULL)"];

    LIVE = ["SELECT hash FROM api_keys WHERE hash ", (in_list "$1"), " AND revoked_at IS NULL"];

    ALL = ["SELECT k.id AS key_id, k.label, k.created_at, k.revoked_at, u.id, u.name, u.role
         FROM api_keys k JOIN users u ON u.id = k.user_id ORDER BY k.created_at, k.id"];

    REVOKE = ["UPDATE api_keys SET revoked_at = $1 WHERE id = $2 AND revoked_at IS NULL"];
}

#[async_trait]
impl<B: Backend> KeyStore for B {
    async fn ensure_user(&self, id: UserId, name: &str, role: UserRole, now: UnixMillis) -> StoreResult<User> {
        let row = self.chores().returning(ENSURE_USER, values![id.as_str(), name, role.as_str(), now]).await?;
        read_user(&the_row(row)?)
    }

    async fn create_key(&self, id: KeyId, user: &UserId, hash: &str, label: &str, now: UnixMillis) -> StoreResult<()> {
        self.chores().execute(INSERT, values![id.as_str(), user.as_str(), hash, label, now]).await?;
        Ok(())
    }

    async fn user_by_key_hash(&self, hash: &str) -> StoreResult<Option<User>> {
        let row = self.database().fetch_optional(USER_BY_HASH, values![hash]).await?;
        row.as_ref().map(read_user).transpose()
    }

    async fn has_keys(&self) -> StoreResult<bool> {
        Ok(self.chores().fetch_one(EXISTS, &[]).await?.only()?)
    }

    async fn live_keys(&self, hashes: &[String]) -> StoreResult<Vec<String>> {
        let hashes: Value<'_> = hashes.iter().map(String::as_str).collect();
        let rows = self.chores().fetch_all(LIVE, &[hashes]).await?;
        rows.iter().map(|row| Ok(row.only()?)).collect()
    }

    async fn keys(&self) -> StoreResult<Vec<StoredKey>> {
        let rows = self.chores().fetch_all(ALL, &[]).await?;
        rows.iter().map(read_key).collect()
    }

    async fn revoke_key(&self, id: &KeyId, now: UnixMillis) -> StoreResult<bool> {
        Ok(self.chores().execute(REVOKE, values![now, id.as_str()]).await? > 0)
    }
}

fn read_key(row: &Row) -> StoreResult<StoredKey> {
    Ok(StoredKey {
        id: KeyId::from_stored(row.get("key_id")?),
        label: row.get("label")?,
        user: read_user(row)?,
        created_at: UnixMillis(row.get("created_at")?),
        revoked_at: row.get::<Option<i64>>("revoked_at")?.map(UnixMillis),
    })
}

/// Reads `id`, `name` and `role`.
pub(in crate::store::sql) fn read_user(row: &Row) -> StoreResult<User> {
    let id: String = row.get("id")?;
    let role = word("users", "role", &id, row.get("role")?, UserRole::from_word)?;
    Ok(User { id: UserId::from_stored(id), name: row.get("name")?, role })
}
