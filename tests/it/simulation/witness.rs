//! An observer outside of the store, which trusts no component.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::{Mutex, MutexGuard};

use capstan::domain::conversation::message::Role;
use capstan::domain::ids::{ConversationId, NodeId, RunId};
use capstan::domain::run::RunStatus;
use capstan::domain::run::change::Change;
use capstan::domain::run::record::{Fence, RunRecord, RunWrite};
use capstan::domain::run::step_request::StepRequest;
use capstan::store::{AcceptOutcome, Claim, CommitReceipt, IdempotentOutcome, Sweep, WriteRejection};
use capstan::support::text::storable_json;
use tokio::time::Instant;

use support::model_store::State;

/// The observations, each at the moment of its effect.
#[derive(Default)]
pub struct Seen {
    /// The fence that may write in each conversation.
    holders: BTreeMap<ConversationId, Fence>,
    leases: BTreeMap<RunId, (NodeId, Instant)>,
    /// The status and the time of each run's end.
    pub ends: BTreeMap<RunId, (RunStatus, Instant)>,
    /// Answers that a model has completed.
    pub whole_answers: BTreeSet<String>,
    /// User texts in model requests, with the time of their first request.
    pub heard: BTreeMap<String, Instant>,
    /// Digests of the requests that models have received.
    pub requests: BTreeSet<u64>,
    /// Arguments that no model has completed.
    pub cut_calls: BTreeSet<u64>,
    /// All violations.
    pub wrong: Vec<String>,
}

/// Returns a digest of everything that a model sees, with the texts as a database stores them.
pub fn digest_of(request: &StepRequest) -> u64 {
    let messages: Vec<_> = request.messages.iter().map(|message| (message.role, &message.parts)).collect();
    let seen = (&request.model, &request.system, &request.tools, &request.options, messages, &request.text_limits);
    let mut hasher = DefaultHasher::new();
    storable_json(serde_json::to_string(&seen).unwrap()).hash(&mut hasher);
    hasher.finish()
}

/// See the module documentation.
#[derive(Default)]
pub struct Witness(Mutex<Seen>);

