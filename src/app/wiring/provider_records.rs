//! Provider records in use: the model client for stored and configured providers, and the port that lists and tests models.
//!
//! Owns the clients of provider records, each until its record has another version, and their circuit breakers, each until the
//! record's URL or key changes. Must not know how runs use models. Every model call reads its provider from the store, so that a
//! change takes effect in every process with the next call. Only the absence of a provider is cached, for a second.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::StreamExt as _;
use secrecy::{ExposeSecret as _, SecretString};
use serde::Deserialize as _;
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use tokio::time::Instant;

use crate::app::models::{Endpoint, StoredLimitations};
use crate::app::wiring::provider_clients::{CachedClient, Clients, EndpointHash};
use crate::domain::conversation::message::{Message, Role, TextPart};
use crate::domain::ids::{ConversationId, MessageId, PartId, ProviderId, RunId, UserId};
use crate::domain::model::cost::Prices;
use crate::domain::model::embeddings::Embeddings;
use crate::domain::model::provider::{EgressScope, ModelEntry, ProviderKind, ProviderRecord};
use crate::domain::model::{ModelError, ModelErrorKind, ModelEvent, ModelOptions, ModelRequest};
use crate::domain::run::context::Capacity;
use crate::provider::circuit_breaker::{BreakerClient, BreakerLimits};
use crate::provider::embeddings::{self, Embedder, Embedders, EmbeddingClient, EmbeddingLimits};
use crate::provider::{
    self, ClientOptions, ModelClient, ModelStream, ProviderLimitationStore, Quirks, catalog, openrouter, priced,
};
use crate::service::{AnyProvider, ConfiguredProvider, Endpoints, InvalidProvider, Target, is_provider_name, open_target};
use crate::store::{Store, retry_while_unavailable};
use crate::support::clock::{Clock as _, SystemClock};
use crate::support::encryption::{EncryptionError, Vault};
use crate::support::ids::SequentialIds;
use crate::support::locks::lock;
use crate::support::net::egress::is_local;

/// How long the absence of a name is cached. Changes by this process take effect at once.
const ABSENCE_TTL: Duration = Duration::from_secs(1);

/// Limit of cached names. One more clears the cache.
const MAX_ABSENT: usize = 10_000;

const MAX_CLIENTS: usize = 1_000;

const STORE_TIMEOUT: Duration = Duration::from_secs(30);
const LIST_TIMEOUT: Duration = Duration::from_secs(15);
const TEST_TIMEOUT: Duration = Duration::from_secs(30);

/// Token limit of a test's answer: the smallest that all dialects accept.
const TEST_TOKENS: u32 = 16;

pub struct RecordClients {
    store: Arc<dyn Store>,
    vault: Arc<Vault>,
    configured: Arc<dyn ModelClient>,
    listed: Vec<ConfiguredProvider>,
    options: RecordClientsOptions,
    clients: Mutex<Clients>,
    absent: Mutex<HashMap<(UserId, String), Instant>>,
}

pub struct RecordClientsOptions {
    /// The providers of the configuration.
    pub endpoints: Vec<Endpoint>,
    /// The URL of the site for OpenRouter logins.
    pub openrouter: String,
    /// The embeddings clients of configured providers, by name.
    pub embedders: HashMap<String, Arc<dyn EmbeddingClient>>,
    pub breaker: BreakerLimits,
    pub limitations: StoredLimitations,
    pub member_egress: EgressScope,
}

impl RecordClients {
    /// Returns a client that uses records first, and `configured` for all other names.
    pub fn new(
        store: Arc<dyn Store>,
        vault: Arc<Vault>,
        configured: Arc<dyn ModelClient>,
        options: RecordClientsOptions,
    ) -> Arc<Self> {
        let clients = Mutex::new(Clients::new(MAX_CLIENTS, options.breaker));
        let listed = |endpoint: &Endpoint| {
            ConfiguredProvider::new(&endpoint.provider, endpoint.kind, endpoint.display_url(), endpoint.key.is_some())
        };
        let listed = options.endpoints.iter().map(listed).collect();
        Arc::new(Self { store, vault, configured, listed, options, clients, absent: Mutex::default() })
    }

