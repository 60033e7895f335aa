//! The state of a run before a decision: `RunState` has the run's rows, and the `RunFacts` that the worker knows and no row
//! contains. Changes are applied in memory as the store applies them to rows.

use std::sync::Arc;

use crate::domain::agent::ServerNote;
use crate::domain::ids::CallId;
use crate::domain::run::{Capacity, Change, RequestDigest, ReservationOutcome, ReservationRequest, RunRecord, StepRow, StepStatus};
use crate::domain::tool::{ToolCall, ToolCallState, ToolDefinition, ToolGrant};
use crate::engine::machine::decision::Input;
use crate::engine::offer::usable;

/// Facts about a run that are not in its rows.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RunFacts {
    /// Whether the worker drains, so that no step and no call may begin.
    pub is_draining: bool,
    pub grants: Vec<ToolGrant>,
    /// Names of changed tools that wait for a tool review.
    pub withheld_tools: Vec<String>,
    /// By model.
    pub capacities: Vec<(String, Capacity)>,
    pub servers: Vec<ServerNote>,
    /// The reservation that was requested for the next model call, and the reply.
    pub reserved: Option<(ReservationRequest, ReservationOutcome)>,
    /// Calls that are still under way in this worker after it has reloaded the run.
    pub under_way: Vec<CallId>,
}

impl RunFacts {
    pub fn capacity_of(&self, model: &str) -> Capacity {
        self.capacities.iter().find(|(known, _)| known == model).map(|(_, capacity)| *capacity).unwrap_or_default()
    }
}

/// Copies all rows except the large ones that a decision never changes: messages, tool definitions and contexts. The copy gets only the
/// messages, tools and contexts that the decision adds.
pub fn working_copy(record: &RunRecord) -> RunRecord {
    RunRecord {
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
    }
}

/// Applies a change in memory as the store applies it to rows.
pub fn apply(record: &mut RunRecord, change: &Change) {
    match change {
        Change::SetStatus(status, reason) => {
            record.status = *status;
            record.reason = *reason;
        }
        // Only the store has the start time; `DecisionEnvironment` has the run's age.
        Change::Start => {}
        Change::FreezeTools(tools) => record.tools = Some(tools.clone()),
        Change::StoreContexts(contexts) => record.contexts = Some(contexts.clone()),
        Change::SetCounters(counters) => record.counters = counters.clone(),
        Change::SetSummary(summary) => record.summary = Some(summary.clone()),
        Change::SetUsage(usage) => record.usage = *usage,
        Change::ChargeBudget { day: _, amount: _ } => record.lost = None,
        Change::StartStep { step, kind, request: _ } => match record.steps.iter_mut().find(|row| row.step == *step) {
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
        Change::EndStep { step, status, usage: _ } => {
            if let Some(row) = record.steps.iter_mut().find(|row| row.step == *step) {
                row.status = *status;
            }
        }
        // Reserves exactly, because memory may hold thousands of states with long histories.
        Change::AddMessage(message) => {
            record.history.reserve_exact(1);
            record.history.push(message.clone());
        }
        Change::AddToolCalls(calls) => {
            record.calls.reserve_exact(calls.len());
            record.calls.extend(calls.iter().cloned().map(Arc::new));
        }
        Change::RequestApproval(id) => {
            if let Some(call) = call_mut(&mut record.calls, id, |call| call.state == ToolCallState::Planned) {
                call.state = ToolCallState::AwaitingApproval;
            }
        }
        Change::EditCall { id, arguments, hash } => {
            if let Some(call) = call_mut(&mut record.calls, id, ToolCall::has_not_begun) {
                (call.arguments, call.arguments_hash, call.key) = (arguments.clone(), hash.clone(), None);
            }
        }
        // Only the audit log uses the grant.
        Change::GrantCall { id: _, grant: _ } => {}
        Change::StartCall(id) => {
            if let Some(call) = call_mut(&mut record.calls, id, ToolCall::has_not_begun) {
                call.state = ToolCallState::Started;
            }
        }
        Change::SetHandle(id, handle) => {
            if let Some(call) = call_mut(&mut record.calls, id, |call| call.state == ToolCallState::Started) {
                call.handle.clone_from(handle);
            }
        }
        Change::FinishCall(id, outcome) => {
            if let Some(call) = call_mut(&mut record.calls, id, |call| !call.state.is_outcome()) {
                call.state = outcome.state;
                call.outcome = Some(outcome.clone());
            }
        }
        Change::RequestInput(request) => record.inputs.push(request.clone()),
        Change::CloseInput { id, state: _ } => record.inputs.retain(|request| request.id != *id),
        Change::Finish { status, finish_reason: _, error: _, joined: _ } => {
            record.status = *status;
            record.reason = None;
        }
        // `RunState` stores the release.
        Change::Release { after_ms: _, cause: _ } => {}
    }
}

fn call_mut<'a>(calls: &'a mut [Arc<ToolCall>], id: &CallId, may_change: impl Fn(&ToolCall) -> bool) -> Option<&'a mut ToolCall> {
    calls.iter_mut().find(|call| call.id == *id && may_change(call)).map(Arc::make_mut)
}

