//! What is kept: traits per aggregate, with one implementation on Postgres and one on SQLite.
//!
//! Owns the database. Must not know why anything is written: decisions are made in `service` and `engine`, the store carries
//! them out in one transaction each. Every query that serves a principal names the owner. One contract suite runs on both
//! implementations.

mod agents;
mod budget;
mod call_batch;
mod call_record;
mod compose;
mod control;
mod copy;
mod error;
mod feedback;
mod files;
mod lineage;
mod mcp_logins;
mod mcp_servers;
mod messages;
mod migrations;
mod named;
mod open;
mod options;
mod pages;
mod patience;
pub mod postgres;
mod providers;
mod retention;
mod rewind;
mod rows;
mod run_list;
mod search;
mod sql;
pub mod sqlite;
mod titles;
mod tool_reviews;
mod types;
mod usage;
mod users;

pub use agents::{AgentCursor, AgentStore, AgentVersionCursor, MAX_AGENT_VERSIONS};
pub use budget::BudgetStore;
pub use call_batch::CallBatch;
pub use control::ControlSignal;
pub use copy::{Copied, CopiedDocument, CopiedEnd, CopiedTurn, CopyConversation, CopyLimits, CopySource, CopyUntil};
pub use error::StoreError;
pub use feedback::{FeedbackCursor, FeedbackFilter, FeedbackGiven, FeedbackStore, GiveFeedback};
pub use files::{AttachedFile, FILE_CHUNK, FILES_PIECE, FileCursor, FileStore, NewFile, StoredOutcome, store_file};
pub use lineage::OnCopy;
pub use mcp_logins::{McpLoginStore, McpTokens};
pub use mcp_servers::{McpServerCursor, McpServerStore};
pub use messages::{EarlierMessages, EarlierPage};
pub use named::{NameCursor, NamedChanged, NamedMade};
pub use open::open;
pub use options::{Durability, StoreOptions};
pub use pages::*;
pub use patience::patiently;
pub use providers::{LoginTaker, ProviderChanged, ProviderCursor, ProviderLogin, ProviderMade, ProviderStore, SealedRow, SecretOf};
pub use retention::{EndedRun, Expired};
pub use rewind::{Edited, Rewind, RewindFrom, Rewound};
pub use run_list::{RunCursor, RunFilter};
pub use search::{Found, SearchCursor, SearchStore};
pub use sql::{Statement, statements};
pub use titles::{TitleMade, TitleStore};
pub use tool_reviews::{MAX_PINS, PinScope, PinStore, SeenTool};
pub use types::*;
pub use usage::{DAY_MS, UsageCursor, UsageFilter, UsageStore};
pub use users::{Owned, UserStore};

use std::time::Duration;

use async_trait::async_trait;

use crate::domain::agent::AgentProfile;
use crate::domain::approval::ToolGrant;
use crate::domain::audit::AuditRecord;
use crate::domain::call_record::ToolCallRecord;
use crate::domain::change::StepKind;
use crate::domain::conversation::Conversation;
use crate::domain::event::StoredEvent;
use crate::domain::fold::FoldedDelta;
use crate::domain::ids::{CallId, ConversationId, GrantId, InputId, KeyId, MessageId, NodeId, RunId, UserId};
use crate::domain::input::{InputRecord, InputState};
use crate::domain::message::Message;
use crate::domain::principal::{User, UserRole};
use crate::domain::record::{Fence, RunRecord, RunWrite};
use crate::domain::run::Run;
use crate::domain::ticket::StreamTicket;
use crate::support::clock::UnixMillis;

/// Result of every store call.
pub type StoreResult<T> = Result<T, StoreError>;

/// Conversations and their messages, always of one owner.
#[async_trait]
pub trait ConversationStore: Send + Sync {
    /// Makes a conversation. Idempotent by `idempotency`; an id that exists already is [`Created::Exists`].
    async fn create_conversation(&self, new: NewConversation, idempotency: Option<IdempotencyClaim>)
    -> StoreResult<Keyed<Created>>;

    /// The conversation, unless it is missing, deleted or somebody else's.
    async fn conversation(&self, owner: &UserId, id: &ConversationId) -> StoreResult<Option<Conversation>>;