    /// Returns the client of the record with this name, among those of the owner and of the server.
    async fn find(&self, owner: &UserId, name: &str) -> Result<Option<Arc<CachedClient>>, ModelError> {
        if !is_provider_name(name) {
            return Ok(None);
        }
        let key = (owner.clone(), name.to_owned());
        if lock(&self.absent).get(&key).is_some_and(|queried_at| queried_at.elapsed() < ABSENCE_TTL) {
            return Ok(None);
        }
        // The time before the query, because a provider may be created while the reply is on its way.
        let queried_at = Instant::now();
        let found = retry_while_unavailable(STORE_TIMEOUT, || self.store.provider_named(owner, name)).await.map_err(|error| {
            tracing::warn!(error = &error as &dyn std::error::Error, "stored providers cannot be read");
            ModelError::new(ModelErrorKind::Unavailable, "the server cannot read its stored providers")
        })?;
        let Some(record) = found else {
            let mut absent = lock(&self.absent);
            if absent.len() >= MAX_ABSENT {
                absent.clear();
            }
            absent.insert(key, queried_at);
            return Ok(None);
        };
        self.cached_client(record).map(Some)
    }

    fn cached_client(&self, record: ProviderRecord) -> Result<Arc<CachedClient>, ModelError> {
        if let Some(cached) = lock(&self.clients).get(&record.id, record.version) {
            return Ok(cached);
        }
        let target = open_target(&self.vault, &record, self.options.member_egress);
        let target = target.map_err(|error| unopened(&record, &error))?;
        let client = client(&target, Some(self.options.limitations.store_of(limitations_key(&record))))?;
        let mut clients = lock(&self.clients);
        let health = clients.health(&record.id, &record.name, endpoint_hash(&target));
        let created = Arc::new(CachedClient {
            id: record.id.clone(),
            version: record.version,
            client: Arc::new(BreakerClient::new(&health, client)),
            // The model client reports the same errors.
            embeddings: embeddings::client(record.kind, options(&target)).ok().flatten(),
            models: target.record.models.clone(),
            base_url: record.base_url.clone(),
        });
        clients.put(&record.id, Arc::clone(&created));
        Ok(created)
    }

    fn endpoint(&self, name: &str) -> Result<&Endpoint, ModelError> {
        let found = self.options.endpoints.iter().find(|endpoint| endpoint.provider == name);
        found.ok_or_else(|| {
            let text = format!("no provider named {name:?} is configured");
            ModelError::new(ModelErrorKind::InvalidRequest, &text)
        })
    }
}

fn options(target: &Target<'_>) -> ClientOptions {
    let record = target.record;
    let mut options = ClientOptions::new(record.base_url.clone());
    options.api_key.clone_from(&target.key);
    options.egress = target.egress;
    options.vendor = options.vendor.named(&record.name);
    options.models.clone_from(&record.models);
    // A server on this network may still be loading the model when it is called.
    options.may_load = target.key.is_none() || is_local(&record.base_url);
    options.max_tools = catalog::max_tools_at(&record.base_url);
    options.images = catalog::image_limits_at(&record.base_url);
    let own = record.models.iter().filter_map(|model| Some((model.name.as_str(), model.limits?)));
    options.set_limits(&record.limits, own);
    options
}

/// Returns the quirks of the record, or those of the provider with its base URL.
fn quirks(record: &ProviderRecord) -> Result<Quirks, InvalidProvider> {
    let Some(own) = &record.quirks else { return Ok(catalog::quirks_at(&record.base_url)) };
    let quirks = Quirks::deserialize(Value::Object(own.clone()));
    quirks.map_err(|error| InvalidProvider { pointer: "/accent", reason: error.to_string() })
}

/// Returns the key of its learned limitations. It contains the version, so a changed record starts without any.
fn limitations_key(record: &ProviderRecord) -> String {
    format!("{}:{}", record.id, record.version)
}

fn build(target: &Target<'_>, limitation_store: Option<ProviderLimitationStore>) -> Result<Arc<dyn ModelClient>, InvalidProvider> {
    let options = ClientOptions { limitation_store, ..options(target) };
    let client = provider::client(target.record.kind, options, quirks(target.record)?);
    client.map_err(|error| InvalidProvider { pointer: "/base_url", reason: error.to_string() })
}

