//! MCP servers that people keep, in use: read from the database, with their secrets open.
//!
//! What an owner's runs may use is believed for a second, so that many runs that begin at once ask the database once.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use crate::domain::ids::{McpServerId, UserId};
use crate::service::{TokenKeeper, open_mcp_server};
use crate::store::{Store, patiently};
use crate::support::seal::Vault;
use crate::tools::mcp::oauth::Tokens;
use crate::tools::mcp::{KeptServer, KeptServers, MemberRules};

/// How long an answer of the database is believed. Changes of this process count at once.
const BELIEVED_FOR: Duration = Duration::from_secs(1);
/// How long a database that does not answer is waited for: by runs, which would begin without tools, and by requests.
const STORE_PATIENCE: Duration = Duration::from_secs(5);
/// Owners remembered at a time; more make the memory start afresh.
const REMEMBERED: usize = 1_000;

/// See the module documentation.
pub struct KeptInStore {
    store: Arc<dyn Store>,
    vault: Arc<Vault>,
    rules: MemberRules,
    tokens: Arc<TokenKeeper>,
    believed: Mutex<Believed>,
}

#[derive(Default)]
struct Believed {
    of: HashMap<UserId, (Instant, Vec<KeptServer>)>,
    /// Raised by each change: an answer that was on its way then is old.
    changes: u64,
}

impl KeptInStore {
    /// The servers in `store`, whose secrets are sealed by `vault`. `tasks` is to be waited for before the store is closed.
    pub fn new(store: Arc<dyn Store>, vault: Arc<Vault>, rules: MemberRules, tasks: TaskTracker) -> Arc<Self> {
        let tokens = TokenKeeper::new(Arc::clone(&store), Arc::clone(&vault), tasks);
        Arc::new(Self { store, vault, rules, tokens, believed: Mutex::default() })
    }

    fn believed(&self) -> MutexGuard<'_, Believed> {
        self.believed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl KeptServers for KeptInStore {
    async fn of(&self, owner: &UserId) -> Result<Vec<KeptServer>, String> {
        let asked = Instant::now();
        let changes = {
            let believed = self.believed();
            if let Some((_, servers)) = believed.of.get(owner).filter(|(asked, _)| asked.elapsed() < BELIEVED_FOR) {
                return Ok(servers.clone());
            }
            believed.changes
        };
        let records =
            patiently(STORE_PATIENCE, || self.store.usable_mcp_servers(owner)).await.map_err(|error| error.to_string())?;
        let servers: Vec<KeptServer> = records.iter().map(|record| open_mcp_server(&self.vault, record, &self.rules)).collect();
        let mut believed = self.believed();
        if believed.changes == changes {
            if believed.of.len() >= REMEMBERED {
                believed.of.clear();
            }
            believed.of.insert(owner.clone(), (asked, servers.clone()));
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
        let mut believed = self.believed();
        believed.of.clear();
        believed.changes += 1;
    }
}
