//! Two runs, played repeatedly: with every action executed twice, and with the first, second, third database call failing. A
//! test ends when a play finishes before its failing call.
//!
//! One run never waits. The other one has each kind of wait.

use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use capstan::domain::agent::TitlePolicy;
use capstan::domain::conversation::file::{FileOrigin, FilePurpose};
use capstan::domain::conversation::message::{FilePart, Part, Role, ToolContent};
use capstan::domain::ids::{CallId, ConversationId, FileId, PartId, RunId, UserId};
use capstan::domain::model::{ModelError, ModelErrorKind, ModelEvent, ModelFinish, ModelRequest};
use capstan::domain::run::budget::Allowance;
use capstan::domain::run::question::{ACCEPT, Elicitation, InputAnswer, InputState};
use capstan::domain::run::{OnBusy, Run, RunStatus};
use capstan::domain::tool::approval::{ApprovalAnswer, ApprovalMode, Decision, ToolSafety};
use capstan::domain::tool::tool_review::Original;
use capstan::domain::tool::{ReplayClass, ToolCall, ToolCallState, ToolDefinition, ToolOutcome};
use capstan::provider::{ModelClient, ModelStream};
use capstan::service::Service;
use capstan::store::{AcceptRun, NewFile, PageRequest};
use capstan::tools::{CallControl, ElicitationRequest, ProgressSender, Report, ServerStatus, Toolbox};
use capstan::worker::{Worker, WorkerDeps, WorkerOptions};
use futures_util::future::join_all;
use futures_util::stream::{self, StreamExt as _};
use rstest::rstest;
use tokio::sync::oneshot;

use super::faulty::{Fate, FaultyStore, away};
use super::harness::{Harness, ScriptedTools, options};
use support::audit;
use support::database::Kind;
use support::wait;

/// The time limit of each wait.
const SOON: Duration = Duration::from_secs(20);

/// Plays at a time.
const LANES: usize = 2;

const TITLE: &str = "All that one waits for";

/// The run that is played.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Story {
    /// Two rounds of tools, then text.
    Rounds,
    /// A message with an image, to an agent with a daily budget. The model answers 503 once. Of four calls, one is keyed, one
    /// belongs to an untrusted server, one asks its user something, and one needs an approval. Last, the conversation gets a
    /// title.
    Waits,
}

impl Story {
    /// Returns the model's calls after `round` answers.
    fn calls(self, round: usize) -> &'static [&'static str] {
        match (self, round) {
            (Self::Rounds, 0) => &["quick", "once", "quick"],
            (Self::Rounds, 1) => &["once"],
            (Self::Waits, 0) => &["pay", "sighted", "curious", "risky"],
            (Self::Rounds | Self::Waits, _) => &[],
        }
    }

    /// Returns how often each tool that must not run twice is called.
    fn unsafe_calls(self) -> &'static [(&'static str, usize)] {
        match self {
            Self::Rounds => &[("once", 2)],
            Self::Waits => &[("curious", 1), ("risky", 1)],
        }
    }

    /// Returns how often the run is claimed without a failure: first, after its approval, and for its retry. An answer that
    /// arrives while calls are under way adds a claim.
    fn attempts(self) -> RangeInclusive<u32> {
        match self {
            Self::Rounds => 1..=1,
            Self::Waits => 3..=4,
        }
    }

    /// Returns whether a database call is one of those that fail in turn. Periodic calls of a worker fail only in the shorter
    /// run, because the longer one would repeat many of them.
    fn counts(self, call: &str) -> bool {
        let comes_by_time = matches!(
            call,
            "sweep_expired_leases" | "renew_leases" | "control_signals" | "next_claimable_in" | "expire_foreign_leases"
        );
        self == Self::Rounds || !comes_by_time
    }

    /// Returns the least number of calls in a complete play.
    fn least_calls(self) -> usize {
        match self {
            Self::Rounds => 8,
            Self::Waits => 25,
        }
    }
}

