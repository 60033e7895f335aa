//! The queue: claims, leases, sweeps.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use capstan::domain::agent::prompt::OwnLayers;
use capstan::domain::conversation::message::{Message, Role};
use capstan::domain::ids::{NodeId, RunId, UserId};
use capstan::domain::run::question::{InputRecord, InputRequest, InputState};
use capstan::domain::run::record::{ClaimCause, Fence, RunRecord};
use capstan::domain::tool::ToolCallState;
use capstan::store::{
    Claim, ControlSignal, ExpiredRun, QueueStore, Renewal, SUSPECT_CRASHES, SUSPECT_LEASES, StoreResult, Sweep, UnnamedLease,
};
use tokio::time::Instant;

use super::input::left_of;
use super::state::{LeaseRow, RunRow, State};
use super::{Bug, ModelStore};

#[async_trait]
impl QueueStore for ModelStore {
    async fn claim_runs(&self, node: &NodeId, limit: u32, lease_ms: u64) -> StoreResult<Vec<Claim>> {
        let mut state = self.state();
        let next = state.next_in_line(limit, node, lease_ms);
        Ok(next.iter().map(|run| state.claim(run, node, lease_ms)).collect())
    }

    async fn raise_fence(&self, fence: &Fence, attempt: u32) -> StoreResult<Option<Fence>> {
        let mut state = self.state();
        let next = Fence { epoch: fence.epoch + 1, ..fence.clone() };
        let is_of_this_claim = state.runs.get(&fence.run_id).is_some_and(|row| row.run.attempt == attempt);
        let has_next_lease = state.leases.get(&fence.run_id).is_some_and(|lease| lease.epoch == next.epoch);
        if is_of_this_claim && has_next_lease && state.is_newest(&next) {
            return Ok(Some(next));
        }
        let has_lease = state.leases.get(&fence.run_id).is_some_and(|lease| lease.epoch == fence.epoch);
        if !has_lease || !state.is_newest(fence) {
            return Ok(None);
        }
        let epoch = fence.epoch + i64::from(!self.has(Bug::FenceNotRaised));
        state.conversations.get_mut(&fence.conversation_id).unwrap().epoch = epoch;
        state.leases.get_mut(&fence.run_id).unwrap().epoch = epoch;
        Ok(Some(Fence { epoch, ..fence.clone() }))
    }

    async fn clear_of_crashes(&self, fence: &Fence) -> StoreResult<()> {
        let mut state = self.state();
        if state.is_newest(fence) {
            let row = state.run_mut(&fence.run_id);
            row.crashes = row.crashes.saturating_sub(1);
        }
        Ok(())
    }

    async fn load_bare(&self, fence: &Fence) -> StoreResult<Option<RunRecord>> {
        let record = self.state().load(fence);
        Ok(record.map(|record| RunRecord { history: Vec::new(), summary: None, covered: 0, ..record }))
    }

    async fn load_run(&self, fence: &Fence) -> StoreResult<Option<RunRecord>> {
        let state = self.state();
        let mut record = state.load(fence);
        if let Some(record) = record.as_mut().filter(|_| self.has(Bug::TakenOutRead)) {
            let gone = state.runs_in(&fence.conversation_id).into_iter().flat_map(|row| &row.gone);
            record.history.splice(0..0, gone.map(|(_, message)| message.clone()));
        }
        Ok(record)
    }

    async fn renew_leases(&self, node: &NodeId, fences: &[Fence], lease_ms: u64, grace_ms: u64) -> StoreResult<Renewal> {
        let mut state = self.state();
        let (now, grace) = (state.now, i64::try_from(grace_ms).unwrap());
        let revives = self.has(Bug::LeaseRevived);
        let held = fences.iter().filter(|fence| {
            let Some(lease) = state.leases.get_mut(&fence.run_id) else { return false };
            let is_ours = lease.epoch == fence.epoch && lease.node == *node && (revives || lease.until >= now - grace);
            if is_ours {
                lease.until = now + i64::try_from(lease_ms).unwrap();
            }
            is_ours
        });
        let renewed = held.map(|fence| fence.run_id.clone()).collect();
        Ok(Renewal { renewed, unnamed: state.unnamed_leases(node, fences) })
    }

