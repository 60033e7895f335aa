//! Providers that people keep, in use: the client in front of the configured ones, and what asks an endpoint for its models.
//!
//! Owns the clients of kept providers, each as long as its record has the version that it was made of, and the breakers before
//! them, each as long as the record means the same place and key. Every model call looks its provider up in the store, so that a change holds from the next call on, in every process; only that there is none is
//! remembered, for a second.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::StreamExt as _;
use secrecy::{ExposeSecret as _, SecretString};
use serde::Deserialize as _;
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use tokio::time::Instant;

use super::clients::{Clients, Made, PlaceHash};
use super::models::Endpoint;
use crate::domain::context::Capacity;
use crate::domain::ids::{ConversationId, MessageId, PartId, RunId};
use crate::domain::ids::{ProviderId, UserId};
use crate::domain::message::{Message, Part, Role, TextPart};
use crate::domain::model::{ModelError, ModelErrorKind, ModelEvent, ModelOptions, ModelRequest};
use crate::domain::provider::{ModelEntry, ProviderKind, ProviderRecord, Reach};
use crate::provider::breaker::{Breaker, BreakerLimits};
use crate::provider::embeddings::{self, Embedder, Embedders, EmbeddingClient, EmbeddingLimits};
use crate::provider::{self, ClientOptions, ModelClient, ModelStream, Quirks, catalog, openrouter, priced};
use crate::service::{ConfiguredProvider, Endpoints, Target, Unfit, is_provider_name, open_target};
use crate::store::{Store, patiently};
use crate::support::clock::{Clock as _, SystemClock, UnixMillis};
use crate::support::ids::SequentialIds;
use crate::support::seal::{SealError, Vault};

/// How long it is believed that a name stands for no kept provider. Changes of this process count at once.
const BELIEVED_FOR: Duration = Duration::from_secs(1);

/// Names remembered at a time; more make the memory start afresh.
const REMEMBERED: usize = 10_000;

/// Clients at a time.
const CLIENTS: usize = 1_000;

/// How long a database that does not answer is waited for.
const STORE_PATIENCE: Duration = Duration::from_secs(30);

/// How long a list of models is waited for, and the word of a model that is tested.
const LIST_PATIENCE: Duration = Duration::from_secs(15);
const TEST_PATIENCE: Duration = Duration::from_secs(30);

/// Tokens of a test's answer: the fewest that all wires take.
const TEST_TOKENS: u32 = 16;

/// See the module documentation.
pub struct Records {
    store: Arc<dyn Store>,
    vault: Arc<Vault>,
    configured: Arc<dyn ModelClient>,
    shown: Vec<ConfiguredProvider>,
    options: RecordsOptions,
    clients: Mutex<Clients>,
    absent: Mutex<HashMap<(UserId, String), Instant>>,
}

