//! One model endpoint: its URL, key, dialect and quirks.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use secrecy::{ExposeSecret as _, SecretString};

use super::limitations::StoredLimitations;
use crate::app::config::{Environment, ProviderConfig};
use crate::domain::model::provider::{CallLimits, ModelEntry};
use crate::domain::model::{ModelError, ModelErrorKind};
use crate::provider::catalog::{ImageLimits, KnownProvider, ProviderKind};
use crate::provider::circuit_breaker::{BreakerClient, BreakerLimits, ProviderBreaker};
use crate::provider::embeddings::{self, EmbeddingClient};
use crate::provider::{self, ChosenModels, ClientOptions, ModelClient, ProviderLimitationStore, Quirks, SetupError};
use crate::support::json;
use crate::support::net::egress::is_local;
use crate::support::redact::error_text;

#[derive(Clone)]
pub struct Endpoint {
    pub provider: String,
    pub kind: ProviderKind,
    pub base_url: String,
    pub key: Option<SecretString>,
    /// The variable that holds the key, or would hold it.
    pub key_variable: Option<String>,
    /// The default model of the endpoint, without the provider's name; `None` for the first listed one.
    pub default_model: Option<String>,
    /// The priority for the default model; `None` if the endpoint cannot provide it.
    pub rank: Option<u32>,
    quirks: Quirks,
    headers: Vec<(String, SecretString)>,
    config: ProviderConfig,
    /// The limits of the provider's models, unless a model has its own.
    max_tools: Option<u32>,
    images: ImageLimits,
    limitation_store: Option<ProviderLimitationStore>,
    /// The models that became the default because they are first in the list.
    chosen: ChosenModels,
}

impl Endpoint {
    /// Returns the endpoint of a provider if it is configured: by a key or a URL in the environment or the settings, or because it
    /// needs no key and is `is_requested`.
    pub(super) fn of(
        name: &str,
        known: Option<&KnownProvider>,
        config: Option<&ProviderConfig>,
        environment: &Environment,
        is_requested: bool,
    ) -> anyhow::Result<Option<Self>> {
        let is_configured = config.is_some();
        let config = config.cloned().unwrap_or_default();
        let Some(kind) = config.kind.or(known.map(|known| known.kind)) else {
            bail!(
                "providers.{name}: no known provider has this name; set its `kind` (openai, openai-responses, anthropic, \
                 gemini or ollama) and its `base_url`"
            );
        };
        let keys = known.map(|known| known.key_env.as_slice()).unwrap_or_default();
        let variables = config.key_env.as_ref().map_or(keys, std::slice::from_ref);
        let found = variables.iter().find_map(|variable| Some((variable, environment.get(variable)?)));
        let key_variable = found.map(|(variable, _)| variable).or(variables.first()).cloned();
        let key = found.map(|(_, key)| key);
        let own_url = config.base_url.as_ref().map(|url| url.expose_secret().trim_end_matches('/').to_owned());
        let keyless = known.is_some_and(|known| known.keyless);
        if key.is_none() && own_url.is_none() && !(keyless && is_requested) && !(is_configured && config.kind.is_some()) {
            return Ok(None);
        }
        // Another URL than the provider's own may serve other models.
        let default_model = known.and_then(|known| known.default_model.clone()).filter(|_| own_url.is_none());
        let Some(base_url) = own_url.or_else(|| known.and_then(|known| known.base_url.clone())) else {
            let variable = known.and_then(|known| known.base_url_env.as_deref()).map(|name| format!(" or set {name}"));
            let problem = format!("providers.{name}: its URL is unknown; set its `base_url`{}", variable.unwrap_or_default());
            if is_configured {
                bail!(problem);
            }
            // The variable of the key may be set for other programs.
            tracing::warn!("{problem}; until then it is not used");
            return Ok(None);
        };
        let quirks = match &config.accent {
            Some(table) => {
                let quirks = table.clone().try_into::<Quirks>();
                quirks.map_err(|error| anyhow::anyhow!("providers.{name}.accent: {}", error.message()))?
            }
            None => known.map(|known| known.quirks.clone()).unwrap_or_default(),
        };
        let headers = config.headers_env.iter().map(|(header, variable)| {
            let value = environment.get(variable);
            let value = value.with_context(|| format!("providers.{name}.headers_env.{header}: {variable} is not set"))?;
            anyhow::Ok((header.clone(), SecretString::from(value)))
        });
        Ok(Some(Self {
            provider: name.to_owned(),
            kind,
            base_url,
            key: key.map(SecretString::from),
            key_variable,
            default_model,
            rank: known.map_or(Some(u32::MAX), |known| known.rank),
            quirks,
            headers: headers.collect::<anyhow::Result<_>>()?,
            config,
            max_tools: known.and_then(|known| known.max_tools),
            images: known.map(|known| known.images).unwrap_or_default(),
            limitation_store: None,
            chosen: ChosenModels::default(),
        }))
    }

    /// Returns the endpoint with the same URL and key, but another name and dialect.
    pub(super) fn shared_as(&self, name: &str, catalog_entry: &KnownProvider) -> Self {
        Self {
            provider: name.to_owned(),
            kind: catalog_entry.kind,
            default_model: None,
            rank: None,
            chosen: ChosenModels::default(),
            ..self.clone()
        }
    }

    pub(super) fn remember_in(&mut self, limitations: &StoredLimitations) {
        self.limitation_store = Some(limitations.store_of(self.limitations_key()));
    }

