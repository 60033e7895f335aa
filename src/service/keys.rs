//! API keys: made once, kept as hashes, looked up with a short memory.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use tokio::time::Instant;

use super::{Result, Service};
use crate::domain::principal::Principal;
use crate::support::json::hash_bytes;

/// How long a good key is believed without asking the store: the longest that a revoked key lives on.
const BELIEVED_FOR: Duration = Duration::from_secs(5);
/// Keys remembered at a time; more make the memory start afresh.
const REMEMBERED: usize = 10_000;
/// Longer texts are no keys and are not even hashed.
const MAX_KEY_BYTES: usize = 512;

/// A key that was just made. The key itself is shown once and then forgotten.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewKey {
    /// What its holder sends.
    pub key: String,
    /// What is stored.
    pub hash: String,
    /// Its visible beginning.
    pub label: String,
}

/// The form in which a key is stored: SHA-256 in hexadecimal. Keys are 256 random bits, so a plain hash cannot be guessed back.
#[must_use]
pub fn hash_key(key: &str) -> String {
    hash_bytes(key.as_bytes())
}

/// Makes a key of 256 random bits.
///
/// # Errors
/// If the operating system gives no random bytes.
pub fn new_key() -> std::result::Result<NewKey, getrandom::Error> {
    let mut random = [0_u8; 32];
    getrandom::fill(&mut random)?;
    let key = format!("cap_{}", URL_SAFE_NO_PAD.encode(random));
    Ok(NewKey { hash: hash_key(&key), label: key.chars().take(10).collect(), key })
}

/// Keys that were good a moment ago, by hash.
#[derive(Default)]
pub(super) struct KeyCache(Mutex<HashMap<String, (Principal, Instant)>>);

impl KeyCache {
    fn get(&self, hash: &str) -> Option<Principal> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(hash).filter(|(_, since)| since.elapsed() < BELIEVED_FOR).map(|(principal, _)| principal.clone())
    }

    fn put(&self, hash: String, principal: Principal) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= REMEMBERED {
            known.clear();
        }
        known.insert(hash, (principal, Instant::now()));
    }
}

impl Service {
    /// Whose key this is; `None` if it is nobody's.
    ///
    /// The key is compared by the hash of all of its bytes, in an index of the database: how long that takes says nothing
    /// about how much of a guess was right.
    pub async fn authenticate(&self, key: &str) -> Result<Option<Principal>> {
        if key.is_empty() || key.len() > MAX_KEY_BYTES {
            return Ok(None);
        }
        let hash = hash_key(key);
        if let Some(principal) = self.configured_keys.get(&hash) {
            return Ok(Some(principal.clone()));
        }
        if let Some(principal) = self.keys.get(&hash) {
            return Ok(Some(principal));
        }
        let Some(user) = self.store.user_by_key_hash(&hash).await? else { return Ok(None) };
        let principal = Principal { user_id: user.id, role: user.role };
        self.keys.put(hash, principal.clone());
        Ok(Some(principal))
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