/// A model that answers by the round: tools, then text. A repeated request gets the same answer.
struct ByRound {
    story: Story,
    /// Whether the model has answered 503.
    has_refused: AtomicBool,
}

#[async_trait]
impl ModelClient for ByRound {
    async fn stream(&self, request: ModelRequest) -> Result<ModelStream, ModelError> {
        let round = request.messages.iter().filter(|message| message.role == Role::Assistant).count();
        let mut events = match self.story {
            // Only a title request offers no tools.
            Story::Waits if request.tools.is_empty() => vec![ModelEvent::Text(TITLE.to_owned())],
            Story::Waits if round == 1 && !self.has_refused.swap(true, Ordering::SeqCst) => {
                let refused = ModelError::new(ModelErrorKind::Overloaded, "later");
                return Err(ModelError { status: Some(503), ..refused });
            }
            Story::Rounds | Story::Waits => vec![ModelEvent::Text("let us ".to_owned()), ModelEvent::Text("see".to_owned())],
        };
        let names: &[&str] = if request.tools.is_empty() { &[] } else { self.story.calls(round) };
        for (index, name) in names.iter().enumerate() {
            let provider_call_id = format!("r{round}c{index}");
            events.push(ModelEvent::ToolCallStarted { index, provider_call_id, name: (*name).to_owned() });
            events.push(ModelEvent::ToolCallArguments { index, delta: format!("{{\"n\":{index}}}") });
        }
        let finish = if names.is_empty() { ModelFinish::Stop } else { ModelFinish::ToolCalls };
        events.push(ModelEvent::Finished(finish));
        Ok(stream::iter(events.into_iter().map(Ok)).boxed())
    }
}

/// Sends each request twice and drops the first answer in the middle.
struct AskedTwice(Arc<dyn ModelClient>);

#[async_trait]
impl ModelClient for AskedTwice {
    async fn stream(&self, request: ModelRequest) -> Result<ModelStream, ModelError> {
        let mut first = self.0.stream(request.clone()).await?;
        first.next().await;
        drop(first);
        self.0.stream(request).await
    }
}

/// The tools of the harness and four more. `pay` is keyed, and `sighted` is a `read` tool of an untrusted server. `risky` is
/// unsafe. `curious` is unsafe and asks its user something before it acts, with or without an answer.
struct Shop {
    scripted: Arc<ScriptedTools>,
    /// The keys that `pay` received.
    keys: Mutex<Vec<CallId>>,
}

#[async_trait]
impl Toolbox for Shop {
    async fn definitions(&self, owner: &UserId) -> Vec<Arc<ToolDefinition>> {
        let mut tools = self.scripted.definitions(owner).await;
        let like = tools[0].clone();
        let tool = |name: &str, replay| ToolDefinition {
            name: name.to_owned(),
            tool: name.to_owned(),
            definition_hash: name.to_owned(),
            replay,
            ..ToolDefinition::clone(&like)
        };
        let schema = Arc::new(serde_json::Map::new());
        let original = Original { owner: None, description: String::new(), schema, hints: serde_json::Value::Null };
        let sighted = ToolDefinition {
            server: Some("elsewhere".to_owned()),
            safety: ToolSafety { untrusted: true, ..ToolSafety::default() },
            original: Some(Arc::new(original)),
            ..tool("sighted", ReplayClass::Read)
        };
        let keyed = ReplayClass::Keyed { argument: "key".to_owned() };
        let more = [tool("pay", keyed), sighted, tool("curious", ReplayClass::Unsafe), tool("risky", ReplayClass::Unsafe)];
        tools.extend(more.map(Arc::new));
        tools
    }

    async fn execute(&self, owner: &UserId, definition: &ToolDefinition, call: &ToolCall, control: CallControl) -> ToolOutcome {
        match call.name.as_str() {
            "pay" => self.keys.lock().unwrap().push(call.key().clone()),
            "curious" => ask(&control.progress).await,
            "sighted" | "risky" => {}
            _ => return self.scripted.execute(owner, definition, call, control).await,
        }
        self.scripted.executed.lock().unwrap().push(call.name.clone());
        let content = vec![ToolContent::text(format!("{} ran", call.name))];
        ToolOutcome { state: ToolCallState::Done, content, is_error: false, duration_ms: 1 }
    }

