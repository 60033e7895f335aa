//! Values that store calls take and give, beyond the domain's own.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::CallBatch;
use crate::domain::agent::AgentProfile;
use crate::domain::audit::AuditOutcome;
use crate::domain::conversation::AgentChoice;
use crate::domain::event::StoredEvent;
use crate::domain::ids::{CallId, ConversationId, GrantId, InputId, KeyId, MessageId, NodeId, RunId, UserId};
use crate::domain::input::{InputAnswer, InputKind, InputRecord};
use crate::domain::message::{Message, Part};
use crate::domain::principal::User;
use crate::domain::record::{ClaimCause, Fence, FirstClaim};
use crate::domain::run::{OnBusy, Run};
use crate::domain::trace::TraceId;
use crate::support::clock::UnixMillis;

/// An Idempotency-Key as it came with a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdempotencyClaim {
    /// Who sent it: keys of different owners never meet.
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
    /// Done before; this is what came of it then.
    Replayed(T),
    /// The key was used for another request.
    Mismatch,
}

/// Which ended calls.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AuditFilter {
    /// Those of this owner; of all if `None`, which only an administrator asks for.
    pub owner: Option<UserId>,
    /// Those of a run.
    pub run: Option<RunId>,
    /// Those of a tool, by the name that models see.
    pub tool: Option<String>,
    /// Those that ended so.
    pub outcome: Option<AuditOutcome>,
}

/// Which conversations are wanted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ConversationFilter {
    /// Part of the title, case-insensitive.
    pub query: Option<String>,
    /// Whether it is put away; `None` for all.
    pub archived: Option<bool>,
    /// Whether it is pinned; `None` for all.
    pub pinned: Option<bool>,
    /// A tag that it has.
    pub tag: Option<String>,
}

/// What to change of a conversation. What is absent stays.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ConversationChange {
    /// The title.
    pub title: Option<String>,
    /// Whether it is pinned.
    pub pinned: Option<bool>,
    /// Whether it is put away.
    pub archived: Option<bool>,
    /// All of its tags.
    pub tags: Option<Vec<String>>,
    /// Its own part of the system prompt; empty for none.
    pub system_prompt: Option<String>,
    /// What its user wants of every answer; empty for nothing.
    pub instructions: Option<String>,
    /// The agent of messages that name none; empty for the server's default.
    pub agent: Option<String>,
    /// The model of messages that name none; empty for the agent's own.
    pub model: Option<String>,
}

impl ConversationChange {
    /// Another title.
    #[must_use]
    pub fn title(title: &str) -> Self {
        Self { title: Some(title.to_owned()), ..Self::default() }
    }
}

/// What becomes of conversations in which nothing has happened for long. Pinned ones are left alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tidying {
    /// They are put away.
    Archive,
    /// Those that were put away that long ago are deleted.
    Delete,
    /// Those in which nothing was ever said, and that nobody has named, are deleted.
    DeleteEmpty,
}

/// A conversation to make.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewConversation {
    /// Its id, minted by us or by the client.
    pub id: ConversationId,
    /// Whose it is.
    pub owner: UserId,
    /// Its title, possibly empty.
    pub title: String,
    /// Its own part of the system prompt.
    pub system_prompt: Option<String>,
    /// What its user wants of every answer.
    pub instructions: Option<String>,
    /// The agent and the model of messages that name none.
    pub choice: AgentChoice,
    /// Conversations of one owner that are not archived, this one included; more are refused. 0 for no limit.
    pub max_conversations: u32,
    /// When it is made.
    pub now: UnixMillis,
}

/// What came of making a conversation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Created {
    /// It is new.
    Conversation(Box<crate::domain::conversation::Conversation>),
    /// The id is taken, by this owner or another.
    Exists,
    /// The owner has as many as allowed.
    TooMany,
}

/// Older messages of a conversation that requests are to leave out.
#[derive(Debug, Clone, PartialEq)]
pub struct Compact {
    /// Whose conversation it is.
    pub owner: UserId,
    /// The conversation.
    pub conversation: ConversationId,
    /// What is kept, and how much is said of the rest.
    pub policy: crate::domain::context::ContextPolicy,
    /// The time of the event.
    pub now: UnixMillis,
}

