//! Context providers: HTTP services that add texts to the model's context before each run.
//!
//! Sends the requests of a run in parallel, with a time limit for each and one for all. Skips a failing provider while its circuit
//! breaker is open. Must not know how the texts are used.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::future::join_all;
use reqwest::header::CONTENT_TYPE;
use reqwest::redirect::Policy;
use reqwest::{Client, StatusCode};
use secrecy::{ExposeSecret as _, SecretString};
use serde::Serialize;
use serde_json::Value;
use tokio::time::Instant;

use crate::domain::agent::ProvidedContext;
use crate::domain::ids::{ConversationId, RunId, UserId};
use crate::support::circuit_breaker::{BreakerChange, BreakerLimits, BreakerPermit, CircuitBreaker};
use crate::support::net::http::{USER_AGENT, body_within, chain_without_url};
use crate::support::redact::error_text;
use crate::support::text::prefix_chars;
use crate::support::trace;

/// The largest response of a provider, in bytes.
const MAX_BODY_BYTES: usize = 256 * 1024;
/// The longest string inside JSON other than `{"text": "..."}`, in characters.
const MAX_STRING_CHARS: usize = 500;
/// The longest list inside such JSON, in entries.
const MAX_LIST_ENTRIES: usize = 10;
/// The longest user message in a request, in characters.
const MAX_INPUT_CHARS: usize = 10_000;

#[derive(Debug, Clone)]
pub struct ContextProvider {
    pub url: String,
    /// The bearer token.
    pub key: Option<SecretString>,
}

#[derive(Debug, Clone)]
pub struct ContextProviderOptions {
    /// The providers by their names.
    pub providers: BTreeMap<String, ContextProvider>,
    /// The time limit of one provider.
    pub each: Duration,
    /// The time limit of all providers of a run together.
    pub all: Duration,
    /// The longest text of one provider, in characters.
    pub max_chars: usize,
    /// Failures in a row that open a provider's circuit breaker; 0 for never.
    pub failures: u32,
    /// The cool-down of the circuit breaker.
    pub cool_down: Duration,
}

/// The body of a request to a provider.
#[derive(Debug, Serialize)]
pub struct ContextRequest<'a> {
    pub user_id: &'a UserId,
    pub conversation_id: &'a ConversationId,
    pub run_id: &'a RunId,
    /// The last message of the user.
    pub input: &'a str,
}

/// The configured context providers, with an HTTP client and their circuit breakers.
pub struct ContextProviders {
    options: ContextProviderOptions,
    client: Result<Client, String>,
    breakers: BTreeMap<String, CircuitBreaker>,
}

impl ContextProviders {
    pub fn new(options: ContextProviderOptions) -> Self {
        let builder = Client::builder().user_agent(USER_AGENT).redirect(Policy::none());
        let limits = BreakerLimits { failures: options.failures, open: options.cool_down };
        let breakers = options.providers.keys().map(|name| (name.clone(), CircuitBreaker::new(limits))).collect();
        Self { options, client: builder.build().map_err(|error| error.to_string()), breakers }
    }

    /// Requests the texts of the named providers, and returns them in the order of the names. Omits late, failed and unknown
    /// providers.
    pub async fn fetch_texts(&self, names: &[String], request: &ContextRequest<'_>) -> Vec<ProvidedContext> {
        let deadline = Instant::now() + self.options.all;
        let available = names.iter().filter_map(|name| Some((name, self.find_available(name)?)));
        let fetches = available.map(|(name, (provider, permit))| async move {
            // A provider that the common limit stops has not exceeded its own limit, so its circuit breaker counts no failure.
            let Ok(result) = tokio::time::timeout_at(deadline, self.fetch_text(provider, request)).await else {
                count_outcome(name, "late");
                return None;
            };
            record_result(name, permit, &result);
            let text = result.ok().filter(|text| !text.trim().is_empty())?;
            Some(ProvidedContext { name: name.clone(), text })
        });
        join_all(fetches).await.into_iter().flatten().collect()
    }

    /// Returns a provider and a permit of its circuit breaker. Returns `None` if the provider is not configured or the breaker is
    /// open.
    fn find_available(&self, name: &str) -> Option<(&ContextProvider, BreakerPermit)> {
        let Some(provider) = self.options.providers.get(name) else {
            tracing::warn!(
                name,
                "an agent names a context provider that is not configured; its runs get no text from this provider"
            );
            return None;
        };
        let Ok(permit) = self.breakers.get(name)?.enter() else {
            count_outcome(name, "skipped");
            return None;
        };
        Some((provider, permit))
    }

