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

/// Implements a trait of the store: each call is passed on by its name. Other methods follow in a block.
macro_rules! passed_on {
    ($trait:ident { $($method:ident($($argument:ident: $type:ty),*) -> $reply:ty;)+ } $({ $($other:tt)+ })?) => {
        #[async_trait]
        impl<I: Interceptor> $trait for InterceptedStore<I> {
            $(async fn $method(&self, $($argument: $type),*) -> StoreResult<$reply> {
                self.0.pass(stringify!($method), || self.0.store().$method($(Clone::clone(&$argument)),*)).await
            })+
            $($($other)+)?
        }
    };
}

passed_on!(ConversationStore {
    run_progress(owner: &UserId, runs: &[RunId]) -> Vec<(RunId, StepKind)>;
    create_conversation(new: NewConversation, key: Option<IdempotencyKey>) -> IdempotentOutcome<CreateOutcome>;
    conversation(owner: &UserId, id: &ConversationId) -> Option<Conversation>;
    conversations(owner: &UserId, filter: &ConversationFilter, page: &PageRequest<ConversationCursor>) -> Page<Conversation>;
    change_conversation(owner: &UserId, id: &ConversationId, change: &ConversationChange, now: UnixMillis)
        -> Option<(Conversation, Vec<StoredEvent>)>;
    compact(compact: Compact, key: Option<IdempotencyKey>) -> IdempotentOutcome<CompactOutcome>;
    rewind_conversation(rewind: Rewind, key: Option<IdempotencyKey>) -> IdempotentOutcome<RewindOutcome>;
    append_messages(append: AppendMessages, key: Option<IdempotencyKey>) -> IdempotentOutcome<AppendOutcome>;
    copy_conversation(copy: CopyConversation, key: Option<IdempotencyKey>) -> IdempotentOutcome<CopyOutcome>;
    delete_conversation(owner: &UserId, id: &ConversationId) -> Option<DeletedConversation>;
    messages(owner: &UserId, id: &ConversationId, page: &PageRequest<MessageCursor>) -> Option<Page<Message>>;
    earlier_messages(owner: &UserId, id: &ConversationId, page: EarlierPage) -> Option<EarlierMessages>;
});

passed_on!(RunStore {
    edit_message(accept: AcceptRun, message: &MessageId, key: Option<IdempotencyKey>) -> IdempotentOutcome<EditOutcome>;
    run(owner: &UserId, id: &RunId) -> Option<RunView>;
    runs(owner: &UserId, filter: &RunFilter, page: &PageRequest<RunCursor>) -> Page<Run>;
    run_profile(owner: &UserId, id: &RunId) -> Option<AgentProfile>;
    run_output(owner: &UserId, id: &RunId) -> Option<RunOutput>;
    active_run(owner: &UserId, conversation: &ConversationId) -> Option<Run>;
    cancel_run(cancel: CancelRun<'_>, key: Option<IdempotencyKey>) -> IdempotentOutcome<CancelOutcome>;
    resume_run(resume: ResumeRun, key: Option<IdempotencyKey>) -> IdempotentOutcome<ResumeOutcome>;
    call_batch(owner: &UserId, run: &RunId, call: &CallId) -> Option<CallBatch>;
    tool_call(owner: &UserId, run: &RunId, call: &CallId) -> Option<ToolCallRecord>;
    explain_run(owner: &UserId, id: &RunId) -> Option<Explanation>;
    run_counts() -> Vec<(String, i64)>;
} {
    async fn accept_run(&self, accept: AcceptRun, key: Option<IdempotencyKey>) -> IdempotentResult<AcceptOutcome> {
        let lease_ms = accept.taker.as_ref().map_or(0, |taker| taker.lease_ms);
        let call = || async {
            let accepted = self.0.store().accept_run(accept.clone(), key.clone()).await?;
            self.0.accepted(&accepted, lease_ms);
            Ok(accepted)
        };
        self.0.pass("accept_run", call).await
    }
});

passed_on!(InputStore {
    input_request(owner: &UserId, id: &InputId) -> Option<InputRecord>;
    input_requests(filter: InputFilter<'_>, page: &PageRequest<InputCursor>) -> Page<InputRecord>;
    tool_grants(owner: &UserId, within: Option<&ConversationId>) -> Vec<ToolGrant>;
    delete_tool_grant(owner: &UserId, id: &GrantId) -> bool;
    resolve_input(resolve: ResolveInput, key: Option<IdempotencyKey>) -> IdempotentOutcome<ResolveOutcome>;
    store_tool_results(results: ToolResults, key: Option<IdempotencyKey>) -> IdempotentOutcome<ToolResultsOutcome>;
});

passed_on!(BudgetStore {
    reserve(fence: &Fence, owner: &UserId, reserve: &ReservationRequest) -> Option<ReservationOutcome>;
    remove_old_spending() -> u64;
});

passed_on!(ToolReviewStore {
    compare_tool_definitions(seen: &[ListedDefinition]) -> ComparedDefinitions;
    tool_reviews(viewer: &UserId, status: Option<ToolReviewStatus>) -> Vec<ToolReview>;
    accept_tool_review(scope: &ToolReviewScope, id: &ToolReviewId, by: &UserId) -> Option<ToolReview>;
});

passed_on!(TitleStore {
    claim_title(owner: &UserId, of: &ConversationId) -> Option<String>;
    finish_title(made: GeneratedTitle) -> Vec<StoredEvent>;
});

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
