//! A store whose calls pass through an interceptor: a test decides what happens to each.

use std::ops::Deref;

use async_trait::async_trait;
use capstan::domain::agent::AgentProfile;
use capstan::domain::conversation::Conversation;
use capstan::domain::conversation::message::Message;
use capstan::domain::event::StoredEvent;
use capstan::domain::ids::{CallId, ConversationId, GrantId, InputId, MessageId, RunId, ToolReviewId, UserId};
use capstan::domain::run::Run;
use capstan::domain::run::budget::{ReservationOutcome, ReservationRequest};
use capstan::domain::run::change::StepKind;
use capstan::domain::run::output::RunOutput;
use capstan::domain::run::question::InputRecord;
use capstan::domain::run::record::Fence;
use capstan::domain::tool::approval::ToolGrant;
use capstan::domain::tool::call_record::ToolCallRecord;
use capstan::domain::tool::tool_review::{ToolReview, ToolReviewStatus};
use capstan::store::*;
use capstan::support::clock::UnixMillis;

/// Decides what happens to the calls of a store.
pub trait Interceptor: Send + Sync {
    type Store: WorkerStore + ServiceStore + ?Sized;

    /// Returns the store behind this one.
    fn store(&self) -> &Self::Store;

    /// Passes a call on by its name, zero or more times, and returns its reply.
    fn pass<T: Send, F: Future<Output = StoreResult<T>> + Send>(
        &self,
        name: &'static str,
        call: impl Fn() -> F + Send,
    ) -> impl Future<Output = StoreResult<T>> + Send;

    /// Sees an accepted message at the moment when it is stored.
    fn accepted(&self, _accepted: &IdempotentOutcome<AcceptOutcome>, _lease_ms: u64) {}
}

/// A store behind an interceptor, which implements [`QueueStore`] and [`LogStore`] itself.
pub struct InterceptedStore<I>(pub I);

impl<I> Deref for InterceptedStore<I> {
    type Target = I;

    fn deref(&self) -> &I {
        &self.0
    }
}

#[async_trait]
impl<I: Interceptor> ConversationStore for InterceptedStore<I> {
    async fn run_progress(&self, owner: &UserId, runs: &[RunId]) -> StoreResult<Vec<(RunId, StepKind)>> {
        self.0.pass("reached", || self.0.store().run_progress(owner, runs)).await
    }
    async fn create_conversation(&self, new: NewConversation, key: Option<IdempotencyKey>) -> IdempotentResult<CreateOutcome> {
        self.0.pass("create_conversation", || self.0.store().create_conversation(new.clone(), key.clone())).await
    }
    async fn conversation(&self, owner: &UserId, id: &ConversationId) -> StoreResult<Option<Conversation>> {
        self.0.pass("conversation", || self.0.store().conversation(owner, id)).await
    }
    async fn conversations(
        &self,
        owner: &UserId,
        filter: &ConversationFilter,
        page: &PageRequest<ConversationCursor>,
    ) -> StoreResult<Page<Conversation>> {
        self.0.pass("conversations", || self.0.store().conversations(owner, filter, page)).await
    }
    async fn change_conversation(
        &self,
        owner: &UserId,
        id: &ConversationId,
        change: &ConversationChange,
        now: UnixMillis,
    ) -> StoreResult<Option<(Conversation, Vec<StoredEvent>)>> {
        self.0.pass("change_conversation", || self.0.store().change_conversation(owner, id, change, now)).await
    }
    async fn compact(&self, compact: Compact, key: Option<IdempotencyKey>) -> IdempotentResult<CompactOutcome> {
        self.0.pass("compact", || self.0.store().compact(compact.clone(), key.clone())).await
    }