    /// Returns the text of a provider, or the reason for the failure. A response with the status 204 has an empty text.
    async fn fetch_text(&self, provider: &ContextProvider, request: &ContextRequest<'_>) -> Result<String, String> {
        let client = self.client.as_ref().map_err(Clone::clone)?;
        let input = prefix_chars(request.input, MAX_INPUT_CHARS);
        let mut builder = client.post(&provider.url).json(&ContextRequest { input, ..*request });
        if let Some(key) = &provider.key {
            builder = builder.bearer_auth(key.expose_secret());
        }
        if let Some(traceparent) = trace::traceparent() {
            builder = builder.header(trace::TRACEPARENT, traceparent);
        }
        let response = tokio::time::timeout(self.options.each, read_response(builder)).await;
        let Some((content_type, body)) = response.map_err(|_| format!("no answer within {:?}", self.options.each))?? else {
            return Ok(String::new());
        };
        let text = if content_type.contains("json") { text_of_json(&body)? } else { String::from_utf8_lossy(&body).into_owned() };
        let excerpt = prefix_chars(&text, self.options.max_chars);
        Ok(if excerpt.len() < text.len() { format!("{excerpt}\n[cut after {} characters]", self.options.max_chars) } else { text })
    }
}

/// Reports a result to the provider's circuit breaker, to the metrics and, if it is a failure, to the log.
fn record_result(name: &str, mut permit: BreakerPermit, result: &Result<String, String>) {
    match result {
        Ok(_) => {
            let _ = permit.succeeded();
            count_outcome(name, "ok");
        }
        Err(reason) => {
            let opened = permit.failed() != BreakerChange::None;
            count_outcome(name, "failed");
            tracing::warn!(name, reason, opened, "a context provider has failed; the run continues without its text");
        }
    }
}

fn count_outcome(name: &str, outcome: &'static str) {
    metrics::counter!("capstan_contexts_total", "provider" => name.to_owned(), "outcome" => outcome).increment(1);
}

/// Sends a request. Returns the content type and the body of the response; `None` for the status 204.
async fn read_response(request: reqwest::RequestBuilder) -> Result<Option<(String, Vec<u8>)>, String> {
    let reason = |error: reqwest::Error| error_text(&chain_without_url(error));
    let response = request.send().await.map_err(reason)?;
    match response.status() {
        StatusCode::NO_CONTENT => return Ok(None),
        status if !status.is_success() => return Err(format!("its answer has the status {status}")),
        _ => {}
    }
    let content_type = response.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned();
    let body = body_within(response, MAX_BODY_BYTES).await.map_err(reason)?;
    let body = body.ok_or_else(|| format!("its answer is larger than {MAX_BODY_BYTES} bytes"))?;
    Ok(Some((content_type, body)))
}

/// Returns the text of `{"text": "..."}`. Returns other JSON with long strings and lists cut, and no text for `null`.
fn text_of_json(body: &[u8]) -> Result<String, String> {
    let mut value: Value = serde_json::from_slice(body).map_err(|error| format!("its answer is not valid JSON: {error}"))?;
    if value.is_null() {
        return Ok(String::new());
    }
    if let Some(text) =
        value.get("text").and_then(Value::as_str).filter(|_| value.as_object().is_some_and(|object| object.len() == 1))
    {
        return Ok(text.to_owned());
    }
    shorten(&mut value);
    Ok(value.to_string())
}

