//! Provider records in use: the model client in front of the configured providers, and the port that lists and tests models.
//!
//! Owns the clients of provider records, each as long as its record keeps its version, and their circuit breakers, each as long as
//! the record keeps its URL and key. Every model call reads its provider from the store, so that a change holds in every process
//! from the next call on. Only the absence of a provider is cached, for a second.

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

use crate::app::models::Endpoint;
use crate::app::wiring::clients::{Clients, Made, PlaceHash};
use crate::domain::conversation::message::{Message, Role, TextPart};
use crate::domain::ids::{ConversationId, MessageId, PartId, ProviderId, RunId, UserId};
use crate::domain::model::provider::{ModelEntry, ProviderKind, ProviderRecord, Reach};
use crate::domain::model::{ModelError, ModelErrorKind, ModelEvent, ModelOptions, ModelRequest};
use crate::domain::run::context::Capacity;
use crate::provider::breaker::{Breaker, BreakerLimits};
use crate::provider::embeddings::{self, Embedder, Embedders, EmbeddingClient, EmbeddingLimits};
use crate::provider::{self, ClientOptions, ModelClient, ModelStream, Quirks, catalog, openrouter, priced};
use crate::service::{ConfiguredProvider, Endpoints, Target, Unfit, is_provider_name, open_target};
use crate::store::{Store, patiently};
use crate::support::clock::{Clock as _, SystemClock};
use crate::support::ids::SequentialIds;
use crate::support::locks::lock;
use crate::support::seal::{SealError, Vault};

/// How long the absence of a name is cached. Changes of this process count at once.
const ABSENCE_TTL: Duration = Duration::from_secs(1);

/// The limit of cached names; one more clears the cache.
const MAX_ABSENT: usize = 10_000;

const MAX_CLIENTS: usize = 1_000;

const STORE_TIMEOUT: Duration = Duration::from_secs(30);
const LIST_TIMEOUT: Duration = Duration::from_secs(15);
const TEST_TIMEOUT: Duration = Duration::from_secs(30);

/// Tokens of a test's answer: the fewest that all dialects take.
const TEST_TOKENS: u32 = 16;

pub struct Records {
    store: Arc<dyn Store>,
    vault: Arc<Vault>,
    configured: Arc<dyn ModelClient>,
    shown: Vec<ConfiguredProvider>,
    options: RecordsOptions,
    clients: Mutex<Clients>,
    absent: Mutex<HashMap<(UserId, String), Instant>>,
}

pub struct RecordsOptions {
    /// The providers of the configuration.
    pub endpoints: Vec<Endpoint>,
    /// The URL of the site for OpenRouter logins.
    pub openrouter: String,
    /// The embeddings clients of configured providers, by name.
    pub embedders: HashMap<String, Arc<dyn EmbeddingClient>>,
    /// The limits of embeddings clients for records; `None` without an embeddings model.
    pub embeddings: Option<EmbeddingLimits>,
    pub breaker: BreakerLimits,
    /// The egress policy for URLs of members.
    pub reach_of_members: Reach,
}

impl Records {
    /// Returns a client in front of the `configured` one: names of records win.
    pub fn new(store: Arc<dyn Store>, vault: Arc<Vault>, configured: Arc<dyn ModelClient>, options: RecordsOptions) -> Arc<Self> {
        let clients = Mutex::new(Clients::new(MAX_CLIENTS, options.breaker));
        let shown = |endpoint: &Endpoint| {
            ConfiguredProvider::new(&endpoint.provider, endpoint.kind, endpoint.shown(), endpoint.key.is_some())
        };
        let shown = options.endpoints.iter().map(shown).collect();
        Arc::new(Self { store, vault, configured, shown, options, clients, absent: Mutex::default() })
    }

    /// Returns the client of the record with this name, among those of the owner and of the server.
    async fn find(&self, owner: &UserId, name: &str) -> Result<Option<Arc<Made>>, ModelError> {
        if !is_provider_name(name) {
            return Ok(None);
        }
        let key = (owner.clone(), name.to_owned());
        if lock(&self.absent).get(&key).is_some_and(|asked| asked.elapsed() < ABSENCE_TTL) {
            return Ok(None);
        }
        // The time before the question: a provider may be created while the answer is on its way.
        let asked = Instant::now();
        let found = patiently(STORE_TIMEOUT, || self.store.provider_named(owner, name)).await.map_err(|error| {
            tracing::warn!(error = &error as &dyn std::error::Error, "the providers that people keep cannot be read");
            ModelError::new(ModelErrorKind::Unavailable, "the server cannot read its providers at the moment")
        })?;
        let Some(record) = found else {
            let mut absent = lock(&self.absent);
            if absent.len() >= MAX_ABSENT {
                absent.clear();
            }
            absent.insert(key, asked);
            return Ok(None);
        };
        self.made(record).map(Some)
    }

