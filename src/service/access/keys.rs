//! API keys: made once, stored as hashes, looked up through a short cache.

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

/// How often the keys in use are checked. Together with the time that a key is believed unchecked, this bounds how long anything outlives
/// the key that it was opened with.
const CHECK_EVERY: Duration = Duration::from_secs(1);

/// Longer texts are no keys and are not even hashed.
pub(in crate::service) const MAX_KEY_BYTES: usize = 512;

/// A key that was just made. It is shown once, and only its hash is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewKey {
    pub key: String,
    pub hash: String,
    /// The beginning of the key, which is shown.
    pub label: String,
}

/// Returns what is stored of a key: SHA-256 in hexadecimal. Keys are 256 random bits, so a plain hash cannot be guessed back.
pub fn hash_key(key: &str) -> String {
    hash_bytes(key.as_bytes())
}

/// Makes a key of 256 random bits. Fails if the operating system gives no random bytes.
pub fn new_key() -> std::result::Result<NewKey, getrandom::Error> {
    let key = secret("cap_")?;
    Ok(NewKey { hash: hash_key(&key), label: key.chars().take(10).collect(), key })
}

/// Returns a prefix and 256 random bits, as a URL can carry them.
pub(in crate::service) fn secret(prefix: &str) -> std::result::Result<String, getrandom::Error> {
    let mut random = [0_u8; 32];
    getrandom::fill(&mut random)?;
    Ok(format!("{prefix}{}", URL_SAFE_NO_PAD.encode(random)))
}

impl Service {
    /// Asks the store every second, in one query, which of the keys in use here are still valid, and ends what is open with the others.
    /// Ends with `stop`.
    ///
    /// While the store does not answer, everything stays open: a key cannot be revoked then, and no event can be stored that a stream would
    /// show.
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
    /// The key is compared by the hash of all of its bytes, in an index of the database: the time that takes says nothing about how much of a
    /// guess was right.
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
                // From before the question: the key may be revoked while the answer is on its way.
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
