//! The connection between a node and the store: slow, interrupted or late.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use capstan::domain::event::StoredEvent;
use capstan::domain::ids::{ConversationId, NodeId, RunId, UserId};
use capstan::domain::run::change::Change;
use capstan::domain::run::record::{Fence, RunRecord, RunWrite};
use capstan::store::*;
use tokio_util::task::TaskTracker;

use super::dice::Dice;
use super::gate::Gate;
use super::intercept::{InterceptedStore, Interceptor};
use super::witness::Witness;
use support::model_store::ModelStore;

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

/// Calls that the connection never disturbs.
const UNDISTURBED: [&str; 7] =
    ["accept_tool_pin", "claim_title", "finish_title", "remove_old_spending", "compare_tool_definitions", "tool_call", "tool_pins"];

impl Interceptor for Line {
    type Store = ModelStore;

    fn store(&self) -> &ModelStore {
        &self.model
    }

    async fn pass<T: Send, F: Future<Output = StoreResult<T>> + Send>(
        &self,
        name: &'static str,
        call: impl Fn() -> F + Send,
    ) -> StoreResult<T> {
        match UNDISTURBED.contains(&name) {
            true => call().await,
            false => self.call(&format!("calls {name}"), call(), |_| {}).await,
        }
    }

    fn accepted(&self, accepted: &IdempotentOutcome<AcceptOutcome>, lease_ms: u64) {
        self.witness.accepted(&self.node, accepted, lease_ms);
    }
}

#[async_trait]
impl LogStore for InterceptedStore<Line> {
    async fn commit(&self, writes: &[RunWrite]) -> StoreResult<Vec<Result<CommitReceipt, WriteRejection>>> {
        let what = format!("commits {}", summary(writes));
        let seen = |answers: &Vec<_>| self.witness.committed(writes, answers);
        let fate = self.fate(writes);
        if fate != Fate::Late {
            return self.carry(&what, fate, self.model.commit(writes), seen).await;
        }
        // The node gets an error, and the write is still on its way.
        let (line, late, name) = (self.0.clone(), writes.to_vec(), what.clone());
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
    async fn events_after(
        &self,
        after: &[(ConversationId, i64)],
        limit: u32,
    ) -> StoreResult<Vec<(ConversationId, Vec<StoredEvent>)>> {
        self.call("reads news", self.model.events_after(after, limit), |_| {}).await
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
impl QueueStore for InterceptedStore<Line> {
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
    async fn sweep_expired_leases(&self, limit: u32, despite_outage: bool) -> StoreResult<Sweep> {
        let seen = |sweep: &Sweep| {
            self.witness.swept(sweep);
            for ExpiredRun { run_id, .. } in &sweep.requeued {
                self.dice.note(format_args!("{} takes {} away", self.name, tail(run_id.as_str())));
            }
        };
        self.call("sweeps", self.model.sweep_expired_leases(limit, despite_outage), seen).await
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
