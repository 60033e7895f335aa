//! The client of every dialect: sends a request and streams the events of its answer.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use reqwest::Url;
use reqwest::header::{ACCEPT, CONTENT_TYPE, HeaderMap, HeaderValue};
use secrecy::{ExposeSecret as _, SecretString};
use tokio::time::Instant;

use crate::domain::ids::UserId;
use crate::domain::model::{Adaptation, CallLimits, ModelEntry, ModelError, ModelErrorKind, ModelEvent, ModelRequest};
use crate::domain::run::Capacity;
use crate::provider::catalog::{ImageLimits, models};
use crate::provider::dialect::Dialect;
use crate::provider::errors::facts::{Vendor, is_loading};
use crate::provider::errors::failure::RequestNames;
use crate::provider::errors::refusals;
use crate::provider::errors::refusals::Ability;
use crate::provider::errors::secrets::Secrets;
use crate::provider::http::connection::{Connection, header, header_name, http_client};
use crate::provider::http::timeouts::{Deadline, StreamLimits, Timed};
use crate::provider::http::transport;
use crate::provider::http::transport::Answer;
use crate::provider::model_client::{ModelClient, ModelStream, SetupError};
use crate::provider::model_list;
use crate::provider::profile::{
    Attempt, BodyForm, LearnedChange, LearnedLimitations, Limitation, ModelProfile, ProviderLimitationStore,
    limitation_from_refusal, may_be_refused,
};
use crate::provider::stream::Events;
use crate::support::clock::{SharedClock, SystemClock};
use crate::support::locks::lock;
use crate::support::net::egress::EgressScope;

const LOADING: Duration = Duration::from_secs(600);

/// The most models that are tried instead of one that cannot chat.
const MAX_REPLACEMENTS: usize = 8;
const LIST_TIMEOUT: Duration = Duration::from_secs(10);

/// The pause before an endpoint that loads a model is asked again.
const LOADING_PAUSE: Duration = Duration::from_secs(1);

pub struct ClientOptions {
    /// The API's URL, such as `https://api.openai.com/v1`. The dialect adds missing parts of the path.
    pub base_url: String,
    /// `None` for local servers without a key.
    pub api_key: Option<SecretString>,
    pub limits: StreamLimits,
    /// Limits of single models, by bare name.
    pub model_limits: BTreeMap<String, StreamLimits>,
    /// Whether models with long reasoning get longer limits than `limits`.
    pub lengthens_limits: bool,
    /// Whether the endpoint may load a model before it answers, which takes minutes.
    pub may_load: bool,
    /// Whether to request a streamed answer. Without streaming the client returns the same events, all at the end.
    pub is_streaming: bool,
    pub headers: Vec<(String, SecretString)>,
    pub egress: EgressScope,
    /// Converts points in time from a provider into waits.
    pub clock: SharedClock,
    /// The vendor, whose own error codes apply.
    pub vendor: Vendor,
    /// Facts about models that the configuration gives.
    pub models: Vec<ModelEntry>,
    /// The most tools of one request, unless a model has its own limit.
    pub max_tools: Option<u32>,
    /// The largest image as base64, in bytes.
    pub images: ImageLimits,
    /// Keeps learned limitations beyond this process.
    pub limitation_store: Option<ProviderLimitationStore>,
    pub chosen: ChosenModels,
}

impl ClientOptions {
    /// Returns the options of an endpoint with the default limits and no key.
    pub fn new(base_url: impl Into<String>) -> Self {
        let base_url = base_url.into();
        Self {
            vendor: Vendor::at(&base_url),
            base_url,
            api_key: None,
            limits: StreamLimits::default(),
            model_limits: BTreeMap::new(),
            lengthens_limits: true,
            may_load: false,
            is_streaming: true,
            headers: Vec::new(),
            egress: EgressScope::Anywhere,
            clock: Arc::new(SystemClock),
            models: Vec::new(),
            max_tools: None,
            images: ImageLimits::default(),
            limitation_store: None,
            chosen: ChosenModels::default(),
        }
    }

    /// Prepares a connection with the headers of the dialect and the configured ones, which take precedence. Sends no request.
    pub(in crate::provider) fn connect(&self, mut headers: HeaderMap) -> Result<Connection, SetupError> {
        for (name, value) in &self.headers {
            headers.insert(header_name(name)?, header(name, value.expose_secret())?);
        }
        headers.values_mut().for_each(|value| value.set_sensitive(true));
        let secrets = Secrets::of(&self.base_url, &headers);
        let http = http_client(&self.base_url, headers.clone(), &self.limits, self.egress)?;
        Ok(Connection { http, headers, secrets })
    }

