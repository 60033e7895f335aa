//! The models that were chosen from the list of a provider, because no setting and no request names one.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use crate::support::locks::lock;

/// The most models that are remembered.
const MAX_MODELS: usize = 1_000;

/// The chosen models of one provider, by bare name. If one of them cannot chat, another model of the list takes its place.
#[derive(Clone, Default)]
pub struct ChosenModels(Arc<Mutex<BTreeSet<String>>>);

impl ChosenModels {
    pub fn add(&self, model: &str) {
        let mut models = lock(&self.0);
        if models.len() < MAX_MODELS {
            models.insert(model.to_owned());
        }
    }

    pub(in crate::provider) fn has(&self, model: &str) -> bool {
        lock(&self.0).contains(model)
    }
}