    async fn rewind_conversation(&self, rewind: Rewind, key: Option<IdempotencyKey>) -> IdempotentResult<RewindOutcome> {
        self.0.pass("rewind_conversation", || self.0.store().rewind_conversation(rewind.clone(), idempotency.clone())).await
    }
    async fn append_messages(&self, append: AppendMessages, key: Option<IdempotencyKey>) -> IdempotentResult<AppendOutcome> {
        self.0.pass("append_messages", || self.0.store().append_messages(append.clone(), key.clone())).await
    }
    async fn copy_conversation(&self, copy: CopyConversation, key: Option<IdempotencyKey>) -> IdempotentResult<CopyOutcome> {
        self.0.pass("copy_conversation", || self.0.store().copy_conversation(copy.clone(), key.clone())).await
    }
    async fn delete_conversation(&self, owner: &UserId, id: &ConversationId) -> StoreResult<Option<DeletedConversation>> {
        self.0.pass("delete_conversation", || self.0.store().delete_conversation(owner, id)).await
    }
    async fn messages(
        &self,
        owner: &UserId,
        id: &ConversationId,
        page: &PageRequest<MessageCursor>,
    ) -> StoreResult<Option<Page<Message>>> {
        self.0.pass("messages", || self.0.store().messages(owner, id, page)).await
    }
    async fn earlier_messages(
        &self,
        owner: &UserId,
        id: &ConversationId,
        page: EarlierPage,
    ) -> StoreResult<Option<EarlierMessages>> {
        self.0.pass("earlier_messages", || self.0.store().earlier_messages(owner, id, page)).await
    }
}

#[async_trait]
impl<I: Interceptor> RunStore for InterceptedStore<I> {
    async fn accept_run(&self, accept: AcceptRun, key: Option<IdempotencyKey>) -> IdempotentResult<AcceptOutcome> {
        let lease_ms = accept.taker.as_ref().map_or(0, |taker| taker.lease_ms);
        let call = || async {
            let accepted = self.0.store().accept_run(accept.clone(), key.clone()).await?;
            self.0.accepted(&accepted, lease_ms);
            Ok(accepted)
        };
        self.0.pass("accept_run", call).await
    }
    async fn edit_message(
        &self,
        accept: AcceptRun,
        message: &MessageId,
        key: Option<IdempotencyKey>,
    ) -> IdempotentResult<EditOutcome> {
        self.0.pass("edit_message", || self.0.store().edit_message(accept.clone(), message, idempotency.clone())).await
    }
    async fn run(&self, owner: &UserId, id: &RunId) -> StoreResult<Option<RunView>> {
        self.0.pass("run", || self.0.store().run(owner, id)).await
    }
    async fn runs(&self, owner: &UserId, filter: &RunFilter, page: &PageRequest<RunCursor>) -> StoreResult<Page<Run>> {
        self.0.pass("runs", || self.0.store().runs(owner, filter, page)).await
    }
    async fn run_profile(&self, owner: &UserId, id: &RunId) -> StoreResult<Option<AgentProfile>> {
        self.0.pass("run_profile", || self.0.store().run_profile(owner, id)).await
    }
    async fn run_output(&self, owner: &UserId, id: &RunId) -> StoreResult<Option<RunOutput>> {
        self.0.pass("run_output", || self.0.store().run_output(owner, id)).await
    }
    async fn active_run(&self, owner: &UserId, conversation: &ConversationId) -> StoreResult<Option<Run>> {
        self.0.pass("active_run", || self.0.store().active_run(owner, conversation)).await
    }
    async fn cancel_run(&self, cancel: CancelRun<'_>, key: Option<IdempotencyKey>) -> IdempotentResult<CancelOutcome> {
        self.0.pass("cancel_run", || self.0.store().cancel_run(cancel, key.clone())).await
    }
    async fn resume_run(&self, resume: ResumeRun, key: Option<IdempotencyKey>) -> IdempotentResult<ResumeOutcome> {
        self.0.pass("resume_run", || self.0.store().resume_run(resume.clone(), key.clone())).await
    }
    async fn call_batch(&self, owner: &UserId, run: &RunId, call: &CallId) -> StoreResult<Option<CallBatch>> {
        self.0.pass("call_batch", || self.0.store().call_batch(owner, run, call)).await
    }
    async fn tool_call(&self, owner: &UserId, run: &RunId, call: &CallId) -> StoreResult<Option<ToolCallRecord>> {
        self.0.pass("tool_call", || self.0.store().tool_call(owner, run, call)).await
    }
    async fn explain_run(&self, owner: &UserId, id: &RunId) -> StoreResult<Option<Explanation>> {
        self.0.pass("explain_run", || self.0.store().explain_run(owner, id)).await
    }
    async fn run_counts(&self) -> StoreResult<Vec<(String, i64)>> {
        self.0.pass("run_counts", || self.0.store().run_counts()).await
    }
}

