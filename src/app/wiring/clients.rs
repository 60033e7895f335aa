//! A cache of clients for provider records, and of their circuit breakers.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::domain::ids::ProviderId;
use crate::domain::model::cost::Prices;
use crate::domain::model::provider::ModelEntry;
use crate::domain::run::context::Capacity;
use crate::provider::breaker::{BreakerLimits, Health};
use crate::provider::embeddings::EmbeddingClient;
use crate::provider::{ModelClient, catalog};

/// How long an unused client stays in memory, with its key.
const IDLE: Duration = Duration::from_secs(600);

/// A client, and the record's fields that it depends on.
pub(in crate::app) struct Made {
    pub id: ProviderId,
    pub version: i64,
    pub client: Arc<dyn ModelClient>,
    /// `None` without an embeddings model, or if the dialect has no embeddings.
    pub embeddings: Option<Arc<dyn EmbeddingClient>>,
    pub models: Vec<ModelEntry>,
    /// The base URL.
    pub place: String,
}

impl Made {
    /// Returns the prices that the owner set, or those of the catalog for this URL.
    pub fn prices(&self, name: &str) -> Option<Prices> {
        let own = self.models.iter().find(|model| model.name == name).and_then(|model| model.prices);
        own.or_else(|| catalog::model_at(&self.place, name).prices())
    }

    /// Returns the capacity of a model: fields that the owner set, and the catalog's for the others.
    pub fn capacity(&self, name: &str) -> Capacity {
        let own = self.models.iter().find(|model| model.name == name);
        let known = catalog::model_at(&self.place, name).capacity();
        Capacity {
            window: own.and_then(|model| model.context).or(known.window),
            tokenizer: own.and_then(|model| model.tokenizer).or(known.tokenizer),
            prices: self.prices(name),
            vision: own.and_then(|model| model.vision).or(known.vision),
        }
    }
}

/// Equal for two versions of a record with the same URL and key. A hash, because it covers the key.
pub(in crate::app) type PlaceHash = [u8; 32];

/// The cache. A full one drops the entry that was used the longest time ago.
pub(in crate::app) struct Clients {
    most: usize,
    breaker: BreakerLimits,
    entries: HashMap<ProviderId, Entry>,
}

struct Entry {
    place: PlaceHash,
    health: Health,
    made: Option<Arc<Made>>,
    used: Instant,
}

impl Clients {
    pub fn new(most: usize, breaker: BreakerLimits) -> Self {
        Self { most, breaker, entries: HashMap::new() }
    }

    pub fn get(&mut self, id: &ProviderId, version: i64) -> Option<Arc<Made>> {
        let entry = self.entries.get_mut(id)?;
        let made = entry.made.as_ref().filter(|made| made.version == version)?;
        entry.used = Instant::now();
        Some(Arc::clone(made))
    }

    /// Returns the circuit breaker of a place. Another URL or key starts with a closed one.
    pub fn health(&mut self, id: &ProviderId, name: &str, place: PlaceHash) -> Health {
        if let Some(entry) = self.entries.get_mut(id).filter(|entry| entry.place == place) {
            entry.used = Instant::now();
            let health = entry.health.clone();
            self.drop_idle();
            return health;
        }
        self.make_room();
        let health = Health::new(&format!("{name} ({id})"), self.breaker);
        let entry = Entry { place, health: health.clone(), made: None, used: Instant::now() };
        self.entries.insert(id.clone(), entry);
        health
    }

    /// Stores a client, after [`Self::health`] made its entry.
    pub fn put(&mut self, id: &ProviderId, made: Arc<Made>) {
        if let Some(entry) = self.entries.get_mut(id) {
            entry.made = Some(made);
        }
    }

    /// Drops the client of a provider, with its key. The circuit breaker stays until it is idle: URL and key may be the same.
    pub fn forget(&mut self, id: &ProviderId) {
        if let Some(entry) = self.entries.get_mut(id) {
            entry.made = None;
        }
        self.drop_idle();
    }

    fn drop_idle(&mut self) {
        self.entries.retain(|_, entry| entry.used.elapsed() < IDLE);
    }

    fn make_room(&mut self) {
        self.drop_idle();
        if self.entries.len() >= self.most
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

    fn clients(most: usize) -> Clients {
        Clients::new(most, BreakerLimits { failures: 1, open: Duration::from_secs(30) })
    }

    fn put(clients: &mut Clients, id: &ProviderId) {
        clients.health(id, "mine", [0; 32]);
        clients.put(
            id,
            Arc::new(Made {
                id: id.clone(),
                version: 1,
                client: Arc::new(Router::default()),
                embeddings: None,
                models: Vec::new(),
                place: String::new(),
            }),
        );
    }

    #[test]
    fn list_prices_are_those_of_the_place() {
        let at = |place: &str| Made {
            id: ProviderId::generate(&UuidIds),
            version: 1,
            client: Arc::new(Router::default()),
            embeddings: None,
            models: Vec::new(),
            place: place.to_owned(),
        };
        let known = at("https://api.openai.com/v1").prices("gpt-5");
        assert!(known.is_some());
        assert_eq!(at("https://gateway.example.com/v1").prices("gpt-5"), None, "others ask for others");
        let own: Prices = serde_json::from_value(serde_json::json!({"input": 1, "output": 2})).unwrap();
        let models = vec![ModelEntry { prices: Some(own), ..ModelEntry::named("gpt-5") }];
        assert_eq!(Made { models, ..at("https://api.openai.com/v1") }.prices("gpt-5"), Some(own));
    }

    #[test]
    fn what_an_owner_says_of_a_model_comes_before_what_is_known_of_it() {
        let models = vec![
            ModelEntry { vision: Some(true), ..ModelEntry::named("gpt-3.5-turbo") },
            ModelEntry { vision: Some(false), ..ModelEntry::named("llava-x") },
            ModelEntry::named("gpt-3.5-turbo-16k"),
        ];
        let made = Made {
            id: ProviderId::generate(&UuidIds),
            version: 1,
            client: Arc::new(Router::default()),
            embeddings: None,
            models,
            place: "https://api.example.com/v1".to_owned(),
        };
        let sees = |name: &str| made.capacity(name).vision;
        assert_eq!(
            ["gpt-3.5-turbo", "llava-x", "gpt-3.5-turbo-16k", "nobody-knows"].map(sees),
            [Some(true), Some(false), Some(false), None]
        );
    }

    #[tokio::test(start_paused = true)]
    async fn those_that_were_used_last_stay() {
        let mut clients = clients(3);
        let ids: Vec<_> = (0..4).map(|_| ProviderId::generate(&UuidIds)).collect();
        for id in &ids[..3] {
            put(&mut clients, id);
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        assert!(clients.get(&ids[0], 1).is_some());
        assert!(clients.get(&ids[0], 2).is_none(), "another version is made anew");
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
