//! Stores the limitations of models that were learned from refused requests, in memory and in the database.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use tokio::time::{Instant, timeout};

use super::learn_limitation::LearnedChange;
use super::limitation::Limitation;
use crate::domain::model::{Adaptation, LearnedLimitation};
use crate::support::clock::UnixMillis;
use crate::support::locks::lock;

/// The time until a limitation expires: a provider may later serve another model under the same name.
const LIFETIME_MS: i64 = 7 * 24 * 3_600 * 1_000;

/// The maximum number of models in memory. A new model replaces the one whose limitations were loaded longest ago.
const MAX_MODELS: usize = 256;
/// The maximum number of limitations of one model. A new limitation replaces the oldest.
const MAX_LIMITATIONS: usize = 1_024;

/// The time after which the limitations of a model are loaded again: another process may have learned more.
const RELOAD_INTERVAL: Duration = Duration::from_secs(60);

/// The longest wait for the store. After that, a call continues without stored limitations.
const STORE_TIMEOUT: Duration = Duration::from_secs(2);

/// Stores learned limitations across restarts and processes.
#[async_trait]
pub trait LimitationStore: Send + Sync {
    /// Returns the limitations of a model that have not expired; `None` if the store cannot be read.
    async fn load(&self, provider: &str, model: &str) -> Option<Vec<LearnedLimitation>>;

    /// Saves limitations of models of this provider. Returns no error, because a limitation that is not saved is learned again.
    async fn save(&self, provider: &str, learned: &[LearnedLimitation]);
}

/// The store of one provider's limitations.
#[derive(Clone)]
pub struct ProviderLimitationStore {
    pub store: Arc<dyn LimitationStore>,
    /// The name of the provider in the store.
    pub provider: String,
}

/// The limitations of a provider's models, by the name of the model.
#[derive(Default)]
pub(in crate::provider) struct LearnedLimitations {
    models: Mutex<BTreeMap<String, ModelLimitations>>,
}

#[derive(Default)]
struct ModelLimitations {
    loaded_at: Option<Instant>,
    /// The oldest first.
    limitations: Vec<(Limitation, UnixMillis)>,
}

impl ModelLimitations {
    /// Adds a limitation, or replaces its expiry if it is known.
    fn add(&mut self, limitation: Limitation, until: UnixMillis) {
        self.limitations.retain(|(known, _)| *known != limitation);
        self.limitations.push((limitation, until));
        self.limitations.drain(..self.limitations.len().saturating_sub(MAX_LIMITATIONS));
    }
}

impl LearnedLimitations {
    /// Returns the limitations of a model. Waits for the store if the last load is older than [`RELOAD_INTERVAL`].
    pub(in crate::provider) async fn limitations(
        &self,
        store: Option<&ProviderLimitationStore>,
        model: &str,
        now: UnixMillis,
    ) -> Vec<Limitation> {
        let loaded_at = lock(&self.models).get(model).and_then(|known| known.loaded_at);
        let is_recent = loaded_at.is_some_and(|at| at.elapsed() < RELOAD_INTERVAL);
        if let Some(ProviderLimitationStore { store, provider }) = store.filter(|_| !is_recent) {
            let loaded = timeout(STORE_TIMEOUT, store.load(provider, model)).await;
            let mut models = lock(&self.models);
            let known = entry_of(&mut models, model);
            known.loaded_at = Some(Instant::now());
            for stored in loaded.ok().flatten().unwrap_or_default() {
                // A newer version of Capstan may have stored limitations that this one does not know.
                if let Ok(limitation) = serde_json::from_str(&stored.limitation) {
                    known.add(limitation, stored.until);
                }
            }
        }
        let mut models = lock(&self.models);
        let Some(known) = models.get_mut(model) else { return Vec::new() };
        known.limitations.retain(|(_, until)| now < *until);
        known.limitations.iter().map(|(limitation, _)| limitation.clone()).collect()
    }

    /// Stores limitations. Callers wait until an adapted request succeeds or another model is chosen. Returns the adaptations for
    /// the run's log.
    pub(in crate::provider) async fn remember(
        &self,
        store: Option<&ProviderLimitationStore>,
        model: &str,
        changes: Vec<LearnedChange>,
        now: UnixMillis,
    ) -> Vec<Adaptation> {
        let until = UnixMillis(now.0.saturating_add(LIFETIME_MS));
        let (mut adaptations, mut learned) = (Vec::new(), Vec::new());
        for LearnedChange { limitations, adaptation } in changes {
            adaptations.push(adaptation);
            learned.extend(limitations);
        }
        let records: Vec<LearnedLimitation> = learned.iter().filter_map(|limitation| to_stored(model, limitation, until)).collect();
        {
            let mut models = lock(&self.models);
            let known = entry_of(&mut models, model);
            learned.into_iter().for_each(|limitation| known.add(limitation, until));
        }
        if let Some(ProviderLimitationStore { store, provider }) = store.filter(|_| !records.is_empty())
            && timeout(STORE_TIMEOUT, store.save(provider, &records)).await.is_err()
        {
            tracing::warn!(model, "the limitations of a model were not stored in time; they are learned again after a restart");
        }
        adaptations
    }
}

/// Returns the stored form of a limitation; `None` if it cannot be written as JSON.
fn to_stored(model: &str, limitation: &Limitation, until: UnixMillis) -> Option<LearnedLimitation> {
    let text = serde_json::to_string(limitation).ok()?;
    Some(LearnedLimitation { model: model.to_owned(), limitation: text, change: limitation.adaptation_name(), until })
}

/// Returns the entry of a model. Makes room for a new one.
fn entry_of<'m>(models: &'m mut BTreeMap<String, ModelLimitations>, model: &str) -> &'m mut ModelLimitations {
    if models.len() >= MAX_MODELS && !models.contains_key(model) {
        let oldest = models.iter().min_by_key(|(_, known)| known.loaded_at).map(|(model, _)| model.clone());
        if let Some(oldest) = oldest {
            models.remove(&oldest);
        }
    }
    models.entry(model.to_owned()).or_default()
}
