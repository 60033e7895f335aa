//! User servers of the database, with their secrets decrypted.
//!
//! The servers of an owner are cached for a second, so that many runs that start at once read the database once.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use crate::domain::ids::{McpServerId, UserId};
use crate::service::{TokenKeeper, open_mcp_server};
use crate::store::{Store, patiently};
use crate::support::locks::lock;
use crate::support::seal::Vault;
use crate::tools::mcp::oauth::Tokens;
use crate::tools::mcp::{KeptServer, KeptServers, MemberRules};

/// How long an answer is cached. Changes of this process count at once.
const TTL: Duration = Duration::from_secs(1);
/// How long runs and requests wait for the database; after that a run starts without these tools.
const STORE_TIMEOUT: Duration = Duration::from_secs(5);
/// The limit of cached owners; one more clears the cache.
const MAX_OWNERS: usize = 1_000;

pub struct KeptInStore {
    store: Arc<dyn Store>,
    vault: Arc<Vault>,
    rules: MemberRules,
    tokens: Arc<TokenKeeper>,
    cache: Mutex<Cache>,
}

#[derive(Default)]
struct Cache {
    servers: HashMap<UserId, (Instant, Vec<KeptServer>)>,
    /// Counts changes: an answer that was on its way during one is not cached.
    changes: u64,
}

impl KeptInStore {
    /// `tasks` must end before the store is closed.
    pub fn new(store: Arc<dyn Store>, vault: Arc<Vault>, rules: MemberRules, tasks: TaskTracker) -> Arc<Self> {
        let tokens = TokenKeeper::new(Arc::clone(&store), Arc::clone(&vault), tasks);
        Arc::new(Self { store, vault, rules, tokens, cache: Mutex::default() })
    }
}

#[async_trait]
impl KeptServers for KeptInStore {
    async fn of(&self, owner: &UserId) -> Result<Vec<KeptServer>, String> {
        let asked = Instant::now();
        let changes = {
            let cache = lock(&self.cache);
            if let Some((_, servers)) = cache.servers.get(owner).filter(|(asked, _)| asked.elapsed() < TTL) {
                return Ok(servers.clone());
            }
            cache.changes
        };
        let records = patiently(STORE_TIMEOUT, || self.store.usable_mcp_servers(owner)).await.map_err(|error| error.to_string())?;
        let servers: Vec<KeptServer> = records.iter().map(|record| open_mcp_server(&self.vault, record, &self.rules)).collect();
        let mut cache = lock(&self.cache);
        if cache.changes == changes {
            if cache.servers.len() >= MAX_OWNERS {
                cache.servers.clear();
            }
            cache.servers.insert(owner.clone(), (asked, servers.clone()));
        }
        Ok(servers)
    }

    async fn these(&self, ids: &[McpServerId]) -> Result<Vec<KeptServer>, String> {
        let records = self.store.enabled_mcp_servers(ids).await.map_err(|error| error.to_string())?;
        Ok(records.iter().map(|record| open_mcp_server(&self.vault, record, &self.rules)).collect())
    }

    fn tokens(&self) -> Option<Arc<dyn Tokens>> {
        Some(Arc::clone(&self.tokens) as _)
    }

    fn changed(&self) {
        let mut cache = lock(&self.cache);
        cache.servers.clear();
        cache.changes += 1;
    }
}
