//! The models of this process: those of the settings and the environment, or of a local server, or else the demonstration model.
//!
//! Owns the configured endpoints and the default model. Must not know stored providers.

mod check_models;
mod endpoint;
mod first_model_finder;
mod limitations;
mod local_servers;
mod missing_key;
mod ollama_host;
mod select_models;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use anyhow::{Context as _, bail};

use self::check_models::configuration_hint;
pub use self::check_models::{check_served, unserved_default};
pub use self::endpoint::Endpoint;
pub use self::first_model_finder::FirstModelFinder;
pub use self::limitations::StoredLimitations;
use self::missing_key::MissingKey;
pub use self::select_models::select_models;
use super::config::EmbeddingsConfig;
use crate::provider::embeddings::EmbeddingClient;
use crate::provider::{Router, catalog};

pub struct Models {
    pub router: Arc<Router>,
    pub default_model: DefaultModel,
    pub endpoints: Vec<Endpoint>,
    /// Whether the default model is the demonstration, because no other model was found.
    pub is_demonstration: bool,
    pub warnings: Vec<String>,
    /// To be opened with the database.
    pub limitations: StoredLimitations,
}

/// The default model, for runs that name none.
#[derive(Clone)]
pub enum DefaultModel {
    Known(String),
    /// The first model in the endpoint's list, which may be empty so far.
    FirstListed(Arc<FirstModelFinder>),
}

impl fmt::Display for DefaultModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Known(model) => f.write_str(model),
            Self::FirstListed(listed) => {
                write!(f, "{}/{}", listed.endpoint.provider, listed.first.as_deref().unwrap_or("(none yet)"))
            }
        }
    }
}

impl DefaultModel {
    /// Returns the model, if it was known at the start.
    pub fn known(&self) -> Option<String> {
        match self {
            Self::FirstListed(listed) if listed.first.is_none() => None,
            Self::FirstListed(_) | Self::Known(_) => Some(self.to_string()),
        }
    }
}

impl Models {
    /// Lets runs with the default model start, and fail with a hint, if the catalogue knows its provider but no key is
    /// configured. A provider record of that name precedes the configuration, so that it serves the model without a restart.
    pub fn explain_missing_key(&mut self) -> anyhow::Result<()> {
        let DefaultModel::Known(model) = &self.default_model else { return Ok(()) };
        let provider = provider_of(model);
        if !self.router.has_provider(model) && catalog::providers()?.contains_key(provider) {
            let client = MissingKey::new(provider, &configuration_hint(provider)?);
            self.router = Arc::new(Router::clone(&self.router).with(provider, Arc::new(client)));
        }
        Ok(())
    }

    /// Returns the embeddings clients of the configured providers, by their names. The provider of the embeddings model may be absent,
    /// because users can store a provider with that name.
    pub fn embedders(&self, config: &EmbeddingsConfig) -> anyhow::Result<HashMap<String, Arc<dyn EmbeddingClient>>> {
        let mut clients = HashMap::new();
        for endpoint in &self.endpoints {
            let client = endpoint.embeddings().with_context(|| format!("provider {} cannot be used", endpoint.provider))?;
            clients.extend(client.map(|client| (endpoint.provider.clone(), client)));
        }
        if let Some(model) = &config.model
            && let provider = provider_of(model)
            && !clients.contains_key(provider)
        {
            match self.endpoints.iter().find(|endpoint| endpoint.provider == provider) {
                Some(endpoint) => bail!(
                    "embeddings.model: the dialect of {provider} is {}, which has no embeddings; set a model of an openai or ollama \
                     provider",
                    endpoint.kind.as_str()
                ),
                None => tracing::warn!(
                    "embeddings.model: no provider of {model} is configured; only users with a stored provider of that name can use it"
                ),
            }
        }
        Ok(clients)
    }
}

/// Returns the provider of a model, the part before the first slash.
fn provider_of(model: &str) -> &str {
    model.split_once('/').map_or(model, |(provider, _)| provider)
}