fn client(target: &Target<'_>, limitation_store: Option<ProviderLimitationStore>) -> Result<Arc<dyn ModelClient>, ModelError> {
    build(target, limitation_store).map_err(|error| ModelError::new(ModelErrorKind::InvalidRequest, &error.reason))
}

/// Hashes the properties that a circuit breaker depends on: dialect, URL and key.
fn endpoint_hash(target: &Target<'_>) -> EndpointHash {
    let key = target.key.as_ref().map_or("", |key| key.expose_secret());
    let mut hash = Sha256::new();
    // No part contains NUL.
    for part in [target.record.kind.as_str(), &target.record.base_url, key] {
        hash.update(part.as_bytes());
        hash.update([0]);
    }
    hash.finalize().into()
}

/// Returns the error of a provider whose key cannot be decrypted. Only `Damaged` is permanent. A missing master key may still arrive, so
/// that error can be retried.
fn unopened(record: &ProviderRecord, error: &EncryptionError) -> ModelError {
    tracing::error!(provider.id = %record.id, error = %error, "the key of a provider cannot be decrypted");
    let name = &record.name;
    match error {
        EncryptionError::Damaged { .. } => {
            let words = format!("this server cannot decrypt the key of the provider {name}; enter the key again");
            ModelError::new(ModelErrorKind::Auth, &words)
        }
        _ => {
            let words = format!(
                "the key of the provider {name} is encrypted with a master key that this process does not have; its log names \
                 the key"
            );
            ModelError::new(ModelErrorKind::Unavailable, &words)
        }
    }
}

#[async_trait]
impl ModelClient for RecordClients {
    async fn stream(&self, mut request: ModelRequest) -> Result<ModelStream, ModelError> {
        if let (Some(owner), Some((provider, name))) = (&request.owner, request.model.split_once('/'))
            && let Some(cached) = self.find(owner, provider).await?
        {
            let (prices, name) = (cached.prices(name), name.to_owned());
            request.model = name;
            return Ok(priced(cached.client.stream(request).await?, prices));
        }
        let prices = catalog::model(&request.model).prices();
        Ok(priced(self.configured.stream(request).await?, prices))
    }

    async fn capacity(&self, owner: &UserId, model: &str) -> Capacity {
        let Some((provider, name)) = model.split_once('/') else { return Capacity::default() };
        match self.find(owner, provider).await {
            Ok(Some(cached)) => cached.capacity(owner, name).await,
            // The model call looks the provider up again and reports the error.
            Ok(None) | Err(_) => {
                let max_tools = self.configured.capacity(owner, model).await.max_tools;
                Capacity { max_tools, ..catalog::model(model).capacity() }
            }
        }
    }
}

#[async_trait]
impl Embedders for RecordClients {
    async fn embedder(&self, owner: &UserId, model: &str) -> Result<Embedder, ModelError> {
        let no_embedder = || {
            let words = format!("no provider for the embeddings model {model:?} is known; write it as provider/name");
            ModelError { request_not_sent: true, ..ModelError::new(ModelErrorKind::InvalidRequest, &words) }
        };
        let (provider, name) = model.split_once('/').ok_or_else(no_embedder)?;
        let (endpoint_id, client) = match self.find(owner, provider).await? {
            // A changed key or URL changes the record's version.
            Some(cached) => (format!("{} {}", cached.id, cached.version), cached.embeddings.clone()),
            None => (provider.to_owned(), self.options.embedders.get(provider).cloned()),
        };
        Ok(Embedder { endpoint_id, client: client.ok_or_else(no_embedder)?, model: name.to_owned() })
    }
}

