//! A cache of clients for provider records, with their circuit breakers.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::domain::ids::{ProviderId, UserId};
use crate::domain::model::cost::Prices;
use crate::domain::model::provider::ModelEntry;
use crate::domain::run::context::Capacity;
use crate::provider::circuit_breaker::{BreakerLimits, ProviderBreaker};
use crate::provider::embeddings::EmbeddingClient;
use crate::provider::{ModelClient, catalog};

/// How long an unused client stays in memory, with its key.
const IDLE: Duration = Duration::from_secs(600);

/// A client, with the record's fields that it depends on.
pub(in crate::app) struct CachedClient {
    pub id: ProviderId,
    pub version: i64,
    pub client: Arc<dyn ModelClient>,
    /// `None` without an embeddings model, or if the dialect has no embeddings.
    pub embeddings: Option<Arc<dyn EmbeddingClient>>,
    pub models: Vec<ModelEntry>,
    pub base_url: String,
}

impl CachedClient {
    /// Returns the prices that the owner set, or those of the catalog for this URL.
    pub fn prices(&self, name: &str) -> Option<Prices> {
        let own = self.models.iter().find(|model| model.name == name).and_then(|model| model.prices);
        own.or_else(|| catalog::model_at(&self.base_url, name).prices())
    }

    /// Returns the capacity of a model: the owner's values, and the catalog's for the others.
    pub async fn capacity(&self, owner: &UserId, name: &str) -> Capacity {
        let own = self.models.iter().find(|model| model.name == name);
        let known = catalog::model_at(&self.base_url, name).capacity();
        Capacity {
            window: own.and_then(|model| model.context).or(known.window),
            tokenizer: own.and_then(|model| model.tokenizer).or(known.tokenizer),
            prices: self.prices(name),
            vision: own.and_then(|model| model.vision).or(known.vision),
            max_tools: self.client.capacity(owner, name).await.max_tools,
        }
    }
}

/// The hash of a record's dialect, URL and key. It is a hash because the key is secret.
pub(in crate::app) type EndpointHash = [u8; 32];

/// The cache. If it is full, it drops the least recently used entry.
pub(in crate::app) struct Clients {
    max_entries: usize,
    breaker: BreakerLimits,
    entries: HashMap<ProviderId, Entry>,
}

struct Entry {
    endpoint: EndpointHash,
    health: ProviderBreaker,
    client: Option<Arc<CachedClient>>,
    used: Instant,
}

impl Clients {
    pub fn new(max_entries: usize, breaker: BreakerLimits) -> Self {
        Self { max_entries, breaker, entries: HashMap::new() }
    }

    pub fn get(&mut self, id: &ProviderId, version: i64) -> Option<Arc<CachedClient>> {
        let entry = self.entries.get_mut(id)?;
        let client = entry.client.as_ref().filter(|client| client.version == version)?;
        entry.used = Instant::now();
        Some(Arc::clone(client))
    }

    /// Returns the circuit breaker of an endpoint. Another URL or key starts with a closed one.
    pub fn health(&mut self, id: &ProviderId, name: &str, endpoint: EndpointHash) -> ProviderBreaker {
        if let Some(entry) = self.entries.get_mut(id).filter(|entry| entry.endpoint == endpoint) {
            entry.used = Instant::now();
            let health = entry.health.clone();
            self.drop_idle();
            return health;
        }
        self.evict_oldest();
        let health = ProviderBreaker::new(&format!("{name} ({id})"), self.breaker);
        let entry = Entry { endpoint, health: health.clone(), client: None, used: Instant::now() };
        self.entries.insert(id.clone(), entry);
        health
    }

    /// Stores a client, after [`Self::health`] created its entry.
    pub fn put(&mut self, id: &ProviderId, client: Arc<CachedClient>) {
        if let Some(entry) = self.entries.get_mut(id) {
            entry.client = Some(client);
        }
    }

    /// Drops the client of a provider, with its key. The circuit breaker stays until it is idle, because URL and key may be the
    /// same again.
    pub fn forget(&mut self, id: &ProviderId) {
        if let Some(entry) = self.entries.get_mut(id) {
            entry.client = None;
        }
        self.drop_idle();
    }

