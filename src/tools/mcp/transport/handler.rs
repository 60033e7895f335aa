//! Handles messages of a server other than answers: progress, changed tools and, if its entry allows them, elicitation, sampling and roots.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use rmcp::model::{
    ClientCapabilities, ClientConfig, CreateMessageRequestMethod, ElicitRequestParams, ElicitResult, ElicitationAction,
    ElicitationCapability, ErrorData, ExtensionCapabilities, FormElicitationCapability, Implementation, JsonObject,
    ListRootsRequestMethod, ProgressNotificationParam, ProgressToken, RootsCapabilities, SamplingCapability, TASKS_EXTENSION_ID,
    UrlElicitationCapability,
};
use rmcp::service::RequestContext;
use rmcp::{ClientHandler, RoleClient};
use tokio::sync::{RwLock, RwLockReadGuard, mpsc, oneshot};

use crate::domain::run::question::{ACCEPT, CANCEL, DECLINE};
use crate::domain::run::{Elicitation, InputAnswer};
use crate::domain::tool::form;
use crate::support::locks::lock;
use crate::tools::invisible_chars::{hidden_in, visible};
use crate::tools::mcp::ServerConfig;
use crate::tools::mcp::calls::sampling::{self, SamplingRules};
use crate::tools::mcp::config::redaction::SecretRedactor;
use crate::tools::mcp::server::tool_definitions;
use crate::tools::{ElicitationRequest, Progress, Report, SamplingAnswer, SamplingCall, SamplingRequest};

/// The most waiting reports of one call; more are dropped.
const REPORTS: usize = 16;
/// The most questions of one call: users who are asked more often confirm every question.
pub const MAX_QUESTIONS: usize = 5;
/// The longest question, in characters.
const MAX_TEXT: usize = 4_000;
/// The longest URL, in bytes.
const MAX_URL: usize = 2_000;

/// The calls of one connection that may receive messages of the server.
#[derive(Default)]
pub struct CallSubscriptions {
    calls: Mutex<HashMap<ProgressToken, Listener>>,
    tools_changed: AtomicBool,
    /// Whether a call was abandoned without an answer. The server may still work on it, and ask questions.
    has_abandoned_calls: AtomicBool,
    /// Held for reading while a call is sent, until it has subscribed.
    sending: RwLock<()>,
}

#[derive(Clone)]
struct Listener {
    reports: mpsc::Sender<Progress>,
    questions: mpsc::Sender<ServerRequest>,
}

/// A question during a call, to the user or to a model.
#[derive(Debug)]
pub enum ServerRequest {
    Asks(Box<ElicitationRequest>),
    Samples(Box<SamplingCall>),
}

