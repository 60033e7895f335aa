//! A router over SQLite in a temporary folder. The tests write events in the role of the worker.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use axum::Router;
use axum::body::{Body, BodyDataStream, to_bytes};
use axum::http::{HeaderMap, Method, Request, StatusCode};
use capstan::domain::access::principal::{Principal, UserRole};
use capstan::domain::agent::AgentProfile;
use capstan::domain::conversation::message::{Message, Part, Role, TextPart};
use capstan::domain::event::{EventBody, NewEvent};
use capstan::domain::ids::{CallId, InputId, KeyId, MessageId, NodeId, PartId, ProviderId, UserId};
use capstan::domain::model::cost::Prices;
use capstan::domain::model::embeddings::Embeddings;
use capstan::domain::model::provider::{EgressScope, ModelEntry, ProviderKind};
use capstan::domain::model::{ModelError, ModelErrorKind, Usage};
use capstan::domain::run::change::{Change, ReleaseCause, StepKind, StepStatus};
use capstan::domain::run::question::{InputKind, InputRequest, Question};
use capstan::domain::run::record::{Fence, RunWrite};
use capstan::domain::run::{FinishReason, RunStatus, WaitReason};
use capstan::domain::tool::client_tool::ClientCall;
use capstan::domain::tool::{ReplayClass, ToolCall, ToolDefinition, ToolOutcome};
use capstan::http::{Auth, HttpLimits, HttpOptions, router};
use capstan::live::{Hub, HubLimits};
use capstan::service::{
    AnyProvider, ConfiguredProvider, Endpoints, InvalidProvider, ProviderDeps, Service, ServiceDeps, ServiceLimits, ShareRules,
    Target, follow_logs, new_key,
};
use capstan::store::{Store, StoreOptions, open};
use capstan::support::clock::{SystemClock, UnixMillis};
use capstan::support::encryption::{MasterKeys, Vault};
use capstan::support::ids::{IdSource, UuidIds};
use capstan::support::net::egress;
use capstan::support::random::CountingBytes;
use capstan::tools::{CallControl, ServerStatus, Toolbox};
use futures_util::StreamExt as _;
use secrecy::{ExposeSecret as _, SecretString};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::ServiceExt as _;

/// The time limit for immediate replies.
pub const SOON: Duration = Duration::from_secs(10);

/// The limit of keys of one user.
pub const MAX_KEYS: u32 = 5;

/// Every endpoint has two models that work and one that fails.
struct TwoModels;

#[async_trait]
impl Endpoints for TwoModels {
    fn default_base_url(&self, kind: ProviderKind) -> Option<&'static str> {
        (kind == ProviderKind::Openai).then_some("https://usual.example/v1")
    }

    fn check(&self, target: &Target<'_>) -> Result<(), InvalidProvider> {
        let unfit = |reason: String| InvalidProvider { pointer: "/base_url", reason };
        let url = reqwest::Url::parse(&target.record.base_url).map_err(|error| unfit(error.to_string()))?;
        egress::check(&url, target.egress).map_err(|error| unfit(error.to_string()))
    }

    async fn models(&self, target: &Target<'_>) -> Result<Vec<ModelEntry>, ModelError> {
        match target.key.as_ref().map(|key| key.expose_secret()) {
            Some("sk-refused-0123456789") => Err(ModelError::new(ModelErrorKind::Auth, "wrong key")),
            Some(_) | None => Ok(vec![ModelEntry { context: Some(8), ..ModelEntry::named("two") }, ModelEntry::named("one")]),
        }
    }

    async fn test(&self, _target: &Target<'_>, model: &str) -> Result<(), ModelError> {
        match model {
            "bad" => Err(ModelError::new(ModelErrorKind::Quota, "no money")),
            _ => Ok(()),
        }
    }

    async fn embedding_prices(&self, _owner: &UserId, _model: &str) -> Result<Option<Prices>, ModelError> {
        Ok(None)
    }

    /// Returns vectors of the length of each text, and of the dimensions.
    async fn embed(
        &self,
        _owner: &UserId,
        model: &str,
        texts: &[String],
        dimensions: Option<u32>,
    ) -> Result<Embeddings, ModelError> {
        match model {
            "mine/vectors" => {
                let dimensions = dimensions.map_or(0.5, |dimensions| dimensions as f32);
                let vectors = texts.iter().map(|text| vec![text.len() as f32, dimensions]).collect();
                Ok(Embeddings { vectors, input_tokens: texts.len() as u64 })
            }
            "mine/broken" => Err(ModelError::new(ModelErrorKind::Unavailable, "as scripted")),
            _ => Err(ModelError { request_not_sent: true, ..ModelError::new(ModelErrorKind::InvalidRequest, "unknown") }),
        }
    }

    fn configured(&self) -> &[ConfiguredProvider] {
        &[]
    }

    async fn models_of_configured(&self, _name: &str) -> Result<Vec<ModelEntry>, ModelError> {
        Ok(Vec::new())
    }

    async fn test_configured(&self, _name: &str, _model: &str) -> Result<(), ModelError> {
        Ok(())
    }

    fn catalog_entry(&self, model: &str) -> ModelEntry {
        match model {
            "one" => ModelEntry { context: Some(1), tools: Some(true), ..ModelEntry::named("one") },
            other => ModelEntry::named(other),
        }
    }

    fn limitations_key(&self, provider: &AnyProvider) -> String {
        provider.name().to_owned()
    }

    fn login_url(&self, callback: &str, challenge: &str) -> Result<String, String> {
        Ok(format!("https://openrouter.example/auth?callback_url={callback}&code_challenge={challenge}"))
    }

    fn login_api(&self) -> String {
        "https://openrouter.example/api/v1".to_owned()
    }

    async fn exchange(&self, _code: &str, _verifier: &SecretString) -> Result<SecretString, ModelError> {
        Ok("sk-or-canary-0123456789-wxyz".into())
    }

    fn forget_client(&self, _id: &ProviderId) {}
}