    fn drop_idle(&mut self) {
        self.entries.retain(|_, entry| entry.used.elapsed() < IDLE);
    }

    fn evict_oldest(&mut self) {
        self.drop_idle();
        if self.entries.len() >= self.max_entries
            && let Some(oldest) = self.entries.iter().min_by_key(|(_, entry)| entry.used).map(|(id, _)| id.clone())
        {
            self.entries.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::provider::Router;
    use crate::support::ids::UuidIds;

    fn clients(max_entries: usize) -> Clients {
        Clients::new(max_entries, BreakerLimits { failures: 1, open: Duration::from_secs(30) })
    }

    fn put(clients: &mut Clients, id: &ProviderId) {
        clients.health(id, "mine", [0; 32]);
        clients.put(
            id,
            Arc::new(CachedClient {
                id: id.clone(),
                version: 1,
                client: Arc::new(Router::default()),
                embeddings: None,
                models: Vec::new(),
                base_url: String::new(),
            }),
        );
    }

    #[test]
    fn list_prices_are_those_of_the_base_url() {
        let at = |base_url: &str| CachedClient {
            id: ProviderId::generate(&UuidIds),
            version: 1,
            client: Arc::new(Router::default()),
            embeddings: None,
            models: Vec::new(),
            base_url: base_url.to_owned(),
        };
        let known = at("https://api.openai.com/v1").prices("gpt-5");
        assert!(known.is_some());
        assert_eq!(at("https://gateway.example.com/v1").prices("gpt-5"), None, "another URL may have other prices");
        let own: Prices = serde_json::from_value(serde_json::json!({"input": 1, "output": 2})).unwrap();
        let models = vec![ModelEntry { prices: Some(own), ..ModelEntry::named("gpt-5") }];
        assert_eq!(CachedClient { models, ..at("https://api.openai.com/v1") }.prices("gpt-5"), Some(own));
    }

    #[tokio::test]
    async fn owner_model_facts_override_the_catalog() {
        let models = vec![
            ModelEntry { vision: Some(true), ..ModelEntry::named("gpt-3.5-turbo") },
            ModelEntry { vision: Some(false), ..ModelEntry::named("llava-x") },
            ModelEntry::named("gpt-3.5-turbo-16k"),
        ];
        let client = CachedClient {
            id: ProviderId::generate(&UuidIds),
            version: 1,
            client: Arc::new(Router::default()),
            embeddings: None,
            models,
            base_url: "https://api.example.com/v1".to_owned(),
        };
        let owner = UserId::from_stored(String::new());
        for (name, sees) in
            [("gpt-3.5-turbo", Some(true)), ("llava-x", Some(false)), ("gpt-3.5-turbo-16k", Some(false)), ("nobody-knows", None)]
        {
            assert_eq!(client.capacity(&owner, name).await.vision, sees, "{name}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn recently_used_clients_stay_cached() {
        let mut clients = clients(3);
        let ids: Vec<_> = (0..4).map(|_| ProviderId::generate(&UuidIds)).collect();
        for id in &ids[..3] {
            put(&mut clients, id);
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        assert!(clients.get(&ids[0], 1).is_some());
        assert!(clients.get(&ids[0], 2).is_none(), "a new version needs a new client");
        put(&mut clients, &ids[3]);
        let there: Vec<bool> = ids.iter().map(|id| clients.get(id, 1).is_some()).collect();
        assert_eq!(there, [true, false, true, true]);
    }

    #[tokio::test(start_paused = true)]
    async fn keys_of_what_is_gone_do_not_stay() {
        let mut clients = clients(9);
        let (one, other) = (ProviderId::generate(&UuidIds), ProviderId::generate(&UuidIds));
        put(&mut clients, &one);
        put(&mut clients, &other);
        clients.forget(&one);
        assert!(clients.get(&one, 1).is_none() && clients.get(&other, 1).is_some());
        // Another process has deleted it.
        tokio::time::advance(IDLE).await;
        put(&mut clients, &one);
        assert!(clients.get(&other, 1).is_none());
    }
}
