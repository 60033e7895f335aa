//! Context providers: HTTP services that add texts to the model's context before each run.
//!
//! All providers are requested in parallel, with a time limit for each and one for all. The circuit breaker skips a failing provider for a
//! time. Must not know how the texts are used.

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

/// The largest answer, in bytes.
const MAX_BODY: usize = 256 * 1024;
/// The longest string within structured data, in characters.
const MAX_STRING: usize = 500;
const MAX_LIST: usize = 10;
/// The longest input of the user in a request, in characters.
const MAX_INPUT: usize = 10_000;

#[derive(Debug, Clone)]
pub struct ContextSource {
    pub url: String,
    /// Sent as a bearer token.
    pub key: Option<SecretString>,
}

#[derive(Debug, Clone)]
pub struct ContextOptions {
    pub sources: BTreeMap<String, ContextSource>,
    /// The time limit of one provider.
    pub each: Duration,
    /// The time limit of all providers together.
    pub all: Duration,
    /// The longest text of one provider, in characters.
    pub max_chars: usize,
    /// Failures in a row that open the circuit breaker; 0 for never.
    pub failures: u32,
    /// The cool-down of the circuit breaker.
    pub cool_down: Duration,
}

/// The body of a request to a provider.
#[derive(Debug, Serialize)]
pub struct ContextQuestion<'a> {
    pub user_id: &'a UserId,
    pub conversation_id: &'a ConversationId,
    pub run_id: &'a RunId,
    /// The last message of the user.
    pub input: &'a str,
}

pub struct Contexts {
    options: ContextOptions,
    client: Result<Client, String>,
    breakers: BTreeMap<String, CircuitBreaker>,
}

impl Contexts {
    pub fn new(options: ContextOptions) -> Self {
        let builder = Client::builder().user_agent(USER_AGENT).redirect(Policy::none());
        let limits = BreakerLimits { failures: options.failures, open: options.cool_down };
        let breakers = options.sources.keys().map(|name| (name.clone(), CircuitBreaker::new(limits))).collect();
        Self { options, client: builder.build().map_err(|error| error.to_string()), breakers }
    }

    /// Requests the texts of these providers, and returns them in this order. Never fails: late, failed and unknown providers are omitted.
    pub async fn gather(&self, names: &[String], question: &ContextQuestion<'_>) -> Vec<ProvidedContext> {
        let until = Instant::now() + self.options.all;
        let requests = names.iter().filter_map(|name| Some((name, self.available(name)?)));
        let requests = requests.map(|(name, (source, permit))| async move {
            // The circuit breaker does not count a request that ends at the common limit as a failure of its provider.
            let Ok(answer) = tokio::time::timeout_at(until, self.ask(source, question)).await else {
                outcome(name, "late");
                return None;
            };
            record_outcome(name, permit, &answer);
            let text = answer.ok().filter(|text| !text.trim().is_empty())?;
            Some(ProvidedContext { name: name.clone(), text })
        });
        join_all(requests).await.into_iter().flatten().collect()
    }

    /// Returns the provider and a permit of its circuit breaker; `None` if it is not configured or the breaker is open.
    fn available(&self, name: &str) -> Option<(&ContextSource, BreakerPermit)> {
        let Some(source) = self.options.sources.get(name) else {
            tracing::warn!(
                name,
                "an agent names a context provider that is not configured; its runs get no text from this provider"
            );
            return None;
        };
        let Ok(permit) = self.breakers.get(name)?.enter() else {
            outcome(name, "skipped");
            return None;
        };
        Some((source, permit))
    }

    async fn ask(&self, source: &ContextSource, question: &ContextQuestion<'_>) -> Result<String, String> {
        let client = self.client.as_ref().map_err(Clone::clone)?;
        let input = prefix_chars(question.input, MAX_INPUT);
        let mut request = client.post(&source.url).json(&ContextQuestion { input, ..*question });
        if let Some(key) = &source.key {
            request = request.bearer_auth(key.expose_secret());
        }
        if let Some(traceparent) = trace::traceparent() {
            request = request.header(trace::TRACEPARENT, traceparent);
        }
        let answer = tokio::time::timeout(self.options.each, read(request)).await;
        let Some((kind, body)) = answer.map_err(|_| format!("no answer within {:?}", self.options.each))?? else {
            return Ok(String::new());
        };
        let text = if kind.contains("json") { text_of(&body)? } else { String::from_utf8_lossy(&body).into_owned() };
        let excerpt = prefix_chars(&text, self.options.max_chars);
        Ok(if excerpt.len() < text.len() { format!("{excerpt}\n[cut after {} characters]", self.options.max_chars) } else { text })
    }
}

