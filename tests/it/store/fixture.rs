//! A new store, and helpers for its tests.

use std::str::FromStr;
use std::sync::Arc;

use capstan::domain::agent::AgentProfile;
use capstan::domain::conversation::message::{Message, Part, Role, TextPart};
use capstan::domain::conversation::{AgentChoice, ConversationStatus};
use capstan::domain::event::{EventBody, NewEvent, StoredEvent};
use capstan::domain::ids::{CallId, ConversationId, MessageId, NodeId, PartId, RunId, UserId};
use capstan::domain::model::Usage;
use capstan::domain::run::change::{Change, ReleaseCause};
use capstan::domain::run::record::{Fence, RunRecord, RunWrite};
use capstan::domain::run::{FinishReason, OnBusy, Run, RunStatus};
use capstan::domain::tool::{Repair, ReplayClass, ToolCall, ToolCallState};
use capstan::domain::trace::TraceId;
use capstan::store::{
    AcceptOutcome, AcceptRun, AppendMessages, BeforeCursor, Claim, CopiedEnd, CopiedTurn, EarlierPage, IdempotencyKey,
    IdempotentOutcome, InvalidCursor, PAGE_BYTES, Page, PageRequest, ResumeKind, ResumeRun, RunView, Store, StoreOptions,
    WriteRejection, open,
};
use capstan::support::clock::UnixMillis;
use capstan::support::ids::UuidIds;

use support::database::{Database, Kind};
use support::model_store::ModelStore;

/// A fixed time in the past.
pub const NOW: UnixMillis = UnixMillis(1_767_225_600_000);

/// A lease that does not expire within a test.
pub const LONG: u64 = 600_000;

/// A store with its database.
pub struct World {
    pub store: Arc<dyn Store>,
    pub database: Database,
    pub node: NodeId,
    // Last, so that the database is dropped before its folder.
    _folder: tempfile::TempDir,
}

/// A run that was accepted.
pub struct Stored {
    pub run: Run,
    pub message: Message,
    pub first_seq: i64,
    pub events: Vec<StoredEvent>,
    pub interrupted: Vec<RunId>,
}

pub fn user() -> UserId {
    UserId::generate(&UuidIds)
}

pub fn conversation() -> ConversationId {
    ConversationId::generate(&UuidIds)
}

pub fn text(text: &str) -> Vec<Part> {
    vec![Part::Text(TextPart { id: PartId::generate(&UuidIds), text: text.to_owned() })]
}

pub fn key(owner: &UserId, key: &str, fingerprint: &str) -> Option<IdempotencyKey> {
    Some(IdempotencyKey { owner: owner.clone(), key: key.to_owned(), fingerprint: fingerprint.to_owned() })
}

/// Returns a page of the newest messages, or of those before a cursor.
pub fn earlier(limit: u32, before: Option<BeforeCursor>) -> EarlierPage {
    EarlierPage { before, limit, bytes: PAGE_BYTES }
}

pub fn page<C: FromStr<Err = InvalidCursor>>(limit: u32, after: Option<String>) -> PageRequest<C> {
    PageRequest { limit, after: after.map(|after| after.parse().unwrap()) }
}

/// Reads a list to its end, page by page, from the first page or after a cursor.
pub async fn all_items<T>(list: impl AsyncFn(Option<String>) -> Page<T>) -> Vec<T> {
    let (mut items, mut after) = (Vec::new(), None);
    loop {
        let Page { items: found, next } = list(after).await;
        items.extend(found);
        after = next;
        if after.is_none() {
            return items;
        }
    }
}

/// Returns a message that creates its conversation if it is missing.
pub fn hello(owner: &UserId, conversation: &ConversationId) -> AcceptRun {
    AcceptRun {
        owner: owner.clone(),
        conversation_id: conversation.clone(),
        create_with_title: Some("A title".to_owned()),
        run_id: RunId::generate(&UuidIds),
        message_id: MessageId::generate(&UuidIds),
        parts: text("hello"),
        profile: AgentProfile::default(),
        choice: AgentChoice::default(),
        on_busy: OnBusy::Queue,
        max_active_runs: 0,
        max_conversations: 0,
        max_files: 5,
        trace: TraceId::generate(&UuidIds),
        taker: None,
        transcript: None,
        now: NOW,
    }
}

