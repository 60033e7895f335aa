//! A store that fails when it is told to.

use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use capstan::domain::agent::AgentProfile;
use capstan::domain::agent_record::{AgentRecord, AgentVersion};
use capstan::domain::approval::ToolGrant;
use capstan::domain::audit::AuditRecord;
use capstan::domain::budget::{Reserve, Reserved};
use capstan::domain::call_record::ToolCallRecord;
use capstan::domain::change::StepKind;
use capstan::domain::conversation::Conversation;
use capstan::domain::event::StoredEvent;
use capstan::domain::feedback::FeedbackRecord;
use capstan::domain::file::StoredFile;
use capstan::domain::fold::FoldedDelta;
use capstan::domain::ids::FileId;
use capstan::domain::ids::GrantId;
use capstan::domain::ids::{
    AgentId, CallId, ConversationId, InputId, KeyId, McpServerId, MessageId, NodeId, PinId, ProviderId, RunId, UserId,
};
use capstan::domain::input::{InputRecord, InputState};
use capstan::domain::mcp_server::McpServerRecord;
use capstan::domain::message::Message;
use capstan::domain::pin::{PinStatus, ToolPin};
use capstan::domain::principal::{User, UserRole};
use capstan::domain::provider::ProviderRecord;
use capstan::domain::record::{Fence, RunRecord, RunWrite};
use capstan::domain::run::Run;
use capstan::domain::search::Terms;
use capstan::domain::ticket::StreamTicket;
use capstan::domain::usage::DayUsage;
use capstan::store::Asked;
use capstan::store::*;
use capstan::store::{Found, SearchCursor, SearchStore};
use capstan::store::{UsageCursor, UsageFilter, UsageStore};
use capstan::support::clock::UnixMillis;
use capstan::support::seal::Sealed;
use tokio::sync::Notify;

/// What becomes of a call.
pub enum Fate {
    /// It is done.
    Goes,
    /// It is not.
    Fails(StoreError),
    /// It is done, but nobody hears of it.
    Unheard(StoreError),
    /// It is done, and then done again.
    Twice,
    /// It is done when somebody lets it.
    Late(Arc<Notify>),
    /// It is done, and heard of when somebody lets it.
    HeardLate(Arc<Notify>),
    /// Nothing, for ever.
    Hangs,
    /// Ends its caller.
    Panics,
}

type Judge = Box<dyn FnMut(&[RunWrite]) -> Fate + Send>;

