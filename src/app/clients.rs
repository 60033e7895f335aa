//! Clients of kept providers, each as long as somebody uses it, and what is known of the providers' health.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::domain::context::Capacity;
use crate::domain::cost::Prices;
use crate::domain::ids::ProviderId;
use crate::domain::provider::ModelEntry;
use crate::provider::breaker::{BreakerLimits, Health};
use crate::provider::embeddings::EmbeddingClient;
use crate::provider::{ModelClient, catalog};

/// How long nobody asks a provider until its client goes, with its key.
const IDLE: Duration = Duration::from_secs(600);

/// A client, and what it was made of.
pub(super) struct Made {
    pub id: ProviderId,
    pub version: i64,
    pub client: Arc<dyn ModelClient>,
    /// Its client of embeddings, if there is use for one and its wire has them.
    pub embeddings: Option<Arc<dyn EmbeddingClient>>,
    pub models: Vec<ModelEntry>,
    /// The URL that it leads to.
    pub place: String,
}

impl Made {
    /// What its owner says that a model costs, or else what is charged at its place.
    pub fn prices(&self, name: &str) -> Option<Prices> {
        let own = self.models.iter().find(|model| model.name == name).and_then(|model| model.prices);
        own.or_else(|| catalog::model_at(&self.place, name).prices())
    }

    /// What a model reads at most, and whether it sees pictures, as its owner says or as is known of it.
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

/// What says that two versions of a record are the same place, asked with the same key: a hash, because the key is in it.
pub(super) type PlaceHash = [u8; 32];

/// See the module documentation. Of more providers than it holds, those that were used last stay.
pub(super) struct Clients {
    most: usize,
    breaker: BreakerLimits,
    kept: HashMap<ProviderId, Kept>,
}

struct Kept {
    place: PlaceHash,
    health: Health,
    made: Option<Arc<Made>>,
    used: Instant,
}

impl Clients {
    pub fn new(most: usize, breaker: BreakerLimits) -> Self {
        Self { most, breaker, kept: HashMap::new() }
    }

    /// The client of that version.
    pub fn get(&mut self, id: &ProviderId, version: i64) -> Option<Arc<Made>> {
        let kept = self.kept.get_mut(id)?;
        let made = kept.made.as_ref().filter(|made| made.version == version)?;
        kept.used = Instant::now();
        Some(Arc::clone(made))
    }

    /// What is known of the health of a place. A provider that has moved, or has another key, may be well.
    pub fn health(&mut self, id: &ProviderId, name: &str, place: PlaceHash) -> Health {
        if let Some(kept) = self.kept.get_mut(id).filter(|kept| kept.place == place) {
            kept.used = Instant::now();
            let health = kept.health.clone();
            self.drop_idle();
            return health;
        }
        self.make_room();
        let health = Health::new(&format!("{name} ({id})"), self.breaker);
        let kept = Kept { place, health: health.clone(), made: None, used: Instant::now() };
        self.kept.insert(id.clone(), kept);
        health
    }

    /// Keeps a client of a place whose health was asked for.
    pub fn put(&mut self, id: &ProviderId, made: Arc<Made>) {
        if let Some(kept) = self.kept.get_mut(id) {
            kept.made = Some(made);
        }
    }

    /// Drops the client of a provider, with its key. Its health is remembered for a while: it may have changed little.
    pub fn forget(&mut self, id: &ProviderId) {
        if let Some(kept) = self.kept.get_mut(id) {
            kept.made = None;
        }
        self.drop_idle();
    }

    fn drop_idle(&mut self) {
        self.kept.retain(|_, kept| kept.used.elapsed() < IDLE);
    }

    fn make_room(&mut self) {
        self.drop_idle();
        if self.kept.len() >= self.most
            && let Some(oldest) = self.kept.iter().min_by_key(|(_, kept)| kept.used).map(|(id, _)| id.clone())
        {
            self.kept.remove(&oldest);
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