fn master_key_in(folder: &std::path::Path) -> MasterKeys {
    MasterKeys { file: Some(folder.join("secret.key")), ..MasterKeys::default() }
}

/// A toolbox with one tool, which is never executed.
struct OneTool;

#[async_trait]
impl Toolbox for OneTool {
    async fn definitions(&self, _: &UserId) -> Vec<Arc<ToolDefinition>> {
        let clock = ToolDefinition::new("clock", "Tells the time", json!({"type": "object"}), ReplayClass::Read);
        vec![Arc::new(ToolDefinition { definition_hash: "0".to_owned(), ..clock })]
    }

    async fn execute(&self, _: &UserId, _: &ToolDefinition, _: &ToolCall, _: CallControl) -> ToolOutcome {
        ToolOutcome::failed("not here", 0)
    }

    async fn servers(&self, _: &UserId) -> Vec<ServerStatus> {
        let id = capstan::domain::tool::mcp_server::configured_id("broken");
        vec![ServerStatus {
            status: "error".to_owned(),
            error: Some("it ended".to_owned()),
            stderr: Some("its own words".to_owned()),
            ..ServerStatus::unknown(id, "broken".to_owned(), None)
        }]
    }

    async fn shutdown(&self) {}
}

pub struct Rig {
    pub store: Arc<dyn Store>,
    pub hub: Arc<Hub>,
    pub shutdown: CancellationToken,
    pub app: Router,
    pub service: Arc<Service>,
    /// The only user of a server without keys.
    pub local: Principal,
    /// Sent with every request of [`Rig::send`] unless the request has its own.
    pub key: Option<String>,
    servers: JoinSet<()>,
    _folder: tempfile::TempDir,
}

impl Rig {
    /// Starts a server without keys.
    pub async fn new() -> Self {
        Self::with(HttpLimits::default(), |_| {}, Keys::None).await
    }

    /// Starts a server with keys and sets a new user's key.
    pub async fn with_keys() -> Self {
        Self::with(HttpLimits::default(), |_| {}, Keys::One).await
    }

    pub async fn with(limits: HttpLimits, change: impl FnOnce(&mut HttpOptions), keys: Keys) -> Self {
        Self::with_rules(limits, change, keys, ShareRules::default()).await
    }

    /// Starts a server with keys and these rules for shares.
    pub async fn with_shares(shares: ShareRules) -> Self {
        Self::with_rules(HttpLimits::default(), |_| {}, Keys::One, shares).await
    }

