//! The access of a request, and its end: everything that a key or a session has opened closes soon after its end.
//!
//! Owns keys, tickets, sessions and logins. Must not know how a client sends a key.

pub(super) mod account;
pub(super) mod default_models;
pub(super) mod key_cache;
pub(super) mod keys;
pub(super) mod logins;
pub(super) mod mcp_login_limit;
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
/// [`Access::wait_until_over`] returns.
#[derive(Debug, Clone)]
pub struct Access {
    principal: Principal,
    key: Option<Arc<CredentialInUse>>,
    session: Option<Arc<CredentialInUse>>,
}

impl Access {
    pub fn without_key(principal: Principal) -> Self {
        Self { principal, key: None, session: None }
    }

    pub(in crate::service) fn with_key(principal: Principal, key: Arc<CredentialInUse>) -> Self {
        Self { principal, key: Some(key), session: None }
    }

    /// Ends with this session too.
    pub(in crate::service) fn within_session(self, session: Arc<CredentialInUse>) -> Self {
        Self { session: Some(session), ..self }
    }

    pub fn principal(&self) -> &Principal {
        &self.principal
    }

    pub(in crate::service) fn key_hash(&self) -> Option<&str> {
        self.key.as_deref().map(|key| key.hash.as_str())
    }

    pub(in crate::service) fn session_hash(&self) -> Option<&str> {
        self.session.as_deref().map(|session| session.hash.as_str())
    }

    pub fn is_over(&self) -> bool {
        [&self.key, &self.session].into_iter().flatten().any(|credential| credential.ended.is_cancelled())
    }

    /// Waits until the session has ended, or a check finds the key revoked. Cancel-safe.
    pub async fn wait_until_over(&self) {
        let end = async |credential: &Option<Arc<CredentialInUse>>| match credential {
            Some(credential) => credential.ended.cancelled().await,
            None => std::future::pending().await,
        };
        tokio::select! {
            () = end(&self.key) => {}
            () = end(&self.session) => {}
        }
    }
}

/// A key, or the session of a browser, while something is open with it.
#[derive(Debug)]
pub(in crate::service) struct CredentialInUse {
    hash: String,
    ended: CancellationToken,
}

impl CredentialInUse {
    /// Creates an entry for a key that is valid as long as the process. For a key that can be revoked, see [`CredentialsInUse::enter`].
    pub(in crate::service) fn unwatched(hash: String) -> Arc<Self> {
        Arc::new(Self { hash, ended: CancellationToken::new() })
    }
}

/// The stored keys and sessions that have anything open in this process, each once.
#[derive(Default)]
pub(in crate::service) struct CredentialsInUse(Mutex<HashMap<String, Weak<CredentialInUse>>>);

impl CredentialsInUse {
    /// Registers a key or session that opens something, so that it is checked from now on.
    pub(in crate::service) fn enter(&self, hash: String) -> Arc<CredentialInUse> {
        let mut credentials = lock(&self.0);
        if let Some(credential) = credentials.get(&hash).and_then(Weak::upgrade) {
            return credential;
        }
        let credential = CredentialInUse::unwatched(hash.clone());
        credentials.insert(hash, Arc::downgrade(&credential));
        credential
    }

    /// Returns the hashes of all keys and sessions in use, and removes those with nothing open.
    pub(in crate::service) fn hashes(&self) -> Vec<String> {
        let mut credentials = lock(&self.0);
        credentials.retain(|_, credential| credential.strong_count() > 0);
        credentials.keys().cloned().collect()
    }

    /// Closes what a key or session has opened. A request that still accepts the cached key creates a new entry, which ends at the
    /// next check.
    pub(in crate::service) fn end(&self, hash: &str) {
        if let Some(credential) = lock(&self.0).remove(hash).and_then(|credential| credential.upgrade()) {
            credential.ended.cancel();
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
        let keys = CredentialsInUse::default();
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
