//! A worker with scripted models and tools.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use capstan::documents::FileDeps;
use capstan::domain::access::principal::{Principal, UserRole};
use capstan::domain::agent::AgentProfile;
use capstan::domain::agent::prompt::ServerNote;
use capstan::domain::conversation::AgentChoice;
use capstan::domain::conversation::message::{Part, TextPart, ToolContent};
use capstan::domain::event::StoredEvent;
use capstan::domain::ids::{ConversationId, MessageId, NodeId, PartId, RunId, UserId};
use capstan::domain::model::{ModelError, ModelEvent, ModelFinish, ModelRequest};
use capstan::domain::run::call_handle::InputRequired;
use capstan::domain::run::question::Elicitation;
use capstan::domain::run::{OnBusy, Run, RunStatus};
use capstan::domain::tool::{ReplayClass, ToolCall, ToolCallState, ToolDefinition, ToolOutcome};
use capstan::domain::trace::TraceId;
use capstan::live::{Hub, HubLimits};
use capstan::provider::{ModelClient, ModelStream};
use capstan::service::{Service, ServiceDeps, ServiceLimits};
use capstan::store::{AcceptOutcome, AcceptRun, CancelRun, Explanation, IdempotentOutcome, ServiceStore, Store, StoreOptions};
use capstan::support::clock::{SystemClock, UnixMillis};
use capstan::support::ids::{SharedIds, UuidIds};
use capstan::tools::{CallControl, CallPermit, Report, ServerStatus, Toolbox};
use capstan::worker::{Worker, WorkerDeps, WorkerOptions};
use futures_util::StreamExt;
use futures_util::stream;
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use support::database::{Database, Kind};