/// What came of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Compacted {
    /// It is done, or there was nothing to do.
    Done {
        /// Messages that are left out from now on.
        messages: u32,
        /// What stands for all that are left out.
        summary: Option<crate::domain::context::ContextSummary>,
        /// Events written by this request. Empty when replayed.
        #[serde(skip)]
        events: Vec<StoredEvent>,
    },
    /// A run is under way.
    Busy,
    /// No such conversation, or somebody else's.
    NoConversation,
}

impl Compacted {
    /// With the events that say so.
    pub(super) fn with(self, written: Vec<StoredEvent>) -> Self {
        match self {
            Self::Done { messages, summary, .. } => Self::Done { messages, summary, events: written },
            Self::Busy | Self::NoConversation => self,
        }
    }
}

/// A conversation that was deleted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeletedConversation {
    /// The run that was active in it.
    pub active_run: Option<RunId>,
}

/// A message to accept.
///
/// If the conversation has an active run: `queue` stores a run behind it, `reject` stores nothing, `interrupt` asks for the
/// active run (and those queued behind it) to be cancelled and stores a run behind it, `steer` stores the message as one of
/// the active run and no new run, unless that run has been asked to end: then it acts as `queue`. Without an active run all
/// four store a run that can be claimed at once.
#[derive(Debug, Clone, PartialEq)]
pub struct AcceptRun {
    /// Whose it is.
    pub owner: UserId,
    /// The conversation.
    pub conversation_id: ConversationId,
    /// Makes the conversation with this title if it is missing; `None`: a missing conversation is an outcome.
    pub create_with_title: Option<String>,
    /// The id of the run to make.
    pub run_id: RunId,
    /// The id of the message.
    pub message_id: MessageId,
    /// What it says. The role is `user`.
    pub parts: Vec<Part>,
    /// Frozen into the run.
    pub profile: AgentProfile,
    /// The agent and the model that the message names. The conversation keeps them. A conversation that has no agent yet keeps the
    /// run's.
    pub choice: AgentChoice,
    /// What to do if there is an active run.
    pub on_busy: OnBusy,
    /// Runs of one owner that are not terminal, this one included; more are refused. 0 for no limit.
    pub max_active_runs: u32,
    /// Conversations of one owner that are not archived, one that is made for the message included; more are refused. 0 for no limit.
    pub max_conversations: u32,
    /// Uploaded files in messages of one conversation, these included; more are refused.
    pub max_files: u32,
    /// The trace of the request, kept with a run that is made.
    pub trace: TraceId,
    /// The worker that takes the run on at once if nothing stands before it. A store may leave the run to the queue instead.
    pub taker: Option<Taker>,
    /// When it came.
    pub now: UnixMillis,
}

/// A worker that claims a run in the moment in which it is accepted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Taker {
    /// Its process.
    pub node: NodeId,
    /// How long its lease lasts without renewal.
    pub lease_ms: u64,
}

/// What came of a message. Serialised with the idempotency key, so fields are only ever added.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Accepted {
    /// A run was stored.
    Run {
        /// The run.
        run: Run,
        /// Its message.
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
        /// The active run.
        run: Run,
        /// The message.
        message: Message,
        /// The `seq` of the message's event.
        first_seq: i64,
        /// The event. Empty when replayed.
        #[serde(skip)]
        events: Vec<StoredEvent>,
    },
    /// There is an active run and the request said `reject`. Nothing is stored, neither with the key.
    Busy {
        /// The active run.
        run_id: RunId,
    },
    /// No such conversation, or somebody else's. Nothing is stored.
    NoConversation,
    /// The owner has too many active runs. Nothing is stored.
    TooManyRuns,
    /// The owner has too many conversations to begin another one. Nothing is stored.
    TooManyConversations,
    /// The message refers to a file that is gone, or somebody else's. Nothing is stored.
    NoFile {
        /// The file.
        file_id: String,
    },
    /// The conversation would have so many files, which is more than it may. Nothing is stored.
    TooManyFiles {
        /// How many.
        files: u32,
    },
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
    /// The run.
    pub run: Run,
    /// The `seq` of its first event.
    pub first_seq: i64,
    /// The `seq` of its terminal event.
    pub last_seq: Option<i64>,
}