/// What the settings say of providers that people keep.
pub struct RecordsOptions {
    /// The providers of the configuration, which are listed and asked in the same way.
    pub endpoints: Vec<Endpoint>,
    /// The site of logins.
    pub openrouter: String,
    /// The clients of the configured ones that turn texts into vectors, by name.
    pub embedders: HashMap<String, Arc<dyn EmbeddingClient>>,
    /// How kept ones are asked for vectors; `None` if there is no use for them.
    pub embeddings: Option<EmbeddingLimits>,
    /// When one that keeps failing is left alone.
    pub breaker: BreakerLimits,
    /// Where URLs of members may lead.
    pub reach_of_members: Reach,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Records {
    /// In front of the `configured` providers, whose names those of records come before.
    pub fn new(store: Arc<dyn Store>, vault: Arc<Vault>, configured: Arc<dyn ModelClient>, options: RecordsOptions) -> Arc<Self> {
        let clients = Mutex::new(Clients::new(CLIENTS, options.breaker));
        let shown = |endpoint: &Endpoint| {
            ConfiguredProvider::new(&endpoint.provider, endpoint.kind, endpoint.shown(), endpoint.key.is_some())
        };
        let shown = options.endpoints.iter().map(shown).collect();
        Arc::new(Self { store, vault, configured, shown, options, clients, absent: Mutex::default() })
    }

    /// The client of the provider that a name stands for among those of an owner and of the server.
    async fn find(&self, owner: &UserId, name: &str) -> Result<Option<Arc<Made>>, ModelError> {
        if !is_provider_name(name) {
            return Ok(None);
        }
        let key = (owner.clone(), name.to_owned());
        if lock(&self.absent).get(&key).is_some_and(|asked| asked.elapsed() < BELIEVED_FOR) {
            return Ok(None);
        }
        // From before the question: a provider may be made while the answer is on its way.
        let asked = Instant::now();
        let found = patiently(STORE_PATIENCE, || self.store.provider_named(owner, name)).await.map_err(|error| {
            tracing::warn!(error = &error as &dyn std::error::Error, "the providers that people keep cannot be read");
            ModelError::new(ModelErrorKind::Unavailable, "the server cannot read its providers at the moment")
        })?;
        let Some(record) = found else {
            let mut absent = lock(&self.absent);
            if absent.len() >= REMEMBERED {
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
        let client = self.client(&target)?;
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

    /// What cannot be used for models is told there.
    fn embeddings_of(&self, target: &Target<'_>) -> Option<Arc<dyn EmbeddingClient>> {
        let limits = self.options.embeddings.clone()?;
        embeddings::client(target.record.kind, options(target), limits).ok().flatten()
    }

    fn client(&self, target: &Target<'_>) -> Result<Arc<dyn ModelClient>, ModelError> {
        build(target).map_err(|error| ModelError::new(ModelErrorKind::InvalidRequest, &error.reason))
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

/// Returns the quirks that the record says, or those of the provider at its base URL.
fn quirks(record: &ProviderRecord) -> Result<Quirks, Unfit> {
    let Some(said) = &record.accent else { return Ok(catalog::quirks_at(&record.base_url)) };
    let read = Quirks::deserialize(Value::Object(said.clone()));
    read.map_err(|error| Unfit { pointer: "/accent", reason: error.to_string() })
}

fn build(target: &Target<'_>) -> Result<Arc<dyn ModelClient>, Unfit> {
    let client = provider::client(target.record.kind, options(target), quirks(target.record)?);
    client.map_err(|error| Unfit { pointer: "/base_url", reason: error.to_string() })
}

/// What a provider's health is the health of.
fn place(target: &Target<'_>) -> PlaceHash {
    let key = target.key.as_ref().map_or("", |key| key.expose_secret());
    let mut hash = Sha256::new();
    // A NUL is in none of them.
    for part in [target.record.kind.as_str(), &target.record.base_url, key] {
        hash.update(part.as_bytes());
        hash.update([0]);
    }
    hash.finalize().into()
}

/// Why a provider cannot be asked whose key cannot be opened. Another process may have the master key that this one lacks, and
/// this one may be given it: only what is damaged stays so.
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
            // Who cannot be found now is asked for all the same later, and then says why not.
            Ok(None) | Err(_) => catalog::model(model).capacity(),
        }
    }
}

#[async_trait]
impl Embedders for Records {
    async fn embedder(&self, owner: &UserId, model: &str) -> Result<Embedder, ModelError> {
        let nobody = || {
            let words = format!("nobody serves the embeddings model {model:?} to this owner");
            ModelError { not_asked: true, ..ModelError::new(ModelErrorKind::InvalidRequest, &words) }
        };
        let (provider, name) = model.split_once('/').ok_or_else(nobody)?;
        let (place, client) = match self.find(owner, provider).await? {
            // Another key or another place gives it another version.
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
        let client = build(target).map_err(|error| ModelError::new(ModelErrorKind::InvalidRequest, &error.reason))?;
        client.list_models(LIST_PATIENCE).await
    }

    async fn test(&self, target: &Target<'_>, model: &str) -> Result<(), ModelError> {
        ask_for_a_word(self.client(target)?, model).await
    }

    fn configured(&self) -> &[ConfiguredProvider] {
        &self.shown
    }

    async fn models_of_configured(&self, name: &str) -> Result<Vec<ModelEntry>, ModelError> {
        self.endpoint(name)?.list(LIST_PATIENCE).await
    }

    async fn test_configured(&self, name: &str, model: &str) -> Result<(), ModelError> {
        let client = self.endpoint(name)?.bare_client();
        let client = client.map_err(|error| ModelError::new(ModelErrorKind::InvalidRequest, &error.to_string()))?;
        ask_for_a_word(client, model).await
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
        openrouter::exchange(&self.options.openrouter, code, verifier, LIST_PATIENCE, SystemClock.now()).await
    }

    fn changed(&self, id: &ProviderId) {
        lock(&self.absent).clear();
        lock(&self.clients).forget(id);
    }
}

async fn ask_for_a_word(client: Arc<dyn ModelClient>, model: &str) -> Result<(), ModelError> {
    let late = || ModelError::new(ModelErrorKind::Timeout, "the model did not answer in time");
    let asked = async {
        let mut answer = client.stream(question(model)).await?;
        while let Some(event) = answer.next().await {
            if matches!(event?, ModelEvent::Finished(_)) {
                return Ok(());
            }
        }
        Err(ModelError::new(ModelErrorKind::IncompleteStream, "the answer ended without its end"))
    };
    tokio::time::timeout(TEST_PATIENCE, asked).await.map_err(|_| late())?
}

/// The smallest question. Its ids are of nobody.
fn question(model: &str) -> ModelRequest {
    let ids = SequentialIds::default();
    let words = Part::Text(TextPart { id: PartId::generate(&ids), text: "Say ok.".to_owned() });
    let message = Message {
        created_at: UnixMillis(0).to_rfc3339(),
        ..Message::new(MessageId::generate(&ids), (RunId::generate(&ids), ConversationId::generate(&ids)), Role::User, vec![words])
    };
    ModelRequest {
        owner: None,
        model: model.to_owned(),
        system: String::new(),
        messages: vec![message],
        tools: Vec::new(),
        options: ModelOptions { max_output_tokens: Some(TEST_TOKENS), ..ModelOptions::default() },
        window: None,
    }
}