    async fn servers(&self, owner: &UserId) -> Vec<ServerStatus> {
        self.scripted.servers(owner).await
    }

    async fn shutdown(&self) {
        self.scripted.shutdown().await;
    }
}

/// Asks the user, and waits until the question is answered or closed.
async fn ask(progress: &ProgressSender) {
    let (answer, given) = oneshot::channel::<InputAnswer>();
    let elicitation = Elicitation { server: "s".to_owned(), requested_schema: None, url: None };
    let asks = ElicitationRequest { text: "Really?".to_owned(), elicitation, answer };
    if progress.send(Report::Asks(Box::new(asks))).await.is_ok() {
        let _ = given.await;
    }
}

/// Lists its tools twice, and executes repeatable calls twice.
struct RunTwice(Arc<dyn Toolbox>);

#[async_trait]
impl Toolbox for RunTwice {
    async fn definitions(&self, owner: &UserId) -> Vec<Arc<ToolDefinition>> {
        self.0.definitions(owner).await;
        self.0.definitions(owner).await
    }

    async fn execute(&self, owner: &UserId, definition: &ToolDefinition, call: &ToolCall, control: CallControl) -> ToolOutcome {
        if definition.replay.may_repeat() {
            self.0.execute(owner, definition, call, control.clone()).await;
        }
        self.0.execute(owner, definition, call, control).await
    }

    async fn servers(&self, owner: &UserId) -> Vec<ServerStatus> {
        self.0.servers(owner).await
    }

    async fn shutdown(&self) {
        self.0.shutdown().await;
    }
}

/// Returns options with which orphaned claims are found soon.
fn hasty(h: &Harness) -> WorkerOptions {
    WorkerOptions {
        lease: Duration::from_millis(600),
        renew: Duration::from_millis(150),
        sweep_interval: Duration::from_millis(100),
        self_stop: Duration::from_millis(450),
        ..options(&h.ids)
    }
}

/// Returns the same intervals with leases that outlast any stall of a busy machine, for plays without a failure.
fn patient(h: &Harness) -> WorkerOptions {
    WorkerOptions { lease: Duration::from_secs(60), self_stop: Duration::from_secs(45), ..hasty(h) }
}

/// A play with its model and tools.
struct Play<'h> {
    h: &'h Harness,
    story: Story,
    model: Arc<dyn ModelClient>,
    shop: Arc<Shop>,
}

impl<'h> Play<'h> {
    fn new(h: &'h Harness, story: Story) -> Self {
        h.tools.executed.lock().unwrap().clear();
        let model = Arc::new(ByRound { story, has_refused: AtomicBool::new(false) });
        let shop = Arc::new(Shop { scripted: h.tools.clone(), keys: Mutex::default() });
        Self { h, story, model, shop }
    }

    fn tools(&self) -> Arc<dyn Toolbox> {
        match self.story {
            Story::Rounds => self.h.tools.clone(),
            Story::Waits => self.shop.clone(),
        }
    }

    fn deps(&self, store: Arc<FaultyStore>) -> WorkerDeps {
        WorkerDeps { store, models: self.model.clone(), tools: self.tools(), ..self.h.deps() }
    }

    /// Returns how often a tool was called.
    fn executed(&self, tool: &str) -> usize {
        self.h.tools.executed.lock().unwrap().iter().filter(|name| *name == tool).count()
    }

