//! Parameters and results of store calls that are not part of the domain.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::domain::access::audit::AuditOutcome;
use crate::domain::access::principal::User;
use crate::domain::agent::AgentProfile;
use crate::domain::conversation::{AgentChoice, ConversationSort, Message, Part, Role};
use crate::domain::event::StoredEvent;
use crate::domain::ids::{CallId, ConversationId, GrantId, InputId, KeyId, MessageId, NodeId, RunId, UserId};
use crate::domain::run::{ClaimCause, Fence, FirstClaim, InputAnswer, InputKind, InputRecord, InputState, OnBusy, Run};
use crate::domain::tool::{ToolCall, ToolCallState, ToolDefinition};
use crate::domain::trace::TraceId;
use crate::store::StoreResult;
use crate::support::clock::UnixMillis;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdempotencyKey {
    /// The owner. Two owners may use the same key independently.
    pub owner: UserId,
    /// The key, at most 255 characters.
    pub key: String,
    /// SHA-256 of method, path and body.
    pub fingerprint: String,
}

#[derive(Debug, Clone, PartialEq)]
pub enum IdempotentOutcome<T> {
    /// The call was executed now.
    Fresh(T),
    /// An earlier call was executed, with this outcome.
    Replayed(T),
    /// The key belongs to another request.
    Mismatch,
}

pub type IdempotentResult<T> = StoreResult<IdempotentOutcome<T>>;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AuditFilter {
    /// The owner; `None` for all owners, which only an administrator may request.
    pub owner: Option<UserId>,
    pub run: Option<RunId>,
    /// The tool, by the name that models see.
    pub tool: Option<String>,
    pub outcome: Option<AuditOutcome>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ConversationFilter {
    /// A part of the title, case-insensitive.
    pub query: Option<String>,
    /// Whether the conversation is archived; `None` for both.
    pub archived: Option<bool>,
    pub pinned: Option<bool>,
    pub tag: Option<String>,
    pub sort: ConversationSort,
}

/// A change of a conversation. Absent fields do not change.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ConversationChange {
    pub title: Option<String>,
    pub pinned: Option<bool>,
    pub archived: Option<bool>,
    pub tags: Option<Vec<String>>,
    pub system_prompt: Option<String>,
    /// The user's instructions for every answer; empty for none.
    pub instructions: Option<String>,
    /// The agent for messages that name none; empty for the server's default.
    pub agent: Option<String>,
    /// The model for messages that name none; empty for the agent's model.
    pub model: Option<String>,
    pub metadata: Option<Map<String, Value>>,
}

impl ConversationChange {
    pub fn title(title: &str) -> Self {
        Self { title: Some(title.to_owned()), ..Self::default() }
    }
}

