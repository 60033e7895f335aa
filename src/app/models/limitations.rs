//! The store of learned limitations. Model clients are made before the database is open, and learn without it until then.

use std::error::Error;
use std::sync::{Arc, OnceLock};

use async_trait::async_trait;

use crate::domain::model::provider::LearnedLimitation;
use crate::provider::{LimitationStore, ProviderLimitationStore};
use crate::store::Store;

/// The limitations in the database, once it is open.
#[derive(Clone, Default)]
pub struct StoredLimitations(Arc<OnceLock<Arc<dyn Store>>>);

impl StoredLimitations {
    pub fn open(&self, store: &Arc<dyn Store>) {
        // A second database would be a mistake of the caller, and changes nothing.
        let _ = self.0.set(Arc::clone(store));
    }

    pub fn store_of(&self, provider: String) -> ProviderLimitationStore {
        ProviderLimitationStore { store: Arc::new(self.clone()), provider }
    }
}

#[async_trait]
impl LimitationStore for StoredLimitations {
    async fn load(&self, provider: &str, model: &str) -> Option<Vec<LearnedLimitation>> {
        let loaded = self.0.get()?.model_limitations(provider, Some(model)).await;
        loaded.inspect_err(|error| warn(error, model, "the limitations of a model could not be read")).ok()
    }

    async fn save(&self, provider: &str, learned: &[LearnedLimitation]) {
        let Some(store) = self.0.get() else { return };
        if let Err(error) = store.keep_model_limitations(provider, learned).await {
            let model = learned.first().map_or("", |known| known.model.as_str());
            warn(&error, model, "the limitations of a model could not be stored; they are learned again after a restart");
        }
    }
}

fn warn(error: &(dyn Error + 'static), model: &str, words: &str) {
    tracing::warn!(error, model, "{words}");
}