    fn made(&self, record: ProviderRecord) -> Result<Arc<Made>, ModelError> {
        if let Some(made) = lock(&self.clients).get(&record.id, record.version) {
            return Ok(made);
        }
        let target = open_target(&self.vault, &record, self.options.reach_of_members);
        let target = target.map_err(|error| unopened(&record, &error))?;
        let client = client(&target)?;
        let mut clients = lock(&self.clients);
        let health = clients.health(&record.id, &record.name, place(&target));
        let made = Made {
            id: record.id.clone(),
            version: record.version,
            client: Arc::new(Breaker::new(&health, client)),
            embeddings: self.embeddings_of(&target),
            models: target.record.models.clone(),
            place: record.base_url.clone(),
        };
        let made = Arc::new(made);
        clients.put(&record.id, Arc::clone(&made));
        Ok(made)
    }

    /// Returns the embeddings client. Its faults are not reported: the model client has the same ones.
    fn embeddings_of(&self, target: &Target<'_>) -> Option<Arc<dyn EmbeddingClient>> {
        let limits = self.options.embeddings.clone()?;
        embeddings::client(target.record.kind, options(target), limits).ok().flatten()
    }

    fn endpoint(&self, name: &str) -> Result<&Endpoint, ModelError> {
        let found = self.options.endpoints.iter().find(|endpoint| endpoint.provider == name);
        found.ok_or_else(|| ModelError::new(ModelErrorKind::InvalidRequest, "no provider of this name is configured"))
    }
}

fn options(target: &Target<'_>) -> ClientOptions {
    let record = target.record;
    let mut options = ClientOptions::new(record.base_url.clone());
    options.api_key.clone_from(&target.key);
    options.reach = target.reach;
    options.vendor = options.vendor.named(&record.name);
    let own = record.models.iter().filter_map(|model| Some((model.name.as_str(), model.limits?)));
    options.set_limits(&record.limits, own);
    options
}

/// Returns the quirks of the record, or those of the provider at its base URL.
fn quirks(record: &ProviderRecord) -> Result<Quirks, Unfit> {
    let Some(own) = &record.accent else { return Ok(catalog::quirks_at(&record.base_url)) };
    let quirks = Quirks::deserialize(Value::Object(own.clone()));
    quirks.map_err(|error| Unfit { pointer: "/accent", reason: error.to_string() })
}

fn build(target: &Target<'_>) -> Result<Arc<dyn ModelClient>, Unfit> {
    let client = provider::client(target.record.kind, options(target), quirks(target.record)?);
    client.map_err(|error| Unfit { pointer: "/base_url", reason: error.to_string() })
}

fn client(target: &Target<'_>) -> Result<Arc<dyn ModelClient>, ModelError> {
    build(target).map_err(|error| ModelError::new(ModelErrorKind::InvalidRequest, &error.reason))
}

/// Hashes what a circuit breaker belongs to: dialect, URL and key.
fn place(target: &Target<'_>) -> PlaceHash {
    let key = target.key.as_ref().map_or("", |key| key.expose_secret());
    let mut hash = Sha256::new();
    // No part contains a NUL.
    for part in [target.record.kind.as_str(), &target.record.base_url, key] {
        hash.update(part.as_bytes());
        hash.update([0]);
    }
    hash.finalize().into()
}

/// Returns the error of a provider whose key cannot be decrypted. Only damage is permanent: another process may have the missing
/// master key, and this one may get it.
fn unopened(record: &ProviderRecord, error: &SealError) -> ModelError {
    tracing::error!(provider.id = %record.id, error = %error, "the key of a provider cannot be opened");
    let name = &record.name;
    match error {
        SealError::Damaged { .. } => {
            let words = format!("the key of the provider {name} cannot be opened by this server; give it anew");
            ModelError::new(ModelErrorKind::Auth, &words)
        }
        SealError::UnknownKey { .. } | SealError::NoKey(_) | SealError::File { .. } | SealError::NoRandomness(_) => {
            let words = format!(
                "the key of the provider {name} is sealed with a master key that this process does not have at the moment; its \
                 log says which"
            );
            ModelError::new(ModelErrorKind::Unavailable, &words)
        }
    }
}

