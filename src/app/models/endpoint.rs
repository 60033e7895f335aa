//! One model endpoint: its URL, key, dialect and quirks.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use secrecy::{ExposeSecret as _, SecretString};

use crate::app::config::{Environment, ProviderConfig};
use crate::domain::model::provider::{CallLimits, ModelEntry};
use crate::domain::model::{ModelError, ModelErrorKind};
use crate::provider::breaker::{Breaker, BreakerLimits, Health};
use crate::provider::catalog::{KnownProvider, ProviderKind};
use crate::provider::embeddings::{self, EmbeddingClient, EmbeddingLimits};
use crate::provider::{self, ClientOptions, ModelClient, Quirks, SetupError};
use crate::support::redact::error_text;

#[derive(Clone)]
pub struct Endpoint {
    pub provider: String,
    pub kind: ProviderKind,
    pub base_url: String,
    pub key: Option<SecretString>,
    /// The model of runs that name none; `None` for the first that the endpoint lists. Without the provider's name.
    pub default_model: Option<String>,
    /// The precedence for runs that name no model; `None` if they never use this endpoint.
    pub rank: Option<u32>,
    quirks: Quirks,
    headers: Vec<(String, SecretString)>,
    config: ProviderConfig,
}

impl Endpoint {
    /// Returns the endpoint of a provider if it is configured: by a key or a URL in the environment or in the settings, or because it
    /// needs no key and is `wanted`.
    pub(super) fn of(
        name: &str,
        known: Option<&KnownProvider>,
        config: Option<&ProviderConfig>,
        environment: &Environment,
        wanted: bool,
    ) -> anyhow::Result<Option<Self>> {
        let is_configured = config.is_some();
        let config = config.cloned().unwrap_or_default();
        let Some(kind) = config.kind.or(known.map(|known| known.kind)) else {
            bail!(
                "providers.{name}: no provider is known by this name; give its `kind` (openai, openai-responses, anthropic, gemini \
                 or ollama) and its `base_url`"
            );
        };
        let known_keys = known.map(|known| known.key_env.as_slice()).unwrap_or_default();
        let key = match &config.key_env {
            Some(variable) => environment.get(variable),
            None => known_keys.iter().find_map(|variable| environment.get(variable)),
        };
        let own_url = config.base_url.as_ref().map(|url| url.expose_secret().trim_end_matches('/').to_owned());
        let keyless = known.is_some_and(|known| known.keyless);
        if key.is_none() && own_url.is_none() && !(keyless && wanted) && !(is_configured && config.kind.is_some()) {
            return Ok(None);
        }
        // Another URL than the provider's own may have other models.
        let default_model = known.and_then(|known| known.default_model.clone()).filter(|_| own_url.is_none());
        let Some(base_url) = own_url.or_else(|| known.and_then(|known| known.base_url.clone())) else {
            let variable = known.and_then(|known| known.base_url_env.as_deref()).map(|name| format!(" or set {name}"));
            bail!("providers.{name}: nobody knows where it is; give its `base_url`{}", variable.unwrap_or_default());
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
            default_model,
            rank: known.map_or(Some(u32::MAX), |known| known.rank),
            quirks,
            headers: headers.collect::<anyhow::Result<_>>()?,
            config,
        }))
    }

    /// Returns the same URL and key under another name and with another dialect.
    pub(super) fn shared_as(&self, name: &str, known: &KnownProvider) -> Self {
        Self { provider: name.to_owned(), kind: known.kind, default_model: None, rank: None, ..self.clone() }
    }

    /// Returns the base URL without its user part and its query, which may hold keys.
    pub fn shown(&self) -> String {
        error_text(&self.base_url)
    }

    pub(super) fn client(&self, breaker: BreakerLimits) -> anyhow::Result<Arc<dyn ModelClient>> {
        let client = self.bare_client().with_context(|| format!("provider {} cannot be used", self.provider))?;
        Ok(Arc::new(Breaker::new(&Health::new(&self.provider, breaker), client)))
    }

    fn bare_client(&self) -> Result<Arc<dyn ModelClient>, SetupError> {
        provider::client(self.kind, self.options(), self.quirks.clone())
    }

    /// Returns a client without a circuit breaker, for tests of the endpoint.
    pub fn test_client(&self) -> Result<Arc<dyn ModelClient>, ModelError> {
        self.bare_client().map_err(|error| ModelError::new(ModelErrorKind::InvalidRequest, &error.to_string()))
    }

    /// Returns an embeddings client; `None` if the dialect has no embeddings.
    pub fn embeddings(&self, limits: EmbeddingLimits) -> Result<Option<Arc<dyn EmbeddingClient>>, SetupError> {
        embeddings::client(self.kind, self.options(), limits)
    }

    fn options(&self) -> ClientOptions {
        let config = &self.config;
        let mut options = ClientOptions::new(self.base_url.clone());
        options.api_key.clone_from(&self.key);
        options.headers.clone_from(&self.headers);
        options.vendor = options.vendor.named(&self.provider);
        options.streaming = config.streaming.unwrap_or(true);
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

    pub async fn list(&self, patience: Duration) -> Result<Vec<ModelEntry>, ModelError> {
        self.test_client()?.list_models(patience).await
    }

    /// Returns the names of the listed models without the provider. The error has no secrets of the URL.
    pub async fn models(&self, patience: Duration) -> Result<Vec<String>, String> {
        let listed = self.list(patience).await.map_err(|error| error.message)?;
        Ok(listed.into_iter().map(|model| model.name).collect())
    }

    pub(super) async fn first_model(&self, patience: Duration) -> Option<String> {
        self.models(patience).await.ok()?.into_iter().next()
    }
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
        let known = catalog::providers().unwrap().get("openai");
        let endpoint = Endpoint::of("openai", known, loaded.config.providers.get("openai"), &environment, false);
        let options = endpoint.unwrap().unwrap().options();
        let own = options.model_limits["slow.1:4b"];
        assert_eq!((own.first_byte.as_secs(), own.idle.as_secs(), own.total.as_secs()), (600, 7, 900));
        let connect = Duration::from_millis(1500);
        assert_eq!((own.connect, options.limits.connect), (connect, connect));
        assert_eq!(options.limits, StreamLimits { connect, idle: Duration::from_secs(7), ..StreamLimits::default() });
        assert!(!options.patient, "whoever sets limits means them");
        // The output can be read again.
        let shown = config::show(&loaded);
        assert!(config::load(Some(("x.toml".into(), shown.clone())), &Environment::default(), &[]).is_ok(), "{shown}");
    }
}