    /// A page of conversations, newest first (by creation). `query` matches titles, case-insensitively.
    async fn conversations(
        &self,
        owner: &UserId,
        filter: &ConversationFilter,
        page: &PageRequest<ConversationCursor>,
    ) -> StoreResult<Page<Conversation>>;

    /// How far these runs of an owner have come: [`StepKind::Tools`] for one that has called tools, [`StepKind::Model`] for one that has only
    /// asked a model; those that have done neither are left out.
    async fn reached(&self, owner: &UserId, runs: &[RunId]) -> StoreResult<Vec<(RunId, StepKind)>>;

    /// Changes what its owner says of it, and appends `conversation.updated`. `None` if there is no such conversation.
    async fn change_conversation(
        &self,
        owner: &UserId,
        id: &ConversationId,
        change: &ConversationChange,
        now: UnixMillis,
    ) -> StoreResult<Option<(Conversation, Vec<StoredEvent>)>>;

    /// Has something stand for the older messages in which no run is under way.
    async fn compact(&self, compact: Compact, idempotency: Option<IdempotencyClaim>) -> StoreResult<Keyed<Compacted>>;

    /// Takes messages out of a conversation in which no run is under way, and appends `conversation.updated` that names them.
    async fn rewind_conversation(&self, rewind: Rewind, idempotency: Option<IdempotencyClaim>) -> StoreResult<Keyed<Rewound>>;

    /// Makes a conversation of what was said before. Nothing is executed.
    async fn copy_conversation(&self, copy: CopyConversation, idempotency: Option<IdempotencyClaim>) -> StoreResult<Keyed<Copied>>;

    /// Deletes the conversation with all its rows. Its active run is fenced off first, so that no late writer recreates
    /// anything. Returns the run that was active, for the caller to tell its worker; `None` if there is no such conversation.
    async fn delete_conversation(&self, owner: &UserId, id: &ConversationId) -> StoreResult<Option<DeletedConversation>>;

    /// A page of messages, oldest first. It ends early when it holds [`PAGE_BYTES`].
    async fn messages(
        &self,
        owner: &UserId,
        id: &ConversationId,
        page: &PageRequest<MessageCursor>,
    ) -> StoreResult<Option<Page<Message>>>;

    /// Returns the messages before `page.before`, or the newest ones. `None` if there is no such conversation.
    async fn earlier_messages(
        &self,
        owner: &UserId,
        id: &ConversationId,
        page: EarlierPage,
    ) -> StoreResult<Option<EarlierMessages>>;
}

/// Runs as their owners see and steer them.
#[async_trait]
pub trait RunStore: Send + Sync {
    /// Stores a message, its run and their first events in one transaction: after this they cannot be lost. See
    /// [`AcceptRun`] for what happens to a conversation that is busy.
    async fn accept_run(&self, accept: AcceptRun, idempotency: Option<IdempotencyClaim>) -> StoreResult<Keyed<Accepted>>;

    /// Takes a message of the user's out of a conversation in which no run is under way, with all that came after it, and stores
    /// another one in its place, in one transaction. The rest is as with [`Self::accept_run`].
    async fn edit_message(
        &self,
        accept: AcceptRun,
        message: &MessageId,
        idempotency: Option<IdempotencyClaim>,
    ) -> StoreResult<Keyed<Edited>>;

    /// The run, unless it is missing or somebody else's.
    async fn run(&self, owner: &UserId, id: &RunId) -> StoreResult<Option<RunView>>;

    /// Returns a page of runs, newest first.
    async fn runs(&self, owner: &UserId, filter: &RunFilter, page: &PageRequest<RunCursor>) -> StoreResult<Page<Run>>;

    /// The profile that the run was accepted with, and that whatever goes on from it has. `None` if there is no such run, or it is somebody
    /// else's.
    async fn run_profile(&self, owner: &UserId, id: &RunId) -> StoreResult<Option<AgentProfile>>;

    /// The run that is under way in a conversation: the active one, not those queued behind it.
    async fn active_run(&self, owner: &UserId, conversation: &ConversationId) -> StoreResult<Option<Run>>;

