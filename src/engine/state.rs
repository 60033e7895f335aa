//! A run as the loop sees it.

use std::sync::Arc;

use super::source::Source;
use super::{offer, plan};
use crate::domain::approval::ToolGrant;
use crate::domain::budget::{Reserve, Reserved};
use crate::domain::change::{Change, StepRow, StepStatus};
use crate::domain::context::Capacity;
use crate::domain::ids::CallId;
use crate::domain::input::{InputKind, InputRequest};
use crate::domain::message::Message;
use crate::domain::prompt::ServerNote;
use crate::domain::record::RunRecord;
use crate::domain::tool::{ToolCall, ToolCallState, ToolDefinition};

/// The state of a run, rebuilt from its rows. Changed only by [`RunState::apply`], and by what a driver learns
/// from outside of the rows, such as messages that joined and the server's shutdown.
#[derive(Debug, Clone, PartialEq)]
pub struct RunState {
    /// The record it was loaded from, kept up to date.
    pub record: RunRecord,
    /// The lease was given up: the run belongs to whoever claims it next.
    released: bool,
    /// Nothing new shall begin.
    draining: bool,
    /// Answers to approvals that hold for later calls.
    grants: Vec<ToolGrant>,
    /// Tools that are held back from the run.
    held: Vec<String>,
    /// What the models of the run read at most.
    capacities: Vec<(String, Capacity)>,
    /// The servers that its tools come from, and those that it has to do without.
    servers: Vec<ServerNote>,
    /// What was asked for the next model call, and the answer.
    reserved: Option<(Reserve, Reserved)>,
    /// Calls that are being carried out by this worker, although the run was loaded meanwhile.
    under_way: Vec<CallId>,
}

impl RunState {
    /// Takes over what was loaded.
    #[must_use]
    pub fn load(record: RunRecord) -> Self {
        Self {
            record,
            released: false,
            draining: false,
            grants: Vec::new(),
            held: Vec::new(),
            capacities: Vec::new(),
            servers: Vec::new(),
            reserved: None,
            under_way: Vec::new(),
        }
    }

    /// Carries out in memory what the store carries out in rows. If the store then fails, the state is void: load it again.
    pub fn apply(&mut self, changes: &[Change]) {
        for change in changes {
            self.apply_one(change);
        }
    }

    fn apply_one(&mut self, change: &Change) {
        let record = &mut self.record;
        match change {
            Change::Status(status, reason) => {
                record.status = *status;
                record.reason = *reason;
            }
            // The start time is the store's alone; the run's age comes with `Surroundings`.
            Change::Started => {}
            Change::FreezeTools(tools) => record.tools = Some(tools.clone()),
            Change::KeepContexts(contexts) => record.contexts = Some(contexts.clone()),
            Change::Counters(counters) => record.counters = counters.clone(),
            Change::Summarize(summary) => record.summary = Some(summary.clone()),
            Change::Usage(usage) => record.usage = *usage,
            Change::Settle { day: _, amount: _ } => {
                self.reserved = None;
                record.lost = None;
            }
            Change::StepStarted { step, kind } => match record.steps.iter_mut().find(|row| row.step == *step) {
                Some(row) => row.status = StepStatus::Started,
                None => {
                    record.steps.reserve_exact(1);
                    record.steps.push(StepRow {
                        run_id: record.fence.run_id.clone(),
                        step: *step,
                        kind: *kind,
                        status: StepStatus::Started,
                    });
                }
            },
            Change::StepEnded { step, status, usage: _ } => {
                if let Some(row) = record.steps.iter_mut().find(|row| row.step == *step) {
                    row.status = *status;
                }
            }
            // A state lives as long as its run, and there may be thousands: no room is held for messages that may never come.
            Change::AddMessage(message) => {
                record.history.reserve_exact(1);
                record.history.push(message.clone());
            }
            Change::AddToolCalls(calls) => {
                record.calls.reserve_exact(calls.len());
                record.calls.extend(calls.iter().cloned().map(Arc::new));
            }
            Change::ToolAsked(id) => {
                if let Some(call) = call_mut(&mut record.calls, id, |call| call.state == ToolCallState::Planned) {
                    call.state = ToolCallState::AwaitingApproval;
                }
            }
            Change::ToolEdited { id, arguments, hash } => {
                if let Some(call) = call_mut(&mut record.calls, id, ToolCall::has_not_begun) {
                    (call.arguments, call.arguments_hash, call.key) = (arguments.clone(), hash.clone(), None);
                }
            }
            // Only the audit tells of it.
            Change::ToolGranted { id: _, grant: _ } => {}
            Change::ToolStarted(id) => {
                if let Some(call) = call_mut(&mut record.calls, id, ToolCall::has_not_begun) {
                    call.state = ToolCallState::Started;
                }
            }
            Change::ToolHandle(id, handle) => {
                if let Some(call) = call_mut(&mut record.calls, id, |call| call.state == ToolCallState::Started) {
                    call.handle.clone_from(handle);
                }
            }
            Change::ToolFinished(id, outcome) => {
                if let Some(call) = call_mut(&mut record.calls, id, |call| !call.state.is_outcome()) {
                    call.state = outcome.state;
                    call.outcome = Some(outcome.clone());
                }
            }
            Change::AskInput(request) => record.inputs.push(request.clone()),
            Change::InputClosed { id, state: _ } => record.inputs.retain(|request| request.id != *id),
            Change::Finish { status, finish_reason: _, error: _, joined: _ } => {
                record.status = *status;
                record.reason = None;
            }
            Change::Release { after_ms: _, cause: _ } => self.released = true,
        }
    }

