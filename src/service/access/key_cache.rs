//! A cache of valid keys, so that not every request asks the store.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

use tokio::time::Instant;

use crate::domain::access::principal::Principal;
use crate::domain::ids::UserId;
use crate::support::locks::lock;

/// How long a valid key is accepted without asking the store. After that, a revoked key is refused for new requests. Open streams
/// end at the next check of [`Service::watch_keys`](crate::service::Service::watch_keys). Together that takes 3 s of the promised 5
/// s.
const BELIEVED_FOR: Duration = Duration::from_secs(2);
/// How long any process may accept a revoked key or an old role.
pub const KEY_CACHE_TTL: Duration = Duration::from_secs(5);
/// Limit of cached keys. When it is reached, the cache is cleared.
const REMEMBERED: usize = 10_000;

#[derive(Default)]
pub(in crate::service) struct KeyCache(Mutex<HashMap<String, (Principal, Instant)>>);

impl KeyCache {
    pub(in crate::service) fn get(&self, hash: &str) -> Option<Principal> {
        let known = lock(&self.0);
        known.get(hash).filter(|(_, since)| since.elapsed() < BELIEVED_FOR).map(|(principal, _)| principal.clone())
    }

    /// Caches a key that the store confirmed in answer to a query at `read_at`.
    pub(in crate::service) fn put(&self, hash: String, principal: Principal, read_at: Instant) {
        let mut known = lock(&self.0);
        if known.len() >= REMEMBERED {
            known.clear();
        }
        known.insert(hash, (principal, read_at));
    }

    pub(in crate::service) fn forget(&self, hash: &str) {
        lock(&self.0).remove(hash);
    }

    pub(in crate::service) fn forget_user(&self, user: &UserId) {
        lock(&self.0).retain(|_, (principal, _)| principal.user_id != *user);
    }
}
