//! Reads user servers from the database, and decrypts their secrets.
//!
//! The servers of an owner are cached for a second, so that many runs that start at once read the database once.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use crate::domain::ids::{McpServerId, UserId};
use crate::service::{McpTokenStore, decrypt_mcp_server};
use crate::store::{Store, retry_while_unavailable};
use crate::support::encryption::Vault;
use crate::support::locks::lock;
use crate::tools::mcp::oauth::Tokens;
use crate::tools::mcp::{MemberRules, UserServer, UserServerSource};

/// How long a result is cached. Changes by this process take effect at once.
const TTL: Duration = Duration::from_secs(1);
/// How long runs and requests wait for the database. After that a run starts without these tools.
const STORE_TIMEOUT: Duration = Duration::from_secs(5);
/// Limit of cached owners. The cache is cleared before another one is added.
const MAX_OWNERS: usize = 1_000;

pub struct StoredUserServers {
    store: Arc<dyn Store>,
    vault: Arc<Vault>,
    rules: MemberRules,
    tokens: Arc<McpTokenStore>,
    cache: Mutex<Cache>,
}

#[derive(Default)]
struct Cache {
    servers: HashMap<UserId, (Instant, Vec<UserServer>)>,
    /// Counts changes: a result that was read during a change is not cached.
    changes: u64,
}

impl StoredUserServers {
    /// `tasks` must end before the store is closed.
    pub fn new(store: Arc<dyn Store>, vault: Arc<Vault>, rules: MemberRules, tasks: TaskTracker) -> Arc<Self> {
        let tokens = McpTokenStore::new(Arc::clone(&store), Arc::clone(&vault), tasks);
        Arc::new(Self { store, vault, rules, tokens, cache: Mutex::default() })
    }
}

#[async_trait]
impl UserServerSource for StoredUserServers {
    async fn of_owner(&self, owner: &UserId) -> Result<Vec<UserServer>, String> {
        let read_at = Instant::now();
        let changes = {
            let cache = lock(&self.cache);
            if let Some((_, servers)) = cache.servers.get(owner).filter(|(read_at, _)| read_at.elapsed() < TTL) {
                return Ok(servers.clone());
            }
            cache.changes
        };
        let records = retry_while_unavailable(STORE_TIMEOUT, || self.store.usable_mcp_servers(owner))
            .await
            .map_err(|error| error.to_string())?;
        let servers: Vec<UserServer> = records.iter().map(|record| decrypt_mcp_server(&self.vault, record, &self.rules)).collect();
        let mut cache = lock(&self.cache);
        if cache.changes == changes {
            if cache.servers.len() >= MAX_OWNERS {
                cache.servers.clear();
            }
            cache.servers.insert(owner.clone(), (read_at, servers.clone()));
        }
        Ok(servers)
    }

    async fn by_ids(&self, ids: &[McpServerId]) -> Result<Vec<UserServer>, String> {
        let records = self.store.enabled_mcp_servers(ids).await.map_err(|error| error.to_string())?;
        Ok(records.iter().map(|record| decrypt_mcp_server(&self.vault, record, &self.rules)).collect())
    }

    fn tokens(&self) -> Option<Arc<dyn Tokens>> {
        Some(Arc::clone(&self.tokens) as _)
    }

    fn clear_cache(&self) {
        let mut cache = lock(&self.cache);
        cache.servers.clear();
        cache.changes += 1;
    }
}
