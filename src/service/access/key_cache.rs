//! A cache of valid keys, so that not every request asks the store.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

use tokio::time::Instant;

use crate::domain::access::principal::Principal;
use crate::support::locks::lock;

/// How long a valid key is believed without asking the store. A revoked key opens nothing after that, and what it has opened until then
/// ends at the next check of [`Service::watch_keys`](crate::service::Service::watch_keys): 3 s together, of the 5 s that are promised.
const BELIEVED_FOR: Duration = Duration::from_secs(2);
/// Keys in the cache at a time; more empty it.
const REMEMBERED: usize = 10_000;

#[derive(Default)]
pub(in crate::service) struct KeyCache(Mutex<HashMap<String, (Principal, Instant)>>);

impl KeyCache {
    pub(in crate::service) fn get(&self, hash: &str) -> Option<Principal> {
        let known = lock(&self.0);
        known.get(hash).filter(|(_, since)| since.elapsed() < BELIEVED_FOR).map(|(principal, _)| principal.clone())
    }

    /// Remembers a key that the store was asked about at `asked`.
    pub(in crate::service) fn put(&self, hash: String, principal: Principal, asked: Instant) {
        let mut known = lock(&self.0);
        if known.len() >= REMEMBERED {
            known.clear();
        }
        known.insert(hash, (principal, asked));
    }

    pub(in crate::service) fn forget(&self, hash: &str) {
        lock(&self.0).remove(hash);
    }
}
