//! Stores the limitations learned from refusals, in memory and in the database.

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

/// The time that a limitation is remembered: another model may be served under the same name later.
const REMEMBERED_MS: i64 = 7 * 24 * 3_600 * 1_000;

/// The most models whose limitations are in memory. The one that was read longest ago is forgotten.
const MODELS: usize = 256;
/// The most limitations of one model. The oldest are forgotten.
const LIMITATIONS: usize = 1_024;

/// The time after which the store is read again: another process may have learned more.
const READ_EVERY: Duration = Duration::from_secs(60);

/// The longest wait for the store. After that, a call continues without stored limitations.
const STORE_TIMEOUT: Duration = Duration::from_secs(2);

/// Stores learned limitations across restarts and processes.
#[async_trait]
pub trait LimitationStore: Send + Sync {
    /// Returns the limitations of a model that have not expired; `None` if the store cannot be read.
    async fn load(&self, provider: &str, model: &str) -> Option<Vec<LearnedLimitation>>;

    async fn save(&self, provider: &str, learned: &[LearnedLimitation]);
}

/// The store, and the name of the provider in it.
#[derive(Clone)]
pub struct LimitationMemory {
    pub store: Arc<dyn LimitationStore>,
    pub provider: String,
}

#[derive(Default)]
pub(in crate::provider) struct LearnedLimitations {
    models: Mutex<BTreeMap<String, ModelLimitations>>,
}

#[derive(Default)]
struct ModelLimitations {
    read_at: Option<Instant>,
    /// The oldest first.
    limitations: Vec<(Limitation, UnixMillis)>,
}

impl ModelLimitations {
    fn add(&mut self, limitation: Limitation, until: UnixMillis) {
        self.limitations.retain(|(known, _)| *known != limitation);
        self.limitations.push((limitation, until));
        self.limitations.drain(..self.limitations.len().saturating_sub(LIMITATIONS));
    }
}

impl LearnedLimitations {
    /// Returns the limitations of a model.
    pub(in crate::provider) async fn limitations(
        &self,
        memory: Option<&LimitationMemory>,
        model: &str,
        now: UnixMillis,
    ) -> Vec<Limitation> {
        let is_fresh = |known: &ModelLimitations| known.read_at.is_some_and(|at| at.elapsed() < READ_EVERY);
        let is_fresh = lock(&self.models).get(model).is_some_and(is_fresh);
        if let Some(memory) = memory.filter(|_| !is_fresh) {
            let stored = timeout(STORE_TIMEOUT, memory.store.load(&memory.provider, model)).await;
            let mut models = lock(&self.models);
            let known = entry(&mut models, model);
            known.read_at = Some(Instant::now());
            for stored in stored.ok().flatten().unwrap_or_default() {
                // A newer version may know more limitations.
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

    /// Stores the limitations whose changes made a request succeed. Returns them for the log of the run.
    pub(in crate::provider) async fn remember(
        &self,
        memory: Option<&LimitationMemory>,
        model: &str,
        changes: Vec<LearnedChange>,
        now: UnixMillis,
    ) -> Vec<Adaptation> {
        let until = UnixMillis(now.0.saturating_add(REMEMBERED_MS));
        let (mut adaptations, mut learned) = (Vec::new(), Vec::new());
        for LearnedChange { limitations, adaptation } in changes {
            adaptations.push(adaptation);
            learned.extend(limitations);
        }
        let stored: Vec<LearnedLimitation> = learned.iter().filter_map(|limitation| stored(model, limitation, until)).collect();
        {
            let mut models = lock(&self.models);
            let known = entry(&mut models, model);
            learned.into_iter().for_each(|limitation| known.add(limitation, until));
        }
        if let Some(memory) = memory.filter(|_| !stored.is_empty())
            && timeout(STORE_TIMEOUT, memory.store.save(&memory.provider, &stored)).await.is_err()
        {
            tracing::warn!(model, "the limitations of a model were not stored in time; they are learned again after a restart");
        }
        adaptations
    }
}

fn stored(model: &str, limitation: &Limitation, until: UnixMillis) -> Option<LearnedLimitation> {
    let text = serde_json::to_string(limitation).ok()?;
    Some(LearnedLimitation { model: model.to_owned(), limitation: text, change: limitation.adaptation_name(), until })
}

fn entry<'m>(models: &'m mut BTreeMap<String, ModelLimitations>, model: &str) -> &'m mut ModelLimitations {
    if models.len() >= MODELS && !models.contains_key(model) {
        let oldest = models.iter().min_by_key(|(_, known)| known.read_at).map(|(model, _)| model.clone());
        if let Some(oldest) = oldest {
            models.remove(&oldest);
        }
    }
    models.entry(model.to_owned()).or_default()
}
