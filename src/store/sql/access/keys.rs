//! Users and their keys.
//!
//! Owns the table `api_keys`, and how users are created. Must not know how a key is hashed.

use crate::domain::access::principal::{User, UserRole};
use crate::domain::ids::{KeyId, UserId};
use crate::store::pages::page_by_time;
use crate::store::rows::parse_word;
use crate::store::sql::{Row, Transaction, Value, if_fresh, refuse, statements, the_row, values};
use crate::store::{IdempotencyKey, IdempotentResult, KeyCursor, Page, PageRequest, RecordStore, StoreResult, StoredKey};
use crate::support::clock::UnixMillis;

/// The number of the lock that allows one request per user to count keys at a time.
const LOCK: i64 = 0x0043_4150_4b45_5953;

macro_rules! keys_of_users {
    ($dialect:ident) => {
        "SELECT k.id AS key_id, k.hash, k.label, k.created_at, k.revoked_at, u.id, u.name, u.role
         FROM api_keys k JOIN users u ON u.id = k.user_id"
    };
}

statements! {
    ENSURE_USER = ["INSERT INTO users (id, name, role, created_at) VALUES ($1, $2, $3, $4)
         ON CONFLICT (name) DO UPDATE SET role = CASE WHEN excluded.role = 'admin' THEN 'admin' ELSE users.role END
         RETURNING id, name, role"];

    INSERT = ["INSERT INTO api_keys (id, user_id, hash, label, created_at) VALUES ($1, $2, $3, $4, $5)"];

    USER_BY_HASH = ["SELECT u.id, u.name, u.role FROM api_keys k JOIN users u ON u.id = k.user_id
         WHERE k.hash = $1 AND k.revoked_at IS NULL"];

    EXISTS = ["SELECT EXISTS (SELECT 1 FROM api_keys WHERE revoked_at IS NULL AND id <> $1)"];

    COUNT = ["SELECT count(*) FROM api_keys WHERE user_id = $1 AND revoked_at IS NULL"];

    LIVE = [
        "SELECT hash FROM api_keys WHERE hash ", (in_list "$1"), " AND revoked_at IS NULL
         UNION ALL SELECT hash FROM browser_sessions WHERE hash ", (in_list "$1"), " AND expires_at > ", now
    ];

    ALL = [keys_of_users, " ORDER BY k.created_at, k.id"];

    BY_ID = [keys_of_users, " WHERE k.id = $1"];

    PAGE = [keys_of_users, " WHERE (CAST($1 AS text) IS NULL OR k.user_id = $1) AND (k.created_at, k.id) < ($2, $3)
         ORDER BY k.created_at DESC, k.id DESC LIMIT $4"];

    REVOKE = ["UPDATE api_keys SET revoked_at = $1 WHERE id = $2 AND revoked_at IS NULL"];
}

impl dyn RecordStore + '_ {
    /// Returns the user with that name, and creates it if missing. An existing user keeps its role unless `role` is an upgrade to
    /// admin.
    pub async fn ensure_user(&self, id: UserId, name: &str, role: UserRole, now: UnixMillis) -> StoreResult<User> {
        let row = self.maintenance_database().returning(ENSURE_USER, values![id.as_str(), name, role.as_str(), now]).await?;
        read_user(&the_row(row)?)
    }

    /// Stores a key by its hash. `label` is a text of the user, or the visible prefix of the key.
    pub async fn create_key(&self, id: KeyId, user: &UserId, hash: &str, label: &str, now: UnixMillis) -> StoreResult<()> {
        self.maintenance_database().execute(INSERT, values![id.as_str(), user.as_str(), hash, label, now]).await?;
        Ok(())
    }

    /// Stores a key as [`Self::create_key`] does, once for each idempotency key. `None` if its user has `most` keys that are not
    /// revoked; 0 for no limit.
    pub async fn create_key_once(
        &self,
        new: &StoredKey,
        most: u32,
        key: Option<IdempotencyKey>,
    ) -> IdempotentResult<Option<KeyId>> {
        let (database, key) = (self.database(), key.as_ref());
        let insert = values![new.id.as_str(), new.user.id.as_str(), &new.hash, &new.label, new.created_at];
        let user = new.user.id.as_str();
        let create = async |tx: &mut Transaction| {
            tx.lock(user, LOCK).await?;
            if let Some(recorded) = tx.recorded(key).await? {
                return Ok(recorded);
            }
            if most > 0 && tx.fetch_one(COUNT, values![user]).await?.only::<i64>()? >= i64::from(most) {
                return refuse(None);
            }
            tx.execute(INSERT, insert).await?;
            tx.record(key, Some(new.id.clone())).await
        };
        database.once(key, || database.transaction(create, if_fresh(Option::is_some))).await
    }

    /// Returns the user of a key that is not revoked.
    pub async fn user_by_key_hash(&self, hash: &str) -> StoreResult<Option<User>> {
        self.database().read_optional(USER_BY_HASH, values![hash], read_user).await
    }

    /// Returns whether any key exists that is not revoked, besides this one.
    pub async fn has_keys(&self, besides: Option<&KeyId>) -> StoreResult<bool> {
        Ok(self.maintenance_database().fetch_one(EXISTS, values![besides.map_or("", KeyId::as_str)]).await?.only()?)
    }

    pub async fn key(&self, id: &KeyId) -> StoreResult<Option<StoredKey>> {
        self.database().read_optional(BY_ID, values![id.as_str()], read_key).await
    }

    /// Returns those of the hashes whose keys are not revoked. A process checks all its keys in one call.
    pub async fn live_hashes(&self, hashes: &[String]) -> StoreResult<Vec<String>> {
        let hashes: Value<'_> = hashes.iter().map(String::as_str).collect();
        self.maintenance_database().read_all(LIVE, &[hashes], |row| Ok(row.only()?)).await
    }

    /// Returns all keys, oldest first, including revoked keys.
    pub async fn keys(&self) -> StoreResult<Vec<StoredKey>> {
        self.maintenance_database().read_all(ALL, &[], read_key).await
    }

    /// Returns a page of the keys of one user or of all, newest first, including revoked keys.
    pub async fn keys_page(&self, user: Option<&UserId>, page: &PageRequest<KeyCursor>) -> StoreResult<Page<StoredKey>> {
        let limit = page.limit.clamp(1, 100);
        let (at, id) = page.after.as_ref().map_or((i64::MAX, "~"), |after| (after.at, after.id.as_str()));
        let values = values![user.map(UserId::as_str), at, id, limit + 1];
        let keys = self.database().read_all(PAGE, values, |row| read_key(row).map(|key| (key.created_at.0, key))).await?;
        Ok(page_by_time(keys, limit, |key| &key.id))
    }

    /// Revokes a key permanently. Returns false if there is no such key, or it was revoked before.
    pub async fn revoke_key(&self, id: &KeyId, now: UnixMillis) -> StoreResult<bool> {
        Ok(self.maintenance_database().execute(REVOKE, values![now, id.as_str()]).await? > 0)
    }
}

fn read_key(row: &Row) -> StoreResult<StoredKey> {
    Ok(StoredKey {
        id: KeyId::from_stored(row.get("key_id")?),
        hash: row.get("hash")?,
        label: row.get("label")?,
        user: read_user(row)?,
        created_at: UnixMillis(row.get("created_at")?),
        revoked_at: row.get::<Option<i64>>("revoked_at")?.map(UnixMillis),
    })
}

/// Reads `id`, `name` and `role`.
pub fn read_user(row: &Row) -> StoreResult<User> {
    let id: String = row.get("id")?;
    let role = parse_word("users", "role", &id, row.get("role")?, UserRole::from_name)?;
    Ok(User { id: UserId::from_stored(id), name: row.get("name")?, role })
}
