//! Runs as their owners see and steer them: the trait and its filter.

pub(super) mod budget;
pub(super) mod call_batch;
pub(super) mod compose;
pub(super) mod control;
pub(super) mod queue;
pub(super) mod usage;

use async_trait::async_trait;

use crate::domain::agent::AgentProfile;
use crate::domain::ids::{CallId, ConversationId, MessageId, RunId, UserId};
use crate::domain::run::{Run, RunStatus};
use crate::domain::tool::call_record::ToolCallRecord;
use crate::store::{
    AcceptRun, Accepted, CallBatch, CancelRun, Cancelled, Edited, Explanation, IdempotencyClaim, Keyed, Page, PageRequest,
    ResumeRun, Resumed, RunCursor, RunView, StoreResult,
};
use crate::support::clock::UnixMillis;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RunFilter {
    /// Runs of this conversation, by their order in it; of all conversations, by the time they were accepted, if `None`.
    pub conversation: Option<ConversationId>,
    pub status: Option<RunStatus>,
    pub agent: Option<String>,
    /// Runs accepted at this time or later.
    pub created_from: Option<UnixMillis>,
    /// Runs accepted before this time.
    pub created_before: Option<UnixMillis>,
}

#[async_trait]
pub trait RunStore: Send + Sync {
    /// Stores a message, its run and their first events in one transaction: after this they cannot be lost. See
    /// [`AcceptRun`] for what happens to a conversation that is busy.
    async fn accept_run(&self, accept: AcceptRun, idempotency: Option<IdempotencyClaim>) -> StoreResult<Keyed<Accepted>>;

    /// Replaces a user message of a conversation in which no run is under way, in one transaction. Later messages are superseded. The
    /// rest is as with [`Self::accept_run`].
    async fn edit_message(
        &self,
        accept: AcceptRun,
        message: &MessageId,
        idempotency: Option<IdempotencyClaim>,
    ) -> StoreResult<Keyed<Edited>>;

    /// Returns the run, unless it is missing or another owner's.
    async fn run(&self, owner: &UserId, id: &RunId) -> StoreResult<Option<RunView>>;

    /// Returns a page of runs, newest first.
    async fn runs(&self, owner: &UserId, filter: &RunFilter, page: &PageRequest<RunCursor>) -> StoreResult<Page<Run>>;

    /// Returns the profile that was frozen into the run. `None` if the run is missing or another owner's.
    async fn run_profile(&self, owner: &UserId, id: &RunId) -> StoreResult<Option<AgentProfile>>;

    /// The run that is under way in a conversation: the active one, not those queued behind it.
    async fn active_run(&self, owner: &UserId, conversation: &ConversationId) -> StoreResult<Option<Run>>;

    /// Cancels a run. A run without a lease that has not started ends at once. A waiting run is made claimable, so that a worker ends
    /// it. A run with a live lease is only marked.
    async fn cancel_run(&self, cancel: CancelRun<'_>, idempotency: Option<IdempotencyClaim>) -> StoreResult<Keyed<Cancelled>>;

    /// Wakes a run that waits, unless it waits for a human, or continues after one that has ended with a new one (terminal statuses
    /// never change). That is possible as long as it is the newest one of its conversation, and so only once.
    async fn resume_run(&self, resume: ResumeRun, idempotency: Option<IdempotencyClaim>) -> StoreResult<Keyed<Resumed>>;

    /// Returns the answer of the run that holds this call, with all its calls. `None` if the call is missing or another owner's.
    async fn call_batch(&self, owner: &UserId, run: &RunId, call: &CallId) -> StoreResult<Option<CallBatch>>;

    /// Returns a call of the run, with its whole result. `None` if the call is missing or another owner's.
    async fn tool_call(&self, owner: &UserId, run: &RunId, call: &CallId) -> StoreResult<Option<ToolCallRecord>>;

    /// Returns the facts that explain why the run does or does not move.
    async fn explain_run(&self, owner: &UserId, id: &RunId) -> StoreResult<Option<Explanation>>;

    /// Counts of runs that are not terminal, by status word, for metrics.
    async fn run_counts(&self) -> StoreResult<Vec<(String, i64)>>;
}