/// Returns an append of one answered turn.
pub fn append(owner: &UserId, conversation: &ConversationId, messages: Vec<(Role, Vec<Part>)>) -> AppendMessages {
    let run = RunId::generate(&UuidIds);
    let made = |(role, parts)| {
        let of = (run.clone(), conversation.clone());
        Message { created_at: NOW.to_rfc3339(), ..Message::new(MessageId::generate(&UuidIds), of, role, parts) }
    };
    let turn = CopiedTurn {
        begins: 1,
        profile: serde_json::to_string(&AgentProfile::default()).unwrap(),
        agent: "default".to_owned(),
        agent_version: 1,
        model: "demo/demo".to_owned(),
        end: CopiedEnd::Completed(FinishReason::Stop),
        messages: (1..).zip(messages.into_iter().map(made)).collect(),
    };
    AppendMessages {
        owner: owner.clone(),
        conversation_id: conversation.clone(),
        turns: vec![turn],
        system_prompt: None,
        max_prompt_chars: 100,
        max_files: 5,
        ids: Arc::new(UuidIds),
        now: NOW,
    }
}

/// Returns a text delta with fixed ids.
pub fn delta(fence: &Fence, text: &str) -> NewEvent {
    let body = EventBody::PartDelta { part_id: PartId::generate(&UuidIds), delta: text.to_owned() };
    NewEvent::new(&body, Some(fence.run_id.clone()), 1, NOW)
}

pub fn deltas(fence: &Fence, count: usize) -> RunWrite {
    RunWrite {
        fence: fence.clone(),
        events: (0..count).map(|n| delta(fence, &n.to_string())).collect(),
        changes: Vec::new(),
        after: 0,
    }
}

pub fn write(fence: &Fence, body: &EventBody, changes: Vec<Change>) -> RunWrite {
    RunWrite { fence: fence.clone(), events: vec![NewEvent::new(body, Some(fence.run_id.clone()), 1, NOW)], changes, after: 0 }
}

/// Returns a write of changes with a placeholder event.
pub fn changes(fence: &Fence, changes: Vec<Change>) -> RunWrite {
    write(fence, &EventBody::StepCompleted { step: 1, usage: None }, changes)
}

/// A request to resume a run, with the next ids.
pub fn resume_request(owner: &UserId, run: &RunId, how: ResumeKind) -> ResumeRun {
    let (new_run_id, trace) = (RunId::generate(&UuidIds), TraceId::generate(&UuidIds));
    ResumeRun { owner: owner.clone(), run_id: run.clone(), how, model: None, new_run_id, trace, max_active_runs: 0, now: NOW }
}

pub fn completed(fence: &Fence) -> RunWrite {
    let body = EventBody::RunCompleted {
        finish_reason: FinishReason::Stop,
        usage: Usage::default(),
        output: None,
        error: None,
        notice: None,
    };
    let finish =
        Change::Finish { status: RunStatus::Completed, finish_reason: Some(FinishReason::Stop), error: None, joined: None };
    write(fence, &body, vec![finish])
}

pub fn failed(fence: &Fence) -> RunWrite {
    let error = capstan::domain::problem::ProblemCode::ProviderAuth.body("the key \u{0} was refused");
    let finish = Change::Finish { status: RunStatus::Failed, finish_reason: None, error: Some(error.clone()), joined: None };
    write(fence, &EventBody::RunFailed { error }, vec![finish])
}

pub fn released(fence: &Fence, after_ms: Option<u64>, cause: ReleaseCause) -> RunWrite {
    changes(fence, vec![Change::Release { after_ms, cause }])
}

/// Returns the first write of a worker.
pub fn started(fence: &Fence) -> RunWrite {
    changes(fence, vec![Change::Start, Change::SetStatus(RunStatus::Processing, None)])
}

/// Returns the engine's event about the conversation, without its title.
pub fn updated(status: ConversationStatus) -> NewEvent {
    NewEvent::new(&EventBody::ConversationUpdated { title: None, status, supersedes: Vec::new() }, None, 0, NOW)
}

pub fn assistant(fence: &Fence, says: &str) -> Message {
    Message {
        model: Some("demo/demo".to_owned()),
        created_at: NOW.to_rfc3339(),
        ..Message::new(
            MessageId::generate(&UuidIds),
            (fence.run_id.clone(), fence.conversation_id.clone()),
            Role::Assistant,
            text(says),
        )
    }
}

pub fn planned_call(fence: &Fence, message: &MessageId, position: u32) -> ToolCall {
    ToolCall {
        id: CallId::generate(&UuidIds),
        run_id: fence.run_id.clone(),
        message_id: message.clone(),
        step: 2,
        position,
        provider_call_id: format!("toolu_{position}"),
        name: "files__read".to_owned(),
        server: Some("files".to_owned()),
        repair: Some(Repair { name: Some("read".to_owned()), matched_by: Some("prefix".to_owned()), arguments: Vec::new() }),
        arguments: serde_json::json!({"path": "ä/\u{1F600}", "n": position}),
        key: None,
        undoes: None,
        handle: None,
        arguments_hash: "ab".repeat(32),
        replay: ReplayClass::Keyed { argument: "key".to_owned() },
        state: ToolCallState::Planned,
        outcome: None,
    }
}