#[async_trait]
impl ModelClient for Records {
    async fn stream(&self, mut request: ModelRequest) -> Result<ModelStream, ModelError> {
        if let (Some(owner), Some((provider, name))) = (&request.owner, request.model.split_once('/'))
            && let Some(made) = self.find(owner, provider).await?
        {
            let (prices, name) = (made.prices(name), name.to_owned());
            request.model = name;
            return Ok(priced(made.client.stream(request).await?, prices));
        }
        let prices = catalog::model(&request.model).prices();
        Ok(priced(self.configured.stream(request).await?, prices))
    }

    async fn capacity(&self, owner: &UserId, model: &str) -> Capacity {
        let Some((provider, name)) = model.split_once('/') else { return Capacity::default() };
        match self.find(owner, provider).await {
            Ok(Some(made)) => made.capacity(name),
            // The model call looks the provider up again and reports the error.
            Ok(None) | Err(_) => catalog::model(model).capacity(),
        }
    }
}

#[async_trait]
impl Embedders for Records {
    async fn embedder(&self, owner: &UserId, model: &str) -> Result<Embedder, ModelError> {
        let nobody = || {
            let words = format!("no provider of this owner serves the embeddings model {model:?}");
            ModelError { not_asked: true, ..ModelError::new(ModelErrorKind::InvalidRequest, &words) }
        };
        let (provider, name) = model.split_once('/').ok_or_else(nobody)?;
        let (place, client) = match self.find(owner, provider).await? {
            // Another key or another URL gives the record another version.
            Some(made) => (format!("{} {}", made.id, made.version), made.embeddings.clone()),
            None => (provider.to_owned(), self.options.embedders.get(provider).cloned()),
        };
        Ok(Embedder { place, client: client.ok_or_else(nobody)?, model: name.to_owned() })
    }
}

#[async_trait]
impl Endpoints for Records {
    fn usual_url(&self, kind: ProviderKind) -> Option<&'static str> {
        let known = catalog::providers().ok()?;
        let named = known.get(kind.as_str())?;
        let place = named.shares.as_ref().map_or(Some(named), |other| known.get(other))?;
        place.base_url.as_deref()
    }

    fn check(&self, target: &Target<'_>) -> Result<(), Unfit> {
        build(target).map(drop)
    }

    async fn models(&self, target: &Target<'_>) -> Result<Vec<ModelEntry>, ModelError> {
        client(target)?.list_models(LIST_TIMEOUT).await
    }

    async fn test(&self, target: &Target<'_>, model: &str) -> Result<(), ModelError> {
        test_model(client(target)?, model).await
    }

    fn configured(&self) -> &[ConfiguredProvider] {
        &self.shown
    }

    async fn models_of_configured(&self, name: &str) -> Result<Vec<ModelEntry>, ModelError> {
        self.endpoint(name)?.list(LIST_TIMEOUT).await
    }

    async fn test_configured(&self, name: &str, model: &str) -> Result<(), ModelError> {
        test_model(self.endpoint(name)?.test_client()?, model).await
    }

    fn known(&self, model: &str) -> ModelEntry {
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

    fn changed(&self, id: &ProviderId) {
        lock(&self.absent).clear();
        lock(&self.clients).forget(id);
    }
}

async fn test_model(client: Arc<dyn ModelClient>, model: &str) -> Result<(), ModelError> {
    let asked = async {
        let mut answer = client.stream(question(model)).await?;
        while let Some(event) = answer.next().await {
            if matches!(event?, ModelEvent::Finished(_)) {
                return Ok(());
            }
        }
        Err(ModelError::new(ModelErrorKind::IncompleteStream, "the answer ended without its end"))
    };
    tokio::time::timeout(TEST_TIMEOUT, asked)
        .await
        .unwrap_or_else(|_| Err(ModelError::new(ModelErrorKind::Timeout, "the model did not answer in time")))
}

/// Returns the smallest question. Its ids exist nowhere else.
fn question(model: &str) -> ModelRequest {
    let ids = SequentialIds::default();
    let text = TextPart { id: PartId::generate(&ids), text: "Say ok.".to_owned() };
    let of = (RunId::generate(&ids), ConversationId::generate(&ids));
    let message = Message::of_request(MessageId::generate(&ids), of, Role::User, text);
    ModelRequest {
        model: model.to_owned(),
        messages: vec![message],
        options: ModelOptions { max_output_tokens: Some(TEST_TOKENS), ..ModelOptions::default() },
        ..ModelRequest::default()
    }
}