fn record_outcome(name: &str, mut permit: BreakerPermit, answer: &Result<String, String>) {
    match answer {
        Ok(_) => {
            let _ = permit.succeeded();
            outcome(name, "ok");
        }
        Err(reason) => {
            let opened = permit.failed() != BreakerChange::None;
            outcome(name, "failed");
            tracing::warn!(name, reason, opened, "a context provider has failed; the run continues without its text");
        }
    }
}

fn outcome(name: &str, outcome: &'static str) {
    metrics::counter!("capstan_contexts_total", "provider" => name.to_owned(), "outcome" => outcome).increment(1);
}

/// Returns the type and body of an answer; `None` for 204.
async fn read(request: reqwest::RequestBuilder) -> Result<Option<(String, Vec<u8>)>, String> {
    let excerpt = |error: reqwest::Error| error_text(&chain_without_url(error));
    let answer = request.send().await.map_err(excerpt)?;
    match answer.status() {
        StatusCode::NO_CONTENT => return Ok(None),
        status if !status.is_success() => return Err(format!("its answer has the status {status}")),
        _ => {}
    }
    let kind = answer.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned();
    let body = body_within(answer, MAX_BODY).await.map_err(excerpt)?;
    let body = body.ok_or_else(|| format!("its answer is larger than {MAX_BODY} bytes"))?;
    Ok(Some((kind, body)))
}

/// Returns the text of `{"text": "..."}`. Returns other data as JSON, with long strings and lists cut.
fn text_of(body: &[u8]) -> Result<String, String> {
    let mut value: Value = serde_json::from_slice(body).map_err(|error| format!("its answer is not valid JSON: {error}"))?;
    if value.is_null() {
        return Ok(String::new());
    }
    if let Some(text) =
        value.get("text").and_then(Value::as_str).filter(|_| value.as_object().is_some_and(|object| object.len() == 1))
    {
        return Ok(text.to_owned());
    }
    prune(&mut value);
    Ok(value.to_string())
}