/// What came of a request to cancel.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cancelled {
    /// The run is over, now or long ago.
    Over {
        /// The run.
        run: Run,
        /// Events written by this request. Empty when replayed.
        #[serde(skip)]
        events: Vec<StoredEvent>,
    },
    /// The run's worker will end it.
    Requested {
        /// The run.
        run: Run,
    },
    /// No such run, or somebody else's.
    NoRun,
}

/// A request to go on.
#[derive(Debug, Clone, PartialEq)]
pub struct ResumeRun {
    /// Whose run it is.
    pub owner: UserId,
    /// The run that waits or has ended.
    pub run_id: RunId,
    /// From where.
    pub how: GoOn,
    /// The id of the run that continues after a failed one.
    pub new_run_id: RunId,
    /// The trace of the request, kept with a run that is made.
    pub trace: TraceId,
    /// The most unfinished runs that the owner may have, with a run that is made; 0 for no limit.
    pub max_active_runs: u32,
    /// When it came.
    pub now: UnixMillis,
}

/// From where a run is gone on with.
#[derive(Debug, Clone, PartialEq)]
pub enum GoOn {
    /// From where it stands: one that waits for a retry, or has failed.
    Resume,
    /// From its beginning, once it has ended: the same message is answered again, and what was said since is superseded.
    Turn,
    /// From calls of one of its messages, once it has ended: that message and what was said since are superseded.
    Call(Box<CallBatch>),
    /// With a call that takes one of its calls back, once it has ended, whatever came after it. Nothing is superseded.
    Undo {
        /// The call that does it, and its message.
        batch: Box<CallBatch>,
        /// Also if an earlier try may have taken effect.
        confirmed: bool,
    },
}

impl GoOn {
    /// The message whose place is taken first, where it is not the beginning of the turn.
    #[must_use]
    pub fn original(&self) -> Option<&str> {
        match self {
            Self::Resume | Self::Turn | Self::Undo { .. } => None,
            Self::Call(batch) => Some(batch.original.as_str()),
        }
    }

    /// What the new run begins with, if not with a request to its model.
    #[must_use]
    pub fn batch(&self) -> Option<&CallBatch> {
        match self {
            Self::Resume | Self::Turn => None,
            Self::Call(batch) | Self::Undo { batch, .. } => Some(batch),
        }
    }

    /// The call that is taken back, by its key: all that stand for it are one effect.
    #[must_use]
    pub fn undone(&self) -> Option<&CallId> {
        match self {
            Self::Resume | Self::Turn | Self::Call(_) => None,
            Self::Undo { batch, .. } => batch.calls.first()?.undoes.as_ref(),
        }
    }

    /// Whether an earlier try to take the call back may have taken effect, for all that its user knows.
    #[must_use]
    pub fn is_confirmed(&self) -> bool {
        matches!(self, Self::Undo { confirmed: true, .. })
    }
}

/// What came of a request to go on.
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
    NotResumable {
        /// The run.
        run: Run,
    },
    /// Calls of an answer would be taken over, and one of them has been taken back since, or that was tried and may have happened.
    TakenBack,
    /// No such run, or somebody else's.
    NoRun,
}

/// An answer to a question.
#[derive(Debug, Clone, PartialEq)]
pub struct ResolveInput {
    /// Whose question it is.
    pub owner: UserId,
    /// The question.
    pub id: InputId,
    /// The answer, which is one that the question allows.
    pub answer: InputAnswer,
    /// An answer that holds for later calls.
    pub grant: Option<NewGrant>,
    /// When it came.
    pub now: UnixMillis,
}

/// An answer to an approval that holds for later calls of its tool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewGrant {
    /// Its id.
    pub id: GrantId,
    /// The conversation that it holds in; `None` for all of its owner.
    pub conversation: Option<ConversationId>,
    /// The MCP server.
    pub server: Option<String>,
    /// The tool's name at the server.
    pub tool: String,
    /// SHA-256 of the tool's definition.
    pub definition_hash: String,
}

/// Which questions are listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asked {
    /// Whether tools may be called.
    Approvals,
    /// All others.
    Questions,
}