/// The state of a run, rebuilt from its rows. Changed only by inputs and decisions, so that it can be replayed.
#[derive(Debug, Clone, PartialEq)]
pub struct RunState {
    /// The loaded rows with all changes since.
    pub record: RunRecord,
    pub(in crate::engine) facts: RunFacts,
    /// The digest of the newest complete request record of this claim. After a load, the next record is complete in itself.
    pub(in crate::engine) recorded: Option<Arc<RequestDigest>>,
    /// Whether the lease was given up: the run belongs to its next claim.
    is_released: bool,
}

impl RunState {
    pub fn load(record: RunRecord) -> Self {
        Self { record, facts: RunFacts::default(), recorded: None, is_released: false }
    }

    /// Applies changes as the store does. If the store then fails, the state is invalid and must be reloaded.
    pub fn apply(&mut self, changes: &[Change]) {
        for change in changes {
            apply(&mut self.record, change);
            if matches!(change, Change::ChargeBudget { .. }) {
                self.facts.reserved = None;
            }
            if let Change::StartStep { step, request: Some(request), .. } = change {
                // A repeated step has replaced its earlier record.
                let earlier = self.recorded.take().filter(|digest| digest.step != *step);
                self.recorded = request.digest.clone().or(earlier);
            }
            self.is_released |= matches!(change, Change::Release { .. });
        }
    }

    /// Sets the facts, before the first decision.
    pub fn set_facts(&mut self, facts: RunFacts) {
        self.facts = facts;
    }

    /// Adds the facts of an input that are not in the rows. A message that is already known changes nothing.
    pub fn learn(&mut self, input: &Input) {
        match input {
            Input::Joined(message) if self.record.history.iter().all(|known| known.id != message.id) => {
                self.record.history.push(message.clone());
                self.record.joined += 1;
            }
            Input::Reserved(reserve, answer) => self.facts.reserved = Some((*reserve, *answer)),
            Input::Draining => self.facts.is_draining = true,
            _ => {}
        }
    }

    /// Returns whether a model has vision, if that is known.
    pub fn has_vision(&self, model: &str) -> Option<bool> {
        self.facts.capacity_of(model).vision
    }

    /// Returns the context window that the agent configures.
    pub fn agent_window(&self) -> Option<u64> {
        self.record.profile.context.token_limit(self.facts.capacity_of(self.record.model()).window)
    }

    /// Returns whether the run has ended or was released.
    pub fn is_over(&self) -> bool {
        self.is_released || self.record.status.is_terminal()
    }

    /// Returns the tools that the run may use in the next model call, or in the one under way.
    pub fn usable_tools(&self) -> Vec<&Arc<ToolDefinition>> {
        usable::usable_tools(self.record.tools.as_deref().unwrap_or_default(), &self.record)
    }
}