    /// Sets the limits of all models and of single ones. They also replace the longer limits of models with long reasoning.
    pub fn set_limits<'a>(&mut self, all: &CallLimits, single: impl IntoIterator<Item = (&'a str, CallLimits)>) {
        self.limits = StreamLimits::default().with(all);
        self.lengthens_limits = !all.limits_answers();
        let own = |(model, limits): (&str, CallLimits)| (model.to_owned(), self.limits.with(&limits));
        self.model_limits = single.into_iter().map(own).collect();
    }
}

/// A provider at one endpoint, shared by the clients of its dialects.
struct Provider {
    options: ClientOptions,
    connection: Connection,
    models: Url,
    learned: LearnedLimitations,
    has_answered: AtomicBool,
}

impl Provider {
    /// Corrects an error by the vendor's own codes, and redacts secrets in it.
    fn classify_and_redact(&self, error: ModelError) -> ModelError {
        self.connection.secrets.redact(self.options.vendor.classify(error))
    }

    /// Returns what is known of a model by the configuration and by earlier refusals.
    async fn profile_of(&self, model: &str) -> ModelProfile {
        let ClientOptions { models, max_tools, images, limitation_store, clock, .. } = &self.options;
        let entry = models.iter().find(|entry| entry.name == model);
        let tools = entry.and_then(|entry| entry.tools).or(models::model(model).tools);
        let max_tools = entry.and_then(|entry| entry.max_tools).or(*max_tools).and_then(|most| usize::try_from(most).ok());
        let mut profile = ModelProfile::default();
        profile.add((tools == Some(false)).then_some(Limitation::NoTools));
        profile.add(max_tools.map(Limitation::MaxTools));
        profile.add(images.max_bytes.map(Limitation::MaxImageBytes));
        profile.add(images.max_edge.map(Limitation::MaxImageEdge));
        profile.add(self.learned.limitations(limitation_store.as_ref(), model, clock.now()).await);
        profile
    }

    fn limits_of(&self, model: &str) -> StreamLimits {
        if let Some(own) = self.options.model_limits.get(model) {
            return *own;
        }
        let loading = self.options.may_load.then_some(LOADING);
        let known =
            models::model(model).first_byte_s.map(Duration::from_secs).max(loading).filter(|_| self.options.lengthens_limits);
        known.map_or(self.options.limits, |time| self.options.limits.for_thinking(time))
    }
}

pub(in crate::provider) struct DialectClient<D> {
    pub(in crate::provider) dialect: D,
    provider: Arc<Provider>,
}

impl<D> DialectClient<D> {
    /// Returns a client of the same provider in another dialect, with the same key, headers, limits and connections.
    pub(in crate::provider) fn with_dialect<E>(&self, dialect: E) -> DialectClient<E> {
        DialectClient { dialect, provider: Arc::clone(&self.provider) }
    }
}

/// Waits for the first event other than usage, or for the failure before it.
async fn wait_for_first_event(mut answer: ModelStream) -> Result<ModelStream, ModelError> {
    let mut head = Vec::new();
    while let Some(event) = answer.next().await {
        let event = event?;
        let is_figure = matches!(event, ModelEvent::Usage(_));
        head.push(Ok(event));
        if !is_figure {
            break;
        }
    }
    Ok(Box::pin(stream::iter(head).chain(answer)))
}

#[async_trait]
impl<D: Dialect> ModelClient for DialectClient<D> {
    async fn stream(&self, request: ModelRequest) -> Result<ModelStream, ModelError> {
        self.ask(&request).await
    }

    async fn capacity(&self, _owner: &UserId, model: &str) -> Capacity {
        let max_tools = self.provider.profile_of(model).await.max_tools();
        Capacity { max_tools: max_tools.and_then(|most| u32::try_from(most).ok()), ..Capacity::default() }
    }

    async fn may_chat(&self, model: &str) -> bool {
        !self.provider.profile_of(model).await.has(&Limitation::NoChat)
    }

    async fn list_models(&self, time_limit: Duration) -> Result<Vec<ModelEntry>, ModelError> {
        let Provider { options, connection, models, .. } = &*self.provider;
        let fetched = model_list::ask(&connection.http, models.clone(), time_limit, options.clock.now()).await;
        let mut models = fetched.map_err(|error| self.provider.classify_and_redact(error))?;
        if let Some(url) = self.dialect.description_url() {
            model_list::describe(&connection.http, url, &mut models, time_limit, options.clock.now()).await;
        }
        Ok(models)
    }
}

