//! The client: sends a request and turns the answer into events as it comes.

use std::collections::{BTreeMap, VecDeque};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::Stream;
use reqwest::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use reqwest::{Client, Url};
use secrecy::{ExposeSecret as _, SecretString};
use tokio::time::Sleep;

use super::decode::{Decoder, Expectation, Progress};
use super::request;
use crate::domain::model::{ModelError, ModelErrorKind, ModelEvent, ModelRequest};
use crate::provider::limits::{Deadline, StreamLimits, Timed};
use crate::provider::sse::Frames;
use crate::provider::transport::{self, Answer};
use crate::provider::{ModelClient, ModelStream, SetupError};
use crate::support::clock::{SharedClock, SystemClock};

/// Where and how to ask.
pub struct OpenAiOptions {
    /// The API's URL, such as `https://api.openai.com/v1`; a URL without any path gets `/v1`.
    pub base_url: String,
    /// Sent as a bearer token; local servers need none.
    pub api_key: Option<SecretString>,
    /// Limits for all models.
    pub limits: StreamLimits,
    /// Limits of single models, by bare name.
    pub model_limits: BTreeMap<String, StreamLimits>,
    /// Whether to ask for a streamed answer. A server that cannot stream gives the same events, all at the end.
    pub streaming: bool,
    /// More headers, which may be secret.
    pub headers: Vec<(String, SecretString)>,
    /// Tells how far away the moments are that a provider names.
    pub clock: SharedClock,
}

impl OpenAiOptions {
    /// An endpoint with the usual limits and no key.
    #[must_use]
    pub fn new(base_url: impl Into<String>) -> Self {
        Self {
            base_url: base_url.into(),
            api_key: None,
            limits: StreamLimits::default(),
            model_limits: BTreeMap::new(),
            streaming: true,
            headers: Vec::new(),
            clock: Arc::new(SystemClock),
        }
    }
}

/// Speaks chat completions with one endpoint.
pub struct OpenAiClient {
    http: Client,
    url: Url,
    limits: StreamLimits,
    model_limits: BTreeMap<String, StreamLimits>,
    streaming: bool,
    clock: SharedClock,
}

impl OpenAiClient {
    /// A client. No connection is made yet.
    ///
    /// # Errors
    /// If the base URL, the key or a header cannot be used.
    pub fn new(options: OpenAiOptions) -> Result<Self, SetupError> {
        let OpenAiOptions { base_url, api_key, limits, model_limits, streaming, headers, clock } = options;
        let url = transport::endpoint_url(&base_url, "/chat/completions")?;
        let mut sent = HeaderMap::new();
        if let Some(key) = api_key.filter(|key| !key.expose_secret().trim().is_empty()) {
            sent.insert(AUTHORIZATION, secret_value("authorization", &format!("Bearer {}", key.expose_secret().trim()))?);
        }
        for (name, value) in headers {
            let parsed = HeaderName::try_from(&name).map_err(|_| SetupError::Header { name: name.clone() })?;
            sent.insert(parsed, secret_value(&name, value.expose_secret())?);
        }
        let http = transport::client(&url, sent, &limits)?;
        Ok(Self { http, url, limits, model_limits, streaming, clock })
    }
}

fn secret_value(name: &str, value: &str) -> Result<HeaderValue, SetupError> {
    let mut value = HeaderValue::try_from(value).map_err(|_| SetupError::Header { name: name.to_owned() })?;
    value.set_sensitive(true);
    Ok(value)
}

#[async_trait]
impl ModelClient for OpenAiClient {
    async fn stream(&self, request: ModelRequest) -> Result<ModelStream, ModelError> {
        let mut limits = self.model_limits.get(&request.model).copied().unwrap_or(self.limits);
        if !self.streaming {
            // The first byte of such an answer comes when all of it is there.
            limits.first_byte = limits.total;
        }
        let total = Deadline::after(limits.total);
        let body = request::body(&request, self.streaming)
            .map_err(|error| ModelError::new(ModelErrorKind::InvalidRequest, &format!("the request cannot be written: {error}")))?;
        let decoder = Decoder::new(Expectation::of(&request, body.len()));
        let post = self
            .http
            .post(self.url.clone())
            .header(CONTENT_TYPE, "application/json")
            .header(ACCEPT, if self.streaming { "text/event-stream" } else { "application/json" })
            .body(body);
        match transport::send(post, &limits, total, self.clock.now()).await? {
            Answer::Events(frames) => {
                let events = Events { frames, decoder, ready: VecDeque::new(), failed: None, state: State::Open, limits };
                Ok(Box::pin(Timed::new(events, "nothing but signs of life came", limits.progress, total)))
            }
            Answer::Document(document) => {
                let mut events = VecDeque::new();
                decoder.document(&document, &mut events)?;
                Ok(Box::pin(futures_util::stream::iter(events.into_iter().map(Ok))))
            }
        }
    }
}

/// The events of a streamed answer.
struct Events {
    frames: Frames,
    decoder: Decoder,
    ready: VecDeque<ModelEvent>,
    /// Shown after what came before it.
    failed: Option<ModelError>,
    state: State,
    limits: StreamLimits,
}

enum State {
    /// The model speaks.
    Open,
    /// The model has said why it stopped; figures and the end mark may follow until the alarm.
    Closing(Pin<Box<Sleep>>),
    /// The end mark came. The end of the body is awaited until the alarm, so that the connection can serve the next call.
    Draining(Pin<Box<Sleep>>),
    /// Nothing more is read.
    Over,
}

/// How long the last event is held back for the end of the body, which nearly always comes together with the end mark.
const DRAIN: Duration = Duration::from_millis(50);

impl Events {
    fn take(&mut self, progress: Result<Progress, ModelError>) {
        match progress {
            Ok(Progress::Open) => {}
            Ok(Progress::Closing) => {
                if let State::Open = self.state {
                    self.state = State::Closing(Box::pin(tokio::time::sleep(self.limits.after_finish)));
                }
            }
            Ok(Progress::Whole) => self.state = State::Draining(Box::pin(tokio::time::sleep(DRAIN))),
            Err(error) => {
                self.failed = Some(error);
                self.state = State::Over;
            }
        }
    }

    fn close(&mut self) {
        self.failed = self.decoder.close(&mut self.ready).err();
        self.state = State::Over;
    }
}

impl Stream for Events {
    type Item = Result<ModelEvent, ModelError>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        loop {
            if let Some(event) = this.ready.pop_front() {
                return Poll::Ready(Some(Ok(event)));
            }
            if let State::Over = this.state {
                return Poll::Ready(this.failed.take().map(Err));
            }
            match (Pin::new(&mut this.frames).poll_next(cx), &mut this.state) {
                (Poll::Ready(Some(Ok(_))), State::Draining(_)) => {}
                (Poll::Ready(Some(Ok(frame))), _) => {
                    let data = frame.data.as_deref().unwrap_or_default();
                    let progress = this.decoder.frame(frame.event.as_deref(), data, &mut this.ready);
                    this.take(progress);
                }
                // What the model had to say is there; only figures can be missing.
                (Poll::Ready(Some(Err(_))), State::Closing(_) | State::Draining(_)) => this.close(),
                (Poll::Ready(Some(Err(error))), State::Open | State::Over) => this.take(Err(error)),
                (Poll::Ready(None), _) => this.close(),
                (Poll::Pending, State::Closing(alarm) | State::Draining(alarm)) => {
                    if alarm.as_mut().poll(cx).is_pending() {
                        return Poll::Pending;
                    }
                    this.close();
                }
                (Poll::Pending, State::Open | State::Over) => return Poll::Pending,
            }
        }
    }
}