impl CallSubscriptions {
    /// Makes questions wait until the guard is dropped. A server may ask before the sender of a call knows its token.
    pub async fn delay_questions(&self) -> RwLockReadGuard<'_, ()> {
        self.sending.read().await
    }

    /// Subscribes to messages for the call with this token, until the receiver is dropped.
    pub fn reports_of(self: &Arc<Self>, token: ProgressToken) -> Reports {
        let (reports, receiver) = mpsc::channel(REPORTS);
        let (questions, question_receiver) = mpsc::channel(MAX_QUESTIONS);
        let listener = Listener { reports, questions };
        lock(&self.calls).insert(token.clone(), listener);
        Reports { subscriptions: self.clone(), token, receiver, question_receiver, is_answered: false }
    }

    pub fn report(&self, token: &ProgressToken, report: &ProgressNotificationParam) {
        if let Some(listener) = lock(&self.calls).get(token) {
            // A full channel drops the report, because the next one replaces it anyway.
            let report = Progress { progress: report.progress, total: report.total, message: report.message.clone() };
            let _ = listener.reports.try_send(report);
        }
    }

    /// Returns whether a question may belong to an abandoned call.
    pub fn has_abandoned_calls(&self) -> bool {
        self.has_abandoned_calls.load(Ordering::SeqCst)
    }

    /// Returns the only call under way. A question does not name its call: with two calls, or after an abandoned one, it could reach the
    /// wrong user.
    fn only_call(&self) -> Option<Listener> {
        let calls = lock(&self.calls);
        let mut calls = calls.values();
        calls.next().filter(|_| calls.next().is_none() && !self.has_abandoned_calls()).cloned()
    }

    /// Sends a question to the only call under way. Returns false if there is none, or several.
    async fn send_to_only_call(&self, request: ServerRequest) -> bool {
        drop(self.sending.write().await);
        self.only_call().is_some_and(|listener| listener.questions.try_send(request).is_ok())
    }

    async fn sample(&self, request: SamplingRequest) -> Result<SamplingAnswer, String> {
        let (answer, answered) = oneshot::channel();
        if !self.send_to_only_call(ServerRequest::Samples(Box::new(SamplingCall { request, answer }))).await {
            return Err("the sampling request matches several calls: only one call at a time may use sampling".to_owned());
        }
        answered.await.unwrap_or_else(|_| Err("the call has ended".to_owned()))
    }

    async fn ask(&self, text: String, elicitation: Elicitation) -> InputAnswer {
        let (answer, answered) = oneshot::channel();
        if !self.send_to_only_call(ServerRequest::Asks(Box::new(ElicitationRequest { text, elicitation, answer }))).await {
            tracing::warn!("MCP elicitation declined: several calls are under way, and the question does not name its call");
            return InputAnswer::new(DECLINE, None);
        }
        answered.await.unwrap_or_else(|_| InputAnswer::new(CANCEL, None))
    }

    /// Returns and resets whether the server has announced changed tools.
    pub fn take_tools_changed(&self) -> bool {
        self.tools_changed.swap(false, Ordering::SeqCst)
    }

    /// Causes a new list of tools at the next use.
    pub fn mark_tools_stale(&self) {
        self.tools_changed.store(true, Ordering::SeqCst);
    }
}

pub struct Reports {
    subscriptions: Arc<CallSubscriptions>,
    token: ProgressToken,
    receiver: mpsc::Receiver<Progress>,
    question_receiver: mpsc::Receiver<ServerRequest>,
    is_answered: bool,
}

impl Reports {
    /// Returns the next message. Never completes without one.
    pub async fn next(&mut self) -> Report {
        tokio::select! {
            biased;
            Some(request) = self.question_receiver.recv() => match request {
                ServerRequest::Asks(asks) => Report::Asks(asks),
                ServerRequest::Samples(samples) => Report::Samples(samples),
            },
            Some(report) = self.receiver.recv() => Report::Progress(report),
            else => std::future::pending().await,
        }
    }

    pub fn answered(&mut self) {
        self.is_answered = true;
    }
}

impl Drop for Reports {
    fn drop(&mut self) {
        lock(&self.subscriptions.calls).remove(&self.token);
        if !self.is_answered {
            self.subscriptions.has_abandoned_calls.store(true, Ordering::SeqCst);
        }
    }
}

/// Returns a question for the user, with the server's own secrets redacted; `None` if it must be declined.
pub fn checked_question(server: &str, redactor: &SecretRedactor, request: ElicitRequestParams) -> Option<(String, Elicitation)> {
    let (text, requested_schema, url) = match request {
        ElicitRequestParams::FormElicitationParams { message, requested_schema, .. } => {
            let schema = serde_json::to_value(requested_schema).ok().filter(|schema| form::check(schema).is_ok())?;
            (message, Some(tool_definitions::shown_form(schema, redactor)?), None)
        }
        ElicitRequestParams::UrlElicitationParams { message, url, .. } => (message, None, Some(checked_url(&url, redactor)?)),
        _ => return None,
    };
    let text = visible(&text);
    let fits = !text.trim().is_empty() && text.chars().count() <= MAX_TEXT;
    fits.then(|| (redactor.redact_text(text), Elicitation { server: server.to_owned(), requested_schema, url }))
}

