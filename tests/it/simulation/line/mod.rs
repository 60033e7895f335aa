//! The connection between a node and the store: slow, interrupted or late.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use capstan::domain::agent::AgentProfile;
use capstan::domain::conversation::Conversation;
use capstan::domain::conversation::message::Message;
use capstan::domain::event::StoredEvent;
use capstan::domain::ids::{CallId, ConversationId, GrantId, InputId, MessageId, NodeId, PinId, RunId, UserId};
use capstan::domain::run::Run;
use capstan::domain::run::budget::{Reserve, Reserved};
use capstan::domain::run::change::{Change, StepKind};
use capstan::domain::run::input::{InputRecord, InputState};
use capstan::domain::run::record::{Fence, RunRecord, RunWrite};
use capstan::domain::tool::approval::ToolGrant;
use capstan::domain::tool::call_record::ToolCallRecord;
use capstan::domain::tool::pin::{PinStatus, ToolPin};
use capstan::store::*;
use capstan::support::clock::UnixMillis;
use tokio_util::task::TaskTracker;

use super::dice::Dice;
use super::gate::Gate;
use super::model::ModelStore;
use super::witness::Witness;

/// The rates of connection faults, for each thousand calls.
#[derive(Clone, Copy, Debug, Default)]
pub struct Weather {
    /// Calls that fail without effect.
    pub fails: u64,
    /// Writes that fail without effect and with an error that does not suggest a retry.
    pub wrong: u64,
    /// Calls that take effect, and whose reply is lost.
    pub unheard: u64,
    /// Writes that fail and take effect later.
    pub late: u64,
    /// Calls that take seconds, some of them longer than a lease.
    pub slow: u64,
}

/// The state that all connections share.
pub struct Sky {
    pub weather: Weather,
    /// From now on, all calls succeed.
    pub is_calm: AtomicBool,
    /// Held while the store answers no node.
    pub gate: Gate,
    /// The store refuses all nodes.
    pub is_away: AtomicBool,
    /// Owns the late writes.
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

/// The fate of a call.
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
    /// Returns the fate of a call with these writes. The end of a run never gets [`Fate::Wrong`].
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

    /// Sends a call and returns its reply. Calls `seen` at the moment when the call takes effect.
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
            // After a deadlock it is certain that nothing was written.
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
        // The node gets an error, and the write is still on its way.
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

/// Returns the end of an id, which is enough to tell ids apart.
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
    async fn renew_leases(&self, node: &NodeId, fences: &[Fence], lease_ms: u64, grace_ms: u64) -> StoreResult<Renewal> {
        let seen = |renewal: &Renewal| self.witness.renewed(node, fences, &renewal.renewed, lease_ms, grace_ms);
        self.call("renews", self.model.renew_leases(node, fences, lease_ms, grace_ms), seen).await
    }
    async fn give_up_leases(&self, fences: &[Fence]) -> StoreResult<Vec<RunId>> {
        self.call("gives leases up", self.model.give_up_leases(fences), |_| self.witness.gave_up(fences)).await
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
    async fn earlier_messages(
        &self,
        owner: &UserId,
        id: &ConversationId,
        page: EarlierPage,
    ) -> StoreResult<Option<EarlierMessages>> {
        self.call("reads messages", self.model.earlier_messages(owner, id, page), |_| {}).await
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
    async fn runs(&self, owner: &UserId, filter: &RunFilter, page: &PageRequest<RunCursor>) -> StoreResult<Page<Run>> {
        self.call("lists runs", self.model.runs(owner, filter, page), |_| {}).await
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
impl TitleStore for Line {
    async fn claim_title(&self, owner: &UserId, of: &ConversationId) -> StoreResult<Option<String>> {
        self.model.claim_title(owner, of).await
    }
    async fn finish_title(&self, made: TitleMade) -> StoreResult<Vec<StoredEvent>> {
        self.model.finish_title(made).await
    }
}

#[async_trait]
impl CommonStore for Line {
    async fn ping(&self) -> StoreResult<()> {
        self.call("pings", self.model.ping(), |()| {}).await
    }
    fn is_shared(&self) -> bool {
        self.model.is_shared()
    }
    fn caps_owners(&self) -> bool {
        self.model.caps_owners()
    }
    fn records(&self) -> &(dyn RecordStore + 'static) {
        self.model.records()
    }
}
