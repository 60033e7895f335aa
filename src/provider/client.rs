//! The client of any dialect: sends a request and turns the answer into events as it comes.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use reqwest::header::{ACCEPT, CONTENT_TYPE, HeaderMap, HeaderValue};
use secrecy::{ExposeSecret as _, SecretString};

use super::adapt::{self, Change, Learned, MAX_REPEATS};
use super::catalog::models;
use super::connection::Connection;
use super::dialect::Dialect;
use super::failure::RequestNames;
use super::limits::{Deadline, StreamLimits, Timed};
use super::model_client::{ModelClient, ModelStream, SetupError};
use super::secrets::Secrets;
use super::stream::Events;
use super::transport::{self, Answer};
use super::vendors::Vendor;
use super::{list, refusals};
use crate::domain::model::{ModelError, ModelEvent, ModelRequest};
use crate::domain::provider::{CallLimits, ModelEntry};
use crate::support::clock::{SharedClock, SystemClock};
use crate::support::outbound::Reach;

/// Where and how to ask.
pub struct ClientOptions {
    /// The API's URL, such as `https://api.openai.com/v1`. The dialect adds missing parts of the path.
    pub base_url: String,
    /// The key; local servers need none.
    pub api_key: Option<SecretString>,
    /// Limits for all models.
    pub limits: StreamLimits,
    /// Limits of single models, by bare name.
    pub model_limits: BTreeMap<String, StreamLimits>,
    /// Whether models that are known to think long are waited for longer than the limits for all say.
    pub patient: bool,
    /// Whether to ask for a streamed answer. A server that cannot stream gives the same events, all at the end.
    pub streaming: bool,
    /// More headers, which may be secret.
    pub headers: Vec<(String, SecretString)>,
    /// Where the URL may lead.
    pub reach: Reach,
    /// Tells how far away the moments are that a provider names.
    pub clock: SharedClock,
    /// The vendor whose own error codes count here.
    pub vendor: Vendor,
}

impl ClientOptions {
    /// An endpoint with the usual limits and no key.
    #[must_use]
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

    /// Returns the key, unless it is blank.
    pub(super) fn key(&self) -> Option<&SecretString> {
        self.api_key.as_ref().filter(|key| !key.expose_secret().trim().is_empty())
    }

    /// Prepares a connection with the headers of a dialect.
    ///
    /// # Errors
    /// If the URL or a header cannot be used.
    pub(super) fn connect(&self, headers: HeaderMap) -> Result<Connection, SetupError> {
        Connection::new(&self.base_url, headers, &self.headers, &self.limits, self.reach)
    }

    /// Sets the limits for all models and, over those, for single ones. Limits for all hold for models that are known to
    /// think long, too.
    pub fn set_limits<'a>(&mut self, all: &CallLimits, single: impl IntoIterator<Item = (&'a str, CallLimits)>) {
        self.limits = StreamLimits::default().with(all);
        self.patient = !all.limits_answers();
        let own = |(model, limits): (&str, CallLimits)| (model.to_owned(), self.limits.with(&limits));
        self.model_limits = single.into_iter().map(own).collect();
    }
}

/// Speaks one dialect with one endpoint.
pub(super) struct DialectClient<D> {
    dialect: D,
    connection: Connection,
    limits: StreamLimits,
    model_limits: BTreeMap<String, StreamLimits>,
    patient: bool,
    streaming: bool,
    clock: SharedClock,
    vendor: Vendor,
    /// The refusals of its models so far.
    learned: Arc<Learned>,
}

impl<D: Dialect> DialectClient<D> {
    /// A client. No connection is made yet. The base URL of the options is the dialect's already.
    ///
    /// # Errors
    /// If the key or a header cannot be used.
    pub(super) fn new(dialect: D, options: ClientOptions) -> Result<Self, SetupError> {
        let connection = options.connect(dialect.headers(options.key())?)?;
        let ClientOptions { limits, model_limits, patient, streaming, clock, vendor, .. } = options;
        let learned = Arc::default();
        Ok(Self { dialect, connection, limits, model_limits, patient, streaming, clock, vendor, learned })
    }
}

impl<D> DialectClient<D> {
    /// A client of the same provider in another dialect: with the same key, headers and limits, over the same connections.
    pub(super) fn speaking<E>(&self, dialect: E) -> DialectClient<E> {
        DialectClient {
            dialect,
            connection: self.connection.clone(),
            limits: self.limits,
            model_limits: self.model_limits.clone(),
            patient: self.patient,
            streaming: self.streaming,
            clock: Arc::clone(&self.clock),
            vendor: self.vendor,
            learned: Arc::clone(&self.learned),
        }
    }

    pub(super) fn dialect(&self) -> &D {
        &self.dialect
    }