/// What came of an answer.
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
    Closed {
        /// The question.
        record: Box<InputRecord>,
    },
    /// No such question, or somebody else's. Nothing is stored.
    NoRequest,
}

/// A claimed run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    /// The right to write.
    pub fence: Fence,
    /// Whose run it is.
    pub owner: UserId,
    /// Why it could be claimed.
    pub cause: ClaimCause,
    /// How long it could have been claimed before, in milliseconds.
    pub queued_ms: u64,
    /// The trace of the request that started it; none for runs of before there were traces.
    pub trace: Option<TraceId>,
    /// How many workers have died over it before.
    pub crashes: u32,
    /// Before the lease began, however long a connection was waited for.
    pub claimed_at: Instant,
}

/// A run over which so many workers have died, and that the next death would end, is suspected of killing them. All that a worker had in
/// hand is counted when it dies, and the guilty one is not known: so a node takes such runs up one at a time, and the next death tells.
pub const SUSPECT_CRASHES: u32 = 2;

/// For how many leases the others wait for one that is taken up so: with the defaults 5 minutes. What lasts longer may last for hours.
pub const SUSPECT_LEASES: u32 = 30;

/// The answer to a renewal of leases.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Renewal {
    /// Runs whose leases were renewed.
    pub renewed: Vec<RunId>,
    /// Leases of the node that it did not name.
    pub unnamed: Vec<UnnamedLease>,
}

/// A lease that the database granted to a node, and that the node did not name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnnamedLease {
    /// The right to write that the lease stands for.
    pub fence: Fence,
    /// Time since the claim, by the database's clock.
    pub age: Duration,
}

/// What a sweep found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sweep {
    /// Runs whose lease has expired, before any was taken.
    pub expired: u64,
    /// Runs made claimable.
    pub taken: Vec<Taken>,
    /// True if so many leases looked expired that nothing was taken: rather an outage than so many deaths.
    pub outage_suspected: bool,
}

/// A run whose worker has lost it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Taken {
    /// The run.
    pub run_id: RunId,
    /// The trace of the request that started it.
    pub trace: Option<TraceId>,
}

/// What came of a write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Committed {
    /// The `seq` of its first event.
    pub first_seq: i64,
    /// It ended a run, and the one behind it in the conversation can be claimed now.
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
    /// The run would end without having heard a message that joined it. Ask for the control signals, and decide again.
    #[error("a message joined the run and has not been heard")]
    Unheard,
}

/// Where a log begins and ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogBounds {
    /// The oldest `seq` that is kept; `head + 1` for an empty log.
    pub oldest: i64,
    /// The newest `seq`; 0 for an empty log.
    pub head: i64,
}

/// What is known about a run that may not be moving.
#[derive(Debug, Clone, PartialEq)]
pub struct Explanation {
    /// The run.
    pub run: Run,
    /// The node that holds a lease.
    pub lease_node: Option<NodeId>,
    /// Milliseconds until the lease expires, negative if it has.
    pub lease_expires_in_ms: Option<i64>,
    /// Since when the lease is held, in milliseconds.
    pub lease_age_ms: Option<i64>,
    /// Claims that did not end well.
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
    /// Whether the run has failed and can be gone on from.
    pub resumable: bool,
    /// Who asked for it to be cancelled.
    pub cancel_requested_by: Option<String>,
    /// The newest step: number, kind and status words, and the milliseconds since it ended, or began if it has not ended.
    pub step: Option<(u32, String, String, i64)>,
    /// Its questions that nobody has answered, oldest first: their ids and words.
    pub questions: Vec<(InputId, InputKind, String)>,
    /// Calls that have been started and have no outcome, by tool name.
    pub tools_under_way: Vec<String>,
    /// How many of them stand still because their servers have asked a human something.
    pub calls_asking: i64,
}

/// A key, without its secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredKey {
    /// Its id.
    pub id: KeyId,
    /// Its visible beginning.
    pub label: String,
    /// Whose it is.
    pub user: User,
    /// When it was made.
    pub created_at: UnixMillis,
    /// When it was revoked, if it was.
    pub revoked_at: Option<UnixMillis>,
}
