//! API keys: created once, stored as hashes, looked up through a short-lived cache.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Deserialize;
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;
use utoipa::ToSchema;

use crate::domain::access::principal::{Principal, SHORT_NAME, User, UserRole, short_name};
use crate::domain::ids::{KeyId, UserId};
use crate::service::access::CredentialInUse;
use crate::service::access::users::require_administrator;
use crate::service::idempotency_outcome::{Replay, RequestKey, outcome_or_conflict};
use crate::service::{Access, Error, Result, Service};
use crate::store::{KeyCursor, Page, PageRequest, StoredKey};
use crate::support::json::hash_bytes;

/// The interval of checks of the keys in use. Together with the lifetime of a cached key, it limits how long anything stays open
/// after its key was revoked.
const CHECK_EVERY: Duration = Duration::from_secs(1);

/// Longer texts are not keys, and are not hashed.
pub(in crate::service) const MAX_KEY_BYTES: usize = 512;

/// A new key. It is shown once, and only its hash is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewKey {
    pub key: String,
    pub hash: String,
    /// The visible prefix of the key.
    pub label: String,
}

/// Returns the stored form of a key: SHA-256 in hexadecimal. Keys have 256 random bits, so a hash without salt cannot be reversed
/// by guessing.
pub fn hash_key(key: &str) -> String {
    hash_bytes(key.as_bytes())
}

/// Creates a key of 256 random bits. Fails if the operating system provides no random bytes.
pub fn new_key() -> std::result::Result<NewKey, getrandom::Error> {
    let key = secret("cap_")?;
    Ok(NewKey { hash: hash_key(&key), label: key.chars().take(10).collect(), key })
}

/// Returns a prefix and 256 random bits, in characters that are safe in a URL.
pub(in crate::service) fn secret(prefix: &str) -> std::result::Result<String, getrandom::Error> {
    let mut random = [0_u8; 32];
    getrandom::fill(&mut random)?;
    Ok(format!("{prefix}{}", URL_SAFE_NO_PAD.encode(random)))
}

/// A key to create.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = CreateApiKeyBody)]
pub struct NewApiKey {
    /// A text by which people recognize the key. Defaults to its first characters.
    #[schema(min_length = 1, max_length = 100)]
    label: Option<String>,
    /// The name of the key's user, who is created if missing. For administrators only. Defaults to the caller.
    #[schema(min_length = 1, max_length = 100)]
    user: Option<String>,
    /// The role of a new user. Defaults to `member`.
    role: Option<UserRole>,
}

/// API keys as requests manage them. Keys of the configuration are not stored, so they are neither listed nor revoked.
impl Service {
    /// Returns a page of keys, newest first: those of `user`, or all that the principal may see.
    pub async fn api_keys(
        &self,
        principal: &Principal,
        user: Option<UserId>,
        page: &PageRequest<KeyCursor>,
    ) -> Result<Page<StoredKey>> {
        let user = match principal.role {
            UserRole::Admin => user,
            UserRole::Member if user.as_ref().is_none_or(|user| *user == principal.user_id) => Some(principal.user_id.clone()),
            UserRole::Member => return Err(Error::Forbidden("only an administrator can see the keys of others")),
        };
        Ok(self.store.keys_page(user.as_ref(), page).await?)
    }

    /// Creates a key. Returns its record and the key itself, which is shown only once: a repeated request is refused.
    pub async fn create_api_key(
        &self,
        principal: &Principal,
        new: NewApiKey,
        request: Option<RequestKey>,
    ) -> Result<(StoredKey, String)> {
        let key = new_key().map_err(Error::NoRandomness)?;
        let label = match new.label.as_deref() {
            Some(label) => short_name(label).ok_or_else(|| Error::field("/label", SHORT_NAME))?.to_owned(),
            None => key.label,
        };
        let user = self.user_of_new_key(principal, new.user.as_deref(), new.role).await?;
        let (id, created_at) = (KeyId::generate(self.ids.as_ref()), self.clock.now());
        let stored = StoredKey { id, hash: key.hash, label, user, created_at, revoked_at: None };
        let (request, most) = (self.claim(&principal.user_id, request), self.limits.max_keys);
        match outcome_or_conflict(self.store.create_key_once(&stored, most, request).await?)? {
            (None, _) => Err(Error::Conflict(format!(
                "the user {} has {most} keys that are not revoked, which is the limit (limits.max_keys_per_owner); revoke one",
                stored.user.name
            ))),
            (Some(id), Replay::Fresh) => {
                tracing::info!(key.id = %id, user.id = %stored.user.id, by = %principal.user_id, "created an API key");
                Ok((stored, key.key))
            }
            (Some(id), Replay::Replayed) => Err(Error::conflict(format!(
                "an earlier request with this Idempotency-Key created the key {id}, which is shown only once; if it was lost, \
                 revoke it, and send a new Idempotency-Key"
            ))),
        }
    }