/// Checks a URL for the user's browser: by https or on this machine, and without the server's own secrets. Returns the normalised URL,
/// because a browser may parse the original text differently.
fn checked_url(url: &str, redactor: &SecretRedactor) -> Option<String> {
    let parsed = reqwest::Url::parse(url).ok().filter(|parsed| parsed.as_str().len() <= MAX_URL && hidden_in(url).is_none())?;
    let is_here = matches!(parsed.host_str(), Some("localhost" | "127.0.0.1" | "[::1]"));
    let is_fine = parsed.scheme() == "https" || (parsed.scheme() == "http" && is_here);
    (is_fine
        && parsed.username().is_empty()
        && parsed.password().is_none()
        && !redactor.finds_secret(url)
        && !redactor.finds_secret(parsed.as_str()))
    .then(|| parsed.to_string())
}

pub fn result_of(answer: InputAnswer) -> ElicitResult {
    match (answer.choice.as_str(), answer.content) {
        (ACCEPT, Some(content)) => ElicitResult::new(ElicitationAction::Accept).with_content(content),
        (ACCEPT, None) => ElicitResult::new(ElicitationAction::Accept),
        (DECLINE, _) => ElicitResult::new(ElicitationAction::Decline),
        _ => ElicitResult::new(ElicitationAction::Cancel),
    }
}

#[derive(Clone)]
pub struct AllowedRequests {
    pub elicits: bool,
    pub samples: Option<SamplingRules>,
    /// The roots as URIs. Without any, the capability is not declared.
    pub roots: Arc<[String]>,
}

impl AllowedRequests {
    pub fn of(config: &ServerConfig) -> Self {
        Self { elicits: config.elicitation, samples: config.sampling, roots: Arc::clone(&config.roots) }
    }

    /// Returns the folders; `None` if there are none.
    #[expect(deprecated, reason = "servers still use them")]
    pub fn list_roots(&self) -> Option<rmcp::model::ListRootsResult> {
        let roots = self.roots.iter().map(rmcp::model::Root::new).collect();
        (!self.roots.is_empty()).then(|| rmcp::model::ListRootsResult::new(roots))
    }
}

#[derive(Clone)]
pub struct Handler {
    pub server: String,
    pub allowed: AllowedRequests,
    pub redactor: SecretRedactor,
    pub subscriptions: Arc<CallSubscriptions>,
}

impl ClientHandler for Handler {
    // `ControlledTransport` handles progress and changed tools: the library calls this handler in separate tasks, perhaps after a later answer.

    fn get_info(&self) -> ClientConfig {
        let mut capabilities = ClientCapabilities::default();
        capabilities.sampling = self.allowed.samples.map(|_| SamplingCapability::default());
        if !self.allowed.roots.is_empty() {
            // No `listChanged`: the roots stay the same during a connection.
            capabilities.roots = Some(RootsCapabilities::default());
        }
        capabilities.elicitation = self.allowed.elicits.then(|| {
            ElicitationCapability::new().with_form(FormElicitationCapability::new()).with_url(UrlElicitationCapability::new())
        });
        capabilities.extensions = Some(ExtensionCapabilities::from([(TASKS_EXTENSION_ID.to_owned(), JsonObject::new())]));
        ClientConfig::new(capabilities, Implementation::new("capstan", env!("CARGO_PKG_VERSION")))
    }

    async fn create_elicitation(
        &self,
        request: ElicitRequestParams,
        _context: RequestContext<RoleClient>,
    ) -> Result<ElicitResult, ErrorData> {
        let checked_question = checked_question(&self.server, &self.redactor, request).filter(|_| self.allowed.elicits);
        let Some((text, elicitation)) = checked_question else { return Ok(ElicitResult::new(ElicitationAction::Decline)) };
        Ok(result_of(self.subscriptions.ask(text, elicitation).await))
    }

    #[expect(deprecated, reason = "servers still use it")]
    async fn create_message(
        &self,
        params: rmcp::model::CreateMessageRequestParams,
        _context: RequestContext<RoleClient>,
    ) -> Result<rmcp::model::CreateMessageResult, ErrorData> {
        let rules = self.allowed.samples.ok_or_else(ErrorData::method_not_found::<CreateMessageRequestMethod>)?;
        let request =
            sampling::read_request(&self.redactor, rules, params).map_err(|reason| ErrorData::invalid_params(reason, None))?;
        sampling::result_from_answer(self.subscriptions.sample(request).await)
    }

