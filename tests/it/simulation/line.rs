//! The line between a node and the store: slow, torn, late.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use capstan::domain::agent::AgentProfile;
use capstan::domain::agent_record::{AgentRecord, AgentVersion};
use capstan::domain::approval::ToolGrant;
use capstan::domain::audit::AuditRecord;
use capstan::domain::budget::{Reserve, Reserved};
use capstan::domain::call_record::ToolCallRecord;
use capstan::domain::change::{Change, StepKind};
use capstan::domain::conversation::Conversation;
use capstan::domain::event::StoredEvent;
use capstan::domain::feedback::FeedbackRecord;
use capstan::domain::file::StoredFile;
use capstan::domain::fold::FoldedDelta;
use capstan::domain::ids::{
    AgentId, CallId, ConversationId, FileId, GrantId, InputId, KeyId, McpServerId, MessageId, NodeId, PinId, ProviderId, RunId,
    UserId,
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
use capstan::store::*;
use capstan::support::clock::UnixMillis;
use capstan::support::seal::Sealed;
use tokio_util::task::TaskTracker;

use super::dice::Dice;
use super::gate::Gate;
use super::model::ModelStore;
use super::witness::Witness;

/// How bad the line is, in calls of a thousand.
#[derive(Clone, Copy, Debug, Default)]
pub struct Weather {
    /// Fail, and nothing has happened.
    pub fails: u64,
    /// Writes that fail, though not because the store is away: nothing has happened, and trying again does not look promising.
    pub wrong: u64,
    /// Fail, and it has happened.
    pub unheard: u64,
    /// Writes that fail, and happen later.
    pub late: u64,
    /// Take seconds, some of them longer than a lease.
    pub slow: u64,
}

/// What all lines have in common.
pub struct Sky {
    pub weather: Weather,
    /// From now on all calls go through.
    pub is_calm: AtomicBool,
    /// Held while the store does not answer anybody.
    pub gate: Gate,
    /// The store refuses everybody.
    pub is_away: AtomicBool,
    /// Owns what is still on its way.
    pub under_way: TaskTracker,
}

/// The store as one node sees it.
#[derive(Clone)]
pub struct Line {
    pub name: &'static str,
    pub node: NodeId,
    pub model: Arc<ModelStore>,
    pub dice: Arc<Dice>,
    pub gate: Arc<Gate>,
    pub sky: Arc<Sky>,
    pub witness: Arc<Witness>,
}

/// What becomes of a call.
#[derive(Debug, PartialEq)]
enum Fate {
    Goes,
    Fails,
    Wrong,
    Unheard,
    Late,
    SlowThere,
    SlowBack,
}

fn away() -> StoreError {
    StoreError::Unavailable(sqlx::Error::PoolTimedOut)
}

impl Line {
    /// `writes`: what is to be written, if anything is. The end of a run is never wrong.
    fn fate(&self, writes: &[RunWrite]) -> Fate {
        if self.sky.is_calm.load(Ordering::SeqCst) {
            return Fate::Goes;
        }
        if self.sky.is_away.load(Ordering::SeqCst) {
            return Fate::Fails;
        }
        let Weather { fails, wrong, unheard, late, slow } = self.sky.weather;
        let mut roll = self.dice.below(1_000);
        let fates = [
            (fails, Fate::Fails),
            (wrong, Fate::Wrong),
            (unheard, Fate::Unheard),
            (late, Fate::Late),
            (slow, Fate::SlowThere),
            (slow, Fate::SlowBack),
        ];
        for (share, fate) in fates {
            if roll < share {
                return match fate {
                    Fate::Late | Fate::Wrong if writes.is_empty() => Fate::Fails,
                    Fate::Wrong if writes.iter().any(ends_run) => Fate::Goes,
                    fate => fate,
                };
            }
            roll -= share;
        }
        Fate::Goes
    }

    /// Carries a call there and its answer back. `seen` is told of it in the moment in which it takes effect.
    async fn call<T>(&self, what: &str, effect: impl Future<Output = StoreResult<T>>, seen: impl FnOnce(&T)) -> StoreResult<T> {
        self.carry(what, self.fate(&[]), effect, seen).await
    }

    async fn carry<T>(
        &self,
        what: &str,
        fate: Fate,
        effect: impl Future<Output = StoreResult<T>>,
        seen: impl FnOnce(&T),
    ) -> StoreResult<T> {
        self.dice.stumble().await;
        if fate == Fate::SlowThere {
            self.dice.sleep(500, 15_000).await;
        }
        self.gate.pass().await;
        self.sky.gate.pass().await;
        if fate == Fate::Wrong {
            self.dice.note(format_args!("{} {what} goes wrong", self.name));
            return Err(StoreError::Statement(sqlx::Error::RowNotFound));
        }
        if fate == Fate::Fails {
            self.dice.note(format_args!("{} {what} fails", self.name));
            // Of a deadlock it is known that nothing has happened.
            return Err(if self.dice.chance(300) { StoreError::Contended(sqlx::Error::PoolTimedOut) } else { away() });
        }
        let answer = effect.await;
        if let Ok(answer) = &answer {
            seen(answer);
        }
        self.dice.note(format_args!("{} {what} {fate:?}", self.name));
        self.dice.stumble().await;
        if fate == Fate::SlowBack {
            self.dice.sleep(500, 15_000).await;
        }
        self.gate.pass().await;
        if fate == Fate::Unheard { Err(away()) } else { answer }
    }
}

#[async_trait]
impl LogStore for Line {
    async fn commit(&self, writes: &[RunWrite]) -> StoreResult<Vec<Result<Committed, Refused>>> {
        let what = format!("commits {}", summary(writes));
        let seen = |answers: &Vec<_>| self.witness.committed(writes, answers);
        let fate = self.fate(writes);
        if fate != Fate::Late {
            return self.carry(&what, fate, self.model.commit(writes), seen).await;
        }
        // The node hears that it failed, and it is still on its way.
        let (line, late, name) = (self.clone(), writes.to_vec(), what.clone());
        self.sky.under_way.spawn(async move {
            line.dice.sleep(1, 6_000).await;
            if let Ok(answers) = line.model.commit(&late).await {
                line.witness.committed(&late, &answers);
            }
            line.dice.note(format_args!("{} {name} arrives late", line.name));
        });
        self.dice.stumble().await;
        self.gate.pass().await;
        Err(away())
    }
    async fn events(&self, owner: &UserId, conversation: &ConversationId, after: i64, limit: u32) -> StoreResult<Vec<StoredEvent>> {
        self.call("reads events", self.model.events(owner, conversation, after, limit), |_| {}).await
    }
    async fn log_bounds(&self, owner: &UserId, conversation: &ConversationId) -> StoreResult<Option<LogBounds>> {
        self.call("reads bounds", self.model.log_bounds(owner, conversation), |_| {}).await
    }
    async fn heads(&self, conversations: &[ConversationId]) -> StoreResult<Vec<(ConversationId, i64)>> {
        self.call("reads heads", self.model.heads(conversations), |_| {}).await
    }
    async fn news(&self, after: &[(ConversationId, i64)], limit: u32) -> StoreResult<Vec<(ConversationId, Vec<StoredEvent>)>> {
        self.call("reads news", self.model.news(after, limit), |_| {}).await
    }
}

fn ends_run(write: &RunWrite) -> bool {
    write.changes.iter().any(|change| matches!(change, Change::Finish { .. }))
}

fn summary(writes: &[RunWrite]) -> String {
    let of = |write: &RunWrite| {
        let kinds: Vec<_> = write.events.iter().map(|event| event.kind).collect();
        format!("{}@{}[{}]", tail(write.fence.run_id.as_str()), write.fence.epoch, kinds.join(" "))
    };
    writes.iter().map(of).collect::<Vec<_>>().join(", ")
}

/// The end of an id, which is enough to tell it apart.
pub fn tail(id: &str) -> &str {
    &id[id.len().saturating_sub(5)..]
}

#[async_trait]
impl QueueStore for Line {
    async fn claim_runs(&self, node: &NodeId, limit: u32, lease_ms: u64) -> StoreResult<Vec<Claim>> {
        let seen = |claims: &Vec<Claim>| {
            self.witness.claimed(node, claims, lease_ms);
            for Claim { fence, cause, .. } in claims {
                self.dice.note(format_args!("{} claims {}@{} ({cause:?})", self.name, tail(fence.run_id.as_str()), fence.epoch));
            }
        };
        self.call("claims", self.model.claim_runs(node, limit, lease_ms), seen).await
    }
    async fn raise_fence(&self, fence: &Fence, attempt: u32) -> StoreResult<Option<Fence>> {
        let seen = |raised: &Option<Fence>| self.witness.raised(fence, raised.as_ref());
        self.call("raises its fence", self.model.raise_fence(fence, attempt), seen).await
    }
    async fn clear_of_crashes(&self, fence: &Fence) -> StoreResult<()> {
        self.call("clears", self.model.clear_of_crashes(fence), |()| {}).await
    }
    async fn load_bare(&self, fence: &Fence) -> StoreResult<Option<RunRecord>> {
        self.call("loads a little", self.model.load_bare(fence), |_| {}).await
    }
    async fn load_run(&self, fence: &Fence) -> StoreResult<Option<RunRecord>> {
        let seen = |record: &Option<RunRecord>| {
            if let Some(record) = record {
                self.witness.loaded(record, &self.model.state());
            }
        };
        self.call("loads", self.model.load_run(fence), seen).await
    }
    async fn renew_leases(&self, node: &NodeId, fences: &[Fence], lease_ms: u64, grace_ms: u64) -> StoreResult<Vec<RunId>> {
        let seen = |renewed: &Vec<RunId>| self.witness.renewed(node, fences, renewed, lease_ms, grace_ms);
        self.call("renews", self.model.renew_leases(node, fences, lease_ms, grace_ms), seen).await
    }
    async fn give_up_leases(&self, fences: &[Fence]) -> StoreResult<Vec<RunId>> {
        self.call("gives leases up", self.model.give_up_leases(fences), |_| self.witness.gave_up(fences)).await
    }
    async fn young_leases(&self, node: &NodeId, age_ms: u64) -> StoreResult<Vec<Fence>> {
        self.call("looks for its leases", self.model.young_leases(node, age_ms), |_| {}).await
    }
    async fn sweep(&self, limit: u32, despite_outage: bool) -> StoreResult<Sweep> {
        let seen = |sweep: &Sweep| {
            self.witness.swept(sweep);
            for Taken { run_id, .. } in &sweep.taken {
                self.dice.note(format_args!("{} takes {} away", self.name, tail(run_id.as_str())));
            }
        };
        self.call("sweeps", self.model.sweep(limit, despite_outage), seen).await
    }
    async fn expire_foreign_leases(&self, node: &NodeId) -> StoreResult<u64> {
        self.call("starts", self.model.expire_foreign_leases(node), |_| {}).await
    }
    async fn control_signals(&self, runs: &[RunId]) -> StoreResult<Vec<ControlSignal>> {
        self.call("reads requests", self.model.control_signals(runs), |_| {}).await
    }
    async fn next_claimable_in(&self) -> StoreResult<Option<u64>> {
        self.call("reads timers", self.model.next_claimable_in(), |_| {}).await
    }
}

#[async_trait]
impl ConversationStore for Line {
    async fn reached(&self, owner: &UserId, runs: &[RunId]) -> StoreResult<Vec<(RunId, StepKind)>> {
        self.call("reads steps", self.model.reached(owner, runs), |_| {}).await
    }
    async fn create_conversation(&self, new: NewConversation, key: Option<IdempotencyClaim>) -> StoreResult<Keyed<Created>> {
        self.call("creates", self.model.create_conversation(new, key), |_| {}).await
    }
    async fn conversation(&self, owner: &UserId, id: &ConversationId) -> StoreResult<Option<Conversation>> {
        self.call("reads a conversation", self.model.conversation(owner, id), |_| {}).await
    }
    async fn conversations(
        &self,
        owner: &UserId,
        filter: &ConversationFilter,
        page: &PageRequest<ConversationCursor>,
    ) -> StoreResult<Page<Conversation>> {
        self.call("lists", self.model.conversations(owner, filter, page), |_| {}).await
    }
    async fn change_conversation(
        &self,
        owner: &UserId,
        id: &ConversationId,
        change: &ConversationChange,
        now: UnixMillis,
    ) -> StoreResult<Option<(Conversation, Vec<StoredEvent>)>> {
        self.call("renames", self.model.change_conversation(owner, id, change, now), |_| {}).await
    }
    async fn compact(&self, compact: Compact, key: Option<IdempotencyClaim>) -> StoreResult<Keyed<Compacted>> {
        self.call("compacts", self.model.compact(compact, key), |_| {}).await
    }

    async fn rewind_conversation(&self, rewind: Rewind, idempotency: Option<IdempotencyClaim>) -> StoreResult<Keyed<Rewound>> {
        self.call("rewinds", self.model.rewind_conversation(rewind, idempotency), |_| {}).await
    }
    async fn copy_conversation(&self, copy: CopyConversation, key: Option<IdempotencyClaim>) -> StoreResult<Keyed<Copied>> {
        self.call("copies", self.model.copy_conversation(copy, key), |_| {}).await
    }
    async fn delete_conversation(&self, owner: &UserId, id: &ConversationId) -> StoreResult<Option<DeletedConversation>> {
        self.call("deletes", self.model.delete_conversation(owner, id), |_| {}).await
    }
    async fn messages(
        &self,
        owner: &UserId,
        id: &ConversationId,
        page: &PageRequest<MessageCursor>,
    ) -> StoreResult<Option<Page<Message>>> {
        self.call("reads messages", self.model.messages(owner, id, page), |_| {}).await
    }
    async fn newest_messages(&self, owner: &UserId, id: &ConversationId, limit: u32) -> StoreResult<Option<NewestMessages>> {
        self.call("reads messages", self.model.newest_messages(owner, id, limit), |_| {}).await
    }
}

#[async_trait]
impl RunStore for Line {
    async fn accept_run(&self, accept: AcceptRun, key: Option<IdempotencyClaim>) -> StoreResult<Keyed<Accepted>> {
        let lease_ms = accept.taker.as_ref().map_or(0, |taker| taker.lease_ms);
        let seen = |accepted: &Keyed<Accepted>| self.witness.accepted(&self.node, accepted, lease_ms);
        self.call("accepts", self.model.accept_run(accept, key), seen).await
    }
    async fn edit_message(
        &self,
        accept: AcceptRun,
        message: &MessageId,
        idempotency: Option<IdempotencyClaim>,
    ) -> StoreResult<Keyed<Edited>> {
        self.call("edits", self.model.edit_message(accept, message, idempotency), |_| {}).await
    }
    async fn run(&self, owner: &UserId, id: &RunId) -> StoreResult<Option<RunView>> {
        self.call("reads a run", self.model.run(owner, id), |_| {}).await
    }
    async fn run_profile(&self, owner: &UserId, id: &RunId) -> StoreResult<Option<AgentProfile>> {
        self.call("reads a profile", self.model.run_profile(owner, id), |_| {}).await
    }
    async fn active_run(&self, owner: &UserId, conversation: &ConversationId) -> StoreResult<Option<Run>> {
        self.call("reads the active run", self.model.active_run(owner, conversation), |_| {}).await
    }
    async fn cancel_run(
        &self,
        owner: &UserId,
        id: &RunId,
        by: &str,
        now: UnixMillis,
        key: Option<IdempotencyClaim>,
    ) -> StoreResult<Keyed<Cancelled>> {
        self.call("cancels", self.model.cancel_run(owner, id, by, now, key), |_| {}).await
    }
    async fn resume_run(&self, resume: ResumeRun, key: Option<IdempotencyClaim>) -> StoreResult<Keyed<Resumed>> {
        self.call("resumes", self.model.resume_run(resume, key), |_| {}).await
    }
    async fn call_batch(&self, owner: &UserId, run: &RunId, call: &CallId) -> StoreResult<Option<CallBatch>> {
        self.call("reads a call", self.model.call_batch(owner, run, call), |_| {}).await
    }
    async fn tool_call(&self, owner: &UserId, run: &RunId, call: &CallId) -> StoreResult<Option<ToolCallRecord>> {
        self.model.tool_call(owner, run, call).await
    }
    async fn explain_run(&self, owner: &UserId, id: &RunId) -> StoreResult<Option<Explanation>> {
        self.call("explains", self.model.explain_run(owner, id), |_| {}).await
    }
    async fn run_counts(&self) -> StoreResult<Vec<(String, i64)>> {
        self.call("counts", self.model.run_counts(), |_| {}).await
    }
}

#[async_trait]
impl InputStore for Line {
    async fn input_request(&self, owner: &UserId, id: &InputId) -> StoreResult<Option<InputRecord>> {
        self.call("reads a question", self.model.input_request(owner, id), |_| {}).await
    }
    async fn input_requests(
        &self,
        owner: &UserId,
        asked: Asked,
        state: Option<InputState>,
        page: &PageRequest<InputCursor>,
    ) -> StoreResult<Page<InputRecord>> {
        self.call("lists questions", self.model.input_requests(owner, asked, state, page), |_| {}).await
    }
    async fn tool_grants(&self, owner: &UserId, within: Option<&ConversationId>) -> StoreResult<Vec<ToolGrant>> {
        self.call("looks for grants", self.model.tool_grants(owner, within), |_| {}).await
    }
    async fn delete_tool_grant(&self, owner: &UserId, id: &GrantId) -> StoreResult<bool> {
        self.call("takes a grant back", self.model.delete_tool_grant(owner, id), |_| {}).await
    }
    async fn resolve_input(&self, resolve: ResolveInput, key: Option<IdempotencyClaim>) -> StoreResult<Keyed<Resolved>> {
        self.call("answers", self.model.resolve_input(resolve, key), |_| {}).await
    }
}

// The model has no keys and no tickets, and nobody asks for them.

#[async_trait]
impl KeyStore for Line {
    async fn ensure_user(&self, id: UserId, name: &str, role: UserRole, now: UnixMillis) -> StoreResult<User> {
        self.model.ensure_user(id, name, role, now).await
    }
    async fn create_key(&self, id: KeyId, user: &UserId, hash: &str, label: &str, now: UnixMillis) -> StoreResult<()> {
        self.model.create_key(id, user, hash, label, now).await
    }
    async fn user_by_key_hash(&self, hash: &str) -> StoreResult<Option<User>> {
        self.model.user_by_key_hash(hash).await
    }
    async fn has_keys(&self) -> StoreResult<bool> {
        self.model.has_keys().await
    }
    async fn live_keys(&self, hashes: &[String]) -> StoreResult<Vec<String>> {
        self.model.live_keys(hashes).await
    }
    async fn keys(&self) -> StoreResult<Vec<StoredKey>> {
        self.model.keys().await
    }
    async fn revoke_key(&self, id: &KeyId, now: UnixMillis) -> StoreResult<bool> {
        self.model.revoke_key(id, now).await
    }
}

#[async_trait]
impl TicketStore for Line {
    async fn create_ticket(&self, hash: &str, ticket: &StreamTicket, lifetime_ms: u32) -> StoreResult<UnixMillis> {
        self.model.create_ticket(hash, ticket, lifetime_ms).await
    }
    async fn take_ticket(&self, hash: &str) -> StoreResult<Option<StreamTicket>> {
        self.model.take_ticket(hash).await
    }
    async fn remove_expired_tickets(&self) -> StoreResult<u64> {
        self.model.remove_expired_tickets().await
    }
}

#[async_trait]
impl FileStore for Line {
    async fn begin_file(&self, new: &NewFile, most: u32) -> StoreResult<bool> {
        self.model.begin_file(new, most).await
    }
    async fn add_file_chunk(&self, id: &FileId, number: u32, bytes: &[u8]) -> StoreResult<()> {
        self.model.add_file_chunk(id, number, bytes).await
    }
    async fn finish_file(&self, owner: &UserId, id: &FileId) -> StoreResult<Option<StoredFile>> {
        self.model.finish_file(owner, id).await
    }
    async fn file(&self, owner: &UserId, id: &FileId) -> StoreResult<Option<StoredFile>> {
        self.model.file(owner, id).await
    }
    async fn file_of(&self, owner: &UserId, sha256: &str, name: &str) -> StoreResult<Option<StoredFile>> {
        self.model.file_of(owner, sha256, name).await
    }
    async fn files(&self, owner: &UserId, page: &PageRequest<FileCursor>) -> StoreResult<Page<StoredFile>> {
        self.model.files(owner, page).await
    }
    async fn file_chunk(&self, owner: &UserId, id: &FileId, number: u32) -> StoreResult<Option<Vec<u8>>> {
        self.model.file_chunk(owner, id, number).await
    }
    async fn attached_files(&self, owner: &UserId, ids: &[FileId]) -> StoreResult<Vec<AttachedFile>> {
        self.model.attached_files(owner, ids).await
    }
    async fn delete_file(&self, owner: &UserId, id: &FileId) -> StoreResult<bool> {
        self.model.delete_file(owner, id).await
    }
    async fn count_unused_files(&self, age_ms: u64) -> StoreResult<u64> {
        self.model.count_unused_files(age_ms).await
    }
    async fn remove_unused_files(&self, age_ms: u64) -> StoreResult<u64> {
        self.model.remove_unused_files(age_ms).await
    }
    async fn file_bytes(&self) -> StoreResult<u64> {
        self.model.file_bytes().await
    }
}

#[async_trait]
impl BudgetStore for Line {
    async fn reserve(&self, fence: &Fence, owner: &UserId, reserve: &Reserve) -> StoreResult<Option<Reserved>> {
        self.call("reserves", self.model.reserve(fence, owner, reserve), |_| {}).await
    }
    async fn remove_old_spending(&self) -> StoreResult<u64> {
        self.model.remove_old_spending().await
    }
}

#[async_trait]
impl UsageStore for Line {
    async fn usage(&self, filter: &UsageFilter, page: &PageRequest<UsageCursor>) -> StoreResult<Page<DayUsage>> {
        self.model.usage(filter, page).await
    }
}

#[async_trait]
impl AuditStore for Line {
    async fn tool_audit(&self, filter: &AuditFilter, page: &PageRequest<AuditCursor>) -> StoreResult<Page<AuditRecord>> {
        self.model.tool_audit(filter, page).await
    }
    async fn remove_old_audit(&self, age_ms: u64) -> StoreResult<u64> {
        self.model.remove_old_audit(age_ms).await
    }
}

#[async_trait]
impl PinStore for Line {
    async fn sight_tools(&self, seen: &[SeenTool]) -> StoreResult<Vec<PinId>> {
        self.model.sight_tools(seen).await
    }
    async fn tool_pins(&self, viewer: &UserId, status: Option<PinStatus>) -> StoreResult<Vec<ToolPin>> {
        self.model.tool_pins(viewer, status).await
    }
    async fn accept_tool_pin(&self, scope: &PinScope, id: &PinId, by: &UserId) -> StoreResult<Option<ToolPin>> {
        self.model.accept_tool_pin(scope, id, by).await
    }
}

#[async_trait]
impl RetentionStore for Line {
    async fn remove_unused_tool_sets(&self) -> StoreResult<u64> {
        self.model.remove_unused_tool_sets().await
    }
    async fn runs_to_fold(&self, age_ms: u64, after: Option<&EndedRun>, limit: u32) -> StoreResult<Vec<EndedRun>> {
        self.model.runs_to_fold(age_ms, after, limit).await
    }
    async fn fold_deltas(&self, of: &ConversationId, folds: &[FoldedDelta], through: Option<&RunId>) -> StoreResult<bool> {
        self.model.fold_deltas(of, folds, through).await
    }
    async fn idle_conversations(
        &self,
        tidying: Tidying,
        age_ms: u64,
        after: Option<&ConversationId>,
        limit: u32,
    ) -> StoreResult<Vec<(UserId, ConversationId)>> {
        self.model.idle_conversations(tidying, age_ms, after, limit).await
    }
    async fn archive_idle(&self, ids: &[ConversationId], age_ms: u64) -> StoreResult<Vec<StoredEvent>> {
        self.model.archive_idle(ids, age_ms).await
    }
    async fn delete_idle(&self, owner: &UserId, id: &ConversationId, tidying: Tidying, age_ms: u64) -> StoreResult<bool> {
        self.model.delete_idle(owner, id, tidying, age_ms).await
    }
}

#[async_trait]
impl ProviderStore for Line {
    async fn create_provider(
        &self,
        new: &ProviderRecord,
        most: u32,
        key: Option<IdempotencyClaim>,
    ) -> StoreResult<Keyed<ProviderMade>> {
        self.model.create_provider(new, most, key).await
    }
    async fn provider(&self, viewer: &UserId, id: &ProviderId) -> StoreResult<Option<ProviderRecord>> {
        self.model.provider(viewer, id).await
    }
    async fn providers(&self, viewer: &UserId, page: &PageRequest<ProviderCursor>) -> StoreResult<Page<ProviderRecord>> {
        self.model.providers(viewer, page).await
    }
    async fn provider_named(&self, owner: &UserId, name: &str) -> StoreResult<Option<ProviderRecord>> {
        self.model.provider_named(owner, name).await
    }
    async fn change_provider(&self, changed: &ProviderRecord) -> StoreResult<ProviderChanged> {
        self.model.change_provider(changed).await
    }
    async fn delete_provider(&self, owner: Option<&UserId>, id: &ProviderId, version: i64) -> StoreResult<bool> {
        self.model.delete_provider(owner, id, version).await
    }
    async fn create_login(&self, state_hash: &str, login: &ProviderLogin, lifetime_ms: u32) -> StoreResult<()> {
        self.model.create_login(state_hash, login, lifetime_ms).await
    }
    async fn take_login(&self, state_hash: &str, taker: &LoginTaker) -> StoreResult<Option<ProviderLogin>> {
        self.model.take_login(state_hash, taker).await
    }
    async fn master_keys_in_use(&self) -> StoreResult<Vec<(String, i64)>> {
        self.model.master_keys_in_use().await
    }
    async fn sealed_rows(&self, after: Option<&str>, limit: u32) -> StoreResult<Vec<SealedRow>> {
        self.model.sealed_rows(after, limit).await
    }
    async fn reseal(&self, row: &SealedRow, anew: Option<&Sealed>) -> StoreResult<bool> {
        self.model.reseal(row, anew).await
    }
}

#[async_trait]
impl McpServerStore for Line {
    async fn create_mcp_server(
        &self,
        new: &McpServerRecord,
        most: u32,
        key: Option<IdempotencyClaim>,
    ) -> StoreResult<Keyed<NamedMade<McpServerId>>> {
        self.model.create_mcp_server(new, most, key).await
    }
    async fn mcp_server(&self, viewer: &UserId, id: &McpServerId) -> StoreResult<Option<McpServerRecord>> {
        self.model.mcp_server(viewer, id).await
    }
    async fn mcp_servers(&self, viewer: &UserId, page: &PageRequest<McpServerCursor>) -> StoreResult<Page<McpServerRecord>> {
        self.model.mcp_servers(viewer, page).await
    }
    async fn usable_mcp_servers(&self, owner: &UserId) -> StoreResult<Vec<McpServerRecord>> {
        self.model.usable_mcp_servers(owner).await
    }
    async fn enabled_mcp_servers(&self, ids: &[McpServerId]) -> StoreResult<Vec<McpServerRecord>> {
        self.model.enabled_mcp_servers(ids).await
    }
    async fn change_mcp_server(&self, changed: &McpServerRecord) -> StoreResult<NamedChanged> {
        self.model.change_mcp_server(changed).await
    }
    async fn replace_mcp_server(&self, new: &McpServerRecord, key: Option<IdempotencyClaim>) -> StoreResult<Keyed<NamedChanged>> {
        self.model.replace_mcp_server(new, key).await
    }
    async fn renew_mcp_server(&self, owner: Option<&UserId>, id: &McpServerId) -> StoreResult<bool> {
        self.model.renew_mcp_server(owner, id).await
    }
    async fn delete_mcp_server(&self, owner: Option<&UserId>, id: &McpServerId, version: i64) -> StoreResult<bool> {
        self.model.delete_mcp_server(owner, id, version).await
    }
}

#[async_trait]
impl AgentStore for Line {
    async fn create_agent(
        &self,
        new: &AgentRecord,
        first: &AgentVersion,
        most: u32,
        key: Option<IdempotencyClaim>,
    ) -> StoreResult<Keyed<NamedMade<AgentId>>> {
        self.model.create_agent(new, first, most, key).await
    }
    async fn agent(&self, viewer: &UserId, id: &AgentId) -> StoreResult<Option<AgentRecord>> {
        self.model.agent(viewer, id).await
    }
    async fn agent_named(&self, viewer: &UserId, name: &str) -> StoreResult<Option<AgentRecord>> {
        self.model.agent_named(viewer, name).await
    }
    async fn agents(&self, viewer: &UserId, page: &PageRequest<AgentCursor>) -> StoreResult<Page<AgentRecord>> {
        self.model.agents(viewer, page).await
    }
    async fn change_agent(&self, changed: &AgentRecord, version: Option<&AgentVersion>) -> StoreResult<NamedChanged> {
        self.model.change_agent(changed, version).await
    }
    async fn agent_version(&self, id: &AgentId, number: u32) -> StoreResult<Option<AgentVersion>> {
        self.model.agent_version(id, number).await
    }
    async fn agent_versions(&self, id: &AgentId, page: &PageRequest<AgentVersionCursor>) -> StoreResult<Page<AgentVersion>> {
        self.model.agent_versions(id, page).await
    }
    async fn delete_agent(&self, owner: Option<&UserId>, id: &AgentId, revision: i64) -> StoreResult<bool> {
        self.model.delete_agent(owner, id, revision).await
    }
}

#[async_trait]
impl McpLoginStore for Line {
    async fn create_mcp_login(
        &self,
        state_hash: &str,
        server: &McpServerId,
        login: &ProviderLogin,
        lifetime_ms: u32,
    ) -> StoreResult<()> {
        self.model.create_mcp_login(state_hash, server, login, lifetime_ms).await
    }
    async fn take_mcp_login(&self, state_hash: &str, taker: &LoginTaker) -> StoreResult<Option<(McpServerId, ProviderLogin)>> {
        self.model.take_mcp_login(state_hash, taker).await
    }
    async fn mcp_tokens(&self, server: &McpServerId) -> StoreResult<Option<McpTokens>> {
        self.model.mcp_tokens(server).await
    }
    async fn put_mcp_tokens(&self, tokens: &McpTokens) -> StoreResult<()> {
        self.model.put_mcp_tokens(tokens).await
    }
    async fn claim_mcp_tokens(&self, server: &McpServerId, version: i64, for_ms: u32) -> StoreResult<bool> {
        self.model.claim_mcp_tokens(server, version, for_ms).await
    }
    async fn end_mcp_refresh(&self, server: &McpServerId, version: i64, anew: Option<(&Sealed, Option<i64>)>) -> StoreResult<bool> {
        self.model.end_mcp_refresh(server, version, anew).await
    }
    async fn forget_mcp_tokens(&self, server: &McpServerId, version: Option<i64>) -> StoreResult<bool> {
        self.model.forget_mcp_tokens(server, version).await
    }
    async fn see_mcp_tokens(&self, servers: &[McpServerId]) -> StoreResult<()> {
        self.model.see_mcp_tokens(servers).await
    }
    async fn forget_unseen_mcp_tokens(&self, unseen_ms: i64) -> StoreResult<u64> {
        self.model.forget_unseen_mcp_tokens(unseen_ms).await
    }
}

#[async_trait]
impl Store for Line {
    async fn ping(&self) -> StoreResult<()> {
        self.call("pings", self.model.ping(), |()| {}).await
    }
    fn is_shared(&self) -> bool {
        self.model.is_shared()
    }
    fn caps_owners(&self) -> bool {
        self.model.caps_owners()
    }
    async fn count_expired(&self, keys_ms: u64, audit_ms: Option<u64>) -> StoreResult<Expired> {
        self.model.count_expired(keys_ms, audit_ms).await
    }
    async fn remove_expired_idempotency(&self, age_ms: u64) -> StoreResult<u64> {
        self.model.remove_expired_idempotency(age_ms).await
    }
    async fn close(&self) {}
}

#[async_trait]
impl SearchStore for Line {
    async fn search(
        &self,
        owner: &UserId,
        terms: &Terms,
        archived: Option<bool>,
        page: &PageRequest<SearchCursor>,
    ) -> StoreResult<Page<Found>> {
        self.model.search(owner, terms, archived, page).await
    }
    async fn index_messages(&self, limit: u32) -> StoreResult<u64> {
        self.model.index_messages(limit).await
    }
}

#[async_trait]
impl FeedbackStore for Line {
    async fn give_feedback(&self, give: GiveFeedback, key: Option<IdempotencyClaim>) -> StoreResult<Keyed<FeedbackGiven>> {
        self.model.give_feedback(give, key).await
    }
    async fn withdraw_feedback(&self, owner: &UserId, of: &ConversationId, message: &MessageId) -> StoreResult<bool> {
        self.model.withdraw_feedback(owner, of, message).await
    }
    async fn review_feedback(
        &self,
        message: &MessageId,
        by: Option<&UserId>,
        now: UnixMillis,
    ) -> StoreResult<Option<FeedbackRecord>> {
        self.model.review_feedback(message, by, now).await
    }
    async fn feedback(&self, filter: &FeedbackFilter, page: &PageRequest<FeedbackCursor>) -> StoreResult<Page<FeedbackRecord>> {
        self.model.feedback(filter, page).await
    }
}

#[async_trait]
impl TitleStore for Line {
    async fn claim_title(&self, owner: &UserId, of: &ConversationId) -> StoreResult<Option<String>> {
        self.model.claim_title(owner, of).await
    }
    async fn finish_title(&self, made: TitleMade) -> StoreResult<Vec<StoredEvent>> {
        self.model.finish_title(made).await
    }
}

#[async_trait]
impl UserStore for Line {
    async fn user_named(&self, name: &str) -> StoreResult<Option<User>> {
        self.model.user_named(name).await
    }
    async fn set_role(&self, user: &UserId, role: UserRole) -> StoreResult<()> {
        self.model.set_role(user, role).await
    }
    async fn set_groups(&self, user: &UserId, groups: &[String]) -> StoreResult<()> {
        self.model.set_groups(user, groups).await
    }
    async fn groups_of(&self, user: &UserId) -> StoreResult<Vec<String>> {
        self.model.groups_of(user).await
    }
    async fn owned_by(&self, user: &UserId) -> StoreResult<Owned> {
        self.model.owned_by(user).await
    }
    async fn remove_user(&self, user: &UserId) -> StoreResult<bool> {
        self.model.remove_user(user).await
    }
}