    /// Asks for the run to be cancelled. A run that nobody works on and that has not started is cancelled at once; one that
    /// waits is made claimable, so that a worker ends it; one with a live lease is only marked.
    async fn cancel_run(
        &self,
        owner: &UserId,
        id: &RunId,
        by: &str,
        now: UnixMillis,
        idempotency: Option<IdempotencyClaim>,
    ) -> StoreResult<Keyed<Cancelled>>;

    /// Wakes a run that waits, unless it waits for a human, or continues after one that has ended with a new one (terminal statuses
    /// never change). That is possible as long as it is the newest one of its conversation, and so only once.
    async fn resume_run(&self, resume: ResumeRun, idempotency: Option<IdempotencyClaim>) -> StoreResult<Keyed<Resumed>>;

    /// The answer of the run that holds this call, with all its calls. `None` if there is no such call, or it is somebody else's.
    async fn call_batch(&self, owner: &UserId, run: &RunId, call: &CallId) -> StoreResult<Option<CallBatch>>;

    /// One call of the run, with its whole result. `None` if there is no such call, or it is somebody else's.
    async fn tool_call(&self, owner: &UserId, run: &RunId, call: &CallId) -> StoreResult<Option<ToolCallRecord>>;

    /// What is known about why the run is or is not moving.
    async fn explain_run(&self, owner: &UserId, id: &RunId) -> StoreResult<Option<Explanation>>;

    /// Counts of runs that are not terminal, by status word, for metrics.
    async fn run_counts(&self) -> StoreResult<Vec<(String, i64)>>;
}

/// The most answers that hold for later calls which are looked at.
pub const MAX_GRANTS: i64 = 1_000;

/// Questions to a human, approvals among them. Runs ask them through the log.
#[async_trait]
pub trait InputStore: Send + Sync {
    /// The question, unless it is missing or somebody else's.
    async fn input_request(&self, owner: &UserId, id: &InputId) -> StoreResult<Option<InputRecord>>;

    /// A page of questions, newest first, of all states or of one.
    async fn input_requests(
        &self,
        owner: &UserId,
        asked: Asked,
        state: Option<InputState>,
        page: &PageRequest<InputCursor>,
    ) -> StoreResult<Page<InputRecord>>;

    /// Answers to approvals that hold for later calls, newest first, at most [`MAX_GRANTS`]: those that hold in one conversation, or
    /// all of the owner.
    async fn tool_grants(&self, owner: &UserId, within: Option<&ConversationId>) -> StoreResult<Vec<ToolGrant>>;

    /// Takes such an answer back. `false` if there is none.
    async fn delete_tool_grant(&self, owner: &UserId, id: &GrantId) -> StoreResult<bool>;

    /// Stores the one answer of a question, tells the log, and makes the run claimable, in one transaction. A run that a worker has
    /// is claimable when it is released to wait.
    async fn resolve_input(&self, resolve: ResolveInput, idempotency: Option<IdempotencyClaim>) -> StoreResult<Keyed<Resolved>>;
}

/// The queue of runs, used by workers only.
#[async_trait]
pub trait QueueStore: Send + Sync {
    /// Claims up to `limit` runs: raises the epoch, writes the lease, counts the attempt. Fair between owners (the one with
    /// the fewest live leases first), oldest first within one. No owner gets more live leases than the store was opened with a
    /// limit for. Losing a race is no error, only fewer rows. Of runs that are [suspected](SUSPECT_CRASHES) of killing their workers a
    /// node gets one, and the next when it has let go of that one, has [cleared](Self::clear_of_crashes) it, or has had it for
    /// [so long](SUSPECT_LEASES).
    async fn claim_runs(&self, node: &NodeId, limit: u32, lease_ms: u64) -> StoreResult<Vec<Claim>>;

    /// Raises the epoch of a run that its worker holds and goes on with. Whatever may still be under way under the old fence is
    /// written before this, or never. `None` if the fence is no longer the newest.
    ///
    /// A worker that has not heard the answer may ask again: if the newest fence is the one that follows, and the run has been
    /// claimed no more often than `attempt` says, nobody but this worker can have raised it, and it is given once more. Each claim counts
    /// an attempt, so that a fence of another claim is never taken for it.
    async fn raise_fence(&self, fence: &Fence, attempt: u32) -> StoreResult<Option<Fence>>;