#[derive(Clone)]
pub enum Answer {
    /// Text, then the end.
    Text(&'static str),
    /// Text, then one more word and the end after the notification.
    Held(&'static str, Arc<Notify>),
    /// Calls of tools with these names, then the end.
    Calls(Vec<&'static str>),
    /// Text, then silence.
    Hang(&'static str),
    /// An error.
    Fails(ModelError),
}

/// Gives its answers in order. Counts requests and open streams.
#[derive(Default)]
pub struct ScriptedModel {
    answers: Mutex<VecDeque<Answer>>,
    pub requests: Mutex<Vec<ModelRequest>>,
    open: Arc<AtomicUsize>,
}

struct OpenStream(Arc<AtomicUsize>);

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl ScriptedModel {
    pub fn then(&self, answer: Answer) {
        self.answers.lock().unwrap().push_back(answer);
    }

    pub fn open_streams(&self) -> usize {
        self.open.load(Ordering::SeqCst)
    }

    pub fn request_count(&self) -> usize {
        self.requests.lock().unwrap().len()
    }
}

#[async_trait]
impl ModelClient for ScriptedModel {
    async fn stream(&self, request: ModelRequest) -> Result<ModelStream, ModelError> {
        self.requests.lock().unwrap().push(request);
        let answer = self.answers.lock().unwrap().pop_front().unwrap_or(Answer::Text("nothing more"));
        let (events, hangs) = match answer {
            Answer::Fails(error) => return Err(error),
            Answer::Text(text) => (words(text, ModelFinish::Stop), false),
            Answer::Hang(text) => {
                (words(text, ModelFinish::Stop).into_iter().filter(|e| matches!(e, ModelEvent::Text(_))).collect(), true)
            }
            Answer::Held(text, gate) => {
                let end = stream::once(async move {
                    gate.notified().await;
                    Ok(ModelEvent::Text(" indeed".to_owned()))
                });
                let end = end.chain(stream::iter([Ok(ModelEvent::Finished(ModelFinish::Stop))]));
                let spoken = words(text, ModelFinish::Stop).into_iter().filter(|event| matches!(event, ModelEvent::Text(_)));
                return Ok(stream::iter(spoken.map(Ok)).chain(end).boxed());
            }
            Answer::Calls(names) => {
                let mut events = Vec::new();
                for (index, name) in names.into_iter().enumerate() {
                    let provider_call_id = format!("p{index}");
                    events.push(ModelEvent::ToolCallStarted { index, provider_call_id, name: name.to_owned() });
                    events.push(ModelEvent::ToolCallArguments { index, delta: format!("{{\"n\":{index}}}") });
                }
                events.push(ModelEvent::Finished(ModelFinish::ToolCalls));
                (events, false)
            }
        };
        self.open.fetch_add(1, Ordering::SeqCst);
        let guard = OpenStream(Arc::clone(&self.open));
        let spoken = stream::iter(events.into_iter().map(Ok));
        let tail = if hangs { stream::pending().boxed() } else { stream::empty().boxed() };
        Ok(spoken
            .chain(tail)
            .map(move |event| {
                let _open = &guard;
                event
            })
            .boxed())
    }
}

fn words(text: &str, finish: ModelFinish) -> Vec<ModelEvent> {
    let mut events: Vec<_> = text.split_inclusive(' ').map(|word| ModelEvent::Text(word.to_owned())).collect();
    events.push(ModelEvent::Finished(finish));
    events
}

/// The tools `quick` (read), `once` (unsafe), `never` (read), `bomb` (unsafe), `asks` (unsafe) and `gated` (unsafe). `never`,
/// `bomb` and `asks` end only by a cancel, and `asks` then asks its user something. `gated` ends when its gate opens.
#[derive(Default)]
pub struct ScriptedTools {
    pub executed: Mutex<Vec<String>>,
    /// Whether the servers never finish starting.
    pub never_start: AtomicBool,
    /// Ends one call of `gated`, or one wait of `notes`.
    pub gate: Notify,
    /// Whether the server notes wait for the gate.
    pub notes_wait: AtomicBool,
    /// How often the notes were requested.
    pub notes_asked: AtomicUsize,
}

#[async_trait]
impl Toolbox for ScriptedTools {
    async fn definitions(&self, _owner: &UserId) -> Vec<Arc<ToolDefinition>> {
        if self.never_start.load(Ordering::SeqCst) {
            std::future::pending::<()>().await;
        }
        let tool = |name: &str, replay| ToolDefinition {
            definition_hash: name.to_owned(),
            ..ToolDefinition::new(name, "", serde_json::json!({"type": "object"}), replay)
        };
        vec![
            tool("quick", ReplayClass::Read).into(),
            tool("once", ReplayClass::Unsafe).into(),
            tool("never", ReplayClass::Read).into(),
            tool("bomb", ReplayClass::Unsafe).into(),
            tool("asks", ReplayClass::Unsafe).into(),
            tool("late", ReplayClass::Unsafe).into(),
            tool("gated", ReplayClass::Unsafe).into(),
            tool("idle", ReplayClass::Idempotent).into(),
        ]
    }

    async fn execute(&self, _: &UserId, _: &ToolDefinition, call: &ToolCall, control: CallControl) -> ToolOutcome {
        let CallControl { progress, permit: CallPermit { token, .. }, .. } = control;
        self.executed.lock().unwrap().push(call.name.clone());
        let is_answered = call.handle.is_some();
        let state = if matches!(call.name.as_str(), "quick" | "once") || is_answered {
            ToolCallState::Done
        } else if call.name == "gated" {
            tokio::select! {
                () = self.gate.notified() => ToolCallState::Done,
                () = token.cancelled() => ToolCallState::Unknown,
            }
        } else {
            token.cancelled().await;
            if call.name == "asks" {
                let elicitation = Elicitation { server: "s".to_owned(), requested_schema: None, url: None };
                let asks = BTreeMap::from([("colour".to_owned(), ("Which colour?".to_owned(), elicitation))]);
                let _ = progress
                    .send(Report::Pauses(Box::new(InputRequired { state: None, given: BTreeMap::new(), asks, number: 1 })))
                    .await;
            }
            // These two had sent nothing when they were stopped.
            if matches!(call.name.as_str(), "late" | "idle") { ToolCallState::Cancelled } else { ToolCallState::Unknown }
        };
        let content = vec![ToolContent::text(format!("{} ran", call.name))];
        ToolOutcome { state, content, is_error: state != ToolCallState::Done, duration_ms: 1 }
    }

    async fn servers(&self, _owner: &UserId) -> Vec<ServerStatus> {
        Vec::new()
    }

    async fn notes(&self, _owner: &UserId) -> Vec<ServerNote> {
        self.notes_asked.fetch_add(1, Ordering::SeqCst);
        if self.notes_wait.load(Ordering::SeqCst) {
            self.gate.notified().await;
        }
        Vec::new()
    }

    async fn shutdown(&self) {}
}

pub struct Harness {
    pub store: Arc<dyn Store>,
    pub hub: Arc<Hub>,
    pub model: Arc<ScriptedModel>,
    pub tools: Arc<ScriptedTools>,
    pub ids: SharedIds,
    pub owner: UserId,
    pub database: Database,
    _dir: tempfile::TempDir,
}

pub fn options(ids: &SharedIds) -> WorkerOptions {
    let mut options = WorkerOptions::new(NodeId::generate(ids.as_ref()));
    options.poll = Duration::from_millis(50);
    options
}

/// Returns options with which an orphaned claim is released soon, and no sweep restarts its run.
pub fn without_sweep(ids: &SharedIds) -> WorkerOptions {
    WorkerOptions {
        lease: Duration::from_secs(6),
        renew: Duration::from_millis(200),
        self_stop: Duration::from_secs(4),
        sweep_interval: Duration::from_secs(3600),
        ..options(ids)
    }
}

impl Harness {
    pub async fn new() -> Self {
        Self::on(Kind::Sqlite).await
    }

    /// Starts a harness whose model gives these answers, one after the other.
    pub async fn with_answers<const N: usize>(answers: [Answer; N]) -> Self {
        let h = Self::new().await;
        for answer in answers {
            h.model.then(answer);
        }
        h
    }

    /// Starts a harness with a worker, and waits until a run is in the first of these answers. Returns the run with its conversation,
    /// too.
    pub async fn in_answer<const N: usize>(answers: [Answer; N]) -> (Self, Arc<Worker>, ConversationId, RunId) {
        let h = Self::with_answers(answers).await;
        let worker = h.worker().await;
        let (conversation, run) = h.say("go").await;
        h.until_event(&conversation, "part.delta").await;
        (h, worker, conversation, run)
    }

    /// Starts a harness on either store.
    pub async fn on(kind: Kind) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let database = Database::new(kind, dir.path()).await;
        let store = capstan::store::open(&database.url, &StoreOptions::default()).await.unwrap();
        let ids: SharedIds = Arc::new(UuidIds);
        let owner = UserId::generate(ids.as_ref());
        Self {
            store,
            hub: Hub::new(HubLimits::default()),
            model: Arc::new(ScriptedModel::default()),
            tools: Arc::new(ScriptedTools::default()),
            ids,
            owner,
            database,
            _dir: dir,
        }
    }

    pub fn deps(&self) -> WorkerDeps {
        WorkerDeps {
            store: self.store.clone(),
            hub: self.hub.clone(),
            models: self.model.clone(),
            tools: self.tools.clone(),
            clock: Arc::new(SystemClock),
            ids: self.ids.clone(),
            embeddings: None,
            context_providers: None,
            files: FileDeps::default(),
        }
    }

    pub async fn worker(&self) -> Arc<Worker> {
        Worker::start(self.deps(), options(&self.ids)).await.unwrap()
    }

    /// Returns a service of the same process, whose store may differ from the worker's.
    pub fn service(&self, store: Arc<dyn ServiceStore>) -> Service {
        Service::new(ServiceDeps {
            store,
            hub: self.hub.clone(),
            tools: self.tools.clone(),
            clock: Arc::new(SystemClock),
            ids: self.ids.clone(),
            default_profile: AgentProfile::default(),
            models: Arc::new(|_| true),
            limits: ServiceLimits::default(),
            configured_keys: std::collections::HashMap::new(),
            find_model: None,
            providers: None,
            mcp_servers: None,
            files: FileDeps::default(),
            settings: Vec::new(),
            commits: TaskTracker::new(),
        })
    }

    /// Returns the owner as a caller of the service.
    pub fn principal(&self) -> Principal {
        Principal { user_id: self.owner.clone(), role: UserRole::Member }
    }

    pub async fn say(&self, text: &str) -> (ConversationId, RunId) {
        let conversation = ConversationId::generate(self.ids.as_ref());
        let run = self.say_in(&conversation, text, OnBusy::Queue).await;
        (conversation, run)
    }

    /// Returns a message to accept.
    pub fn message(&self, conversation: &ConversationId, text: &str, on_busy: OnBusy) -> AcceptRun {
        AcceptRun {
            owner: self.owner.clone(),
            conversation_id: conversation.clone(),
            create_with_title: Some("test".to_owned()),
            run_id: RunId::generate(self.ids.as_ref()),
            message_id: MessageId::generate(self.ids.as_ref()),
            parts: vec![Part::Text(TextPart { id: PartId::generate(self.ids.as_ref()), text: text.to_owned() })],
            profile: AgentProfile {
                llm_retry: capstan::domain::agent::LlmRetry {
                    delays_ms: vec![30, 30],
                    max_retry_after_ms: 1000,
                    ..Default::default()
                },
                ..AgentProfile::default()
            },
            choice: AgentChoice::default(),
            on_busy,
            max_active_runs: 0,
            max_conversations: 0,
            max_files: 5,
            trace: TraceId::generate(self.ids.as_ref()),
            taker: None,
            transcript: None,
            now: UnixMillis(1_767_225_600_000),
        }
    }

    /// Accepts a message. Returns the run that it created or joined.
    pub async fn say_in(&self, conversation: &ConversationId, text: &str, on_busy: OnBusy) -> RunId {
        let accept = self.message(conversation, text, on_busy);
        let accepted = self.store.accept_run(accept, None).await.unwrap();
        self.hub.queue_signal().notify_one();
        self.tell(accepted)
    }

    fn tell(&self, accepted: IdempotentOutcome<AcceptOutcome>) -> RunId {
        match accepted {
            IdempotentOutcome::Fresh(AcceptOutcome::Run { run, interrupted, .. }) => {
                if !interrupted.is_empty() {
                    self.hub.notify_control();
                }
                run.id
            }
            IdempotentOutcome::Fresh(AcceptOutcome::Steered { run, .. }) => {
                self.hub.notify_control();
                run.id
            }
            other => panic!("not accepted: {other:?}"),
        }
    }

    /// Requests the cancellation of a run.
    pub async fn cancel(&self, id: &RunId) {
        let cancel = CancelRun { owner: &self.owner, id, by: "user", now: UnixMillis(0) };
        self.store.cancel_run(cancel, None).await.unwrap();
    }

    /// Cancels a run and waits for its end.
    pub async fn cancel_and_wait(&self, id: &RunId) {
        self.cancel(id).await;
        self.hub.notify_control();
        self.until(id, RunStatus::Cancelled).await;
    }

    pub async fn run(&self, id: &RunId) -> Run {
        self.store.run(&self.owner, id).await.unwrap().unwrap().run
    }

    pub async fn explain(&self, id: &RunId) -> Explanation {
        self.store.explain_run(&self.owner, id).await.unwrap().unwrap()
    }

    /// Waits until the conversation's log has an event of this kind.
    pub async fn until_event(&self, conversation: &ConversationId, kind: &str) {
        until(kind, async || self.kinds(conversation).await.iter().any(|found| found == kind).then_some(())).await;
    }

    pub async fn until(&self, id: &RunId, status: RunStatus) -> Run {
        until(&format!("run to be {status:?}"), async || {
            let run = self.run(id).await;
            (run.status == status).then_some(run)
        })
        .await
    }

    pub async fn events(&self, conversation: &ConversationId) -> Vec<StoredEvent> {
        self.store.events(&self.owner, conversation, 0, 1000).await.unwrap()
    }

    pub async fn kinds(&self, conversation: &ConversationId) -> Vec<String> {
        self.events(conversation).await.into_iter().map(|event| event.kind.into_owned()).collect()
    }
}

/// Polls until `look` returns a value, for at most 60 seconds.
pub async fn until<T>(what: &str, look: impl AsyncFn() -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(60);
    let mut tick = tokio::time::interval(Duration::from_millis(5));
    loop {
        tick.tick().await;
        if let Some(found) = look().await {
            return found;
        }
        assert!(Instant::now() < deadline, "timed out waiting for {what}");
    }
}
