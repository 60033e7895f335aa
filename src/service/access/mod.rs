//! The access of a request, and its end: everything that a key or a session has opened closes soon after its end.
//!
//! Owns keys, tickets, sessions and logins. Must not know how a client sends a key.

pub(super) mod account;
pub(super) mod default_models;
pub(super) mod key_cache;
pub(super) mod keys;
pub(super) mod login_limit;
pub(super) mod logins;
pub(super) mod mcp_logins;
pub(super) mod mcp_tokens;
pub(super) mod sessions;
pub(super) mod tickets;
pub(super) mod users;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};

use tokio_util::sync::CancellationToken;

use crate::domain::access::principal::Principal;
use crate::support::locks::lock;

/// The principal of a request while its key and its session are valid. A stream or socket holds it, and ends when
/// [`Access::wait_until_revoked`] returns.
#[derive(Debug, Clone)]
pub struct Access {
    principal: Principal,
    key: Option<Arc<KeyInUse>>,
    session: Option<Arc<KeyInUse>>,
}

impl Access {
    pub fn without_key(principal: Principal) -> Self {
        Self { principal, key: None, session: None }
    }

    pub(in crate::service) fn with_key(principal: Principal, key: Arc<KeyInUse>) -> Self {
        Self { principal, key: Some(key), session: None }
    }

    /// Ends with this session too.
    pub(in crate::service) fn within_session(self, session: Arc<KeyInUse>) -> Self {
        Self { session: Some(session), ..self }
    }

    pub fn principal(&self) -> &Principal {
        &self.principal
    }

    pub(in crate::service) fn key_hash(&self) -> Option<&str> {
        self.key.as_deref().map(|key| key.hash.as_str())
    }

    pub fn is_over(&self) -> bool {
        [&self.key, &self.session].into_iter().flatten().any(|key| key.revoked.is_cancelled())
    }

    /// Waits until the session has ended, or a check finds the key revoked. Cancel-safe.
    pub async fn wait_until_revoked(&self) {
        let end = async |key: &Option<Arc<KeyInUse>>| match key {
            Some(key) => key.revoked.cancelled().await,
            None => std::future::pending().await,
        };
        tokio::select! {
            () = end(&self.key) => {}
            () = end(&self.session) => {}
        }
    }
}

/// A key, or the session of a browser.
#[derive(Debug)]
pub(in crate::service) struct KeyInUse {
    hash: String,
    revoked: CancellationToken,
}

impl KeyInUse {
    /// Creates an entry for a key that is valid as long as the process. For a key that can be revoked, see [`KeysInUse::enter`].
    pub(in crate::service) fn unwatched(hash: String) -> Arc<Self> {
        Arc::new(Self { hash, revoked: CancellationToken::new() })
    }
}

/// The stored keys and sessions that have anything open in this process, each once.
#[derive(Default)]
pub(in crate::service) struct KeysInUse(Mutex<HashMap<String, Weak<KeyInUse>>>);

impl KeysInUse {
    /// Registers a key that opens something, so that it is checked from now on.
    pub(in crate::service) fn enter(&self, hash: String) -> Arc<KeyInUse> {
        let mut keys = lock(&self.0);
        if let Some(key) = keys.get(&hash).and_then(Weak::upgrade) {
            return key;
        }
        let key = KeyInUse::unwatched(hash.clone());
        keys.insert(hash, Arc::downgrade(&key));
        key
    }

    /// Returns the hashes of all keys in use, and removes those with nothing open.
    pub(in crate::service) fn hashes(&self) -> Vec<String> {
        let mut keys = lock(&self.0);
        keys.retain(|_, key| key.strong_count() > 0);
        keys.keys().cloned().collect()
    }

    /// Closes what a key has opened. A request that still accepts the cached key creates a new entry, which ends at the next check.
    pub(in crate::service) fn end(&self, hash: &str) {
        if let Some(key) = lock(&self.0).remove(hash).and_then(|key| key.upgrade()) {
            key.revoked.cancel();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::access::principal::UserRole;
    use crate::domain::ids::UserId;

    #[test]
    fn a_key_is_in_use_as_long_as_something_is_open_with_it() {
        let keys = KeysInUse::default();
        let principal = Principal { user_id: UserId::from_stored("user_1".into()), role: UserRole::Member };
        let access = |hash: &str| Access::with_key(principal.clone(), keys.enter(hash.to_owned()));
        let (first, second, other) = (access("a"), access("a"), access("b"));
        let mut hashes = keys.hashes();
        hashes.sort();
        assert_eq!(hashes, ["a", "b"]);
        drop(other);
        drop(first.clone());
        assert_eq!(keys.hashes(), ["a"]);
        keys.end("a");
        assert!(first.is_over() && second.is_over());
        assert_eq!(keys.hashes(), [""; 0]);
        // Later requests are checked too.
        let late = access("a");
        assert!(!late.is_over());
        assert_eq!(keys.hashes(), ["a"]);
        assert!(!Access::without_key(principal.clone()).is_over());
    }
}