    async fn with_rules(limits: HttpLimits, change: impl FnOnce(&mut HttpOptions), keys: Keys, shares: ShareRules) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let url = format!("sqlite:{}", folder.path().join("test.db").display());
        let store = open(&url, &StoreOptions::default()).await.unwrap();
        let hub = Hub::new(HubLimits::default());
        let ids = Arc::new(UuidIds);
        let vault = Arc::new(Vault::new(master_key_in(folder.path()), Arc::new(CountingBytes::default())).unwrap());
        let providers =
            ProviderDeps { vault, endpoints: Arc::new(TwoModels), member_egress: EgressScope::Public, max_per_owner: 3 };
        let service = Arc::new(Service::new(ServiceDeps {
            store: store.clone(),
            hub: Arc::clone(&hub),
            tools: Arc::new(OneTool),
            clock: Arc::new(SystemClock),
            ids: ids.clone(),
            default_profile: AgentProfile::default(),
            models: Arc::new(|model| model == "demo/demo"),
            limits: ServiceLimits { max_active_runs: 100, max_keys: MAX_KEYS, shares, ..ServiceLimits::default() },
            configured_keys: std::collections::HashMap::new(),
            find_model: None,
            providers: Some(providers),
            mcp_servers: None,
            files: capstan::documents::FileDeps::default(),
            settings: Vec::new(),
            commits: TaskTracker::new(),
        }));
        let local = store.ensure_user(UserId::generate(ids.as_ref()), "local", UserRole::Admin, UnixMillis(0)).await.unwrap();
        let local = Principal { user_id: local.id, role: local.role };
        let auth = match keys {
            Keys::None => Auth::Open(local.clone()),
            Keys::One => Auth::Keys,
        };
        let mut options = HttpOptions { limits, ..HttpOptions::new(auth) };
        change(&mut options);
        let shutdown = options.shutdown.clone();
        let mut servers = JoinSet::new();
        servers.spawn(Arc::clone(&service).watch_keys(CancellationToken::new()));
        let app = router(Arc::clone(&service), options);
        let mut rig = Self { store, hub, shutdown, app, service, local, key: None, servers, _folder: folder };
        if keys == Keys::One {
            rig.key = Some(rig.user("ann").await);
        }
        rig
    }

    /// Creates a user and returns their key.
    pub async fn user(&self, name: &str) -> String {
        self.user_as(name, UserRole::Member).await
    }

    /// Creates a user with this role and returns their key.
    pub async fn user_as(&self, name: &str, role: UserRole) -> String {
        let user = self.store.ensure_user(UserId::generate(&UuidIds), name, role, UnixMillis(0)).await.unwrap();
        let key = new_key().unwrap();
        self.store.create_key(KeyId::generate(&UuidIds), &user.id, &key.hash, &key.label, UnixMillis(0)).await.unwrap();
        key.key
    }

    /// Revokes every key.
    pub async fn revoke_all(&self) {
        for key in self.store.keys().await.unwrap() {
            assert!(self.store.revoke_key(&key.id, UnixMillis(1)).await.unwrap());
        }
    }

    /// Returns a ticket that a page of this origin requested, or no page if the origin is empty.
    pub async fn ticket(&self, body: Value, origin: &str) -> String {
        let reply = self.send(Method::POST, "/api/v1/stream-tickets", &[("origin", origin)], Some(body)).await;
        assert_eq!(reply.status, StatusCode::CREATED, "{}", reply.body);
        text(&reply.json()["ticket"])
    }

    /// Starts to listen and returns `127.0.0.1:PORT`.
    pub async fn listen(&mut self) -> String {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let app = self.app.clone();
        self.servers.spawn(async move { axum::serve(listener, app).await.unwrap() });
        address
    }

    /// Polls the database for changes of other processes, as a server on Postgres does.
    pub fn poll(&mut self) {
        self.servers.spawn(follow_logs(self.store.clone(), Arc::clone(&self.hub), CancellationToken::new()));
    }

    /// Sends a request unchanged.
    pub async fn raw(&self, request: Request<Body>) -> axum::response::Response {
        self.app.clone().oneshot(request).await.unwrap()
    }

    /// Sends a request with headers and an optional JSON body.
    pub async fn send(&self, method: Method, path: &str, headers: &[(&str, &str)], body: Option<Value>) -> Reply {
        let reply = self.exchange(method, path, headers, body).await;
        reply.check();
        reply
    }

    /// Sends a request of another protocol, whose errors have another form.
    pub async fn exchange(&self, method: Method, path: &str, headers: &[(&str, &str)], body: Option<Value>) -> Reply {
        self.begin(method, path, headers, body).await.rest().await
    }

    /// Sends a request of another protocol. Its answer has begun, and may go on.
    pub async fn begin(&self, method: Method, path: &str, headers: &[(&str, &str)], body: Option<Value>) -> BegunReply {
        BegunReply(self.raw(self.build(method, path, headers, body)).await)
    }

    fn build(&self, method: Method, path: &str, headers: &[(&str, &str)], body: Option<Value>) -> Request<Body> {
        let mut request = Request::builder().method(method).uri(path).header("host", "localhost");
        if let Some(key) = self.key.as_ref().filter(|_| !headers.iter().any(|(name, _)| *name == "authorization")) {
            request = request.header("authorization", format!("Bearer {key}"));
        }
        for (name, value) in headers.iter().filter(|(_, value)| !value.is_empty()) {
            request = request.header(*name, *value);
        }
        match body {
            Some(body) => request.header("content-type", "application/json").body(body.to_string().into()).unwrap(),
            None => request.body(Body::empty()).unwrap(),
        }
    }

    pub async fn get(&self, path: &str) -> Reply {
        self.send(Method::GET, path, &[], None).await
    }

    pub async fn post(&self, path: &str, body: Value) -> Reply {
        self.send(Method::POST, path, &[], Some(body)).await
    }

    pub async fn stream(&self, path: &str, headers: &[(&str, &str)]) -> Sse {
        let mut headers = headers.to_vec();
        headers.push(("accept", "text/event-stream"));
        Sse::new(self.raw(self.build(Method::GET, path, &headers, None)).await)
    }

    /// Posts and reads the answer as an event stream.
    pub async fn post_stream(&self, path: &str, headers: &[(&str, &str)], body: Value) -> Sse {
        let mut headers = headers.to_vec();
        headers.push(("accept", "text/event-stream"));
        Sse::new(self.raw(self.build(Method::POST, path, &headers, Some(body))).await)
    }

    /// Starts a run over HTTP. Returns its conversation and its id.
    pub async fn start(&self, input: &str) -> (String, String) {
        let reply = self.post("/api/v1/runs", json!({ "input": input })).await;
        assert_eq!(reply.status, StatusCode::ACCEPTED, "{}", reply.body);
        let run = reply.json()["run"].clone();
        (text(&run["conversation_id"]), text(&run["id"]))
    }

    /// Starts a server with one run, which has ended. Returns the server, the run's conversation and its id.
    pub async fn with_played_run(input: &str) -> (Self, String, String) {
        let rig = Self::new().await;
        let (conversation, run) = rig.start(input).await;
        rig.play().await;
        (rig, conversation, run)
    }

    /// Starts a server with one run, which is in the middle of its answer. Returns the server, the run's conversation and id, its
    /// fence, and the ids of the answer.
    pub async fn with_half_played_run(input: &str) -> (Self, String, String, Fence, Act) {
        let rig = Self::new().await;
        let (conversation, run) = rig.start(input).await;
        let fence = rig.claim().await;
        let act = rig.play_half(&fence).await;
        (rig, conversation, run, fence, act)
    }

    /// Claims the next run as a worker does.
    pub async fn claim(&self) -> Fence {
        let claims = self.store.claim_runs(&NodeId::generate(&UuidIds), 1, 10_000).await.unwrap();
        claims.into_iter().next().expect("there is a run to claim").fence
    }

    /// Commits and publishes as a worker does.
    pub async fn write(&self, fence: &Fence, events: &[EventBody], changes: Vec<Change>) {
        let events = events.iter().map(|body| NewEvent::new(body, Some(fence.run_id.clone()), 1, UnixMillis(1_000))).collect();
        let write = RunWrite { fence: fence.clone(), events, changes, after: 0 };
        let owner = self.store.load_run(fence).await.unwrap().expect("the fence holds").owner;
        let first = self.store.commit(&[write]).await.unwrap().remove(0).expect("the fence holds");
        let conversation = &fence.conversation_id;
        let events = self.store.events(&owner, conversation, first.first_seq - 1, 1_000).await.unwrap();
        self.hub.publish(conversation, &events.into_iter().map(Arc::new).collect::<Vec<_>>());
    }

    /// Releases a waiting run as a worker does. `after_ms` is its timer, if it has one.
    pub async fn waits(&self, fence: &Fence, reason: WaitReason, after_ms: Option<u64>) {
        let changes =
            vec![Change::SetStatus(RunStatus::Waiting, Some(reason)), Change::Release { after_ms, cause: ReleaseCause::Waiting }];
        self.write(fence, &[EventBody::RunWaiting { reason, id: None, detail: None }], changes).await;
    }

    /// Requests a call from the client of a run, and releases the run as a worker does. Returns the id of the call.
    pub async fn asks_client(&self, fence: &Fence) -> String {
        let call_id = CallId::generate(&UuidIds);
        let of = (fence.run_id.clone(), fence.conversation_id.clone());
        let asked = InputRequest::about(&call_id, InputId::generate(&UuidIds), of, InputKind::ClientTool, Question::default(), 0);
        let call = ClientCall { call_id: call_id.clone(), name: "look".to_owned(), arguments: json!({}), expires_at: None };
        self.write(fence, &[EventBody::ToolRequested { call }], vec![Change::RequestInput(asked)]).await;
        self.waits(fence, WaitReason::ClientTool, None).await;
        call_id.to_string()
    }

    /// Writes the events of a run up to the middle of its answer.
    pub async fn play_half(&self, fence: &Fence) -> Act {
        let act = Act { message: MessageId::generate(&UuidIds), part: PartId::generate(&UuidIds) };
        let Act { message, part } = act.clone();
        let started =
            EventBody::RunStarted { model: "demo/demo".into(), agent: "default".into(), agent_version: 1, left_out: Vec::new() };
        self.write(fence, &[started], vec![Change::SetStatus(RunStatus::Processing, None), Change::Start]).await;
        let step = vec![Change::StartStep { step: 1, kind: StepKind::Model, request: None }];
        self.write(fence, &[EventBody::StepStarted { step: 1, kind: "model".into(), tools: None }], step).await;
        let message_started = EventBody::MessageStarted { message_id: message.clone(), role: Role::Assistant };
        let (kind, part_id) = ("text".to_owned(), part.clone());
        let part_started = EventBody::PartStarted { message_id: message, part_id, index: 0, kind, call_id: None, name: None };
        self.write(fence, &[message_started, part_started], Vec::new()).await;
        for delta in ["Hel", "lo\n", "world"] {
            self.write(fence, &[EventBody::PartDelta { part_id: part.clone(), delta: delta.into() }], Vec::new()).await;
        }
        act
    }

    /// Writes the remaining events.
    pub async fn play_rest(&self, fence: &Fence, act: Act) {
        let Act { message, part } = act;
        let part = Part::Text(TextPart { id: part, text: "Hello\nworld".into() });
        let whole = Message {
            finish_reason: Some(FinishReason::Stop),
            model: Some("demo/demo".into()),
            created_at: UnixMillis(1_000).to_rfc3339(),
            ..Message::new(
                message.clone(),
                (fence.run_id.clone(), fence.conversation_id.clone()),
                Role::Assistant,
                vec![part.clone()],
            )
        };
        let events = [
            EventBody::PartCompleted { message_id: message, part },
            EventBody::MessageCompleted { message: whole.clone() },
            EventBody::StepCompleted { step: 1, usage: None },
        ];
        let ended = Change::EndStep { step: 1, status: StepStatus::Completed, usage: None };
        self.write(fence, &events, vec![Change::AddMessage(whole), ended]).await;
        let completed = EventBody::RunCompleted {
            finish_reason: FinishReason::Stop,
            usage: Usage::default(),
            output: None,
            error: None,
            notice: None,
        };
        let finish =
            Change::Finish { status: RunStatus::Completed, finish_reason: Some(FinishReason::Stop), error: None, joined: None };
        self.write(fence, &[completed], vec![finish]).await;
    }

    /// Waits for a run, and claims it.
    pub async fn claim_next(&self) -> Fence {
        let claim = support::wait::until("a run to claim", SOON, || async {
            let claims = self.store.claim_runs(&NodeId::generate(&UuidIds), 1, 10_000).await.unwrap();
            claims.into_iter().next().map(|claim| claim.fence)
        });
        claim.await
    }

    /// Waits for a run, and plays it.
    pub async fn play_next(&self) {
        let fence = self.claim_next().await;
        let act = self.play_half(&fence).await;
        self.play_rest(&fence, act).await;
    }

    /// Claims the next run and writes all its events.
    pub async fn play(&self) {
        let fence = self.claim().await;
        let act = self.play_half(&fence).await;
        self.play_rest(&fence, act).await;
    }
}