    /// Returns the name of the provider in the store of limitations: another URL or another dialect has other models.
    pub fn limitations_key(&self) -> String {
        let endpoint_hash = json::hash_bytes(format!("{} {}", self.kind.as_str(), self.base_url).as_bytes());
        format!("{}:{endpoint_hash}", self.provider)
    }

    /// Returns the base URL without its user part and its query, which may contain keys.
    pub fn display_url(&self) -> String {
        error_text(&self.base_url)
    }

    pub(super) fn client(&self, breaker: BreakerLimits) -> anyhow::Result<Arc<dyn ModelClient>> {
        let client = self.bare_client().with_context(|| format!("provider {} cannot be used", self.provider))?;
        Ok(Arc::new(BreakerClient::new(&ProviderBreaker::new(&self.provider, breaker), client)))
    }

    fn bare_client(&self) -> Result<Arc<dyn ModelClient>, SetupError> {
        provider::client(self.kind, self.options(), self.quirks.clone())
    }

    /// Returns a client without a circuit breaker, for tests of the endpoint.
    pub fn test_client(&self) -> Result<Arc<dyn ModelClient>, ModelError> {
        self.bare_client().map_err(|error| ModelError::new(ModelErrorKind::InvalidRequest, &error.to_string()))
    }

    /// Returns an embeddings client; `None` if the dialect has no embeddings.
    pub fn embeddings(&self) -> Result<Option<Arc<dyn EmbeddingClient>>, SetupError> {
        embeddings::client(self.kind, self.options())
    }

    fn options(&self) -> ClientOptions {
        let config = &self.config;
        let mut options = ClientOptions::new(self.base_url.clone());
        options.api_key.clone_from(&self.key);
        options.headers.clone_from(&self.headers);
        options.vendor = options.vendor.named(&self.provider);
        options.is_streaming = config.streaming.unwrap_or(true);
        options.max_tools = self.max_tools;
        options.images = self.images;
        options.may_load = self.key.is_none() || is_local(&self.base_url);
        options.limitation_store.clone_from(&self.limitation_store);
        options.chosen = self.chosen.clone();
        let all = CallLimits {
            connect_ms: config.connect_ms,
            first_byte_ms: config.first_byte_ms,
            idle_ms: config.idle_ms,
            progress_ms: config.progress_ms,
            total_ms: config.total_ms,
        };
        options.set_limits(&all, config.model_limits.iter().map(|own| (own.model.as_str(), own.limits())));
        options
    }

    pub async fn list(&self, time_limit: Duration) -> Result<Vec<ModelEntry>, ModelError> {
        self.test_client()?.list_models(time_limit).await
    }

    /// Returns the first listed model that answers messages, as far as the list says and, with a client, refusals have shown.
    pub(super) async fn first_model(&self, time_limit: Duration, client: Option<&dyn ModelClient>) -> Result<String, NoModel> {
        let listed = self.list(time_limit).await.map_err(|error| NoModel::Unlisted(error.message))?;
        let count = listed.len();
        for model in listed.into_iter().filter(|model| model.chats != Some(false)) {
            self.chosen.add(&model.name);
            let may_chat = match client {
                Some(client) => client.may_chat(&model.name).await,
                None => true,
            };
            if may_chat {
                return Ok(model.name);
            }
        }
        Err(if count == 0 { NoModel::Empty } else { NoModel::Chatless(count) })
    }
}

/// The reason why the list of an endpoint gives no default model.
#[derive(Debug, thiserror::Error)]
pub(super) enum NoModel {
    /// The error contains no secrets of the URL.
    #[error("lists no models ({0})")]
    Unlisted(String),
    #[error("lists no models")]
    Empty,
    #[error("lists no model that can chat ({0} in all)")]
    Chatless(usize),
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::app::config;
    use crate::provider::{StreamLimits, catalog};

    #[test]
    fn single_models_may_take_longer() {
        let environment: Environment = [
            ("CAPSTAN_PROVIDERS__OPENAI__MODEL_LIMITS", r#"[{ model = "slow.1:4b", first_byte_ms = 600000, total_ms = 900000 }]"#),
            ("CAPSTAN_PROVIDERS__OPENAI__IDLE_MS", "7000"),
            ("CAPSTAN_PROVIDERS__OPENAI__CONNECT_MS", "1500"),
            ("OPENAI_API_KEY", "sk"),
        ]
        .into_iter()
        .collect();
        let loaded = config::load(None, &environment, &[]).unwrap();
        let catalog_entry = catalog::providers().unwrap().get("openai");
        let endpoint = Endpoint::of("openai", catalog_entry, loaded.config.providers.get("openai"), &environment, false);
        let options = endpoint.unwrap().unwrap().options();
        let own = options.model_limits["slow.1:4b"];
        assert_eq!((own.first_byte.as_secs(), own.idle.as_secs(), own.total.as_secs()), (600, 7, 900));
        let connect = Duration::from_millis(1500);
        assert_eq!((own.connect, options.limits.connect), (connect, connect));
        assert_eq!(options.limits, StreamLimits { connect, idle: Duration::from_secs(7), ..StreamLimits::default() });
        assert!(!options.lengthens_limits, "configured limits apply as they are");
        // The output is readable as settings.
        let shown = config::show(&loaded);
        assert!(config::load(Some(("x.toml".into(), shown.clone())), &Environment::default(), &[]).is_ok(), "{shown}");
    }
}