/// Cuts long strings and lists. The parser limits the depth, so the recursion is bounded.
fn shorten(value: &mut Value) {
    match value {
        Value::String(text) => {
            let excerpt = prefix_chars(text, MAX_STRING_CHARS);
            if excerpt.len() < text.len() {
                *text = format!("{excerpt}...");
            }
        }
        Value::Array(items) => {
            items.truncate(MAX_LIST_ENTRIES);
            items.iter_mut().for_each(shorten);
        }
        Value::Object(fields) => fields.values_mut().for_each(shorten),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::{Arc, Mutex};

    use axum::Router;
    use axum::http::HeaderMap;
    use axum::routing::post;
    use serde_json::json;

    use super::*;

    type ReceivedRequests = Arc<Mutex<Vec<(HeaderMap, Value)>>>;

    /// Starts a server with a provider for each kind of behaviour. Returns its URL, the requests to `/text`, the number of requests
    /// to `/fails`, and the task of the server.
    async fn start_providers() -> (String, ReceivedRequests, Arc<AtomicUsize>, tokio::task::JoinSet<()>) {
        let (requests, failures) = (ReceivedRequests::default(), Arc::new(AtomicUsize::new(0)));
        let (received, failure_count) = (requests.clone(), failures.clone());
        let text = move |headers: HeaderMap, axum::Json(body): axum::Json<Value>| {
            received.lock().unwrap().push((headers, body));
            async { axum::Json(json!({"text": "It is raining."})) }
        };
        let fails = move || {
            failure_count.fetch_add(1, Ordering::SeqCst);
            async { StatusCode::INTERNAL_SERVER_ERROR }
        };
        let data = json!({"long": "\u{e9}".repeat(MAX_STRING_CHARS + 1), "list": (0..20).collect::<Vec<_>>()});
        let router = Router::new()
            .route("/text", post(text))
            .route("/plain", post(async || "plain words"))
            .route("/data", post(move || async move { axum::Json(data) }))
            .route("/silent", post(async || std::future::pending::<String>().await))
            .route("/nothing", post(async || StatusCode::NO_CONTENT))
            .route("/huge", post(async || "x".repeat(MAX_BODY_BYTES + 1)))
            .route("/broken", post(async || ([(CONTENT_TYPE, "application/json")], "{")))
            .route("/fails", post(fails));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base = format!("http://{}", listener.local_addr().unwrap());
        let mut server = tokio::task::JoinSet::new();
        server.spawn(async move { axum::serve(listener, router).await.unwrap() });
        (base, requests, failures, server)
    }

    fn configured(base: &str, names: &[&str], change: impl FnOnce(&mut ContextProviderOptions)) -> (ContextProviders, Vec<String>) {
        let key = Some(SecretString::from("a-key"));
        let provider = |name: &&str| ((*name).to_owned(), ContextProvider { url: format!("{base}/{name}"), key: key.clone() });
        let mut options = ContextProviderOptions {
            providers: names.iter().map(provider).collect(),
            each: Duration::from_secs(5),
            all: Duration::from_secs(10),
            max_chars: 10_000,
            failures: 3,
            cool_down: Duration::from_secs(300),
        };
        change(&mut options);
        (ContextProviders::new(options), names.iter().map(|name| (*name).to_owned()).collect())
    }

    async fn fetch_texts(providers: &ContextProviders, names: &[String]) -> Vec<(String, String)> {
        let (user_id, conversation_id, run_id) = (
            UserId::from_stored("user_1".into()),
            ConversationId::from_stored("conv_1".into()),
            RunId::from_stored("run_1".into()),
        );
        let input = "\u{1F600}".repeat(MAX_INPUT_CHARS + 5);
        let request = ContextRequest { user_id: &user_id, conversation_id: &conversation_id, run_id: &run_id, input: &input };
        providers.fetch_texts(names, &request).await.into_iter().map(|context| (context.name, context.text)).collect()
    }

    #[tokio::test]
    async fn context_texts_are_in_the_order_of_provider_names() {
        let (base, requests, _, _server) = start_providers().await;
        let (providers, names) = configured(&base, &["data", "nothing", "plain", "text"], |_| {});
        let texts = trace::within(Some("00-1-2-01".to_owned()), fetch_texts(&providers, &names)).await;
        assert_eq!(texts.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["data", "plain", "text"]);
        assert_eq!((texts[1].1.as_str(), texts[2].1.as_str()), ("plain words", "It is raining."));
        let data: Value = serde_json::from_str(&texts[0].1).unwrap();
        assert_eq!(data["list"].as_array().unwrap().len(), MAX_LIST_ENTRIES);
        assert_eq!(data["long"].as_str().unwrap().chars().count(), MAX_STRING_CHARS + 3);
        let requests = requests.lock().unwrap();
        let (headers, body) = &requests[0];
        assert_eq!(
            (&headers["authorization"], &headers["traceparent"]),
            (&"Bearer a-key".parse().unwrap(), &"00-1-2-01".parse().unwrap())
        );
        assert_eq!((&body["user_id"], &body["run_id"]), (&json!("user_1"), &json!("run_1")));
        assert_eq!(body["input"].as_str().unwrap().chars().count(), MAX_INPUT_CHARS);
    }

    #[tokio::test]
    async fn finished_context_providers_give_texts_despite_failures() {
        let (base, _, _, _server) = start_providers().await;
        let short = |options: &mut ContextProviderOptions| {
            (options.each, options.max_chars) = (Duration::from_millis(300), 5);
        };
        let (providers, mut names) = configured(&base, &["silent", "huge", "broken", "fails", "plain"], short);
        names.push("unknown".to_owned());
        let start = Instant::now();
        let texts = fetch_texts(&providers, &names).await;
        assert_eq!(texts, [("plain".to_owned(), "plain\n[cut after 5 characters]".to_owned())]);
        assert!(start.elapsed() >= Duration::from_millis(300));
    }

    #[tokio::test]
    async fn common_time_limit_ends_silent_context_provider() {
        let (base, _, _, _server) = start_providers().await;
        let (providers, names) = configured(&base, &["silent", "text"], |options| options.all = Duration::from_millis(500));
        let texts = fetch_texts(&providers, &names).await;
        assert_eq!(texts.len(), 1, "{texts:?}");
    }

    #[tokio::test]
    async fn failing_context_provider_opens_its_breaker() {
        let (base, _, failures, _server) = start_providers().await;
        let (providers, names) = configured(&base, &["fails"], |_| {});
        for _ in 0..5 {
            fetch_texts(&providers, &names).await;
        }
        assert_eq!(failures.load(Ordering::SeqCst), 3);
        providers.breakers["fails"].end_cool_down();
        for _ in 0..2 {
            fetch_texts(&providers, &names).await;
        }
        assert_eq!(failures.load(Ordering::SeqCst), 4, "one failure after the cool-down opens the breaker again");
    }
}