#[async_trait]
impl<I: Interceptor> InputStore for InterceptedStore<I> {
    async fn input_request(&self, owner: &UserId, id: &InputId) -> StoreResult<Option<InputRecord>> {
        self.0.pass("input_request", || self.0.store().input_request(owner, id)).await
    }
    async fn input_requests(&self, filter: InputFilter<'_>, page: &PageRequest<InputCursor>) -> StoreResult<Page<InputRecord>> {
        self.0.pass("input_requests", || self.0.store().input_requests(filter, page)).await
    }
    async fn tool_grants(&self, owner: &UserId, within: Option<&ConversationId>) -> StoreResult<Vec<ToolGrant>> {
        self.0.pass("tool_grants", || self.0.store().tool_grants(owner, within)).await
    }
    async fn delete_tool_grant(&self, owner: &UserId, id: &GrantId) -> StoreResult<bool> {
        self.0.pass("delete_tool_grant", || self.0.store().delete_tool_grant(owner, id)).await
    }
    async fn resolve_input(&self, resolve: ResolveInput, key: Option<IdempotencyKey>) -> IdempotentResult<ResolveOutcome> {
        self.0.pass("resolve_input", || self.0.store().resolve_input(resolve.clone(), idempotency.clone())).await
    }
    async fn store_tool_results(&self, results: ToolResults, key: Option<IdempotencyKey>) -> IdempotentResult<ToolResultsOutcome> {
        self.0.pass("store_tool_results", || self.0.store().store_tool_results(results.clone(), idempotency.clone())).await
    }
}

#[async_trait]
impl<I: Interceptor> BudgetStore for InterceptedStore<I> {
    async fn reserve(
        &self,
        fence: &Fence,
        owner: &UserId,
        reserve: &ReservationRequest,
    ) -> StoreResult<Option<ReservationOutcome>> {
        self.0.pass("reserve", || self.0.store().reserve(fence, owner, reserve)).await
    }
    async fn remove_old_spending(&self) -> StoreResult<u64> {
        self.0.pass("remove_old_spending", || self.0.store().remove_old_spending()).await
    }
}

#[async_trait]
impl<I: Interceptor> ToolReviewStore for InterceptedStore<I> {
    async fn compare_tool_definitions(&self, seen: &[ListedDefinition]) -> StoreResult<Vec<ToolReviewId>> {
        self.0.pass("compare_tool_definitions", || self.0.store().compare_tool_definitions(seen)).await
    }
    async fn tool_reviews(&self, viewer: &UserId, status: Option<ToolReviewStatus>) -> StoreResult<Vec<ToolReview>> {
        self.0.pass("tool_reviews", || self.0.store().tool_reviews(viewer, status)).await
    }
    async fn accept_tool_review(&self, scope: &ToolReviewScope, id: &ToolReviewId, by: &UserId) -> StoreResult<Option<ToolReview>> {
        self.0.pass("accept_tool_review", || self.0.store().accept_tool_review(scope, id, by)).await
    }
}

#[async_trait]
impl<I: Interceptor> TitleStore for InterceptedStore<I> {
    async fn claim_title(&self, owner: &UserId, of: &ConversationId) -> StoreResult<Option<String>> {
        self.0.pass("claim_title", || self.0.store().claim_title(owner, of)).await
    }
    async fn finish_title(&self, made: GeneratedTitle) -> StoreResult<Vec<StoredEvent>> {
        self.0.pass("finish_title", || self.0.store().finish_title(made.clone())).await
    }
}

#[async_trait]
impl<I: Interceptor> CommonStore for InterceptedStore<I> {
    async fn ping(&self) -> StoreResult<()> {
        self.0.pass("ping", || self.0.store().ping()).await
    }
    fn is_shared(&self) -> bool {
        self.0.store().is_shared()
    }
    fn caps_owners(&self) -> bool {
        self.0.store().caps_owners()
    }
    fn records(&self) -> &(dyn RecordStore + 'static) {
        self.0.store().records()
    }
}