    /// Says of a run that it goes on well: its present claim does not count as a crash, whatever becomes of it, and it is not suspected any
    /// more. To be said once for each claim. Nothing if the fence is no longer the newest.
    async fn clear_of_crashes(&self, fence: &Fence) -> StoreResult<()>;

    /// Loads a claimed run without what was said in its conversation: enough to end it, and so little that loading it kills nobody. `None` if
    /// the fence is no longer the newest.
    async fn load_bare(&self, fence: &Fence) -> StoreResult<Option<RunRecord>>;

    /// Loads a claimed run. `None` if the fence is no longer the newest.
    async fn load_run(&self, fence: &Fence) -> StoreResult<Option<RunRecord>>;

    /// Renews leases in one statement, and returns those that are still held. A lease that expired longer than `grace_ms`
    /// ago is not revived.
    async fn renew_leases(&self, node: &NodeId, fences: &[Fence], lease_ms: u64, grace_ms: u64) -> StoreResult<Vec<RunId>>;

    /// Gives up leases that their worker could not renew because the database was away. It lives, so these claims do not count
    /// as crashes, and the runs can be claimed at once: for the reason for which they were claimed if they have not gone on since
    /// ([`Change::Started`](crate::domain::change::Change::Started)), and else as if they were handed back. Leases that somebody else has
    /// ended are left alone: repeating it changes nothing more. Returns the runs that still have theirs, because somebody else is at their
    /// rows: they are to be given up again.
    async fn give_up_leases(&self, fences: &[Fence]) -> StoreResult<Vec<RunId>>;

    /// The fences of the leases that `node` was given in the last `age_ms`, by the database's clock: with what a claim has taken whose answer
    /// was lost, and with what requests have claimed for the node's worker.
    async fn young_leases(&self, node: &NodeId, age_ms: u64) -> StoreResult<Vec<Fence>>;

    /// Makes runs claimable whose lease has expired by the database's clock, at most `limit`, and fences off whoever held it.
    /// When more than half of all leases (and at least four) look expired at once, nothing is taken unless `despite_outage`. With a
    /// `limit` of 0 it only counts them.
    async fn sweep(&self, limit: u32, despite_outage: bool) -> StoreResult<Sweep>;

    /// Expires every lease that is not of `node`: SQLite has one server process, so all others are dead. No-op on Postgres.
    async fn expire_foreign_leases(&self, node: &NodeId) -> StoreResult<u64>;

    /// Requests that concern runs in progress: cancellations and messages to join. Asked for all runs of a node at once.
    async fn control_signals(&self, runs: &[RunId]) -> StoreResult<Vec<ControlSignal>>;

    /// When the next run becomes claimable by time alone, in milliseconds from now by the database's clock (0 = now). Runs whose
    /// owner has as many as it may have under way do not count.
    async fn next_claimable_in(&self) -> StoreResult<Option<u64>>;
}

/// The log: the only way in which a worker changes the rows of a run that it holds. Use cases and the queue change the rest.
#[async_trait]
pub trait LogStore: Send + Sync {
    /// Waits until the next commit can be sent at once, as far as that can be known. What is to be committed is gathered after
    /// this: written down before, it would be sent when the database is back, in the name of runs that were given up meanwhile.
    async fn ready(&self) -> StoreResult<()> {
        Ok(())
    }

    /// Commits many writes in one transaction. Each is tested by its fence on its own: a fenced one leaves nothing, the others
    /// are committed. The answers are in the order of the writes.
    ///
    /// Several writes of one run may be in a batch; they are carried out in order. A write that breaks a rule of the rows (a
    /// tool call started twice, a second outcome, a message that is there already) is answered and treated like a fenced one,
    /// so that it cannot take its neighbours with it.
    async fn commit(&self, writes: &[RunWrite]) -> StoreResult<Vec<Result<Committed, Refused>>>;