impl Witness {
    pub fn seen(&self) -> MutexGuard<'_, Seen> {
        self.0.lock().unwrap()
    }

    pub fn wrong(&self, what: String) {
        self.seen().wrong.push(what);
    }

    pub fn claimed(&self, node: &NodeId, claims: &[Claim], lease_ms: u64) {
        for claim in claims {
            self.seen().claimed(node, &claim.fence, lease_ms);
        }
    }

    pub fn accepted(&self, node: &NodeId, accepted: &IdempotentOutcome<AcceptOutcome>, lease_ms: u64) {
        if let IdempotentOutcome::Fresh(AcceptOutcome::Run { claim: Some(claim), .. }) = accepted {
            self.seen().claimed(node, &claim.fence, lease_ms);
        }
    }

    /// Checks that a superseded message is in no request, neither itself nor in a summary.
    pub fn loaded(&self, record: &RunRecord, state: &State) {
        let runs = state.runs_in(&record.fence.conversation_id);
        let is_left = |text: &str| runs.iter().any(|row| row.messages.iter().any(|(_, message)| message.text() == text));
        let summary = record.summary.as_ref().map(|summary| summary.text.as_str()).unwrap_or_default();
        for (_, gone) in runs.iter().flat_map(|row| &row.gone) {
            let text = gone.text();
            // The beginning of a long answer identifies it.
            let beginning = text.split_inclusive('.').next().filter(|_| gone.role == Role::Assistant);
            let is_of_gone = |said: &str| said == text || beginning.is_some_and(|beginning| said.starts_with(beginning));
            let is_told = || summary.lines().any(|line| line.split_once(": ").is_some_and(|(_, said)| is_of_gone(said)));
            if record.history.iter().any(|message| message.id == gone.id) || !text.is_empty() && !is_left(&text) && is_told() {
                self.wrong(format!("{} knows {text:?}, which was taken out of its conversation: {summary:?}", record.fence.run_id));
            }
        }
    }

    pub fn raised(&self, old: &Fence, new: Option<&Fence>) {
        let Some(new) = new else { return };
        let mut seen = self.seen();
        // A worker that lost the reply asks again and gets the same fence.
        if ![Some(old), Some(new)].contains(&seen.holders.get(&new.conversation_id)) {
            seen.wrong.push(format!("{old:?} was raised, and was not the newest"));
        }
        seen.holders.insert(new.conversation_id.clone(), new.clone());
    }

    pub fn gave_up(&self, fences: &[Fence]) {
        let mut seen = self.seen();
        for fence in fences {
            if seen.holders.get(&fence.conversation_id) == Some(fence) {
                seen.leases.remove(&fence.run_id);
                seen.holders.remove(&fence.conversation_id);
            }
        }
    }

    pub fn swept(&self, sweep: &Sweep) {
        let mut seen = self.seen();
        for taken in &sweep.requeued {
            if let Some((_, until)) = seen.leases.remove(&taken.run_id)
                && until > Instant::now()
            {
                seen.wrong.push(format!("{} was taken away while its lease was good", taken.run_id));
            }
            seen.holders.retain(|_, fence| fence.run_id != taken.run_id);
        }
    }

    pub fn renewed(&self, node: &NodeId, fences: &[Fence], renewed: &[RunId], lease_ms: u64, grace_ms: u64) {
        let mut seen = self.seen();
        // The store counts whole milliseconds.
        let (now, grace) = (Instant::now(), std::time::Duration::from_millis(grace_ms + 2));
        for fence in fences.iter().filter(|fence| renewed.contains(&fence.run_id)) {
            let is_held = seen.holders.get(&fence.conversation_id) == Some(fence);
            match seen.leases.get(&fence.run_id) {
                Some((holder, until)) if is_held && holder == node && *until + grace >= now => {}
                known => {
                    let what = format!("the lease of {fence:?} was renewed for {node}, but what it had was {known:?}");
                    seen.wrong.push(what);
                }
            }
            seen.leases.insert(fence.run_id.clone(), (node.clone(), now + std::time::Duration::from_millis(lease_ms)));
        }
    }

    pub fn committed(&self, writes: &[RunWrite], answers: &[Result<CommitReceipt, WriteRejection>]) {
        let mut seen = self.seen();
        for (write, _) in writes.iter().zip(answers).filter(|(_, answer)| answer.is_ok()) {
            let fence = &write.fence;
            if seen.holders.get(&fence.conversation_id) != Some(fence) {
                let newest = seen.holders.get(&fence.conversation_id).cloned();
                seen.wrong.push(format!("a write under {fence:?} was taken, but the right to write was that of {newest:?}"));
            }
            for change in &write.changes {
                match change {
                    Change::Finish { status, .. } => {
                        seen.holders.remove(&fence.conversation_id);
                        if let Some((before, _)) = seen.ends.insert(fence.run_id.clone(), (*status, Instant::now())) {
                            seen.wrong.push(format!("{} ended as {before:?}, and again as {status:?}", fence.run_id));
                        }
                    }
                    Change::Release { .. } => drop(seen.holders.remove(&fence.conversation_id)),
                    _ => {}
                }
            }
        }
    }
}

impl Seen {
    fn claimed(&mut self, node: &NodeId, fence: &Fence, lease_ms: u64) {
        if let Some(holder) = self.holders.get(&fence.conversation_id) {
            self.wrong.push(format!("{fence:?} was claimed while {holder:?} had the right to write"));
        }
        self.holders.insert(fence.conversation_id.clone(), fence.clone());
        let until = Instant::now() + std::time::Duration::from_millis(lease_ms);
        self.leases.insert(fence.run_id.clone(), (node.clone(), until));
    }
}