impl<D: Dialect> DialectClient<D> {
    /// Returns a client of a provider that lists its models at this URL. Opens no connection yet.
    pub(in crate::provider) fn new(dialect: D, models: Url, options: ClientOptions) -> Result<Self, SetupError> {
        let connection = options.connect(dialect.headers(options.api_key.as_ref())?)?;
        Ok(Self {
            dialect,
            provider: Arc::new(Provider {
                options,
                connection,
                models,
                learned: LearnedLimitations::default(),
                has_answered: AtomicBool::new(false),
            }),
        })
    }

    /// Returns the headers of one request, merged with the configured values, because a request header replaces the connection's.
    fn headers_of(&self, request: &ModelRequest) -> HeaderMap {
        let mut all = HeaderMap::new();
        for (name, own) in &self.dialect.request_headers(request) {
            let configured = self.provider.connection.headers.get_all(name);
            let values: Vec<&[u8]> = configured.iter().chain([own]).map(HeaderValue::as_bytes).collect();
            let mut joined = HeaderValue::from_bytes(&values.join(&b", "[..])).unwrap_or_else(|_| own.clone());
            joined.set_sensitive(true);
            all.insert(name, joined);
        }
        all
    }

    /// Sends a request, as [`ModelClient::stream`] does. If its model was chosen from the list and cannot chat, other models of the
    /// list are asked instead.
    pub(in crate::provider) async fn ask(&self, request: &ModelRequest) -> Result<ModelStream, ModelError> {
        let ClientOptions { limitation_store, clock, chosen, .. } = &self.provider.options;
        let mut request = Cow::Borrowed(request);
        let mut tried = Vec::new();
        let mut replaced = Vec::new();
        loop {
            let model = request.model.clone();
            let refusal = if chosen.has(&model) && !self.may_chat(&model).await {
                ModelError::new(ModelErrorKind::InvalidRequest, &format!("the model {model} does not support chat"))
            } else {
                match self.ask_model(&request).await {
                    Err(error) if chosen.has(&model) && refusals::abilities(&error).contains(&Ability::Chat) => error,
                    Ok(answer) if !replaced.is_empty() => return Ok(Box::pin(stream::iter(replaced).chain(answer))),
                    answer => return answer,
                }
            };
            tried.push(model);
            let Some(next) = self.replacement(&tried).await else { return Err(refusal) };
            let adaptation = Adaptation { change: format!("model_replaced:{next}"), reason: refusal.message };
            tracing::warn!(
                model = request.model,
                next,
                reason = adaptation.reason,
                "the chosen model cannot chat: another one of the list is asked"
            );
            let change = LearnedChange { limitations: vec![Limitation::NoChat], adaptation };
            let adaptations =
                self.provider.learned.remember(limitation_store.as_ref(), &request.model, vec![change], clock.now()).await;
            replaced.extend(adaptations.into_iter().map(|adaptation| Ok(ModelEvent::Adapted(adaptation))));
            chosen.add(&next);
            request.to_mut().model = next;
        }
    }

    /// Returns the first model of the list that may chat and was not tried.
    async fn replacement(&self, tried: &[String]) -> Option<String> {
        let listed = self.list_models(LIST_TIMEOUT).await.ok().filter(|_| tried.len() <= MAX_REPLACEMENTS)?;
        for model in listed.into_iter().filter(|model| model.chats != Some(false) && !tried.contains(&model.name)) {
            if self.may_chat(&model.name).await {
                return Some(model.name);
            }
        }
        None
    }