    /// Events after `after`, oldest first, at most `limit` (1 to 1,000). The page ends early when it holds [`PAGE_BYTES`] of data:
    /// [`is_full_page`] knows whether to ask again.
    /// None for a conversation that is somebody else's.
    async fn events(&self, owner: &UserId, conversation: &ConversationId, after: i64, limit: u32) -> StoreResult<Vec<StoredEvent>>;

    /// Where the log begins and ends. `None` for a conversation that is missing or somebody else's.
    async fn log_bounds(&self, owner: &UserId, conversation: &ConversationId) -> StoreResult<Option<LogBounds>>;

    /// The newest `seq` of each conversation that has one. For what listens to them, which knows no owners.
    async fn heads(&self, conversations: &[ConversationId]) -> StoreResult<Vec<(ConversationId, i64)>>;

    /// Of each log what follows the `seq` beside it, oldest first, as pages of [`LogStore::events`] are, of at most `limit` events
    /// each; logs without any are left out. For what listens to them, which knows no owners.
    async fn news(&self, after: &[(ConversationId, i64)], limit: u32) -> StoreResult<Vec<(ConversationId, Vec<StoredEvent>)>>;
}

/// Users and their keys.
#[async_trait]
pub trait KeyStore: Send + Sync {
    /// The user of that name, made if missing. An existing user keeps its role unless `role` is an upgrade to admin.
    async fn ensure_user(&self, id: UserId, name: &str, role: UserRole, now: UnixMillis) -> StoreResult<User>;

    /// Stores a key by its hash. `label` is its visible beginning.
    async fn create_key(&self, id: KeyId, user: &UserId, hash: &str, label: &str, now: UnixMillis) -> StoreResult<()>;

    /// The user of a key that is not revoked.
    async fn user_by_key_hash(&self, hash: &str) -> StoreResult<Option<User>>;

    /// Whether any key that is not revoked exists.
    async fn has_keys(&self) -> StoreResult<bool>;

    /// Those of the keys, by hash, that are not revoked. Asked for all that a process has in use at once.
    async fn live_keys(&self, hashes: &[String]) -> StoreResult<Vec<String>>;

    /// Every key, oldest first, revoked ones included.
    async fn keys(&self) -> StoreResult<Vec<StoredKey>>;

    /// Revokes a key for ever. False if there is no such key, or it was revoked before.
    async fn revoke_key(&self, id: &KeyId, now: UnixMillis) -> StoreResult<bool>;
}

/// Tickets, by the hash of what their holders show.
#[async_trait]
pub trait TicketStore: Send + Sync {
    /// Keeps a ticket for `lifetime_ms`, by the database's clock. Returns when it expires.
    async fn create_ticket(&self, hash: &str, ticket: &StreamTicket, lifetime_ms: u32) -> StoreResult<UnixMillis>;

    /// Takes the ticket out: of all that ask for it, one gets it. `None` if it is unknown, was taken or has expired.
    async fn take_ticket(&self, hash: &str) -> StoreResult<Option<StreamTicket>>;

    /// Removes tickets that nobody can use any more. Returns how many.
    async fn remove_expired_tickets(&self) -> StoreResult<u64>;
}

/// The most rows of the audit that are removed at a time.
pub const AUDIT_PIECE: i64 = 5_000;

/// What became of every call of a tool. Written by the log, with the outcomes; a conversation that is deleted leaves it as it is.
#[async_trait]
pub trait AuditStore: Send + Sync {
    /// A page of ended calls, newest first.
    async fn tool_audit(&self, filter: &AuditFilter, page: &PageRequest<AuditCursor>) -> StoreResult<Page<AuditRecord>>;

    /// Removes rows that are at least `age_ms` old by the database's clock, at most [`AUDIT_PIECE`]. Returns how many.
    async fn remove_old_audit(&self, age_ms: u64) -> StoreResult<u64>;
}

/// The most sets of tools that are removed at a time.
pub const TOOL_SETS_PIECE: i64 = 200;

