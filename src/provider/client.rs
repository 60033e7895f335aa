//! The client of any dialect: sends a request and turns the answer into events as it comes.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use reqwest::Url;
use reqwest::header::{ACCEPT, CONTENT_TYPE, HeaderMap, HeaderValue};
use secrecy::{ExposeSecret as _, SecretString};

use crate::domain::model::provider::{CallLimits, ModelEntry};
use crate::domain::model::{ModelError, ModelEvent, ModelRequest};
use crate::provider::catalog::models;
use crate::provider::dialect::Dialect;
use crate::provider::errors::failure::RequestNames;
use crate::provider::errors::refusals;
use crate::provider::errors::secrets::Secrets;
use crate::provider::errors::vendors::Vendor;
use crate::provider::http::connection::{Connection, header, header_name, http_client};
use crate::provider::http::timeouts::{Deadline, StreamLimits, Timed};
use crate::provider::http::transport::{self, Answer};
use crate::provider::list;
use crate::provider::model_client::{ModelClient, ModelStream, SetupError};
use crate::provider::request::adapt::{self, Change, Learned, MAX_REPEATS};
use crate::provider::stream::Events;
use crate::support::clock::{SharedClock, SystemClock};
use crate::support::net::outbound::Reach;

pub struct ClientOptions {
    /// The API's URL, such as `https://api.openai.com/v1`. The dialect adds missing parts of the path.
    pub base_url: String,
    /// Local servers need none.
    pub api_key: Option<SecretString>,
    pub limits: StreamLimits,
    /// Limits of single models, by bare name.
    pub model_limits: BTreeMap<String, StreamLimits>,
    /// Whether models that are known to think long get longer limits than `limits`.
    pub patient: bool,
    /// Whether to ask for a streamed answer. A server that cannot stream gives the same events, all at the end.
    pub streaming: bool,
    pub headers: Vec<(String, SecretString)>,
    pub reach: Reach,
    /// Turns moments that a provider names into waits.
    pub clock: SharedClock,
    /// The vendor whose own error codes count here.
    pub vendor: Vendor,
}

impl ClientOptions {
    /// Returns an endpoint with the usual limits and no key.
    pub fn new(base_url: impl Into<String>) -> Self {
        let base_url = base_url.into();
        Self {
            vendor: Vendor::at(&base_url),
            base_url,
            api_key: None,
            limits: StreamLimits::default(),
            model_limits: BTreeMap::new(),
            patient: true,
            streaming: true,
            headers: Vec::new(),
            reach: Reach::Anywhere,
            clock: Arc::new(SystemClock),
        }
    }

    /// Prepares a connection with the headers of a dialect and the configured ones, which win. Sends nothing.
    pub(in crate::provider) fn connect(&self, mut headers: HeaderMap) -> Result<Connection, SetupError> {
        for (name, value) in &self.headers {
            headers.insert(header_name(name)?, header(name, value.expose_secret())?);
        }
        headers.values_mut().for_each(|value| value.set_sensitive(true));
        let secrets = Secrets::of(&self.base_url, &headers);
        let http = http_client(&self.base_url, headers.clone(), &self.limits, self.reach)?;
        Ok(Connection { http, headers, secrets })
    }

    /// Sets the limits of all models, which also hold for models that are known to think long, and over those of single ones.
    pub fn set_limits<'a>(&mut self, all: &CallLimits, single: impl IntoIterator<Item = (&'a str, CallLimits)>) {
        self.limits = StreamLimits::default().with(all);
        self.patient = !all.limits_answers();
        let own = |(model, limits): (&str, CallLimits)| (model.to_owned(), self.limits.with(&limits));
        self.model_limits = single.into_iter().map(own).collect();
    }
}

/// A provider at one endpoint, shared by the clients of its dialects.
struct Provider {
    options: ClientOptions,
    connection: Connection,
    models: Url,
    learned: Learned,
}

impl Provider {
    /// Corrects an error by the vendor's own codes, and removes secrets from it.
    fn clean(&self, error: ModelError) -> ModelError {
        self.connection.secrets.hide(self.options.vendor.classify(error))
    }

    fn limits_of(&self, model: &str) -> StreamLimits {
        if let Some(own) = self.options.model_limits.get(model) {
            return *own;
        }
        let known = models::model(model).first_byte_s.filter(|_| self.options.patient);
        known.map_or(self.options.limits, |seconds| self.options.limits.for_thinking(Duration::from_secs(seconds)))
    }
}

pub(in crate::provider) struct DialectClient<D> {
    pub(in crate::provider) dialect: D,
    provider: Arc<Provider>,
}

impl<D> DialectClient<D> {
    /// Returns a client of the same provider in another dialect, with the same key, headers, limits and connections.
    pub(in crate::provider) fn speaking<E>(&self, dialect: E) -> DialectClient<E> {
        DialectClient { dialect, provider: Arc::clone(&self.provider) }
    }
}

