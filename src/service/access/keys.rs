//! API keys: created once, stored as hashes, looked up through a short-lived cache.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;

use crate::domain::access::principal::Principal;
use crate::service::access::KeyInUse;
use crate::service::{Access, Result, Service};
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

impl Service {
    /// Checks every second, in one query, which of the keys in use here are still valid, and closes what the others opened. Ends
    /// with `stop`.
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
            let hashes = self.keys_in_use.hashes();
            if hashes.is_empty() {
                continue;
            }
            let live: HashSet<String> = match self.store.live_keys(&hashes).await {
                Ok(live) => live.into_iter().collect(),
                Err(error) => {
                    if !std::mem::replace(&mut failing, true) {
                        tracing::warn!(error = &error as &dyn std::error::Error, "the keys of open streams could not be checked");
                    }
                    continue;
                }
            };
            failing = false;
            for hash in hashes.iter().filter(|hash| !live.contains(*hash)) {
                self.keys.forget(hash);
                self.keys_in_use.end(hash);
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
            return Ok(Some(Access::with_key(principal.clone(), KeyInUse::unwatched(hash))));
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
        Ok(Some(Access::with_key(principal, self.keys_in_use.enter(hash))))
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