    async fn give_up_leases(&self, fences: &[Fence]) -> StoreResult<Vec<RunId>> {
        let mut state = self.state();
        for fence in fences {
            if state.leases.get(&fence.run_id).is_none_or(|lease| lease.epoch != fence.epoch) {
                continue;
            }
            if let Some(row) = state.runs.get_mut(&fence.run_id).filter(|row| !row.is_over()) {
                row.crashes = row.crashes.saturating_sub(1);
            }
            state.take_away(&fence.run_id, None);
        }
        Ok(Vec::new())
    }

    async fn sweep_expired_leases(&self, limit: u32, despite_outage: bool) -> StoreResult<Sweep> {
        let mut state = self.state();
        let now = state.now;
        let mut expired: Vec<(i64, RunId)> =
            state.leases.iter().filter(|(_, lease)| lease.until < now).map(|(run, lease)| (lease.until, run.clone())).collect();
        let found = expired.len() as u64;
        if !despite_outage && expired.len() >= 4 && expired.len() * 2 > state.leases.len() {
            return Ok(Sweep { expired: found, requeued: Vec::new(), outage_suspected: true });
        }
        expired.sort();
        expired.truncate(limit as usize);
        let requeued = expired.into_iter().map(|(_, run_id)| {
            state.take_away(&run_id, Some(ClaimCause::Crash));
            ExpiredRun { trace: state.runs.get(&run_id).map(|row| row.trace.clone()), run_id }
        });
        Ok(Sweep { expired: found, requeued: requeued.collect(), outage_suspected: false })
    }

    async fn expire_foreign_leases(&self, _node: &NodeId) -> StoreResult<u64> {
        // Other nodes exist.
        Ok(0)
    }

    async fn control_signals(&self, runs: &[RunId]) -> StoreResult<Vec<ControlSignal>> {
        let state = self.state();
        let signals = runs.iter().map(|run_id| {
            let Some(row) = state.runs.get(run_id) else {
                return ControlSignal {
                    run_id: run_id.clone(),
                    cancel_by: None,
                    joined: Vec::new(),
                    is_damaged: false,
                    is_gone: true,
                };
            };
            let joined =
                row.messages.iter().filter(|(at, message)| *at > row.first_seq && message.role == Role::User && !message.internal);
            ControlSignal {
                run_id: run_id.clone(),
                cancel_by: row.cancel_by.clone().filter(|_| !row.is_over()),
                joined: joined.map(|(_, message)| message.clone()).collect(),
                is_damaged: false,
                is_gone: false,
            }
        });
        Ok(signals.filter(|signal| signal.is_gone || signal.cancel_by.is_some() || !signal.joined.is_empty()).collect())
    }

    async fn next_claimable_in(&self) -> StoreResult<Option<u64>> {
        let state = self.state();
        let next = state.runs.values().filter(|row| !state.is_full(&row.owner)).filter_map(|row| row.claimable_at).min();
        Ok(next.map(|at| u64::try_from(at - state.now).unwrap_or(0)))
    }
}

/// Returns whether the run has not processed the question's result yet.
fn is_open(asked: &InputRecord) -> bool {
    matches!(asked.request.state, InputState::Pending | InputState::Answered)
}

impl State {
    /// Returns the node's leases of runs that are not in `named`.
    fn unnamed_leases(&self, node: &NodeId, named: &[Fence]) -> Vec<UnnamedLease> {
        let is_named = |run: &RunId| named.iter().any(|fence| fence.run_id == *run);
        let unnamed = self.leases.iter().filter(|(run, lease)| lease.node == *node && !is_named(run));
        let unnamed = unnamed.filter_map(|(run, lease)| {
            let conversation_id = self.runs.get(run)?.run.conversation_id.clone();
            let fence = Fence { run_id: run.clone(), conversation_id, epoch: lease.epoch };
            Some(UnnamedLease { fence, age: Duration::from_millis(u64::try_from(self.now - lease.since).unwrap()) })
        });
        unnamed.collect()
    }