/// The ids of a played answer.
#[derive(Clone)]
pub struct Act {
    message: MessageId,
    part: PartId,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keys {
    None,
    One,
}

pub fn text(value: &Value) -> String {
    value.as_str().unwrap_or_else(|| panic!("{value} is no text")).to_owned()
}

pub fn new_conversation_id() -> String {
    format!("conv_{}", UuidIds.next())
}

/// An answer whose body may go on.
pub struct BegunReply(axum::response::Response);

impl BegunReply {
    /// Reads the answer to its end.
    pub async fn rest(self) -> Reply {
        let (parts, body) = self.0.into_parts();
        let body = tokio::time::timeout(SOON, to_bytes(body, usize::MAX)).await.expect("the answer ends").unwrap();
        Reply { status: parts.status, headers: parts.headers, body: String::from_utf8(body.into()).unwrap() }
    }
}

pub struct Reply {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: String,
}

impl Reply {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }

    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }

    pub fn code(&self) -> String {
        text(&self.json()["code"])
    }

    /// Asserts the rules for every answer.
    fn check(&self) {
        assert!(!self.header("x-request-id").is_empty());
        if self.status.as_u16() < 400 {
            return;
        }
        assert_eq!(self.header("content-type"), "application/problem+json", "{}", self.body);
        let problem = self.json();
        assert_eq!(problem["status"], self.status.as_u16());
        assert_eq!(problem["request_id"], self.header("x-request-id"));
        for field in ["type", "title", "detail", "code"] {
            assert!(problem[field].as_str().is_some_and(|text| !text.is_empty()), "{field} in {problem}");
        }
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct Frame {
    pub id: Option<i64>,
    pub data: String,
}

impl Frame {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.data).unwrap()
    }

    pub fn kind(&self) -> String {
        text(&self.json()["type"])
    }
}

