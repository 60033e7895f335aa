//! Runs as their owners see and control them: the trait and its filter.
//!
//! Owns the traits and values of runs, the queue, budgets and usage. Must not know any statement.

pub(super) mod budget;
pub(super) mod created_rows;
pub(super) mod queue;
pub(super) mod usage;

use async_trait::async_trait;

use crate::domain::agent::AgentProfile;
use crate::domain::ids::{CallId, ConversationId, MessageId, RunId, UserId};
use crate::domain::run::{Run, RunOutput, RunStatus};
use crate::domain::tool::ToolCallRecord;
use crate::store::{
    AcceptOutcome, AcceptRun, CallBatch, CancelOutcome, CancelRun, EditOutcome, Explanation, IdempotencyKey, IdempotentResult,
    Page, PageRequest, ResumeOutcome, ResumeRun, RunCursor, RunView, StoreResult,
};
use crate::support::clock::UnixMillis;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RunFilter {
    /// Runs of this conversation, in its order; `None` for all conversations, ordered by acceptance.
    pub conversation: Option<ConversationId>,
    pub status: Option<RunStatus>,
    pub agent: Option<String>,
    /// Runs accepted at this time or later.
    pub created_from: Option<UnixMillis>,
    /// Runs accepted before this time.
    pub created_before: Option<UnixMillis>,
}

/// Accepts, reads and controls runs for their owners.
#[async_trait]
#[warn(missing_docs)]
pub trait RunStore: Send + Sync {
    /// Stores a message, its run and their first events in one transaction, after which they are durable. See [`AcceptRun`] for
    /// conversations with an active run.
    async fn accept_run(&self, accept: AcceptRun, key: Option<IdempotencyKey>) -> IdempotentResult<AcceptOutcome>;

    /// Replaces a user message of a conversation without an unfinished run, in one transaction. Later messages are superseded.
    /// Otherwise like [`Self::accept_run`].
    async fn edit_message(
        &self,
        accept: AcceptRun,
        message: &MessageId,
        key: Option<IdempotencyKey>,
    ) -> IdempotentResult<EditOutcome>;

    /// Returns the run, unless it is missing or belongs to another owner.
    async fn run(&self, owner: &UserId, id: &RunId) -> StoreResult<Option<RunView>>;

    /// Returns a page of runs, newest first.
    async fn runs(&self, owner: &UserId, filter: &RunFilter, page: &PageRequest<RunCursor>) -> StoreResult<Page<Run>>;

    /// Returns the profile that the run froze. `None` if the run is missing or belongs to another owner.
    async fn run_profile(&self, owner: &UserId, id: &RunId) -> StoreResult<Option<AgentProfile>>;

    /// Returns the answer of a run that has ended. `None` if it has none, is missing, or belongs to another owner.
    async fn run_output(&self, owner: &UserId, id: &RunId) -> StoreResult<Option<RunOutput>>;

    /// Returns the active run of a conversation, which excludes those queued behind it.
    async fn active_run(&self, owner: &UserId, conversation: &ConversationId) -> StoreResult<Option<Run>>;

    /// Cancels a run. A run that has not started and has no lease ends at once. A waiting run becomes claimable, so that a worker
    /// ends it. A run with a live lease is only marked.
    async fn cancel_run(&self, cancel: CancelRun<'_>, key: Option<IdempotencyKey>) -> IdempotentResult<CancelOutcome>;

    /// Wakes a waiting run, unless it waits for a human or its client. Or continues an ended run with a new one, because terminal
    /// statuses never change. Except for an undo, the ended run must be the newest one of its conversation, so this works only
    /// once.
    async fn resume_run(&self, resume: ResumeRun, key: Option<IdempotencyKey>) -> IdempotentResult<ResumeOutcome>;

    /// Returns the answer that contains this call, with all its calls. `None` if the call is missing or belongs to another owner.
    async fn call_batch(&self, owner: &UserId, run: &RunId, call: &CallId) -> StoreResult<Option<CallBatch>>;

    /// Returns a call of the run with its complete result. `None` if the call is missing or belongs to another owner.
    async fn tool_call(&self, owner: &UserId, run: &RunId, call: &CallId) -> StoreResult<Option<ToolCallRecord>>;

    /// Returns the facts that explain why the run makes progress or not.
    async fn explain_run(&self, owner: &UserId, id: &RunId) -> StoreResult<Option<Explanation>>;

    /// Counts runs that are not terminal, by status, for metrics.
    async fn run_counts(&self) -> StoreResult<Vec<(String, i64)>>;
}