/// What becomes of the logs of runs that ended long ago. Nobody writes to them any more, so none of this needs a fence.
#[async_trait]
pub trait RetentionStore: Send + Sync {
    /// Runs that ended at least `age_ms` ago by the database's clock and are not folded, by when they ended, at most `limit`,
    /// after the given one.
    async fn runs_to_fold(&self, age_ms: u64, after: Option<&EndedRun>, limit: u32) -> StoreResult<Vec<EndedRun>>;

    /// Puts deltas in the place of others, and notes that the run `through`, if there is one, needs no folding any more; in one
    /// transaction. False, and nothing is changed, if the events are no longer those that the folds were made from, or another
    /// process folds at this moment.
    async fn fold_deltas(&self, conversation: &ConversationId, folds: &[FoldedDelta], through: Option<&RunId>)
    -> StoreResult<bool>;

    /// Conversations, by id and after the given one, in which nothing has happened for `age_ms` by the database's clock, that are
    /// not pinned, have no run under way, and are to be tidied so; at most `limit`.
    async fn idle_conversations(
        &self,
        tidying: Tidying,
        age_ms: u64,
        after: Option<&ConversationId>,
        limit: u32,
    ) -> StoreResult<Vec<(UserId, ConversationId)>>;

    /// Puts those of these away of which that still holds. Returns the event of each, which says that it has changed.
    async fn archive_idle(&self, ids: &[ConversationId], age_ms: u64) -> StoreResult<Vec<StoredEvent>>;

    /// Deletes a conversation of which that still holds, with all that belongs to it. False if it does not.
    async fn delete_idle(&self, owner: &UserId, id: &ConversationId, tidying: Tidying, age_ms: u64) -> StoreResult<bool>;

    /// Removes sets of tools that no run names any more, at most [`TOOL_SETS_PIECE`]. Returns how many. One that a run is just taking as its
    /// own stays, or is made again by that run, whatever version its worker is of.
    async fn remove_unused_tool_sets(&self) -> StoreResult<u64>;
}

/// Everything, behind one handle.
#[async_trait]
pub trait Store:
    ConversationStore
    + RunStore
    + InputStore
    + QueueStore
    + LogStore
    + KeyStore
    + TicketStore
    + AuditStore
    + PinStore
    + RetentionStore
    + ProviderStore
    + McpServerStore
    + AgentStore
    + McpLoginStore
    + UsageStore
    + BudgetStore
    + FileStore
    + SearchStore
    + FeedbackStore
    + TitleStore
    + UserStore
{
    /// Answers if the database does, within `statement_timeout`, and takes writes: Postgres can be read-only as a whole, and the disk
    /// of SQLite can be full.
    async fn ping(&self) -> StoreResult<()>;

    /// Whether other processes may write to the same database, so that the log must be polled for their events.
    fn is_shared(&self) -> bool;

    /// Whether a run may have to wait in the queue for another one of its owner to end, however many workers are idle.
    fn caps_owners(&self) -> bool {
        false
    }

    /// How long ago the oldest snapshot was taken that is still open in this database, by anybody. What is updated meanwhile cannot be
    /// cleaned away. `None` where nobody else can hold one.
    async fn oldest_snapshot(&self) -> StoreResult<Option<Duration>> {
        Ok(None)
    }

    /// Finds out from where on the queue is to be read, so that claims do not pass what has left it. To be called every second or so;
    /// whoever does not call it claims the same runs, only slower.
    async fn raise_low_water(&self) -> StoreResult<()> {
        Ok(())
    }

    /// Removes idempotency records of this age by the database's clock, and what is left of conversations whose deletion was cut
    /// short. Returns how many records.
    async fn remove_expired_idempotency(&self, age_ms: u64) -> StoreResult<u64>;

    /// How many rows there are that the next cleaning removes: idempotency records and rows of the audit of these ages.
    async fn count_expired(&self, keys_ms: u64, audit_ms: Option<u64>) -> StoreResult<Expired>;

    /// Has whatever is put in the place of this database from before now be noticed when it is opened. To be called now and then;
    /// does nothing where that is noticed anyway, or never.
    async fn leave_mark(&self) -> StoreResult<()> {
        Ok(())
    }

    /// Ends all connections.
    async fn close(&self);
}
