//! API keys and their users: the trait.

use async_trait::async_trait;

use crate::domain::access::principal::{User, UserRole};
use crate::domain::ids::{KeyId, UserId};
use crate::store::{StoreResult, StoredKey};
use crate::support::clock::UnixMillis;

#[async_trait]
pub trait KeyStore: Send + Sync {
    /// The user of that name, made if missing. An existing user keeps its role unless `role` is an upgrade to admin.
    async fn ensure_user(&self, id: UserId, name: &str, role: UserRole, now: UnixMillis) -> StoreResult<User>;

    /// Stores a key by its hash. `label` is its visible beginning.
    async fn create_key(&self, id: KeyId, user: &UserId, hash: &str, label: &str, now: UnixMillis) -> StoreResult<()>;

    /// The user of a key that is not revoked.
    async fn user_by_key_hash(&self, hash: &str) -> StoreResult<Option<User>>;

    /// Whether any key that is not revoked exists.
    async fn has_keys(&self) -> StoreResult<bool>;

    /// Those of the keys, by hash, that are not revoked. Asked for all that a process has in use at once.
    async fn live_keys(&self, hashes: &[String]) -> StoreResult<Vec<String>>;

    /// Every key, oldest first, revoked ones included.
    async fn keys(&self) -> StoreResult<Vec<StoredKey>>;

    /// Revokes a key for ever. False if there is no such key, or it was revoked before.
    async fn revoke_key(&self, id: &KeyId, now: UnixMillis) -> StoreResult<bool>;
}
