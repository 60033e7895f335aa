//! A store whose calls fail as a test demands.

use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use capstan::domain::agent::AgentProfile;
use capstan::domain::conversation::Conversation;
use capstan::domain::conversation::message::Message;
use capstan::domain::event::StoredEvent;
use capstan::domain::ids::{CallId, ConversationId, GrantId, InputId, MessageId, NodeId, PinId, RunId, UserId};
use capstan::domain::run::Run;
use capstan::domain::run::budget::{Reserve, Reserved};
use capstan::domain::run::change::StepKind;
use capstan::domain::run::input::{InputRecord, InputState};
use capstan::domain::run::record::{Fence, RunRecord, RunWrite};
use capstan::domain::tool::approval::ToolGrant;
use capstan::domain::tool::call_record::ToolCallRecord;
use capstan::domain::tool::pin::{PinStatus, ToolPin};
use capstan::store::*;
use capstan::support::clock::UnixMillis;
use tokio::sync::Notify;

/// The fate of a call.
pub enum Fate {
    /// It succeeds.
    Goes,
    /// It fails without effect.
    Fails(StoreError),
    /// It succeeds, and its reply is lost.
    Unheard(StoreError),
    /// It is executed twice.
    Twice,
    /// It is executed once it is released.
    Late(Arc<Notify>),
    /// It is executed, and its reply arrives once it is released.
    HeardLate(Arc<Notify>),
    /// It never returns.
    Hangs,
    /// It panics.
    Panics,
}

type Judge = Box<dyn FnMut(&[RunWrite]) -> Fate + Send>;