    fn limits_of(&self, model: &str) -> StreamLimits {
        if let Some(own) = self.model_limits.get(model) {
            return *own;
        }
        let known = models::model(model).first_byte_s.filter(|_| self.patient);
        known.map_or(self.limits, |seconds| self.limits.for_thinking(Duration::from_secs(seconds)))
    }
}

/// Waits for the first event that says something.
///
/// # Errors
/// The failure that comes before it.
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
        let asked = list::ask(&self.connection.http, self.dialect.model_list(), patience, self.clock.now()).await;
        asked.map_err(|error| self.connection.secrets.hide(self.vendor.classify(error)))
    }
}

impl<D: Dialect> DialectClient<D> {
    /// The headers of one request, each with what is configured under its name, in one line: a header of a request stands in place
    /// of one of all requests.
    fn headers_of(&self, request: &ModelRequest) -> HeaderMap {
        let mut all = HeaderMap::new();
        for (name, own) in &self.dialect.request_headers(request) {
            let values: Vec<&[u8]> = self.connection.headers.get_all(name).iter().chain([own]).map(HeaderValue::as_bytes).collect();
            let mut joined = HeaderValue::from_bytes(&values.join(&b", "[..])).unwrap_or_else(|_| own.clone());
            joined.set_sensitive(true);
            all.insert(name, joined);
        }
        all
    }

    /// Sends a request, as [`ModelClient::stream`] does. A request that is refused because of a part is repeated without it.
    ///
    /// # Errors
    /// A typed failure, without the key and the other headers.
    pub(super) async fn ask(&self, request: &ModelRequest) -> Result<ModelStream, ModelError> {
        let mut request = self.learned.apply(request);
        let mut changes: Vec<Change> = Vec::new();
        loop {
            let error = match self.ask_once(&request).await {
                Ok(answer) => {
                    // A change counts only if the provider took the request after it.
                    let adaptations = self.learned.remember(&request.model, changes);
                    return Ok(Box::pin(
                        stream::iter(adaptations.into_iter().map(|done| Ok(ModelEvent::Adapted(done)))).chain(answer),
                    ));
                }
                Err(error) => error,
            };
            let Some(change) = self.adapt(&mut request, &error, changes.len()) else { return Err(error) };
            tracing::warn!(
                model = request.model,
                change = change.word(),
                reason = error.message,
                "model adapted: the provider refused a part of the request, which is repeated without it"
            );
            changes.push(change);
        }
    }

    /// Leaves out of a request what its provider has refused, if the error says that it is about a part.
    fn adapt(&self, request: &mut Cow<'_, ModelRequest>, error: &ModelError, repeats: usize) -> Option<Change> {
        if repeats >= MAX_REPEATS {
            return None;
        }
        let refusals = refusals::find(error);
        if refusals.is_empty() {
            return None;
        }
        // The last time all parts of the kind are left out, wherever the error points.
        let body = if repeats + 1 < MAX_REPEATS { self.dialect.body(request, self.streaming).ok() } else { None };
        let body = body.and_then(|body| serde_json::from_slice(&body).ok());
        refusals.into_iter().find_map(|refusal| adapt::adapt(request, refusal, error, body.as_ref()))
    }

    async fn ask_once(&self, request: &ModelRequest) -> Result<ModelStream, ModelError> {
        let clean = |secrets: Secrets, vendor: Vendor| move |error| secrets.hide(vendor.classify(error));
        let stream = self.send(request).await.map_err(clean(self.connection.secrets.clone(), self.vendor))?;
        let stream: ModelStream = Box::pin(stream.map_err(clean(self.connection.secrets.clone(), self.vendor)));
        // Some providers refuse a part in the first event of an answer.
        if adapt::may_be_refused(request) { until_it_speaks(stream).await } else { Ok(stream) }
    }

    async fn send(&self, request: &ModelRequest) -> Result<ModelStream, ModelError> {
        let mut limits = self.limits_of(&request.model);
        if !self.streaming {
            // The first byte of such an answer comes when all of it is there.
            limits.total = limits.for_whole_answer();
            limits.first_byte = limits.total;
        }
        let total = Deadline::after(limits.total);
        let body = self.dialect.body(request, self.streaming)?;
        let mut decoder = self.dialect.decoder(request, body.len());
        let post = self
            .connection
            .http
            .post(self.dialect.url(&request.model, self.streaming)?)
            .header(CONTENT_TYPE, "application/json")
            .header(ACCEPT, if self.streaming { "text/event-stream" } else { "application/json" })
            .headers(self.headers_of(request))
            .body(body);
        let framing = self.streaming.then_some(D::FRAMING);
        let names = RequestNames { model: &request.model, tools: &request.tools };
        match transport::send(post, framing, &limits, total, self.clock.now(), names).await? {
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