pub fn fresh<T: std::fmt::Debug>(keyed: IdempotentOutcome<T>) -> T {
    match keyed {
        IdempotentOutcome::Fresh(value) => value,
        IdempotentOutcome::Replayed(_) | IdempotentOutcome::Mismatch => panic!("expected a fresh outcome, got {keyed:?}"),
    }
}

pub fn stored(accepted: AcceptOutcome) -> Stored {
    match accepted {
        AcceptOutcome::Run { run, message, first_seq, events, interrupted, claim: _ } => {
            Stored { run, message, first_seq, events, interrupted }
        }
        AcceptOutcome::Steered { .. }
        | AcceptOutcome::Busy { .. }
        | AcceptOutcome::NoConversation
        | AcceptOutcome::TooManyRuns
        | AcceptOutcome::TooManyConversations
        | AcceptOutcome::NoFile { .. }
        | AcceptOutcome::TooManyFiles { .. } => {
            panic!("expected a run, got {accepted:?}")
        }
    }
}

impl World {
    pub async fn new(kind: Kind) -> Self {
        Self::with(kind, &StoreOptions::default()).await
    }

    pub async fn with(kind: Kind, options: &StoreOptions) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let database = Database::new(kind, folder.path()).await;
        let store = open(&database.url, options).await.unwrap();
        Self { store, database, node: NodeId::generate(&UuidIds), _folder: folder }
    }

    /// Returns the model store, which has no database. Its tests do not query one.
    pub async fn on_the_model() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let database = Database::empty(Kind::Sqlite, folder.path()).await;
        let store: Arc<dyn Store> = ModelStore::new(None, 0);
        Self { store, database, node: NodeId::generate(&UuidIds), _folder: folder }
    }

    pub async fn accept(&self, accept: AcceptRun) -> Stored {
        stored(fresh(self.store.accept_run(accept, None).await.unwrap()))
    }

    /// Accepts a run in a new conversation.
    pub async fn run(&self, owner: &UserId) -> Stored {
        self.accept(hello(owner, &conversation())).await
    }

    pub async fn claim(&self, limit: u32) -> Vec<Claim> {
        self.store.claim_runs(&self.node, limit, LONG).await.unwrap()
    }

    /// Claims the only claimable run.
    pub async fn claim_one(&self) -> Fence {
        let mut claims = self.claim(10).await;
        assert_eq!(claims.len(), 1, "{claims:?}");
        claims.remove(0).fence
    }

    /// Accepts a run in a new conversation and claims it.
    pub async fn claimed(&self, owner: &UserId) -> Fence {
        let run = self.run(owner).await.run;
        let fence = self.claim_one().await;
        assert_eq!(fence.run_id, run.id);
        fence
    }

    /// Commits a batch and returns the sequence number of each write's first event.
    pub async fn commit_all(&self, writes: &[RunWrite]) -> Vec<Result<i64, WriteRejection>> {
        let answers = self.store.commit(writes).await.unwrap();
        answers.into_iter().map(|answer| answer.map(|committed| committed.first_seq)).collect()
    }

    pub async fn commit_one(&self, write: RunWrite) -> Result<i64, WriteRejection> {
        let mut answers = self.commit_all(&[write]).await;
        assert_eq!(answers.len(), 1);
        answers.remove(0)
    }

    pub async fn load(&self, fence: &Fence) -> RunRecord {
        self.store.load_run(fence).await.unwrap().expect("the fence is the newest")
    }

    pub async fn view(&self, owner: &UserId, id: &RunId) -> RunView {
        self.store.run(owner, id).await.unwrap().expect("the run is there")
    }

    /// Returns the owner in the conversation's row.
    pub async fn owner_of(&self, conversation: &ConversationId) -> UserId {
        let rows = self.database.rows(&format!("SELECT owner_id FROM conversations WHERE id = '{conversation}'")).await;
        UserId::from_stored(rows[0][0].clone().unwrap())
    }

    pub async fn log(&self, owner: &UserId, conversation: &ConversationId) -> Vec<StoredEvent> {
        let log = self.store.events(owner, conversation, 0, 1_000).await.unwrap();
        let numbers: Vec<i64> = log.iter().map(|event| event.seq).collect();
        assert_eq!(numbers, (1..).take(log.len()).collect::<Vec<i64>>(), "without gaps from 1");
        log
    }

    pub async fn kinds(&self, owner: &UserId, conversation: &ConversationId) -> Vec<String> {
        self.log(owner, conversation).await.into_iter().map(|event| event.kind.into_owned()).collect()
    }

    pub async fn status(&self, owner: &UserId, id: &ConversationId) -> &'static str {
        self.store.conversation(owner, id).await.unwrap().expect("the conversation is there").status.as_str()
    }
}