    /// Returns the next runs: from the owner with the fewest leases first, and an owner's oldest run first.
    fn next_in_line(&self, limit: u32, node: &NodeId, lease_ms: u64) -> Vec<RunId> {
        let within = |rank: usize| self.owner_cap == 0 || rank <= self.owner_cap as usize;
        // A suspect run, if the node has none. A cancellation cannot kill the worker.
        let is_suspect = |run: &RunId| {
            let row = &self.runs[run];
            let most = row.profile.max_crashes;
            row.crashes >= SUSPECT_CRASHES && row.cancel_by.is_none() && most > 0 && row.crashes + 1 >= most
        };
        let since = self.now - i64::try_from(lease_ms).unwrap() * i64::from(SUSPECT_LEASES);
        let is_recent = |lease: &LeaseRow| lease.node == *node && lease.since > since;
        let is_suspected = |run: &RunId| {
            let (row, most) = (&self.runs[run], self.runs[run].profile.max_crashes);
            row.crashes > SUSPECT_CRASHES && most > 0 && row.crashes >= most
        };
        let mut has_one = self.leases.iter().any(|(run, lease)| is_recent(lease) && is_suspected(run));
        let line = self.line().into_iter().filter(|(rank, _, run)| {
            let may_go = within(*rank) && !(has_one && is_suspect(run));
            has_one |= may_go && is_suspect(run);
            may_go
        });
        line.take(limit as usize).map(|(.., run)| run.clone()).collect()
    }

    /// Returns the number of leases of an owner's runs.
    pub fn leases_of(&self, owner: &UserId) -> usize {
        self.leases.values().filter(|lease| lease.owner == *owner).count()
    }

    /// Returns whether the owner is at the limit of concurrent runs.
    pub fn is_full(&self, owner: &UserId) -> bool {
        self.owner_cap > 0 && self.leases_of(owner) >= self.owner_cap as usize
    }

    /// Returns all claimable runs in order, without the limit: an owner's n-th run counts as if the earlier ones were claimed.
    pub fn line(&self) -> Vec<(usize, i64, &RunId)> {
        let mut waiting: Vec<_> = self
            .runs
            .values()
            .filter_map(|row| Some((row.claimable_at.filter(|at| *at <= self.now)?, &row.run.id, &row.owner)))
            .collect();
        waiting.sort();
        let mut line: Vec<(usize, i64, &RunId)> = Vec::new();
        for (place, (at, run, owner)) in waiting.iter().enumerate() {
            let before = waiting[..place].iter().filter(|(.., other)| other == owner).count();
            line.push((self.leases_of(owner) + before + 1, *at, *run));
        }
        line.sort();
        line
    }

    pub fn claim(&mut self, id: &RunId, node: &NodeId, lease_ms: u64) -> Claim {
        let now = self.now;
        let row = self.run_mut(id);
        let since = row.claimable_at.take().unwrap_or(now);
        row.answered = false;
        row.run.attempt += 1;
        let crashes = row.crashes;
        row.crashes += 1;
        let (owner, cause, trace) = (row.owner.clone(), row.cause, Some(row.trace.clone()));
        let conversation_id = row.run.conversation_id.clone();
        let conversation = self.conversations.get_mut(&conversation_id).unwrap();
        conversation.epoch = (conversation.epoch + 1).max(now * 1_000);
        conversation.writer = Some(id.clone());
        let epoch = conversation.epoch;
        let until = now + i64::try_from(lease_ms).unwrap();
        self.leases.insert(id.clone(), LeaseRow { owner: owner.clone(), node: node.clone(), epoch, since: now, until });
        let queued_ms = u64::try_from(now - since).unwrap_or(0);
        let (fence, claimed_at) = (Fence { run_id: id.clone(), conversation_id, epoch }, Instant::now().into_std());
        Claim { fence, owner, cause, queued_ms, trace, crashes, claimed_at }
    }