/// The treatment of idle conversations by retention. Pinned conversations are exempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IdleAction {
    Archive,
    /// Deletes conversations that were archived longer ago than the retention time.
    Delete,
    /// Deletes hidden conversations that have not changed for the retention time.
    DeleteHidden,
    /// Deletes conversations without messages that no user has named.
    DeleteEmpty,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewConversation {
    pub id: ConversationId,
    pub owner: UserId,
    pub title: String,
    pub system_prompt: Option<String>,
    pub instructions: Option<String>,
    pub choice: AgentChoice,
    /// Limit of conversations of the owner that are not archived, including this one. 0 for no limit.
    pub max_conversations: u32,
    pub now: UnixMillis,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CreateOutcome {
    Conversation(Box<crate::domain::conversation::Conversation>),
    /// The id exists, for this or another owner.
    Exists,
    /// The owner has reached the limit.
    TooMany,
}

/// A request to compact a conversation: model requests then omit its older messages.
#[derive(Debug, Clone, PartialEq)]
pub struct Compact {
    pub owner: UserId,
    pub conversation: ConversationId,
    /// The number of kept messages, and the limit of the summary.
    pub policy: crate::domain::run::context::ContextPolicy,
    pub now: UnixMillis,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CompactOutcome {
    /// The conversation was compacted, or needed no compaction.
    Done {
        /// Number of messages that requests omit from now on.
        messages: u32,
        /// The summary of all omitted messages.
        summary: Option<crate::domain::run::context::ContextSummary>,
        /// Events that this call stored. Empty for a replayed response.
        #[serde(skip)]
        events: Vec<StoredEvent>,
    },
    Busy,
    /// The conversation is missing, or belongs to another owner.
    NoConversation,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeletedConversation {
    pub active_run: Option<RunId>,
}

/// A message to accept.
///
/// `on_busy` decides if the conversation has an active run. `queue` stores a new run, which waits for the active one. `reject`
/// stores nothing. `interrupt` cancels the active run and all queued runs, and stores a new run. `steer` adds the message to the
/// active run; if that run is to be cancelled, `steer` acts like `queue`. Without an active run, all four store a run that can be
/// claimed at once.
#[derive(Debug, Clone, PartialEq)]
pub struct AcceptRun {
    pub owner: UserId,
    pub conversation_id: ConversationId,
    /// Creates a missing conversation with this title. `None`: a missing conversation is an outcome.
    pub create_with_title: Option<String>,
    pub run_id: RunId,
    pub message_id: MessageId,
    /// The content of the message. Its role is `user`, unless a transcript says otherwise.
    pub parts: Vec<Part>,
    pub profile: AgentProfile,
    /// The agent and the model of the message, which become the conversation's. Without an agent, it gets the run's.
    pub choice: AgentChoice,
    pub on_busy: OnBusy,
    /// Limit of unfinished runs of the owner, including this one. 0 for no limit.
    pub max_active_runs: u32,
    /// Limit of conversations of the owner that are not archived, including a new one. 0 for no limit.
    pub max_conversations: u32,
    /// Limit of uploaded files in the messages of a conversation, including these.
    pub max_files: u32,
    pub trace: TraceId,
    /// The worker that starts the run at once if nothing is before it. A store may queue the run instead.
    pub taker: Option<AcceptingWorker>,
    pub transcript: Option<Transcript>,
    pub now: UnixMillis,
}

/// The messages that a client sends together with the message that starts a run.
#[derive(Debug, Clone, PartialEq)]
pub struct Transcript {
    /// The role of the message that starts the run: `user`, `tool` for results of earlier calls, or `assistant` for an answer to
    /// continue.
    pub role: Role,
    /// The earlier messages, oldest first. They belong to the run.
    pub earlier: Vec<Message>,
    /// Whether lists omit the conversation from now on.
    pub hidden: bool,
}

/// A worker that claims a run in the transaction of its acceptance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AcceptingWorker {
    pub node: NodeId,
    /// The duration of its lease without renewal, in milliseconds.
    pub lease_ms: u64,
}

/// The outcome of a message. Stored with the idempotency key, so fields are only ever added.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AcceptOutcome {
    Run {
        run: Run,
        message: Message,
        /// The `seq` of the run's first event. 0 for a replayed response.
        #[serde(skip)]
        first_seq: i64,
        /// The first events. Empty for a replayed response.
        #[serde(skip)]
        events: Vec<StoredEvent>,
        /// Runs whose workers must end them, so that the caller can notify these workers. Empty for a replayed response.
        #[serde(skip)]
        interrupted: Vec<RunId>,
        /// The claim, if the worker of the acceptance has the run.
        #[serde(skip)]
        claim: Option<FirstClaim>,
    },
    Steered {
        run: Run,
        message: Message,
        /// The `seq` of the message's event.
        first_seq: i64,
        /// The event. Empty for a replayed response.
        #[serde(skip)]
        events: Vec<StoredEvent>,
    },
    /// The conversation has an active run, and the request says `reject`. Nothing is stored, not even the idempotency key.
    Busy { run_id: RunId },
    /// The conversation is missing, or belongs to another owner. Nothing is stored.
    NoConversation,
    /// The owner has reached the limit of unfinished runs. Nothing is stored.
    TooManyRuns,
    /// The owner has reached the limit of conversations. Nothing is stored.
    TooManyConversations,
    /// The message refers to a file that is missing, or belongs to another owner. Nothing is stored.
    NoFile { file_id: String },
    /// The conversation would exceed the limit of files, with this number. Nothing is stored.
    TooManyFiles { files: u32 },
}

impl AcceptRun {
    /// Returns the uploaded files of the message, each once.
    pub fn files(&self) -> BTreeSet<&str> {
        self.parts.iter().filter_map(Part::file_id).collect()
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct RunView {
    pub run: Run,
    pub first_seq: i64,
    pub last_seq: Option<i64>,
}

#[derive(Debug, Clone, Copy)]
pub struct CancelRun<'a> {
    pub owner: &'a UserId,
    pub id: &'a RunId,
    /// The `by` of `run.cancelled`.
    pub by: &'a str,
    pub now: UnixMillis,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CancelOutcome {
    /// The run has ended, now or earlier.
    Over {
        run: Run,
        /// Events that this call stored. Empty for a replayed response.
        #[serde(skip)]
        events: Vec<StoredEvent>,
    },
    /// The worker of the run will end it.
    Requested { run: Run },
    /// The run is missing, or belongs to another owner.
    NoRun,
}

#[derive(Debug, Clone, PartialEq)]
pub struct ResumeRun {
    pub owner: UserId,
    pub run_id: RunId,
    pub how: ResumeKind,
    /// The model of the new run, instead of that of the ended one.
    pub model: Option<String>,
    pub new_run_id: RunId,
    pub trace: TraceId,
    /// Limit of unfinished runs of the owner, including a new one; 0 for no limit.
    pub max_active_runs: u32,
    pub now: UnixMillis,
}

#[derive(Debug, Clone, PartialEq)]
pub enum ResumeKind {
    /// Its current state: for a run that waits for a retry, or has failed.
    Resume,
    /// Its beginning, for an ended run: the same message is answered again, and later messages are superseded.
    Turn,
    /// Calls of one of its messages, for an ended run: that message and later ones are superseded.
    Call(Box<CallBatch>),
    /// An undo of one of its calls, for an ended run, even if other runs came after it. Supersedes nothing.
    Undo {
        /// The undo call and its message.
        batch: Box<CallBatch>,
        /// Whether the undo runs even if an earlier attempt may have taken effect.
        confirmed: bool,
    },
}

impl ResumeKind {
    /// Returns the first superseded message, unless the whole turn is superseded.
    pub fn original(&self) -> Option<&str> {
        match self {
            Self::Resume | Self::Turn | Self::Undo { .. } => None,
            Self::Call(batch) => Some(batch.original.as_str()),
        }
    }

    /// Returns the calls with which the new run begins, if it does not begin with a model call.
    pub fn batch(&self) -> Option<&CallBatch> {
        match self {
            Self::Resume | Self::Turn => None,
            Self::Call(batch) | Self::Undo { batch, .. } => Some(batch),
        }
    }

    /// Returns the key of the undone call: all calls with the same key have one effect.
    pub fn undone_call(&self) -> Option<&CallId> {
        match self {
            Self::Resume | Self::Turn | Self::Call(_) => None,
            Self::Undo { batch, .. } => batch.calls.first()?.undoes.as_ref(),
        }
    }

    /// Returns whether the user confirms the undo although an earlier attempt may have taken effect.
    pub fn is_confirmed(&self) -> bool {
        matches!(self, Self::Undo { confirmed: true, .. })
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ResumeOutcome {
    /// The run continues: the same run if it waited for a retry, or a new run (same profile, no new message) if it had ended.
    Run {
        run: Run,
        /// Events that this call stored. Empty for a replayed response.
        #[serde(skip)]
        events: Vec<StoredEvent>,
    },
    /// A new run is needed, and the owner has reached the limit of unfinished runs.
    TooManyRuns,
    /// The run's status does not allow this, or the run has ended and is not the newest one of its conversation.
    NotResumable { run: Run },
    /// A call of the answer was undone since, or an attempt to undo it may have taken effect.
    TakenBack,
    /// The run is missing, or belongs to another owner.
    NoRun,
}

#[derive(Debug, Clone, PartialEq)]
pub struct ResolveInput {
    pub owner: UserId,
    pub id: InputId,
    pub answer: InputAnswer,
    pub grant: Option<NewGrant>,
    pub now: UnixMillis,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewGrant {
    pub id: GrantId,
    /// The conversation to which it applies; `None` for all conversations of the owner.
    pub conversation: Option<ConversationId>,
    pub server: Option<String>,
    pub tool: String,
    /// SHA-256 of the tool's definition.
    pub definition_hash: String,
}

/// Selects questions of an owner: approvals or all others, in one state or in any.
#[derive(Debug, Clone, Copy)]
pub struct InputFilter<'a> {
    pub owner: &'a UserId,
    pub kind: QuestionFilterKind,
    pub state: Option<InputState>,
    pub conversation: Option<&'a ConversationId>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QuestionFilterKind {
    Approvals,
    /// All other questions.
    Questions,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ResolveOutcome {
    Answered {
        record: Box<InputRecord>,
        /// Events that this call stored. Empty for a replayed response.
        #[serde(skip)]
        events: Vec<StoredEvent>,
    },
    /// The question has an answer already, has expired, or its run has ended. Nothing is stored.
    Closed { record: Box<InputRecord> },
    /// The question is missing, or belongs to another owner. Nothing is stored.
    NoRequest,
}

/// The results of a client for calls of one run. All of them are stored, or none.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolResults {
    pub owner: UserId,
    pub run_id: RunId,
    pub results: Vec<(CallId, InputAnswer)>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToolResultsOutcome {
    Stored,
    /// The call has a result, has expired, or its run has ended. Nothing is stored.
    Closed {
        call_id: CallId,
        state: InputState,
    },
    /// The client of the run was not asked to execute this call. Nothing is stored.
    NoCall {
        call_id: CallId,
    },
    /// The run is missing, or belongs to another owner. Nothing is stored.
    NoRun,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    pub fence: Fence,
    pub owner: UserId,
    pub cause: ClaimCause,
    /// How long the run was claimable, in milliseconds.
    pub queued_ms: u64,
    pub trace: Option<TraceId>,
    pub crashes: u32,
    /// A time shortly before the start of the lease. The wait for a connection does not count.
    pub claimed_at: Instant,
}

/// The crash count from which a run is suspected of crashing its workers. A run is suspected only if its next crash would end it.
///
/// A crash of a worker counts for all its runs, and the cause is unknown. So a node claims suspected runs one at a time.
pub const SUSPECT_CRASHES: u32 = 2;

/// Number of lease durations for which other suspected runs wait for a claimed one, whose end may be hours away.
pub const SUSPECT_LEASES: u32 = 30;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Renewal {
    pub renewed: Vec<RunId>,
    /// Leases of the node that its heartbeat did not name.
    pub unnamed: Vec<UnnamedLease>,
}

/// A lease that the heartbeat of its node did not name. If it is old, it is an orphaned claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnnamedLease {
    pub fence: Fence,
    /// Time since the claim, by the database's clock.
    pub age: Duration,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sweep {
    /// Number of runs whose lease had expired before the sweep.
    pub expired: u64,
    pub requeued: Vec<ExpiredRun>,
    /// Whether no run was put back, because so many leases seemed expired that an outage is more likely than crashes.
    pub outage_suspected: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExpiredRun {
    pub run_id: RunId,
    pub trace: Option<TraceId>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommitReceipt {
    pub first_seq: i64,
    /// Whether the write ended a run, and the conversation's next run can be claimed now.
    pub has_next_run: bool,
    /// Events that the store has completed: their indexes in the write, and their stored data.
    pub completed: Vec<(usize, String)>,
}

/// The results of the writes of a batch, in their order.
pub type CommitResults = Vec<Result<CommitReceipt, WriteRejection>>;

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum WriteRejection {
    /// The fence is not the newest: another worker has the run, the run has ended, or its conversation was deleted.
    #[error("another worker has the run")]
    Fenced,
    /// A joined message was not processed. The caller reads the control signals and decides again.
    #[error("a message joined the run and is not processed yet")]
    MessageJoined,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogBounds {
    /// The oldest stored `seq`; `head + 1` for an empty log.
    pub oldest: i64,
    /// The newest `seq`; 0 for an empty log.
    pub head: i64,
}

/// The facts that explain why a run makes progress or not.
#[derive(Debug, Clone, PartialEq)]
pub struct Explanation {
    pub run: Run,
    pub lease_node: Option<NodeId>,
    /// Milliseconds until the lease expires, negative if it has.
    pub lease_expires_in_ms: Option<i64>,
    pub lease_age_ms: Option<i64>,
    /// Number of claims that ended in a crash.
    pub crashes: u32,
    /// Number of claimable runs that would be claimed first, if this run can be claimed now: owners take turns.
    pub queue_position: Option<i64>,
    /// The number of the owner's live leases and its limit, if only that limit keeps the run from being claimed.
    pub owner_cap: Option<(i64, u32)>,
    /// Milliseconds until the run can be claimed; negative if it could be claimed earlier.
    pub claimable_in_ms: Option<i64>,
    /// The active run that this one is queued behind.
    pub behind_run: Option<RunId>,
    /// Number of runs of all owners that workers hold. 0 if no worker is alive, or all are idle.
    pub live_leases: i64,
    pub resumable: bool,
    pub cancel_requested_by: Option<String>,
    /// The newest step: number, kind, status, and the milliseconds since its end, or since its beginning if it has not ended.
    pub step: Option<(u32, String, String, i64)>,
    /// Its pending questions, oldest first: ids, kinds and texts.
    pub questions: Vec<(InputId, InputKind, String)>,
    /// The tool names of started calls without an outcome.
    pub tools_under_way: Vec<String>,
    /// Number of those calls that wait because their servers have asked a question.
    pub calls_asking: i64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredKey {
    pub id: KeyId,
    /// SHA-256 of the key.
    pub hash: String,
    /// A text of the user, or the visible prefix of the key.
    pub label: String,
    pub user: User,
    pub created_at: UnixMillis,
    pub revoked_at: Option<UnixMillis>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredUser {
    pub user: User,
    pub groups: Vec<String>,
    pub created_at: UnixMillis,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Account {
    pub name: String,
    pub groups: Vec<String>,
    /// The model of runs for which nothing names a model.
    pub default_model: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OwnedCounts {
    pub conversations: u64,
    /// Rows outside conversations: files, agents, providers, MCP servers, audit records and so on.
    pub records: u64,
}

#[derive(Debug, Clone, PartialEq)]
pub struct SearchHit {
    pub message: Message,
    pub title: String,
}

#[derive(Debug, Clone, PartialEq)]
pub struct CallBatch {
    /// The message of the earlier run that `message` copies or replaces.
    pub original: MessageId,
    /// The message. In [`ResumeKind::Call`] and [`ResumeKind::Undo`] it belongs to the new run, with new ids.
    pub message: Message,
    /// Its calls, by position. In [`ResumeKind::Call`] and [`ResumeKind::Undo`] they are the first step of the new run.
    pub calls: Vec<ToolCall>,
    pub tools: Vec<Arc<ToolDefinition>>,
    /// Another call of the run with the same tool and arguments that may have been executed.
    pub twin: Option<CallId>,
}

impl CallBatch {
    /// Returns the answer `message` with the call `id`, of a run with all these calls.
    pub fn from_parts(message: Message, mut calls: Vec<ToolCall>, tools: Vec<Arc<ToolDefinition>>, id: &CallId) -> Self {
        let original = message.id.clone();
        let twin = calls.iter().find(|call| call.id == *id).and_then(|call| {
            let is_same =
                |other: &&ToolCall| other.id != call.id && other.name == call.name && other.arguments_hash == call.arguments_hash;
            calls.iter().filter(is_same).find(|other| may_have_been_made(other)).map(|other| other.id.clone())
        });
        calls.retain(|call| call.message_id == original);
        Self { original, message, calls, tools, twin }
    }
}

fn may_have_been_made(call: &ToolCall) -> bool {
    match call.state {
        ToolCallState::Started | ToolCallState::Done | ToolCallState::Failed | ToolCallState::Unknown => true,
        ToolCallState::Planned | ToolCallState::AwaitingApproval | ToolCallState::Denied | ToolCallState::Cancelled => {
            call.key.is_some()
        }
    }
}