    /// Takes in a user message that joined the run. One that is known already changes nothing.
    pub fn join(&mut self, message: Message) {
        if self.record.history.iter().any(|known| known.id == message.id) {
            return;
        }
        self.record.history.push(message);
        self.record.joined += 1;
    }

    /// Takes in the answers to approvals that hold for the calls of this run.
    pub fn know_grants(&mut self, grants: Vec<ToolGrant>) {
        self.grants = grants;
    }

    pub(super) fn grants(&self) -> &[ToolGrant] {
        &self.grants
    }

    /// Takes in the names of tools that are not offered to the run, because their definitions have changed.
    pub fn know_held(&mut self, held: Vec<String>) {
        self.held = held;
    }

    pub(super) fn held(&self) -> &[String] {
        &self.held
    }

    /// Takes in what models read at most, as `provider/name`.
    pub fn know_capacities(&mut self, capacities: Vec<(String, Capacity)>) {
        self.capacities = capacities;
    }

    pub(super) fn capacity_of(&self, model: &str) -> Capacity {
        self.capacities.iter().find(|(known, _)| known == model).map(|(_, capacity)| *capacity).unwrap_or_default()
    }

    /// Whether a model of the run sees pictures, where that is known.
    #[must_use]
    pub fn sees(&self, model: &str) -> Option<bool> {
        self.capacity_of(model).vision
    }

    /// The tokens that requests to the run's model have room in, where somebody has said it.
    #[must_use]
    pub fn said_window(&self) -> Option<u64> {
        self.record.profile.context.said_window(self.capacity_of(self.record.model()).window)
    }

    /// Takes in what the model may be told of the servers of its tools.
    pub fn know_servers(&mut self, servers: Vec<ServerNote>) {
        self.servers = servers;
    }

    pub(super) fn servers(&self) -> &[ServerNote] {
        &self.servers
    }

    /// Takes in what came of asking for leave to make the next model call.
    pub fn know_reserved(&mut self, reserve: Reserve, answer: Reserved) {
        self.reserved = Some((reserve, answer));
    }

    /// Takes in which calls are under way still, so that their outcomes will come, and none is judged as one that nobody hears of.
    pub fn know_under_way(&mut self, calls: Vec<CallId>) {
        self.under_way = calls;
    }

    pub(super) fn is_under_way(&self, call: &CallId) -> bool {
        self.under_way.contains(call)
    }

    pub(super) fn reserved(&self) -> Option<(Reserve, Reserved)> {
        self.reserved
    }

