//! Reads the plan of a run from its counters. Makes no decision.

use std::sync::Arc;

use crate::domain::ids::CallId;
use crate::domain::run::{PlanPhase, PlanStep, PlanStepState, RunRecord, Strategy};
use crate::domain::tool::{ToolCall, ToolCallState, ToolDefinition};
use crate::engine::prompts;
use crate::engine::request::tool_results;

/// Returns the phase of the run's plan; `None` without a plan, or after its end.
pub fn phase(record: &RunRecord) -> Option<PlanPhase> {
    if record.profile.strategy != Strategy::PlanExecute {
        return None;
    }
    record.counters.plan.as_ref().map(|plan| plan.phase).filter(|phase| *phase != PlanPhase::Over)
}

pub(super) fn call_of<'r>(record: &'r RunRecord, step: &PlanStep) -> Option<&'r ToolCall> {
    record.call(step.call.as_ref()?).map(Arc::as_ref)
}

/// Returns whether a call was made for a step of the run's plan.
pub fn has_made(record: &RunRecord, call: &CallId) -> bool {
    record.counters.plan.iter().flat_map(|plan| &plan.steps).any(|step| step.call.as_ref() == Some(call))
}

/// Returns how a step ended, and its result cut to `limit` characters.
pub(super) fn result_of(record: &RunRecord, step: &PlanStep, limit: usize) -> (&'static str, String) {
    let call = call_of(record, step);
    let result = match call {
        Some(call) => call.outcome.as_ref().map_or_else(String::new, |outcome| tool_results::cut_text(&outcome.content, limit)),
        None => prompts::NO_CALL_FOR_STEP.to_owned(),
    };
    let word = match (step.state, call.map(|call| call.state)) {
        (Some(PlanStepState::Done), _) => "ok",
        (_, Some(ToolCallState::Unknown)) => "unknown, it may have taken effect",
        (Some(PlanStepState::Failed | PlanStepState::Skipped) | None, _) => "failed",
    };
    (word, result)
}

/// Returns the query for ranking the tools of the current step.
pub fn query(record: &RunRecord) -> Option<String> {
    let plan = record.counters.plan.as_ref().filter(|_| phase(record) == Some(PlanPhase::Executing))?;
    let step = plan.steps.get(plan.at)?;
    Some(format!("{} {}", step.server.as_deref().unwrap_or_default(), step.description).trim().to_owned())
}

/// Returns the tools on offer for a model of a plan: the router has those of its step, the planner none.
pub fn offered<'t>(usable: Vec<&'t Arc<ToolDefinition>>, record: &RunRecord, phase: PlanPhase) -> Vec<&'t Arc<ToolDefinition>> {
    if phase != PlanPhase::Executing {
        return Vec::new();
    }
    let chosen = record.counters.plan.as_ref().and_then(|plan| plan.chosen.as_ref());
    usable.into_iter().filter(|tool| chosen.is_none_or(|names| names.contains(&tool.name))).collect()
}