    #[expect(deprecated, reason = "older servers may ask, and get an answer")]
    async fn list_roots(&self, _context: RequestContext<RoleClient>) -> Result<rmcp::model::ListRootsResult, ErrorData> {
        self.allowed.list_roots().ok_or_else(ErrorData::method_not_found::<ListRootsRequestMethod>)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn elicitation_of(params: Value) -> Option<(String, Elicitation)> {
        let mut redactor = SecretRedactor::default();
        redactor.add("API_TOKEN", "token-canary");
        checked_question("s", &redactor, serde_json::from_value(params).unwrap())
    }

    #[tokio::test]
    async fn question_waits_until_its_call_has_subscribed() {
        let subscriptions = Arc::new(CallSubscriptions::default());
        let sending = subscriptions.delay_questions().await;
        let elicitation = Elicitation { server: "s".to_owned(), requested_schema: None, url: None };
        let call = async {
            let token: ProgressToken = serde_json::from_value(json!(1)).unwrap();
            let mut reports = subscriptions.reports_of(token);
            drop(sending);
            let Report::Asks(asks) = reports.next().await else { panic!("not a question") };
            asks.answer.send(InputAnswer::new(ACCEPT, None)).unwrap();
            reports.answered();
        };
        let (answer, ()) = tokio::join!(subscriptions.ask("Which one?".to_owned(), elicitation), call);
        assert_eq!(answer.choice, ACCEPT);
    }

    fn form(field: Value) -> Option<(String, Elicitation)> {
        let schema = json!({"type": "object", "properties": {"x": field}});
        elicitation_of(json!({"mode": "form", "message": "Which\u{200b} one?", "requestedSchema": schema}))
    }

    #[test]
    fn a_form_is_shown_without_the_secrets_of_its_server() {
        let said = "Of \u{202e}token-canary";
        let (text, shown) = form(json!({"type": "string", "title": said, "description": said, "default": "token-canary"})).unwrap();
        let field = &shown.requested_schema.as_ref().unwrap()["properties"]["x"];
        assert_eq!((text.as_str(), &field["title"]), ("Which one?", &json!("Of [redacted]")), "{field}");
        assert_eq!((&field["description"], &field["default"]), (&json!("Of [redacted]"), &json!("[redacted:API_TOKEN]")));
        let (_, named) = form(json!({"type": "string", "enum": ["a"], "enumNames": ["token-canary"]})).unwrap();
        assert!(!json!(named).to_string().contains("canary"), "{named:?}");
        // Redaction would change these values, and an answer with a changed value would be a different answer.
        for exact in ["my token-canary", "a\u{200b}b"] {
            for field in [
                json!({"type": "string", "enum": ["a", exact]}),
                json!({"type": "string", "oneOf": [{"const": exact, "title": "A"}]}),
                json!({"type": "array", "items": {"type": "string", "enum": [exact]}}),
            ] {
                assert!(form(field.clone()).is_none(), "{field}");
            }
            let schema = json!({"type": "object", "properties": {exact: {"type": "boolean"}}});
            assert!(elicitation_of(json!({"mode": "form", "message": "m", "requestedSchema": schema})).is_none(), "{exact}");
        }
    }

    #[test]
    fn elicitation_url_with_a_secret_is_refused() {
        let url = |url: &str| {
            let (_, page) = elicitation_of(json!({"mode": "url", "message": "Sign in", "url": url, "elicitationId": "1"}))?;
            page.url
        };
        for secret in [
            "https://h/?t=token-canary",
            "https://token-canary.h/",
            "https://h/?t=dG9rZW4tY2FuYXJ5",
            "https://h/token-c\tanary",
            "https://h/a\u{200b}b",
        ] {
            assert_eq!(url(secret), None, "{secret}");
        }
        // The normalised URL, which a browser cannot read in another way.
        assert_eq!(url("https:\\\\H\\a b").as_deref(), Some("https://h/a%20b"));
    }
}