type Trouble = Box<dyn FnMut(&'static str) -> Fate + Send>;

/// A real store in which a test decides the fate of batches, of worker calls and of accepted messages.
pub struct FaultyStore {
    inner: Arc<dyn Store>,
    judge: Mutex<Judge>,
    trouble: Mutex<Trouble>,
    /// Whether the next sweep panics.
    pub panics: std::sync::atomic::AtomicBool,
}

/// Returns the error of a database that is away.
pub fn away() -> StoreError {
    StoreError::Unavailable(sqlx::Error::PoolTimedOut)
}

/// Returns the error of a locked row.
pub fn locked() -> StoreError {
    StoreError::Contended(sqlx::Error::PoolTimedOut)
}

/// Returns a permanent error.
pub fn wrong() -> StoreError {
    StoreError::Statement(sqlx::Error::RowNotFound)
}

impl FaultyStore {
    pub fn new(inner: Arc<dyn Store>) -> Arc<Self> {
        let (judge, trouble) = (Mutex::new(Box::new(|_: &[_]| Fate::Goes) as _), Mutex::new(Box::new(|_| Fate::Goes) as _));
        Arc::new(Self { inner, judge, trouble, panics: false.into() })
    }

    /// Sets the fate of later batches.
    pub fn judge(&self, judge: impl FnMut(&[RunWrite]) -> Fate + Send + 'static) {
        *self.judge.lock().unwrap() = Box::new(judge);
    }

    /// Sets the fate of later worker calls and of `accept_run`, by name. A batch with the fate [`Fate::Goes`] is judged, too.
    pub fn trouble(&self, trouble: impl FnMut(&'static str) -> Fate + Send + 'static) {
        *self.trouble.lock().unwrap() = Box::new(trouble);
    }

    async fn troubled<T, F: Future<Output = StoreResult<T>>>(&self, name: &'static str, call: impl Fn() -> F) -> StoreResult<T> {
        let fate = (self.trouble.lock().unwrap())(name);
        meet(fate, call).await
    }
}

async fn meet<T, F: Future<Output = StoreResult<T>>>(fate: Fate, call: impl Fn() -> F) -> StoreResult<T> {
    match fate {
        Fate::Goes => call().await,
        Fate::Fails(error) => Err(error),
        Fate::Unheard(error) => {
            call().await?;
            Err(error)
        }
        Fate::Twice => {
            call().await?;
            call().await
        }
        Fate::Late(gate) => {
            gate.notified().await;
            call().await
        }
        Fate::HeardLate(gate) => {
            let done = call().await;
            gate.notified().await;
            done
        }
        Fate::Hangs => std::future::pending().await,
        Fate::Panics => panic!("the call was told to panic"),
    }
}

#[async_trait]
impl LogStore for FaultyStore {
    async fn commit(&self, writes: &[RunWrite]) -> StoreResult<Vec<Result<Committed, Refused>>> {
        let trouble = (self.trouble.lock().unwrap())("commit");
        let fate = match trouble {
            Fate::Goes => (self.judge.lock().unwrap())(writes),
            trouble => trouble,
        };
        meet(fate, || self.inner.commit(writes)).await
    }
    async fn events(&self, owner: &UserId, conversation: &ConversationId, after: i64, limit: u32) -> StoreResult<Vec<StoredEvent>> {
        self.inner.events(owner, conversation, after, limit).await
    }
    async fn log_bounds(&self, owner: &UserId, conversation: &ConversationId) -> StoreResult<Option<LogBounds>> {
        self.inner.log_bounds(owner, conversation).await
    }
    async fn heads(&self, conversations: &[ConversationId]) -> StoreResult<Vec<(ConversationId, i64)>> {
        self.inner.heads(conversations).await
    }
    async fn news(&self, after: &[(ConversationId, i64)], limit: u32) -> StoreResult<Vec<(ConversationId, Vec<StoredEvent>)>> {
        self.inner.news(after, limit).await
    }
}

#[async_trait]
impl InputStore for FaultyStore {
    async fn input_request(&self, owner: &UserId, id: &InputId) -> StoreResult<Option<InputRecord>> {
        self.troubled("input_request", || self.inner.input_request(owner, id)).await
    }
    async fn input_requests(
        &self,
        owner: &UserId,
        asked: Asked,
        state: Option<InputState>,
        page: &PageRequest<InputCursor>,
    ) -> StoreResult<Page<InputRecord>> {
        self.inner.input_requests(owner, asked, state, page).await
    }
    async fn tool_grants(&self, owner: &UserId, within: Option<&ConversationId>) -> StoreResult<Vec<ToolGrant>> {
        self.troubled("tool_grants", || self.inner.tool_grants(owner, within)).await
    }
    async fn delete_tool_grant(&self, owner: &UserId, id: &GrantId) -> StoreResult<bool> {
        self.inner.delete_tool_grant(owner, id).await
    }
    async fn resolve_input(&self, resolve: ResolveInput, idempotency: Option<IdempotencyClaim>) -> StoreResult<Keyed<Resolved>> {
        self.inner.resolve_input(resolve, idempotency).await
    }
}

#[async_trait]
impl QueueStore for FaultyStore {
    async fn claim_runs(&self, node: &NodeId, limit: u32, lease_ms: u64) -> StoreResult<Vec<Claim>> {
        self.troubled("claim_runs", || self.inner.claim_runs(node, limit, lease_ms)).await
    }
    async fn raise_fence(&self, fence: &Fence, attempt: u32) -> StoreResult<Option<Fence>> {
        self.troubled("raise_fence", || self.inner.raise_fence(fence, attempt)).await
    }
    async fn clear_of_crashes(&self, fence: &Fence) -> StoreResult<()> {
        self.troubled("clear_of_crashes", || self.inner.clear_of_crashes(fence)).await
    }
    async fn load_bare(&self, fence: &Fence) -> StoreResult<Option<RunRecord>> {
        self.troubled("load_bare", || self.inner.load_bare(fence)).await
    }
    async fn load_run(&self, fence: &Fence) -> StoreResult<Option<RunRecord>> {
        self.troubled("load_run", || self.inner.load_run(fence)).await
    }
    async fn renew_leases(&self, node: &NodeId, fences: &[Fence], lease_ms: u64, grace_ms: u64) -> StoreResult<Renewal> {
        self.troubled("renew_leases", || self.inner.renew_leases(node, fences, lease_ms, grace_ms)).await
    }
    async fn give_up_leases(&self, fences: &[Fence]) -> StoreResult<Vec<RunId>> {
        self.troubled("give_up_leases", || self.inner.give_up_leases(fences)).await
    }
    async fn sweep(&self, limit: u32, despite_outage: bool) -> StoreResult<Sweep> {
        assert!(!self.panics.load(std::sync::atomic::Ordering::SeqCst), "the test makes this sweep panic");
        self.troubled("sweep", || self.inner.sweep(limit, despite_outage)).await
    }
    async fn expire_foreign_leases(&self, node: &NodeId) -> StoreResult<u64> {
        self.troubled("expire_foreign_leases", || self.inner.expire_foreign_leases(node)).await
    }
    async fn control_signals(&self, runs: &[RunId]) -> StoreResult<Vec<ControlSignal>> {
        self.troubled("control_signals", || self.inner.control_signals(runs)).await
    }
    async fn next_claimable_in(&self) -> StoreResult<Option<u64>> {
        self.troubled("next_claimable_in", || self.inner.next_claimable_in()).await
    }
}

#[async_trait]
impl ConversationStore for FaultyStore {
    async fn reached(&self, owner: &UserId, runs: &[RunId]) -> StoreResult<Vec<(RunId, StepKind)>> {
        self.inner.reached(owner, runs).await
    }
    async fn create_conversation(&self, new: NewConversation, key: Option<IdempotencyClaim>) -> StoreResult<Keyed<Created>> {
        self.inner.create_conversation(new, key).await
    }
    async fn conversation(&self, owner: &UserId, id: &ConversationId) -> StoreResult<Option<Conversation>> {
        self.inner.conversation(owner, id).await
    }
    async fn conversations(
        &self,
        owner: &UserId,
        filter: &ConversationFilter,
        page: &PageRequest<ConversationCursor>,
    ) -> StoreResult<Page<Conversation>> {
        self.inner.conversations(owner, filter, page).await
    }
    async fn change_conversation(
        &self,
        owner: &UserId,
        id: &ConversationId,
        change: &ConversationChange,
        now: UnixMillis,
    ) -> StoreResult<Option<(Conversation, Vec<StoredEvent>)>> {
        self.inner.change_conversation(owner, id, change, now).await
    }
    async fn compact(&self, compact: Compact, key: Option<IdempotencyClaim>) -> StoreResult<Keyed<Compacted>> {
        self.inner.compact(compact, key).await
    }

    async fn rewind_conversation(&self, rewind: Rewind, idempotency: Option<IdempotencyClaim>) -> StoreResult<Keyed<Rewound>> {
        self.inner.rewind_conversation(rewind, idempotency).await
    }
    async fn copy_conversation(&self, copy: CopyConversation, key: Option<IdempotencyClaim>) -> StoreResult<Keyed<Copied>> {
        self.inner.copy_conversation(copy, key).await
    }
    async fn delete_conversation(&self, owner: &UserId, id: &ConversationId) -> StoreResult<Option<DeletedConversation>> {
        self.inner.delete_conversation(owner, id).await
    }
    async fn messages(
        &self,
        owner: &UserId,
        id: &ConversationId,
        page: &PageRequest<MessageCursor>,
    ) -> StoreResult<Option<Page<Message>>> {
        self.inner.messages(owner, id, page).await
    }
    async fn earlier_messages(
        &self,
        owner: &UserId,
        id: &ConversationId,
        page: EarlierPage,
    ) -> StoreResult<Option<EarlierMessages>> {
        self.inner.earlier_messages(owner, id, page).await
    }
}

#[async_trait]
impl RunStore for FaultyStore {
    async fn accept_run(&self, accept: AcceptRun, key: Option<IdempotencyClaim>) -> StoreResult<Keyed<Accepted>> {
        self.troubled("accept_run", || self.inner.accept_run(accept.clone(), key.clone())).await
    }
    async fn edit_message(
        &self,
        accept: AcceptRun,
        message: &MessageId,
        idempotency: Option<IdempotencyClaim>,
    ) -> StoreResult<Keyed<Edited>> {
        self.inner.edit_message(accept, message, idempotency).await
    }
    async fn run(&self, owner: &UserId, id: &RunId) -> StoreResult<Option<RunView>> {
        self.inner.run(owner, id).await
    }
    async fn runs(&self, owner: &UserId, filter: &RunFilter, page: &PageRequest<RunCursor>) -> StoreResult<Page<Run>> {
        self.inner.runs(owner, filter, page).await
    }
    async fn run_profile(&self, owner: &UserId, id: &RunId) -> StoreResult<Option<AgentProfile>> {
        self.inner.run_profile(owner, id).await
    }
    async fn active_run(&self, owner: &UserId, conversation: &ConversationId) -> StoreResult<Option<Run>> {
        self.inner.active_run(owner, conversation).await
    }
    async fn cancel_run(
        &self,
        owner: &UserId,
        id: &RunId,
        by: &str,
        now: UnixMillis,
        key: Option<IdempotencyClaim>,
    ) -> StoreResult<Keyed<Cancelled>> {
        self.inner.cancel_run(owner, id, by, now, key).await
    }
    async fn resume_run(&self, resume: ResumeRun, key: Option<IdempotencyClaim>) -> StoreResult<Keyed<Resumed>> {
        self.inner.resume_run(resume, key).await
    }
    async fn call_batch(&self, owner: &UserId, run: &RunId, call: &CallId) -> StoreResult<Option<CallBatch>> {
        self.inner.call_batch(owner, run, call).await
    }
    async fn tool_call(&self, owner: &UserId, run: &RunId, call: &CallId) -> StoreResult<Option<ToolCallRecord>> {
        self.inner.tool_call(owner, run, call).await
    }
    async fn explain_run(&self, owner: &UserId, id: &RunId) -> StoreResult<Option<Explanation>> {
        self.inner.explain_run(owner, id).await
    }
    async fn run_counts(&self) -> StoreResult<Vec<(String, i64)>> {
        self.inner.run_counts().await
    }
}

#[async_trait]
impl BudgetStore for FaultyStore {
    async fn reserve(&self, fence: &Fence, owner: &UserId, reserve: &Reserve) -> StoreResult<Option<Reserved>> {
        self.troubled("reserve", || self.inner.reserve(fence, owner, reserve)).await
    }
    async fn remove_old_spending(&self) -> StoreResult<u64> {
        self.inner.remove_old_spending().await
    }
}

#[async_trait]
impl PinStore for FaultyStore {
    async fn sight_tools(&self, seen: &[SeenTool]) -> StoreResult<Vec<PinId>> {
        self.troubled("sight_tools", || self.inner.sight_tools(seen)).await
    }
    async fn tool_pins(&self, viewer: &UserId, status: Option<PinStatus>) -> StoreResult<Vec<ToolPin>> {
        self.inner.tool_pins(viewer, status).await
    }
    async fn accept_tool_pin(&self, scope: &PinScope, id: &PinId, by: &UserId) -> StoreResult<Option<ToolPin>> {
        self.inner.accept_tool_pin(scope, id, by).await
    }
}

#[async_trait]
impl CommonStore for FaultyStore {
    async fn ping(&self) -> StoreResult<()> {
        self.inner.ping().await
    }
    fn is_shared(&self) -> bool {
        self.inner.is_shared()
    }
    fn records(&self) -> &(dyn RecordStore + 'static) {
        self.inner.records()
    }
}

#[async_trait]
impl TitleStore for FaultyStore {
    async fn claim_title(&self, owner: &UserId, of: &ConversationId) -> StoreResult<Option<String>> {
        self.troubled("claim_title", || self.inner.claim_title(owner, of)).await
    }
    async fn finish_title(&self, made: TitleMade) -> StoreResult<Vec<StoredEvent>> {
        self.troubled("finish_title", || self.inner.finish_title(made.clone())).await
    }
}
