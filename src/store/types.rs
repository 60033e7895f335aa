//! Values that store calls take and give, beyond the domain's own.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::CallBatch;
use crate::domain::access::audit::AuditOutcome;
use crate::domain::access::principal::User;
use crate::domain::agent::AgentProfile;
use crate::domain::conversation::AgentChoice;
use crate::domain::conversation::message::{Message, Part};
use crate::domain::event::StoredEvent;
use crate::domain::ids::{CallId, ConversationId, GrantId, InputId, KeyId, MessageId, NodeId, RunId, UserId};
use crate::domain::run::input::{InputAnswer, InputKind, InputRecord, InputState};
use crate::domain::run::record::{ClaimCause, Fence, FirstClaim};
use crate::domain::run::{OnBusy, Run};
use crate::domain::trace::TraceId;
use crate::support::clock::UnixMillis;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdempotencyClaim {
    /// The owner: keys of different owners are different keys.
    pub owner: UserId,
    /// The key, at most 255 characters.
    pub key: String,
    /// SHA-256 of method, path and body.
    pub fingerprint: String,
}

/// The outcome of a call that may have been made before with the same key.
#[derive(Debug, Clone, PartialEq)]
pub enum Keyed<T> {
    /// Done now.
    Fresh(T),
    /// Done before; this was the outcome.
    Replayed(T),
    /// The key was used for another request.
    Mismatch,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AuditFilter {
    /// Those of this owner; of all if `None`, which only an administrator asks for.
    pub owner: Option<UserId>,
    pub run: Option<RunId>,
    /// Those of a tool, by the name that models see.
    pub tool: Option<String>,
    pub outcome: Option<AuditOutcome>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ConversationFilter {
    /// Part of the title, case-insensitive.
    pub query: Option<String>,
    /// Whether it is archived; `None` for all.
    pub archived: Option<bool>,
    pub pinned: Option<bool>,
    pub tag: Option<String>,
}

/// A change of a conversation. Absent fields stay.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ConversationChange {
    pub title: Option<String>,
    pub pinned: Option<bool>,
    /// Whether it is archived.
    pub archived: Option<bool>,
    pub tags: Option<Vec<String>>,
    /// Its own part of the system prompt; empty for none.
    pub system_prompt: Option<String>,
    /// The user's instructions for every answer; empty for none.
    pub instructions: Option<String>,
    /// The agent of messages that name none; empty for the server's default.
    pub agent: Option<String>,
    /// The model of messages that name none; empty for the agent's own.
    pub model: Option<String>,
}

impl ConversationChange {
    pub fn title(title: &str) -> Self {
        Self { title: Some(title.to_owned()), ..Self::default() }
    }
}

/// The ways in which upkeep treats idle conversations. Pinned ones stay as they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tidying {
    /// They are archived.
    Archive,
    /// Conversations that were archived that long ago are deleted.
    Delete,
    /// Conversations without messages that no user has named are deleted.
    DeleteEmpty,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewConversation {
    /// Its id, minted by us or by the client.
    pub id: ConversationId,
    pub owner: UserId,
    /// Its title, possibly empty.
    pub title: String,
    pub system_prompt: Option<String>,
    /// The user's instructions for every answer.
    pub instructions: Option<String>,
    pub choice: AgentChoice,
    /// Conversations of one owner that are not archived, this one included; more are refused. 0 for no limit.
    pub max_conversations: u32,
    pub now: UnixMillis,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Created {
    Conversation(Box<crate::domain::conversation::Conversation>),
    /// The id is taken, by this owner or another.
    Exists,
    /// The owner has as many as allowed.
    TooMany,
}

/// A request to compact a conversation: model requests leave out its older messages.
#[derive(Debug, Clone, PartialEq)]
pub struct Compact {
    pub owner: UserId,
    pub conversation: ConversationId,
    /// How many messages are kept, and how long the summary of the others may be.
    pub policy: crate::domain::run::context::ContextPolicy,
    pub now: UnixMillis,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Compacted {
    /// It is done, or there was nothing to do.
    Done {
        /// Messages that are left out from now on.
        messages: u32,
        /// The summary of all messages that are left out.
        summary: Option<crate::domain::run::context::ContextSummary>,
        /// Events written by this request. Empty when replayed.
        #[serde(skip)]
        events: Vec<StoredEvent>,
    },
    /// A run is under way.
    Busy,
    /// The conversation is missing or another owner's.
    NoConversation,
}

impl Compacted {
    /// Adds the events that were written.
    pub(super) fn with(self, written: Vec<StoredEvent>) -> Self {
        match self {
            Self::Done { messages, summary, .. } => Self::Done { messages, summary, events: written },
            Self::Busy | Self::NoConversation => self,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeletedConversation {
    pub active_run: Option<RunId>,
}

/// A message to accept.
///
/// If the conversation has an active run: `queue` stores a run behind it. `reject` stores nothing. `interrupt` cancels the active run
/// and those queued behind it, and stores a run behind them. `steer` stores the message as one of the active run and no new run; it
/// acts as `queue` if that run is to be cancelled. Without an active run all four store a run that can be claimed at once.
#[derive(Debug, Clone, PartialEq)]
pub struct AcceptRun {
    pub owner: UserId,
    pub conversation_id: ConversationId,
    /// Makes the conversation with this title if it is missing; `None`: a missing conversation is an outcome.
    pub create_with_title: Option<String>,
    /// The id of the run to make.
    pub run_id: RunId,
    /// The id of the message.
    pub message_id: MessageId,
    /// The content. The role is `user`.
    pub parts: Vec<Part>,
    /// The profile that is frozen into the run.
    pub profile: AgentProfile,
    /// The agent and the model that the message names. The conversation keeps them. A conversation that has no agent yet keeps the
    /// run's.
    pub choice: AgentChoice,
    pub on_busy: OnBusy,
    /// Runs of one owner that are not terminal, this one included; more are refused. 0 for no limit.
    pub max_active_runs: u32,
    /// Conversations of one owner that are not archived, one that is made for the message included; more are refused. 0 for no limit.
    pub max_conversations: u32,
    /// Uploaded files in messages of one conversation, these included; more are refused.
    pub max_files: u32,
    pub trace: TraceId,
    /// The worker that takes the run on at once if nothing stands before it. A store may leave the run to the queue instead.
    pub taker: Option<Taker>,
    pub now: UnixMillis,
}

/// A worker that claims a run in the moment in which it is accepted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Taker {
    pub node: NodeId,
    /// How long its lease lasts without renewal.
    pub lease_ms: u64,
}

/// The outcome of a message. Serialised with the idempotency key, so fields are only ever added.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Accepted {
    /// A run was stored.
    Run {
        run: Run,
        message: Message,
        /// The `seq` of its first event. 0 when replayed: the run itself says where it begins.
        #[serde(skip)]
        first_seq: i64,
        /// The first events. Empty when replayed.
        #[serde(skip)]
        events: Vec<StoredEvent>,
        /// A run that was asked to end, for its worker to be told. Empty when replayed.
        #[serde(skip)]
        interrupted: Vec<RunId>,
        /// The claim, if its taker has the run.
        #[serde(skip)]
        claim: Option<FirstClaim>,
    },
    /// The message joined the active run.
    Steered {
        run: Run,
        message: Message,
        /// The `seq` of the message's event.
        first_seq: i64,
        /// The event. Empty when replayed.
        #[serde(skip)]
        events: Vec<StoredEvent>,
    },
    /// There is an active run and the request said `reject`. Nothing is stored, neither with the key.
    Busy { run_id: RunId },
    /// The conversation is missing or another owner's. Nothing is stored.
    NoConversation,
    /// The owner has too many active runs. Nothing is stored.
    TooManyRuns,
    /// The owner has too many conversations to begin another one. Nothing is stored.
    TooManyConversations,
    /// The message refers to a file that is gone or another owner's. Nothing is stored.
    NoFile { file_id: String },
    /// The conversation would have so many files, which is more than it may. Nothing is stored.
    TooManyFiles { files: u32 },
}

impl AcceptRun {
    /// The uploaded files that the message refers to, each once.
    pub fn files(&self) -> BTreeSet<&str> {
        self.parts.iter().filter_map(Part::file_id).collect()
    }
}

/// A run with what its streams need to know.
#[derive(Debug, Clone, PartialEq)]
pub struct RunView {
    pub run: Run,
    /// The `seq` of its first event.
    pub first_seq: i64,
    /// The `seq` of its terminal event.
    pub last_seq: Option<i64>,
}

/// A request to cancel a run of an owner.
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
pub enum Cancelled {
    /// The run is over, now or long ago.
    Over {
        run: Run,
        /// Events written by this request. Empty when replayed.
        #[serde(skip)]
        events: Vec<StoredEvent>,
    },
    /// The run's worker will end it.
    Requested { run: Run },
    /// The run is missing or another owner's.
    NoRun,
}

/// A request to resume a run.
#[derive(Debug, Clone, PartialEq)]
pub struct ResumeRun {
    pub owner: UserId,
    /// The run that waits or has ended.
    pub run_id: RunId,
    pub how: GoOn,
    /// The id of the run that continues after a failed one.
    pub new_run_id: RunId,
    pub trace: TraceId,
    /// The most unfinished runs that the owner may have, with a run that is made; 0 for no limit.
    pub max_active_runs: u32,
    pub now: UnixMillis,
}

/// From where a run is resumed.
#[derive(Debug, Clone, PartialEq)]
pub enum GoOn {
    /// From where it stands: a run that waits for a retry, or has failed.
    Resume,
    /// From its beginning, once it has ended: the same message is answered again, and later messages are superseded.
    Turn,
    /// From calls of one of its messages, once it has ended: that message and later ones are superseded.
    Call(Box<CallBatch>),
    /// With a call that takes one of its calls back, once it has ended, even if other runs came after it. Nothing is superseded.
    Undo {
        /// The call that does it, and its message.
        batch: Box<CallBatch>,
        /// Also if an earlier try may have taken effect.
        confirmed: bool,
    },
}

impl GoOn {
    /// Returns the first message that is superseded, unless the whole turn is.
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

    /// Returns the call that is taken back, by its key: all calls with the key are one effect.
    pub fn undone(&self) -> Option<&CallId> {
        match self {
            Self::Resume | Self::Turn | Self::Call(_) => None,
            Self::Undo { batch, .. } => batch.calls.first()?.undoes.as_ref(),
        }
    }

    /// Returns whether the user confirms the undo although an earlier try may have taken effect.
    pub fn is_confirmed(&self) -> bool {
        matches!(self, Self::Undo { confirmed: true, .. })
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Resumed {
    /// The run goes on: the same one if it waited for a retry, a new one (same profile, no new message) if it had ended.
    Run {
        /// The run that goes on.
        run: Run,
        /// Events written by this request. Empty when replayed.
        #[serde(skip)]
        events: Vec<StoredEvent>,
    },
    /// A run would be made, and the owner has as many unfinished ones as allowed.
    TooManyRuns,
    /// The run does not stand where this can be asked, or it has ended and is not the newest one of its conversation.
    NotResumable { run: Run },
    /// Calls of an answer would be taken over, and one of them has been taken back since, or that was tried and may have happened.
    TakenBack,
    /// The run is missing or another owner's.
    NoRun,
}

#[derive(Debug, Clone, PartialEq)]
pub struct ResolveInput {
    pub owner: UserId,
    pub id: InputId,
    /// The answer, which is one that the question allows.
    pub answer: InputAnswer,
    /// The grant, if the answer holds for later calls.
    pub grant: Option<NewGrant>,
    pub now: UnixMillis,
}

/// A grant that comes from an approval.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewGrant {
    pub id: GrantId,
    /// The conversation in which it holds; `None` for all of its owner.
    pub conversation: Option<ConversationId>,
    pub server: Option<String>,
    pub tool: String,
    /// SHA-256 of the tool's definition.
    pub definition_hash: String,
}

/// The questions of an owner: approvals or all others, of one state or of all.
#[derive(Debug, Clone, Copy)]
pub struct InputFilter<'a> {
    pub owner: &'a UserId,
    pub asked: Asked,
    pub state: Option<InputState>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asked {
    /// Approvals.
    Approvals,
    /// All other questions.
    Questions,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Resolved {
    /// It is stored, and its run can go on.
    Answered {
        /// The question with its answer.
        record: Box<InputRecord>,
        /// Events written by this request. Empty when replayed.
        #[serde(skip)]
        events: Vec<StoredEvent>,
    },
    /// The question has an answer, its run has ended, or its time is over. Nothing is stored.
    Closed { record: Box<InputRecord> },
    /// The question is missing or another owner's. Nothing is stored.
    NoRequest,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    pub fence: Fence,
    pub owner: UserId,
    pub cause: ClaimCause,
    /// How long the run was claimable, in milliseconds.
    pub queued_ms: u64,
    /// The trace of the request that started it, if the run has one.
    pub trace: Option<TraceId>,
    /// The crash count.
    pub crashes: u32,
    /// A time before the lease began, also after a long wait for a connection.
    pub claimed_at: Instant,
}

/// The crash count from which a run is suspected of killing its workers, if the next crash would end it.
///
/// A crash counts for all runs of a worker, and the guilty one is not known. So a node claims suspected runs one at a time.
pub const SUSPECT_CRASHES: u32 = 2;

/// How many leases long other suspected runs wait for a claimed one: 5 minutes with the defaults. A longer run may last for hours.
pub const SUSPECT_LEASES: u32 = 30;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Renewal {
    pub renewed: Vec<RunId>,
    /// Leases of the node that its heartbeat did not name.
    pub unnamed: Vec<UnnamedLease>,
}

/// A lease of a node that its heartbeat did not name: an orphaned claim, if it is old.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnnamedLease {
    pub fence: Fence,
    /// Time since the claim, by the database's clock.
    pub age: Duration,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sweep {
    /// Runs whose lease has expired, before any was taken.
    pub expired: u64,
    /// Runs made claimable.
    pub taken: Vec<Taken>,
    /// Whether so many leases looked expired that none was taken: an outage is likelier than so many crashes.
    pub outage_suspected: bool,
}

/// A run that a sweep has taken from its worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Taken {
    pub run_id: RunId,
    pub trace: Option<TraceId>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Committed {
    /// The `seq` of its first event.
    pub first_seq: i64,
    /// Whether the write ended a run, and the next one of the conversation can be claimed now.
    pub next_waits: bool,
    /// Events that the store has completed: their places in the write, and their data as stored.
    pub completed: Vec<(usize, String)>,
}

/// Why a write was left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The fence is not the newest: another worker has the run, or it is over, or its conversation is gone.
    #[error("another worker has the run")]
    Fenced,
    /// A message that joined the run has not been processed. Read the control signals, and decide again.
    #[error("a message joined the run and has not been heard")]
    Unheard,
}

/// The bounds of a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogBounds {
    /// The oldest `seq` that is kept; `head + 1` for an empty log.
    pub oldest: i64,
    /// The newest `seq`; 0 for an empty log.
    pub head: i64,
}

/// The facts that explain why a run does or does not move.
#[derive(Debug, Clone, PartialEq)]
pub struct Explanation {
    pub run: Run,
    /// The node that holds a lease.
    pub lease_node: Option<NodeId>,
    /// Milliseconds until the lease expires, negative if it has.
    pub lease_expires_in_ms: Option<i64>,
    /// Since when the lease is held, in milliseconds.
    pub lease_age_ms: Option<i64>,
    /// Claims that ended in a crash.
    pub crashes: u32,
    /// Claimable runs that are claimed first, as things stand, if this one can be claimed now: owners take turns.
    pub queue_position: Option<i64>,
    /// How many runs of its owner have a live lease, and how many may, if this one could be claimed now but for that.
    pub owner_cap: Option<(i64, u32)>,
    /// Milliseconds until it can be claimed; negative: since when.
    pub claimable_in_ms: Option<i64>,
    /// The active run that this one is queued behind.
    pub behind_run: Option<RunId>,
    /// Runs of all owners that a worker has: none if no worker is alive, or all are idle.
    pub live_leases: i64,
    /// Whether the run has failed and can be resumed.
    pub resumable: bool,
    /// The user who requested the cancellation of the run.
    pub cancel_requested_by: Option<String>,
    /// The newest step: number, kind and status words, and the milliseconds since it ended, or began if it has not ended.
    pub step: Option<(u32, String, String, i64)>,
    /// Its pending questions, oldest first: ids, kinds and texts.
    pub questions: Vec<(InputId, InputKind, String)>,
    /// Calls that have been started and have no outcome, by tool name.
    pub tools_under_way: Vec<String>,
    /// How many of them wait because their servers have asked a human a question.
    pub calls_asking: i64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredKey {
    pub id: KeyId,
    /// Its visible beginning.
    pub label: String,
    pub user: User,
    pub created_at: UnixMillis,
    /// When it was revoked, if it was.
    pub revoked_at: Option<UnixMillis>,
}