/// Cuts long strings and lists. The parser limits the depth, so the recursion is bounded.
fn prune(value: &mut Value) {
    match value {
        Value::String(text) => {
            let excerpt = prefix_chars(text, MAX_STRING);
            if excerpt.len() < text.len() {
                *text = format!("{excerpt}...");
            }
        }
        Value::Array(items) => {
            items.truncate(MAX_LIST);
            items.iter_mut().for_each(prune);
        }
        Value::Object(fields) => fields.values_mut().for_each(prune),
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

    type Asked = Arc<Mutex<Vec<(HeaderMap, Value)>>>;

    /// A provider for each kind of behaviour.
    async fn providers() -> (String, Asked, Arc<AtomicUsize>, tokio::task::JoinSet<()>) {
        let (requests, failed) = (Asked::default(), Arc::new(AtomicUsize::new(0)));
        let (heard, count) = (requests.clone(), failed.clone());
        let listens = move |headers: HeaderMap, axum::Json(question): axum::Json<Value>| {
            heard.lock().unwrap().push((headers, question));
            async { axum::Json(json!({"text": "It is raining."})) }
        };
        let fails = move || {
            count.fetch_add(1, Ordering::SeqCst);
            async { StatusCode::INTERNAL_SERVER_ERROR }
        };
        let data = json!({"long": "\u{e9}".repeat(MAX_STRING + 1), "list": (0..20).collect::<Vec<_>>()});
        let router = Router::new()
            .route("/text", post(listens))
            .route("/plain", post(async || "plain words"))
            .route("/data", post(move || async move { axum::Json(data) }))
            .route("/silent", post(async || std::future::pending::<String>().await))
            .route("/nothing", post(async || StatusCode::NO_CONTENT))
            .route("/huge", post(async || "x".repeat(MAX_BODY + 1)))
            .route("/broken", post(async || ([(CONTENT_TYPE, "application/json")], "{")))
            .route("/fails", post(fails));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base = format!("http://{}", listener.local_addr().unwrap());
        let mut serving = tokio::task::JoinSet::new();
        serving.spawn(async move { axum::serve(listener, router).await.unwrap() });
        (base, requests, failed, serving)
    }

    fn contexts(base: &str, names: &[&str], change: impl FnOnce(&mut ContextOptions)) -> (Contexts, Vec<String>) {
        let key = Some(SecretString::from("a-key"));
        let source = |name: &&str| ((*name).to_owned(), ContextSource { url: format!("{base}/{name}"), key: key.clone() });
        let mut options = ContextOptions {
            sources: names.iter().map(source).collect(),
            each: Duration::from_secs(5),
            all: Duration::from_secs(10),
            max_chars: 10_000,
            failures: 3,
            cool_down: Duration::from_secs(300),
        };
        change(&mut options);
        (Contexts::new(options), names.iter().map(|name| (*name).to_owned()).collect())
    }

    async fn gather(contexts: &Contexts, names: &[String]) -> Vec<(String, String)> {
        let (user_id, conversation_id, run_id) = (
            UserId::from_stored("user_1".into()),
            ConversationId::from_stored("conv_1".into()),
            RunId::from_stored("run_1".into()),
        );
        let input = "\u{1F600}".repeat(MAX_INPUT + 5);
        let question = ContextQuestion { user_id: &user_id, conversation_id: &conversation_id, run_id: &run_id, input: &input };
        contexts.gather(names, &question).await.into_iter().map(|said| (said.name, said.text)).collect()
    }

    #[tokio::test]
    async fn context_parts_are_sorted_by_provider_name() {
        let (base, requests, _, _serving) = providers().await;
        let (contexts, names) = contexts(&base, &["data", "nothing", "plain", "text"], |_| {});
        let said = trace::within(Some("00-1-2-01".to_owned()), gather(&contexts, &names)).await;
        assert_eq!(said.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["data", "plain", "text"]);
        assert_eq!((said[1].1.as_str(), said[2].1.as_str()), ("plain words", "It is raining."));
        let data: Value = serde_json::from_str(&said[0].1).unwrap();
        assert_eq!(data["list"].as_array().unwrap().len(), MAX_LIST);
        assert_eq!(data["long"].as_str().unwrap().chars().count(), MAX_STRING + 3);
        let requests = requests.lock().unwrap();
        let (headers, question) = &requests[0];
        assert_eq!(
            (&headers["authorization"], &headers["traceparent"]),
            (&"Bearer a-key".parse().unwrap(), &"00-1-2-01".parse().unwrap())
        );
        assert_eq!((&question["user_id"], &question["run_id"]), (&json!("user_1"), &json!("run_1")));
        assert_eq!(question["input"].as_str().unwrap().chars().count(), MAX_INPUT);
    }

    #[tokio::test]
    async fn finished_context_providers_count_despite_failures() {
        let (base, _, _, _serving) = providers().await;
        let short = |options: &mut ContextOptions| {
            (options.each, options.max_chars) = (Duration::from_millis(300), 5);
        };
        let (contexts, mut names) = contexts(&base, &["silent", "huge", "broken", "fails", "plain"], short);
        names.push("unknown".to_owned());
        let began = Instant::now();
        let said = gather(&contexts, &names).await;
        assert_eq!(said, [("plain".to_owned(), "plain\n[cut after 5 characters]".to_owned())]);
        assert!(began.elapsed() >= Duration::from_millis(300));
    }

    #[tokio::test]
    async fn all_together_have_their_own_limit() {
        let (base, _, _, _serving) = providers().await;
        let (contexts, names) = contexts(&base, &["silent", "text"], |options| options.all = Duration::from_millis(500));
        let said = gather(&contexts, &names).await;
        assert_eq!(said.len(), 1, "{said:?}");
    }

    #[tokio::test]
    async fn failing_context_provider_opens_its_breaker() {
        let (base, _, failed, _serving) = providers().await;
        let (contexts, names) = contexts(&base, &["fails"], |_| {});
        for _ in 0..5 {
            gather(&contexts, &names).await;
        }
        assert_eq!(failed.load(Ordering::SeqCst), 3);
        contexts.breakers["fails"].end_cool_down();
        for _ in 0..2 {
            gather(&contexts, &names).await;
        }
        assert_eq!(failed.load(Ordering::SeqCst), 4, "one failure after the rest brings the next");
    }
}