    /// From now on no step and no call begins: a decision that would begin one hands the run back instead. What is under way
    /// may end, and its result is kept.
    pub fn drain(&mut self) {
        self.draining = true;
    }

    pub(super) fn is_draining(&self) -> bool {
        self.draining
    }

    /// Whether a user message has joined the run and no request to the model has had it. Said by the rows, so that a crash
    /// does not make it forgotten.
    pub(super) fn has_unseen_messages(&self) -> bool {
        self.record.joined > self.record.counters.heard
    }

    /// Whether nothing is left to decide: the run has ended or was given up.
    pub(super) fn is_over(&self) -> bool {
        self.released || self.record.status.is_terminal()
    }

    /// The newest step, if it has begun and not ended.
    pub(super) fn open_step(&self) -> Option<&StepRow> {
        self.record.steps.last().filter(|row| row.status == StepStatus::Started)
    }

    /// The calls of a step, in call order.
    pub(super) fn batch(&self, step: u32) -> impl Iterator<Item = &ToolCall> {
        self.record.calls.iter().map(Arc::as_ref).filter(move |call| call.step == step)
    }

    /// The question about a call that the run has not acted on.
    pub(super) fn question_about(&self, call: &CallId) -> Option<&InputRequest> {
        self.record.inputs.iter().find(|request| request.call_id.as_ref() == Some(call))
    }

    /// What the server of a call has asked on the way.
    pub(super) fn questions_of_servers(&self, call: &CallId) -> impl Iterator<Item = &InputRequest> {
        let of_call = self.record.inputs.iter().filter(move |request| request.call_id.as_ref() == Some(call));
        of_call.filter(|request| request.kind == InputKind::Elicitation)
    }

    /// The tools that the run may use in the next model call, or in the one under way.
    #[must_use]
    pub fn usable_tools(&self) -> Vec<&Arc<ToolDefinition>> {
        offer::usable(self.record.tools.as_deref().unwrap_or_default(), &self.record)
    }

    /// Those that it may call, whether it is told of them or not.
    pub(super) fn callable_tools(&self) -> Vec<&Arc<ToolDefinition>> {
        offer::callable(self.record.tools.as_deref().unwrap_or_default(), &self.record)
    }

    /// Those that the model is told of.
    pub(super) fn offered_tools(&self) -> Vec<&Arc<ToolDefinition>> {
        match plan::phase(&self.record) {
            Some(phase) => plan::offered(self.usable_tools(), &self.record, phase),
            None => Source::of(self).offered(),
        }
    }

    /// A copy without what is large and never changes within a decision: messages, tool definitions and contexts.
    pub(super) fn scratch(&self) -> Self {
        let record = &self.record;
        Self {
            record: RunRecord {
                fence: record.fence.clone(),
                owner: record.owner.clone(),
                attempt: record.attempt,
                crashes: record.crashes,
                cause: record.cause,
                status: record.status,
                reason: record.reason,
                profile: record.profile.clone(),
                own_layers: record.own_layers.clone(),
                tools: None,
                contexts: None,
                counters: record.counters.clone(),
                usage: record.usage,
                lost: record.lost,
                elapsed_ms: record.elapsed_ms,
                history: Vec::new(),
                summary: record.summary.clone(),
                covered: 0,
                steps: record.steps.clone(),
                calls: record.calls.clone(),
                inputs: record.inputs.clone(),
                cancel_requested_by: record.cancel_requested_by.clone(),
                joined: record.joined,
            },
            released: self.released,
            draining: self.draining,
            grants: Vec::new(),
            held: Vec::new(),
            capacities: Vec::new(),
            servers: Vec::new(),
            reserved: None,
            under_way: Vec::new(),
        }
    }
}

/// The call with an id, if it is in a state to be changed.
fn call_mut<'a>(calls: &'a mut [Arc<ToolCall>], id: &CallId, may_change: impl Fn(&ToolCall) -> bool) -> Option<&'a mut ToolCall> {
    calls.iter_mut().find(|call| call.id == *id && may_change(call)).map(Arc::make_mut)
}