    async fn user_of_new_key(&self, principal: &Principal, name: Option<&str>, role: Option<UserRole>) -> Result<User> {
        if name.is_some() || role.is_some() {
            require_administrator(principal, "only an administrator can create keys for users by name")?;
        }
        let Some(name) = name else {
            if role.is_some() {
                return Err(Error::field("/role", "is the role of a new user; name the user, too"));
            }
            let user = self.store.user(&principal.user_id).await?.ok_or(Error::NotFound("user"))?.user;
            // A configured key can have a lower role than its user. A stored key always has the role of its user.
            return match (principal.role, user.role) {
                (UserRole::Member, UserRole::Admin) => {
                    Err(Error::Forbidden("a key with the role member cannot create administrator keys"))
                }
                (UserRole::Member, UserRole::Member) | (UserRole::Admin, UserRole::Admin | UserRole::Member) => Ok(user),
            };
        };
        let name = short_name(name).ok_or_else(|| Error::field("/user", SHORT_NAME))?;
        match (self.store.user_named(name).await?, role) {
            (Some(user), Some(role)) if user.role != role => Err(Error::conflict(format!(
                "the user {name} has the role {}, which applies to all their keys; PATCH /api/v1/users/{} changes it",
                user.role.as_str(),
                user.id,
            ))),
            (Some(user), Some(_) | None) => Ok(user),
            (None, role) => {
                let (id, role) = (UserId::generate(self.ids.as_ref()), role.unwrap_or(UserRole::Member));
                Ok(self.store.ensure_user(id, name, role, self.clock.now()).await?)
            }
        }
    }

    /// Revokes a key of the principal, or any key for an administrator. This process refuses it at once.
    pub async fn revoke_api_key(&self, principal: &Principal, id: &KeyId) -> Result<()> {
        let is_visible = |key: &StoredKey| match principal.role {
            UserRole::Admin => true,
            UserRole::Member => key.user.id == principal.user_id,
        };
        let key = self.store.key(id).await?.filter(is_visible).ok_or(Error::NotFound("key"))?;
        if self.configured_keys.contains_key(&key.hash) {
            return Err(Error::conflict(
                "the key is also in the configuration (auth.keys); remove it there, and restart the server",
            ));
        }
        // A server that starts without any key requires none.
        if key.revoked_at.is_none() && self.configured_keys.is_empty() && !self.store.has_keys(Some(id)).await? {
            return Err(Error::conflict(
                "it is the last key of this server; create another one first, or use `capstan keys revoke`",
            ));
        }
        if self.store.revoke_key(id, self.clock.now()).await? {
            tracing::info!(key.id = %id, user.id = %key.user.id, by = %principal.user_id, "revoked an API key");
        }
        // A request that asked the store before may still cache the key, as in other processes: `KEY_CACHE_TTL` limits that.
        self.keys.forget(&key.hash);
        self.credentials_in_use.end(&key.hash);
        Ok(())
    }
}

impl Service {
    /// Checks every second, in one query, which of the keys and sessions in use here are still valid, and closes what the others
    /// opened. Ends with `stop`.
    ///
    /// While the store does not answer, everything stays open: no key can be revoked then, and no new event can be stored for a
    /// stream.
    pub async fn watch_keys(self: Arc<Self>, stop: CancellationToken) {
        let mut ticks = tokio::time::interval(CHECK_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut failing = false;
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                _ = ticks.tick() => {}
            }
            let hashes = self.credentials_in_use.hashes();
            if hashes.is_empty() {
                continue;
            }
            let live: HashSet<String> = match self.store.live_hashes(&hashes).await {
                Ok(live) => live.into_iter().collect(),
                Err(error) => {
                    if !std::mem::replace(&mut failing, true) {
                        tracing::warn!(
                            error = &error as &dyn std::error::Error,
                            "the keys and sessions of open streams could not be checked"
                        );
                    }
                    continue;
                }
            };
            failing = false;
            for hash in hashes.iter().filter(|hash| !live.contains(*hash)) {
                self.keys.forget(hash);
                self.credentials_in_use.end(hash);
            }
        }
    }

    /// Returns the access of a key; `None` if it is unknown.
    ///
    /// A database index looks up the hash of the complete key, so the response time reveals nothing about partly correct guesses.
    pub async fn authenticate(&self, key: &str) -> Result<Option<Access>> {
        if key.is_empty() || key.len() > MAX_KEY_BYTES {
            return Ok(None);
        }
        self.access_by_hash(hash_key(key)).await
    }

    pub(in crate::service) async fn access_by_hash(&self, hash: String) -> Result<Option<Access>> {
        if let Some(principal) = self.configured_keys.get(&hash) {
            return Ok(Some(Access::with_key(principal.clone(), CredentialInUse::unwatched(hash))));
        }
        let principal = match self.keys.get(&hash) {
            Some(principal) => principal,
            None => {
                // Taken before the query, because the key may be revoked while the reply is on its way.
                let asked = Instant::now();
                let Some(user) = self.store.user_by_key_hash(&hash).await? else { return Ok(None) };
                let principal = Principal { user_id: user.id, role: user.role };
                self.keys.put(hash.clone(), principal.clone(), asked);
                principal
            }
        };
        Ok(Some(Access::with_key(principal, self.credentials_in_use.enter(hash))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_long_and_differ() {
        let (one, two) = (new_key().unwrap(), new_key().unwrap());
        assert_ne!(one.key, two.key);
        assert_eq!(one.key.len(), 4 + 43);
        assert_eq!(one.hash, hash_key(&one.key));
        assert!(one.key.starts_with(&one.label) && one.label.len() == 10);
    }
}