#[async_trait]
impl Endpoints for RecordClients {
    fn default_base_url(&self, kind: ProviderKind) -> Option<&'static str> {
        let providers = catalog::providers().ok()?;
        let named = providers.get(kind.as_str())?;
        let entry = named.shares_endpoint_with.as_ref().map_or(Some(named), |other| providers.get(other))?;
        entry.base_url.as_deref()
    }

    fn check(&self, target: &Target<'_>) -> Result<(), InvalidProvider> {
        build(target, None).map(drop)
    }

    async fn models(&self, target: &Target<'_>) -> Result<Vec<ModelEntry>, ModelError> {
        client(target, None)?.list_models(LIST_TIMEOUT).await
    }

    async fn test(&self, target: &Target<'_>, model: &str) -> Result<(), ModelError> {
        test_model(client(target, Some(self.options.limitations.store_of(limitations_key(target.record))))?, model).await
    }

    async fn embedding_prices(&self, owner: &UserId, model: &str) -> Result<Option<Prices>, ModelError> {
        self.embedder(owner, model).await?;
        let (provider, name) = model.split_once('/').unwrap_or_default();
        Ok(match self.find(owner, provider).await? {
            Some(cached) => cached.prices(name),
            None => catalog::model(model).prices(),
        })
    }

    async fn embed(
        &self,
        owner: &UserId,
        model: &str,
        texts: &[String],
        dimensions: Option<u32>,
    ) -> Result<Embeddings, ModelError> {
        let embedder = self.embedder(owner, model).await?;
        // The provider refuses a text that is too long for the model: a client would not notice that it was cut.
        let limits = EmbeddingLimits { dimensions, bytes_per_text: usize::MAX, ..EmbeddingLimits::default() };
        embedder.client.embed(&embedder.model, texts, &limits).await
    }

    fn configured(&self) -> &[ConfiguredProvider] {
        &self.listed
    }

    async fn models_of_configured(&self, name: &str) -> Result<Vec<ModelEntry>, ModelError> {
        self.endpoint(name)?.list(LIST_TIMEOUT).await
    }

    async fn test_configured(&self, name: &str, model: &str) -> Result<(), ModelError> {
        test_model(self.endpoint(name)?.test_client()?, model).await
    }

    fn catalog_entry(&self, model: &str) -> ModelEntry {
        let facts = catalog::model(model);
        ModelEntry {
            context: facts.context,
            max_output: facts.output,
            tokenizer: facts.tokenizer,
            prices: facts.prices(),
            tools: facts.tools,
            vision: facts.vision,
            ..ModelEntry::named(model)
        }
    }

    fn limitations_key(&self, provider: &AnyProvider) -> String {
        match provider {
            AnyProvider::Stored(record) => limitations_key(record),
            AnyProvider::Configured(provider) => {
                self.endpoint(&provider.name).map_or_else(|_| provider.name.clone(), Endpoint::limitations_key)
            }
        }
    }

    fn login_url(&self, callback: &str, challenge: &str) -> Result<String, String> {
        openrouter::login_url(&self.options.openrouter, callback, challenge)
            .map_err(|error| format!("outbound.openrouter_url: {error}"))
    }

    fn login_api(&self) -> String {
        openrouter::api_url(&self.options.openrouter)
    }

    async fn exchange(&self, code: &str, verifier: &SecretString) -> Result<SecretString, ModelError> {
        openrouter::exchange(&self.options.openrouter, code, verifier, LIST_TIMEOUT, SystemClock.now()).await
    }

    fn forget_client(&self, id: &ProviderId) {
        lock(&self.absent).clear();
        lock(&self.clients).forget(id);
    }
}

async fn test_model(client: Arc<dyn ModelClient>, model: &str) -> Result<(), ModelError> {
    let exchanged = async {
        let mut answer = client.stream(test_request(model)).await?;
        while let Some(event) = answer.next().await {
            if matches!(event?, ModelEvent::Finished(_)) {
                return Ok(());
            }
        }
        Err(ModelError::new(ModelErrorKind::IncompleteStream, "the answer is incomplete"))
    };
    tokio::time::timeout(TEST_TIMEOUT, exchanged)
        .await
        .unwrap_or_else(|_| Err(ModelError::new(ModelErrorKind::Timeout, "the model did not answer in time")))
}

/// Returns the smallest request. Its ids exist nowhere else.
fn test_request(model: &str) -> ModelRequest {
    let ids = SequentialIds::default();
    let text = TextPart { id: PartId::generate(&ids), text: "Say ok.".to_owned() };
    let run_and_conversation = (RunId::generate(&ids), ConversationId::generate(&ids));
    let message = Message::of_request(MessageId::generate(&ids), run_and_conversation, Role::User, text);
    ModelRequest {
        model: model.to_owned(),
        messages: vec![message],
        options: ModelOptions { max_output_tokens: Some(TEST_TOKENS), ..ModelOptions::default() },
        ..ModelRequest::default()
    }
}