    fn take_away(&mut self, id: &RunId, cause: Option<ClaimCause>) {
        let now = self.now;
        self.leases.remove(id);
        let Some(row) = self.runs.get_mut(id) else { return };
        if !row.is_over() {
            (row.claimable_at, row.cause) = (Some(now), cause.unwrap_or(row.cause));
        }
        let conversation = self.conversations.get_mut(&row.run.conversation_id).unwrap();
        conversation.writer.take_if(|writer| writer == id);
    }

    /// Returns the record for the engine.
    pub fn load(&self, fence: &Fence) -> Option<RunRecord> {
        let row = self.runs.get(&fence.run_id).filter(|row| !row.is_over() && self.is_newest(fence))?;
        let read = self.read_in(&fence.conversation_id).into_iter().filter(|(first_seq, _)| *first_seq <= row.first_seq);
        let mut history: Vec<Message> = read.map(|(_, message)| message).collect();
        // A summary whose last message was superseded is not used.
        let place = |covers| history.iter().position(|message| message.id == covers);
        let summary = self.conversations.get(&fence.conversation_id).and_then(|conversation| conversation.summary.clone());
        let summary = summary.filter(|known| place(known.covers.clone()).is_some());
        let at = summary.as_ref().and_then(|known| place(known.covers.clone())).map_or(0, |place| 1 + place);
        let later = history.split_off(at);
        let asked = summary.as_ref().map(|known| known.asked.clone()).unwrap_or_default();
        let is_own = |message: &Message| message.run_id == fence.run_id && message.role == Role::User;
        history.retain(|message| is_own(message) || asked.contains(&message.id));
        let covered = history.len();
        history.extend(later);
        let opened = |asked: &InputRecord| InputRequest { expires_in_ms: left_of(asked, self.now), ..asked.request.clone() };
        let mut calls = row.calls.clone();
        calls.sort_by_key(|call| (call.step, call.position));
        let mut counters = row.counters.clone();
        if row.profile.counts_earlier_failures() && counters.earlier_failures.is_empty() {
            counters.count_earlier_calls(self.earlier_calls(fence, row.first_seq));
        }
        Some(RunRecord {
            fence: fence.clone(),
            owner: row.owner.clone(),
            attempt: row.run.attempt,
            // The claim that is being loaded was counted already.
            crashes: row.crashes.saturating_sub(1),
            cause: row.cause,
            status: row.run.status,
            reason: row.run.reason,
            profile: Arc::new(row.profile.clone()),
            own_layers: OwnLayers::default(),
            tools: row.tools.clone(),
            contexts: row.contexts.clone(),
            counters,
            usage: row.usage,
            lost: self.lost(fence).filter(|_| row.profile.budget.is_shared()),
            elapsed_ms: row.started_at.map_or(0, |at| u64::try_from(self.now - at).unwrap_or(0)),
            history,
            summary,
            covered,
            steps: row.steps.iter().map(|(step, _)| step.clone()).collect(),
            calls: calls.into_iter().map(Arc::new).collect(),
            inputs: row.inputs.iter().filter(|asked| is_open(asked)).map(opened).collect(),
            cancel_requested_by: row.cancel_by.clone(),
            joined: self.conversations[&fence.conversation_id].joined,
        })
    }

    /// Returns the ended calls of earlier runs of the conversation, newest first, and whether each failed.
    fn earlier_calls(&self, fence: &Fence, first_seq: i64) -> Vec<(String, bool)> {
        let is_earlier = |row: &&RunRow| row.run.conversation_id == fence.conversation_id && row.first_seq < first_seq;
        let runs = self.runs.values().filter(is_earlier);
        let mut calls: Vec<_> = runs.flat_map(|row| row.calls.iter().map(move |call| (row.first_seq, call))).collect();
        calls.retain(|(_, call)| matches!(call.state, ToolCallState::Done | ToolCallState::Failed));
        calls.sort_by_key(|(first_seq, call)| (*first_seq, call.step, call.position));
        calls.into_iter().rev().map(|(_, call)| (call.name.clone(), call.state == ToolCallState::Failed)).collect()
    }
}