type Trouble = Box<dyn FnMut(&'static str) -> Fate + Send>;

/// A real store with a judge before its log, and trouble in all that workers ask for, and where messages are accepted.
pub struct FaultyStore {
    inner: Arc<dyn Store>,
    judge: Mutex<Judge>,
    trouble: Mutex<Trouble>,
    /// Whether the next sweep panics.
    pub panics: std::sync::atomic::AtomicBool,
}

/// The database is away.
pub fn away() -> StoreError {
    StoreError::Unavailable(sqlx::Error::PoolTimedOut)
}

/// A row is locked.
pub fn locked() -> StoreError {
    StoreError::Contended(sqlx::Error::PoolTimedOut)
}

/// A mistake.
pub fn wrong() -> StoreError {
    StoreError::Statement(sqlx::Error::RowNotFound)
}

impl FaultyStore {
    pub fn new(inner: Arc<dyn Store>) -> Arc<Self> {
        let (judge, trouble) = (Mutex::new(Box::new(|_: &[_]| Fate::Goes) as _), Mutex::new(Box::new(|_| Fate::Goes) as _));
        Arc::new(Self { inner, judge, trouble, panics: false.into() })
    }

    /// From now on, batches are judged like this.
    pub fn judge(&self, judge: impl FnMut(&[RunWrite]) -> Fate + Send + 'static) {
        *self.judge.lock().unwrap() = Box::new(judge);
    }

    /// From now on, calls of workers and `accept_run` fare like this, by their names. Batches are judged, too, if they are not in trouble.
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
        assert!(!self.panics.load(std::sync::atomic::Ordering::SeqCst), "the sweep was told to panic");
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
impl KeyStore for FaultyStore {
    async fn ensure_user(&self, id: UserId, name: &str, role: UserRole, now: UnixMillis) -> StoreResult<User> {
        self.inner.ensure_user(id, name, role, now).await
    }
    async fn create_key(&self, id: KeyId, user: &UserId, hash: &str, label: &str, now: UnixMillis) -> StoreResult<()> {
        self.inner.create_key(id, user, hash, label, now).await
    }
    async fn user_by_key_hash(&self, hash: &str) -> StoreResult<Option<User>> {
        self.inner.user_by_key_hash(hash).await
    }
    async fn has_keys(&self) -> StoreResult<bool> {
        self.inner.has_keys().await
    }
    async fn live_keys(&self, hashes: &[String]) -> StoreResult<Vec<String>> {
        self.inner.live_keys(hashes).await
    }
    async fn keys(&self) -> StoreResult<Vec<StoredKey>> {
        self.inner.keys().await
    }
    async fn revoke_key(&self, id: &KeyId, now: UnixMillis) -> StoreResult<bool> {
        self.inner.revoke_key(id, now).await
    }
}

#[async_trait]
impl TicketStore for FaultyStore {
    async fn create_ticket(&self, hash: &str, ticket: &StreamTicket, lifetime_ms: u32) -> StoreResult<UnixMillis> {
        self.inner.create_ticket(hash, ticket, lifetime_ms).await
    }
    async fn take_ticket(&self, hash: &str) -> StoreResult<Option<StreamTicket>> {
        self.inner.take_ticket(hash).await
    }
    async fn remove_expired_tickets(&self) -> StoreResult<u64> {
        self.inner.remove_expired_tickets().await
    }
}

#[async_trait]
impl FileStore for FaultyStore {
    async fn begin_file(&self, new: &NewFile, most: u32) -> StoreResult<bool> {
        self.inner.begin_file(new, most).await
    }
    async fn add_file_chunk(&self, id: &FileId, number: u32, bytes: &[u8]) -> StoreResult<()> {
        self.inner.add_file_chunk(id, number, bytes).await
    }
    async fn finish_file(&self, owner: &UserId, id: &FileId) -> StoreResult<Option<StoredFile>> {
        self.inner.finish_file(owner, id).await
    }
    async fn file(&self, owner: &UserId, id: &FileId) -> StoreResult<Option<StoredFile>> {
        self.inner.file(owner, id).await
    }
    async fn file_of(&self, owner: &UserId, sha256: &str, name: &str) -> StoreResult<Option<StoredFile>> {
        self.inner.file_of(owner, sha256, name).await
    }
    async fn files(&self, owner: &UserId, page: &PageRequest<FileCursor>) -> StoreResult<Page<StoredFile>> {
        self.inner.files(owner, page).await
    }
    async fn file_chunk(&self, owner: &UserId, id: &FileId, number: u32) -> StoreResult<Option<Vec<u8>>> {
        self.troubled("file_chunk", || self.inner.file_chunk(owner, id, number)).await
    }
    async fn attached_files(&self, owner: &UserId, ids: &[FileId]) -> StoreResult<Vec<AttachedFile>> {
        self.troubled("attached_files", || self.inner.attached_files(owner, ids)).await
    }
    async fn delete_file(&self, owner: &UserId, id: &FileId) -> StoreResult<bool> {
        self.inner.delete_file(owner, id).await
    }
    async fn count_unused_files(&self, age_ms: u64) -> StoreResult<u64> {
        self.inner.count_unused_files(age_ms).await
    }
    async fn remove_unused_files(&self, age_ms: u64) -> StoreResult<u64> {
        self.inner.remove_unused_files(age_ms).await
    }
    async fn file_bytes(&self) -> StoreResult<u64> {
        self.inner.file_bytes().await
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
impl UsageStore for FaultyStore {
    async fn usage(&self, filter: &UsageFilter, page: &PageRequest<UsageCursor>) -> StoreResult<Page<DayUsage>> {
        self.inner.usage(filter, page).await
    }
}

#[async_trait]
impl AuditStore for FaultyStore {
    async fn tool_audit(&self, filter: &AuditFilter, page: &PageRequest<AuditCursor>) -> StoreResult<Page<AuditRecord>> {
        self.inner.tool_audit(filter, page).await
    }
    async fn remove_old_audit(&self, age_ms: u64) -> StoreResult<u64> {
        self.inner.remove_old_audit(age_ms).await
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
impl RetentionStore for FaultyStore {
    async fn remove_unused_tool_sets(&self) -> StoreResult<u64> {
        self.inner.remove_unused_tool_sets().await
    }
    async fn runs_to_fold(&self, age_ms: u64, after: Option<&EndedRun>, limit: u32) -> StoreResult<Vec<EndedRun>> {
        self.inner.runs_to_fold(age_ms, after, limit).await
    }
    async fn fold_deltas(&self, of: &ConversationId, folds: &[FoldedDelta], through: Option<&RunId>) -> StoreResult<bool> {
        self.inner.fold_deltas(of, folds, through).await
    }
    async fn idle_conversations(
        &self,
        tidying: Tidying,
        age_ms: u64,
        after: Option<&ConversationId>,
        limit: u32,
    ) -> StoreResult<Vec<(UserId, ConversationId)>> {
        self.inner.idle_conversations(tidying, age_ms, after, limit).await
    }
    async fn archive_idle(&self, ids: &[ConversationId], age_ms: u64) -> StoreResult<Vec<StoredEvent>> {
        self.inner.archive_idle(ids, age_ms).await
    }
    async fn delete_idle(&self, owner: &UserId, id: &ConversationId, tidying: Tidying, age_ms: u64) -> StoreResult<bool> {
        self.inner.delete_idle(owner, id, tidying, age_ms).await
    }
}

#[async_trait]
impl ProviderStore for FaultyStore {
    async fn create_provider(
        &self,
        new: &ProviderRecord,
        most: u32,
        key: Option<IdempotencyClaim>,
    ) -> StoreResult<Keyed<ProviderMade>> {
        self.inner.create_provider(new, most, key).await
    }
    async fn provider(&self, viewer: &UserId, id: &ProviderId) -> StoreResult<Option<ProviderRecord>> {
        self.inner.provider(viewer, id).await
    }
    async fn providers(&self, viewer: &UserId, page: &PageRequest<ProviderCursor>) -> StoreResult<Page<ProviderRecord>> {
        self.inner.providers(viewer, page).await
    }
    async fn provider_named(&self, owner: &UserId, name: &str) -> StoreResult<Option<ProviderRecord>> {
        self.inner.provider_named(owner, name).await
    }
    async fn change_provider(&self, changed: &ProviderRecord) -> StoreResult<ProviderChanged> {
        self.inner.change_provider(changed).await
    }
    async fn delete_provider(&self, owner: Option<&UserId>, id: &ProviderId, version: i64) -> StoreResult<bool> {
        self.inner.delete_provider(owner, id, version).await
    }
    async fn create_login(&self, state_hash: &str, login: &ProviderLogin, lifetime_ms: u32) -> StoreResult<()> {
        self.inner.create_login(state_hash, login, lifetime_ms).await
    }
    async fn take_login(&self, state_hash: &str, taker: &LoginTaker) -> StoreResult<Option<ProviderLogin>> {
        self.inner.take_login(state_hash, taker).await
    }
    async fn master_keys_in_use(&self) -> StoreResult<Vec<(String, i64)>> {
        self.inner.master_keys_in_use().await
    }
    async fn sealed_rows(&self, after: Option<&str>, limit: u32) -> StoreResult<Vec<SealedRow>> {
        self.inner.sealed_rows(after, limit).await
    }
    async fn reseal(&self, row: &SealedRow, anew: Option<&Sealed>) -> StoreResult<bool> {
        self.inner.reseal(row, anew).await
    }
}

#[async_trait]
impl McpServerStore for FaultyStore {
    async fn create_mcp_server(
        &self,
        new: &McpServerRecord,
        most: u32,
        key: Option<IdempotencyClaim>,
    ) -> StoreResult<Keyed<NamedMade<McpServerId>>> {
        self.inner.create_mcp_server(new, most, key).await
    }
    async fn mcp_server(&self, viewer: &UserId, id: &McpServerId) -> StoreResult<Option<McpServerRecord>> {
        self.inner.mcp_server(viewer, id).await
    }
    async fn mcp_servers(&self, viewer: &UserId, page: &PageRequest<McpServerCursor>) -> StoreResult<Page<McpServerRecord>> {
        self.inner.mcp_servers(viewer, page).await
    }
    async fn usable_mcp_servers(&self, owner: &UserId) -> StoreResult<Vec<McpServerRecord>> {
        self.inner.usable_mcp_servers(owner).await
    }
    async fn enabled_mcp_servers(&self, ids: &[McpServerId]) -> StoreResult<Vec<McpServerRecord>> {
        self.inner.enabled_mcp_servers(ids).await
    }
    async fn change_mcp_server(&self, changed: &McpServerRecord) -> StoreResult<NamedChanged> {
        self.inner.change_mcp_server(changed).await
    }
    async fn replace_mcp_server(
        &self,
        changed: &McpServerRecord,
        key: Option<IdempotencyClaim>,
    ) -> StoreResult<Keyed<NamedChanged>> {
        self.inner.replace_mcp_server(changed, key).await
    }
    async fn renew_mcp_server(&self, owner: Option<&UserId>, id: &McpServerId) -> StoreResult<bool> {
        self.inner.renew_mcp_server(owner, id).await
    }
    async fn delete_mcp_server(&self, owner: Option<&UserId>, id: &McpServerId, version: i64) -> StoreResult<bool> {
        self.inner.delete_mcp_server(owner, id, version).await
    }
}

#[async_trait]
impl AgentStore for FaultyStore {
    async fn create_agent(
        &self,
        new: &AgentRecord,
        first: &AgentVersion,
        most: u32,
        key: Option<IdempotencyClaim>,
    ) -> StoreResult<Keyed<NamedMade<AgentId>>> {
        self.inner.create_agent(new, first, most, key).await
    }
    async fn agent(&self, viewer: &UserId, id: &AgentId) -> StoreResult<Option<AgentRecord>> {
        self.inner.agent(viewer, id).await
    }
    async fn agent_named(&self, viewer: &UserId, name: &str) -> StoreResult<Option<AgentRecord>> {
        self.inner.agent_named(viewer, name).await
    }
    async fn agents(&self, viewer: &UserId, page: &PageRequest<AgentCursor>) -> StoreResult<Page<AgentRecord>> {
        self.inner.agents(viewer, page).await
    }
    async fn change_agent(&self, changed: &AgentRecord, version: Option<&AgentVersion>) -> StoreResult<NamedChanged> {
        self.inner.change_agent(changed, version).await
    }
    async fn agent_version(&self, id: &AgentId, number: u32) -> StoreResult<Option<AgentVersion>> {
        self.inner.agent_version(id, number).await
    }
    async fn agent_versions(&self, id: &AgentId, page: &PageRequest<AgentVersionCursor>) -> StoreResult<Page<AgentVersion>> {
        self.inner.agent_versions(id, page).await
    }
    async fn delete_agent(&self, owner: Option<&UserId>, id: &AgentId, revision: i64) -> StoreResult<bool> {
        self.inner.delete_agent(owner, id, revision).await
    }
}

#[async_trait]
impl McpLoginStore for FaultyStore {
    async fn create_mcp_login(
        &self,
        state_hash: &str,
        server: &McpServerId,
        login: &ProviderLogin,
        lifetime_ms: u32,
    ) -> StoreResult<()> {
        self.inner.create_mcp_login(state_hash, server, login, lifetime_ms).await
    }
    async fn take_mcp_login(&self, state_hash: &str, taker: &LoginTaker) -> StoreResult<Option<(McpServerId, ProviderLogin)>> {
        self.inner.take_mcp_login(state_hash, taker).await
    }
    async fn mcp_tokens(&self, server: &McpServerId) -> StoreResult<Option<McpTokens>> {
        self.inner.mcp_tokens(server).await
    }
    async fn put_mcp_tokens(&self, tokens: &McpTokens) -> StoreResult<()> {
        self.inner.put_mcp_tokens(tokens).await
    }
    async fn claim_mcp_tokens(&self, server: &McpServerId, version: i64, for_ms: u32) -> StoreResult<bool> {
        self.inner.claim_mcp_tokens(server, version, for_ms).await
    }
    async fn end_mcp_refresh(&self, server: &McpServerId, version: i64, anew: Option<(&Sealed, Option<i64>)>) -> StoreResult<bool> {
        self.inner.end_mcp_refresh(server, version, anew).await
    }
    async fn forget_mcp_tokens(&self, server: &McpServerId, version: Option<i64>) -> StoreResult<bool> {
        self.inner.forget_mcp_tokens(server, version).await
    }
    async fn see_mcp_tokens(&self, servers: &[McpServerId]) -> StoreResult<()> {
        self.inner.see_mcp_tokens(servers).await
    }
    async fn forget_unseen_mcp_tokens(&self, unseen_ms: i64) -> StoreResult<u64> {
        self.inner.forget_unseen_mcp_tokens(unseen_ms).await
    }
}

#[async_trait]
impl Store for FaultyStore {
    async fn ping(&self) -> StoreResult<()> {
        self.inner.ping().await
    }
    fn is_shared(&self) -> bool {
        self.inner.is_shared()
    }
    async fn count_expired(&self, keys_ms: u64, audit_ms: Option<u64>) -> StoreResult<Expired> {
        self.inner.count_expired(keys_ms, audit_ms).await
    }
    async fn remove_expired_idempotency(&self, age_ms: u64) -> StoreResult<u64> {
        self.inner.remove_expired_idempotency(age_ms).await
    }
    async fn close(&self) {
        self.inner.close().await;
    }
}

#[async_trait]
impl SearchStore for FaultyStore {
    async fn search(
        &self,
        owner: &UserId,
        terms: &Terms,
        archived: Option<bool>,
        page: &PageRequest<SearchCursor>,
    ) -> StoreResult<Page<Found>> {
        self.inner.search(owner, terms, archived, page).await
    }
    async fn index_messages(&self, limit: u32) -> StoreResult<u64> {
        self.inner.index_messages(limit).await
    }
}

#[async_trait]
impl FeedbackStore for FaultyStore {
    async fn give_feedback(&self, give: GiveFeedback, key: Option<IdempotencyClaim>) -> StoreResult<Keyed<FeedbackGiven>> {
        self.inner.give_feedback(give, key).await
    }
    async fn withdraw_feedback(&self, owner: &UserId, of: &ConversationId, message: &MessageId) -> StoreResult<bool> {
        self.inner.withdraw_feedback(owner, of, message).await
    }
    async fn review_feedback(
        &self,
        message: &MessageId,
        by: Option<&UserId>,
        now: UnixMillis,
    ) -> StoreResult<Option<FeedbackRecord>> {
        self.inner.review_feedback(message, by, now).await
    }
    async fn feedback(&self, filter: &FeedbackFilter, page: &PageRequest<FeedbackCursor>) -> StoreResult<Page<FeedbackRecord>> {
        self.inner.feedback(filter, page).await
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

#[async_trait]
impl UserStore for FaultyStore {
    async fn user_named(&self, name: &str) -> StoreResult<Option<User>> {
        self.inner.user_named(name).await
    }
    async fn set_role(&self, user: &UserId, role: UserRole) -> StoreResult<()> {
        self.inner.set_role(user, role).await
    }
    async fn set_groups(&self, user: &UserId, groups: &[String]) -> StoreResult<()> {
        self.inner.set_groups(user, groups).await
    }
    async fn groups_of(&self, user: &UserId) -> StoreResult<Vec<String>> {
        self.inner.groups_of(user).await
    }
    async fn owned_by(&self, user: &UserId) -> StoreResult<Owned> {
        self.inner.owned_by(user).await
    }
    async fn remove_user(&self, user: &UserId) -> StoreResult<bool> {
        self.inner.remove_user(user).await
    }
}