    /// Accepts the first message.
    async fn say(&self) -> RunId {
        let h = self.h;
        if self.story == Story::Rounds {
            return h.say("go").await.1;
        }
        let picture = NewFile {
            id: FileId::generate(h.ids.as_ref()),
            owner: h.owner.clone(),
            origin: FileOrigin::Upload,
            purpose: FilePurpose::default(),
            name: "a.png".to_owned(),
            media_type: "image/png".to_owned(),
            size: 5,
            sha256: "abc".to_owned(),
            text: None,
        };
        assert!(h.store.begin_file(&picture, 1_000).await.unwrap());
        h.store.add_file_chunk(&picture.id, 0, b"image").await.unwrap();
        h.store.finish_file(&h.owner, &picture.id).await.unwrap().unwrap();
        let id = ConversationId::generate(h.ids.as_ref());
        let mut accept = AcceptRun { create_with_title: Some(String::new()), ..h.message(&id, "go", OnBusy::Queue) };
        let part = FilePart::of(PartId::generate(h.ids.as_ref()), "image/png");
        accept.parts.push(Part::Image(FilePart { file_id: Some(picture.id.as_str().to_owned()), ..part }));
        accept.profile.title = TitlePolicy::Model;
        accept.profile.budget.day = Allowance { tokens: Some(1 << 40), usd: None };
        accept.profile.approval.tools.insert("risky".to_owned(), ApprovalMode::Ask);
        let run = accept.run_id.clone();
        h.store.accept_run(accept, None).await.unwrap();
        h.hub.queue_signal().notify_one();
        run
    }

    /// Acts as the user: allows the call that the run waits for, and answers the server's question.
    async fn answer(&self, service: &Service, run: &Run) {
        let (principal, pending) = (self.h.principal(), Some(InputState::Pending));
        let page = PageRequest { limit: 10, after: None };
        for asked in service.input_requests(&principal, pending, None, &page).await.unwrap().items {
            // A worker that loads the run again closes the question, possibly at this moment.
            let _ = service.resolve_input(&principal, &asked.request.id, InputAnswer::new(ACCEPT, None), None).await;
        }
        if run.status != RunStatus::Waiting {
            return;
        }
        for asked in service.approvals(&principal, pending, None, &page).await.unwrap().items {
            let allow =
                ApprovalAnswer { decision: Decision::Allow, scope: None, arguments: None, reason: None, arguments_hash: None };
            service.resolve_approval(&principal, &asked.id, allow, None).await.unwrap();
        }
    }

    /// Plays the run once, with these options for each worker. The store decides which calls fail, and `has_failed` tells
    /// whether any did.
    async fn play(&self, deps: WorkerDeps, numbers: impl Fn() -> WorkerOptions, what: &str, has_failed: impl Fn() -> bool) -> Run {
        let h = self.h;
        let run = self.say().await;
        // A process without its database exits at start, and is started again.
        let starting = async || Worker::start(deps.clone(), numbers()).await.ok();
        let worker = wait::until("a worker", SOON, starting).await;
        let service = h.service(h.store.clone());
        let ended = wait::until(&format!("the end of the run, {what}"), SOON, async || {
            let run = h.run(&run).await;
            if self.story == Story::Waits {
                self.answer(&service, &run).await;
            }
            run.status.is_terminal().then_some(run)
        })
        .await;
        if self.story == Story::Waits {
            // A title is made beside the run, and is dropped after any failure.
            wait::until(&format!("the title, {what}"), SOON, async || {
                let title = h.store.conversation(&h.owner, &ended.conversation_id).await.unwrap().unwrap().title;
                (title == TITLE || has_failed()).then_some(())
            })
            .await;
        }
        worker.drain(Duration::from_secs(1)).await;
        assert_eq!(ended.status, RunStatus::Completed, "{what}: {ended:?}");
        self.check(&ended, what).await;
        ended
    }