    /// Sends a request to its model. A request that is refused because of a limitation of the model is repeated
    /// in another form.
    async fn ask_model(&self, request: &ModelRequest) -> Result<ModelStream, ModelError> {
        let Provider { options: ClientOptions { limitation_store, clock, is_streaming, .. }, learned, .. } = &*self.provider;
        let mut profile = self.provider.profile_of(&request.model).await;
        let mut changes: Vec<LearnedChange> = Vec::new();
        loop {
            let sent = profile.apply(request, D::DECLARES_FORMER_TOOLS);
            let form = profile.form(*is_streaming);
            let error = match self.ask_once(&sent, &profile, form).await {
                Ok(answer) if changes.is_empty() => return Ok(answer),
                Ok(answer) => {
                    // A change counts only if the provider took the request after it.
                    let adaptations = learned.remember(limitation_store.as_ref(), &request.model, changes, clock.now()).await;
                    return Ok(Box::pin(
                        stream::iter(adaptations.into_iter().map(|done| Ok(ModelEvent::Adapted(done)))).chain(answer),
                    ));
                }
                Err(error) => error,
            };
            let body = self.dialect.body(&sent, form).ok().map(|body| profile.edited(body));
            let body = body.and_then(|body| serde_json::from_slice(&body).ok());
            let attempt =
                Attempt { dialect: D::KIND.as_str(), request, sent: &sent, body, form, profile: &profile, changes: &changes };
            let Some(change) = limitation_from_refusal(&attempt, &error) else {
                return Err(self.with_path(error, &request.model, form));
            };
            tracing::warn!(
                model = request.model,
                change = change.adaptation.change,
                reason = error.message,
                "model adapted: the provider refused a request, which is repeated in another form"
            );
            profile.add(change.limitations.iter().cloned());
            changes.push(change);
        }
    }

    /// Adds the path to a 404, which may mean that the URL is wrong. Omits the host, which is for the operator only.
    fn with_path(&self, error: ModelError, model: &str, form: BodyForm) -> ModelError {
        let Some(url) = self.dialect.url(model, form.streaming).ok().filter(|_| error.status == Some(404)) else { return error };
        let (words, path) = (&error.message, url.path());
        let message = format!("{words} (404 for the path {path}: check the model's name and the provider's base URL)");
        ModelError { message, ..error }
    }

    /// Sends a request in one form. While the endpoint loads the model, repeats the request until the time limit of the first byte.
    async fn ask_once(&self, request: &ModelRequest, profile: &ModelProfile, form: BodyForm) -> Result<ModelStream, ModelError> {
        let provider = Arc::clone(&self.provider);
        let until = Deadline::after(provider.limits_of(&request.model).first_byte).at;
        let stream = loop {
            match self.send(request, profile, form).await {
                Err(error) if is_loading(&error) && Instant::now() + LOADING_PAUSE < until => {
                    tracing::debug!(model = request.model, "the provider loads the model");
                    tokio::time::sleep(LOADING_PAUSE).await;
                }
                sent => break sent.map_err(|error| provider.classify_and_redact(error))?,
            }
        };
        let stream: ModelStream = Box::pin(stream.map_err(move |error| provider.classify_and_redact(error)));
        // Some providers refuse a part in the first event of an answer.
        if may_be_refused(request) { wait_for_first_event(stream).await } else { Ok(stream) }
    }

    async fn send(&self, request: &ModelRequest, profile: &ModelProfile, form: BodyForm) -> Result<ModelStream, ModelError> {
        let Provider { options: ClientOptions { clock, .. }, connection, .. } = &*self.provider;
        let is_streaming = form.streaming;
        let mut limits = self.provider.limits_of(&request.model);
        if !is_streaming {
            // The first byte arrives when the answer is complete.
            limits.total = limits.for_whole_answer();
            limits.first_byte = limits.total;
        }
        let total = Deadline::after(limits.total);
        let body = profile.edited(self.dialect.body(request, form)?);
        let mut decoder = self.dialect.decoder(request, body.len());
        let post = connection
            .http
            .post(self.dialect.url(&request.model, is_streaming)?)
            .header(CONTENT_TYPE, "application/json")
            .header(ACCEPT, if is_streaming { "text/event-stream" } else { "application/json" })
            .headers(self.headers_of(request))
            .body(body);
        let framing = is_streaming.then_some(D::FRAMING);
        let names = RequestNames { model: &request.model, tools: &request.tools };
        // The connection of an earlier answer may be closed by now.
        let fresh = || {
            if !self.provider.has_answered.load(Ordering::Relaxed) {
                return None;
            }
            let headers = self.dialect.headers(self.provider.options.api_key.as_ref()).ok()?;
            self.provider.options.connect(headers).ok().map(|connection| connection.http)
        };
        let answer = transport::send(post, fresh, framing, &limits, total, clock.now(), names).await;
        self.provider.has_answered.store(true, Ordering::Relaxed);
        match answer? {
            Answer::Events(frames) => {
                let events = Events::new(frames, decoder, limits);
                Ok(Box::pin(Timed::new(events, "only keep-alives arrived", limits.progress, total)))
            }
            Answer::Document(document) => {
                decoder.document(&document)?;
                Ok(Box::pin(stream::iter(decoder.into_events().into_iter().map(Ok))))
            }
        }
    }
}

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