/// Waits for the first event that is not a usage, or the failure before it.
async fn until_it_speaks(mut answer: ModelStream) -> Result<ModelStream, ModelError> {
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

    async fn list_models(&self, patience: Duration) -> Result<Vec<ModelEntry>, ModelError> {
        let Provider { options, connection, models, .. } = &*self.provider;
        let asked = list::ask(&connection.http, models.clone(), patience, options.clock.now()).await;
        asked.map_err(|error| self.provider.clean(error))
    }
}

impl<D: Dialect> DialectClient<D> {
    /// Returns a client whose provider lists its models at this URL. No connection is made yet.
    pub(in crate::provider) fn new(dialect: D, models: Url, options: ClientOptions) -> Result<Self, SetupError> {
        let connection = options.connect(dialect.headers(options.api_key.as_ref())?)?;
        Ok(Self { dialect, provider: Arc::new(Provider { options, connection, models, learned: Learned::default() }) })
    }

    /// Returns the headers of one request, joined with the configured values, because they replace those of all requests.
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

    /// Sends a request, as [`ModelClient::stream`] does. A request that is refused because of a part is repeated without it.
    pub(in crate::provider) async fn ask(&self, request: &ModelRequest) -> Result<ModelStream, ModelError> {
        let learned = &self.provider.learned;
        let mut request = learned.apply(request);
        let mut changes: Vec<Change> = Vec::new();
        loop {
            let error = match self.ask_once(&request).await {
                Ok(answer) => {
                    // A change counts only if the provider took the request after it.
                    let adaptations = learned.remember(&request.model, changes);
                    return Ok(Box::pin(
                        stream::iter(adaptations.into_iter().map(|done| Ok(ModelEvent::Adapted(done)))).chain(answer),
                    ));
                }
                Err(error) => error,
            };
            let Some(change) = self.adapt(&mut request, &error, changes.len()) else { return Err(error) };
            tracing::warn!(
                model = request.model,
                change = change.adaptation.change,
                reason = error.message,
                "model adapted: the provider refused a part of the request, which is repeated without it"
            );
            changes.push(change);
        }
    }

    /// Leaves out of a request what its provider has refused, if the error is about a part.
    fn adapt(&self, request: &mut Cow<'_, ModelRequest>, error: &ModelError, repeats: usize) -> Option<Change> {
        if repeats >= MAX_REPEATS {
            return None;
        }
        let refusals = refusals::find(error);
        if refusals.is_empty() {
            return None;
        }
        // The last time all parts of the kind are left out, wherever the error points.
        let is_last = repeats + 1 == MAX_REPEATS;
        let body = if is_last { None } else { self.dialect.body(request, self.provider.options.streaming).ok() };
        let body = body.and_then(|body| serde_json::from_slice(&body).ok());
        refusals.into_iter().find_map(|refusal| adapt::adapt(request, refusal, error, body.as_ref()))
    }

    async fn ask_once(&self, request: &ModelRequest) -> Result<ModelStream, ModelError> {
        let provider = Arc::clone(&self.provider);
        let stream = self.send(request).await.map_err(|error| provider.clean(error))?;
        let stream: ModelStream = Box::pin(stream.map_err(move |error| provider.clean(error)));
        // Some providers refuse a part in the first event of an answer.
        if adapt::may_be_refused(request) { until_it_speaks(stream).await } else { Ok(stream) }
    }

    async fn send(&self, request: &ModelRequest) -> Result<ModelStream, ModelError> {
        let Provider { options: ClientOptions { streaming, clock, .. }, connection, .. } = &*self.provider;
        let mut limits = self.provider.limits_of(&request.model);
        if !streaming {
            // The first byte of such an answer comes when all of it is there.
            limits.total = limits.for_whole_answer();
            limits.first_byte = limits.total;
        }
        let total = Deadline::after(limits.total);
        let body = self.dialect.body(request, *streaming)?;
        let mut decoder = self.dialect.decoder(request, body.len());
        let post = connection
            .http
            .post(self.dialect.url(&request.model, *streaming)?)
            .header(CONTENT_TYPE, "application/json")
            .header(ACCEPT, if *streaming { "text/event-stream" } else { "application/json" })
            .headers(self.headers_of(request))
            .body(body);
        let framing = streaming.then_some(D::FRAMING);
        let names = RequestNames { model: &request.model, tools: &request.tools };
        match transport::send(post, framing, &limits, total, clock.now(), names).await? {
            Answer::Events(frames) => {
                let events = Events::new(frames, decoder, limits);
                Ok(Box::pin(Timed::new(events, "nothing but signs of life came", limits.progress, total)))
            }
            Answer::Document(document) => {
                decoder.document(&document)?;
                Ok(Box::pin(stream::iter(decoder.into_events().into_iter().map(Ok))))
            }
        }
    }
}