/// An open event stream.
pub struct Sse {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub comments: Vec<String>,
    pub retry: Vec<u64>,
    body: BodyDataStream,
    buffer: String,
}

impl Sse {
    fn new(response: axum::response::Response) -> Self {
        let (parts, body) = response.into_parts();
        let body = body.into_data_stream();
        Self { status: parts.status, headers: parts.headers, comments: Vec::new(), retry: Vec::new(), body, buffer: String::new() }
    }

    /// Returns the next frame with data, or `None` at the end.
    pub async fn next(&mut self) -> Option<Frame> {
        loop {
            if let Some((block, rest)) = self.buffer.split_once("\n\n") {
                let (block, rest) = (block.to_owned(), rest.to_owned());
                self.buffer = rest;
                if let Some(frame) = self.block(&block) {
                    return Some(frame);
                }
                continue;
            }
            let chunk = tokio::time::timeout(SOON, self.body.next()).await.expect("something comes");
            match chunk {
                Some(chunk) => self.buffer.push_str(std::str::from_utf8(&chunk.unwrap()).unwrap()),
                None => return None,
            }
        }
    }

    /// Returns the next event of the log: on a slow machine, pings come between large events.
    pub async fn next_event(&mut self) -> Option<Frame> {
        loop {
            let frame = self.next().await?;
            if frame.id.is_some() {
                return Some(frame);
            }
        }
    }