    /// Asserts what holds after any failure.
    async fn check(&self, run: &Run, what: &str) {
        let database = &self.h.database;
        let done = async |tool: &str| {
            let of_run = format!("run_id = '{}' AND name = '{tool}' AND state = 'done'", run.id);
            database.rows(&format!("SELECT id FROM tool_calls WHERE {of_run}")).await
        };
        for &(tool, calls) in self.story.unsafe_calls() {
            let (done, executed) = (done(tool).await.len(), self.executed(tool));
            assert!(
                done <= executed && executed <= calls,
                "{what}: {executed} of {calls} calls of {tool} ran, and {done} are done"
            );
        }
        if self.story == Story::Waits {
            let paid = done("pay").await;
            let keys = self.shop.keys.lock().unwrap().clone();
            assert!(
                paid.len() == 1 && !keys.is_empty() && keys.iter().all(|key| paid[0][0].as_deref() == Some(key.as_str())),
                "{what}: {paid:?} must run, with the same key each time: {keys:?}"
            );
            let held = "SELECT CAST(count(*) AS text) FROM spending WHERE held_epoch IS NOT NULL";
            assert_eq!(database.count(held).await, 0, "{what}: an ended run holds no reservation");
        }
        audit::assert_sound(database).await;
    }
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn every_action_may_be_done_twice(
    #[values(Kind::Sqlite, Kind::Postgres)] kind: Kind,
    #[values(Story::Rounds, Story::Waits)] story: Story,
) {
    let h = Harness::on(kind).await;
    let play = Play::new(&h, story);
    let store = FaultyStore::new(h.store.clone());
    // A second claim finds nothing, and its empty reply would replace the first one. A commit is never repeated: its outcome is
    // looked up.
    store.trouble(|name| if matches!(name, "claim_runs" | "claim_title" | "commit") { Fate::Goes } else { Fate::Twice });
    let (models, tools) = (Arc::new(AskedTwice(play.model.clone())), Arc::new(RunTwice(play.tools())));
    let deps = WorkerDeps { models, tools, ..play.deps(store) };
    let run = play.play(deps, || patient(&h), "twice", || false).await;
    assert!(story.attempts().contains(&run.attempt), "{} attempts", run.attempt);
    for &(tool, calls) in story.unsafe_calls() {
        assert_eq!(play.executed(tool), calls, "{tool}");
    }
    match story {
        Story::Rounds => assert_eq!(play.executed("quick"), 4),
        Story::Waits => {
            assert_eq!((play.executed("pay"), play.executed("sighted")), (2, 2));
            let told = h.events(&run.conversation_id).await.into_iter().filter(|event| event.data.contains(TITLE));
            assert_eq!(told.count(), 1, "one title event");
        }
    }
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn any_call_of_the_database_may_fail(
    #[values(Kind::Sqlite, Kind::Postgres)] kind: Kind,
    #[values(Story::Rounds, Story::Waits)] story: Story,
    #[values("is not done", "is done unheard")] how: &'static str,
) {
    // Most of a play is waiting, so several play beside each other, each on a database of its own.
    join_all((1..=LANES).map(|first| fail_calls(kind, story, how, first))).await;
}

/// Plays with the call `first` failing, then with every [`LANES`]th later one, until a play makes fewer calls.
async fn fail_calls(kind: Kind, story: Story, how: &'static str, first: usize) {
    let h = Harness::on(kind).await;
    for n in (first..).step_by(LANES) {
        let play = Play::new(&h, story);
        let calls = Arc::new(AtomicUsize::new(0));
        let store = FaultyStore::new(h.store.clone());
        let count = Arc::clone(&calls);
        store.trouble(move |name| {
            if !story.counts(name) || count.fetch_add(1, Ordering::SeqCst) + 1 != n {
                return Fate::Goes;
            }
            if how == "is not done" { Fate::Fails(away()) } else { Fate::Unheard(away()) }
        });
        let has_failed = || calls.load(Ordering::SeqCst) >= n;
        let run = play.play(play.deps(store), || hasty(&h), &format!("call {n} {how}"), has_failed).await;
        let made = calls.load(Ordering::SeqCst);
        if made < n {
            // There may be more: a stall of the machine longer than such a lease adds an attempt.
            assert!(run.attempt >= *story.attempts().start(), "nothing failed, and there were only {} attempts", run.attempt);
            assert!(n > story.least_calls(), "the run makes only {made} calls");
            return;
        }
    }
}