    fn block(&mut self, block: &str) -> Option<Frame> {
        let mut id = None;
        let mut data = None;
        for line in block.lines() {
            let (field, value) = line.split_once(':').unwrap();
            let value = value.strip_prefix(' ').unwrap_or(value);
            match field {
                "" => self.comments.push(value.to_owned()),
                "id" => id = Some(value.parse().unwrap()),
                "retry" => self.retry.push(value.parse().unwrap()),
                "data" => assert!(data.replace(value.to_owned()).is_none(), "one line of data in each frame"),
                other => panic!("field {other}"),
            }
        }
        data.map(|data| Frame { id, data })
    }

    /// Returns all frames to the end.
    pub async fn rest(mut self) -> Vec<Frame> {
        let mut frames = Vec::new();
        while let Some(frame) = self.next().await {
            frames.push(frame);
        }
        frames
    }

    /// Reads to the end, and returns whether the body was cut instead of completed.
    pub async fn is_cut(&mut self) -> bool {
        loop {
            match tokio::time::timeout(SOON, self.body.next()).await.expect("the stream ends") {
                Some(Ok(_)) => {}
                Some(Err(_)) => return true,
                None => return false,
            }
        }
    }

    /// Returns the frames up to the first of this kind, inclusive.
    pub async fn until(&mut self, kind: &str) -> Vec<Frame> {
        let mut frames = Vec::new();
        loop {
            frames.push(self.next().await.unwrap_or_else(|| panic!("the stream ended before {kind}: {frames:?}")));
            if frames.last().unwrap().kind() == kind {
                return frames;
            }
        }
    }
}
