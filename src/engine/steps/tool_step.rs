//! Tool steps: their beginning, their recovery, and the consequences of their outcomes. Must not know in which order calls start.

use crate::domain::ids::CallId;
use crate::domain::model::ModelErrorKind;
use crate::domain::problem::ProblemCode;
use crate::domain::run::{Change, FinishReason, ReleaseCause, RunStatus};
use crate::domain::tool::{ToolCall, ToolCallState, ToolOutcome};
use crate::engine::calls::outcome::{finish_call, mark_started, record_outcome};
use crate::engine::calls::planned_calls::PlannedCall;
use crate::engine::calls::{approval, duplicates, outcome, unknown_outcome};
use crate::engine::machine::{DecisionBuilder, Next};
use crate::engine::request::tool_results;
use crate::engine::steps::restart_counters;
use crate::engine::strategy::plan::progress;
use crate::engine::{prompts, strategy};

/// Characters of a result in the run's error.
const QUOTED_CHARS: usize = 500;

/// The maximum number of answers in a row that the output limit may cut inside a tool call.
const CUT_ANSWERS: u32 = 2;

/// Begins the step: stores all calls, and the outcome of each refused call.
pub fn begin(decision: &mut DecisionBuilder<'_>, planned: Vec<PlannedCall>) -> Next {
    let Some(step) = planned.first().map(|planned| planned.call.step) else { return Next::Wait };
    decision.set_status(RunStatus::ToolLoop, None);
    decision.change(Change::AddToolCalls(planned.iter().map(|planned| planned.call.clone()).collect()));
    decision.start_tool_step(step);
    for PlannedCall { call, outcome } in planned {
        if let Some(outcome) = outcome {
            finish_call(decision, &call.id, outcome);
        }
    }
    Next::Advance
}

/// Resumes a step after a claim or a reload. The progress of `started` calls is unknown, unless they are under way in this worker.
pub fn resume(decision: &mut DecisionBuilder<'_>) -> Next {
    let Some(step) = decision.open_tool_step() else { return Next::Wait };
    let unstarted = decision.progress.batch(step).filter(|call| call.has_not_begun()).map(|call| call.id.clone());
    let unstarted: Vec<CallId> = unstarted.filter(|id| decision.facts.under_way.contains(id)).collect();
    for id in unstarted {
        mark_started(decision, &id);
    }
    let started = decision.progress.batch(step).filter(|call| call.state == ToolCallState::Started).map(|call| call.id.clone());
    let (under_way, lost): (Vec<CallId>, Vec<CallId>) = started.partition(|id| decision.facts.under_way.contains(id));
    if decision.facts.is_draining && under_way.is_empty() {
        // The next claim decides about the started calls.
        return Next::Release(Some(0), ReleaseCause::Drain);
    }
    decision.set_status(RunStatus::ToolLoop, None);
    for id in under_way {
        // The server's question could not be stored, so the server was told that there is no answer.
        unknown_outcome::close_questions_of_server(decision, &id);
    }
    if decision.facts.is_draining {
        // The run is handed back after the calls under way end. The next claim decides about the lost calls.
        return Next::Wait;
    }
    for id in lost {
        unknown_outcome::decide_unknown_outcome(decision, &id);
    }
    Next::Advance
}

/// Records the outcome of a call, and continues unless the call already had one.
pub fn apply_outcome(decision: &mut DecisionBuilder<'_>, id: &CallId, outcome: ToolOutcome) -> Next {
    if record_outcome(decision, id, outcome) { Next::Advance } else { Next::Wait }
}

/// Stores the results as a message, and begins the next model step.
pub fn end_step(decision: &mut DecisionBuilder<'_>, step: u32) -> Next {
    outcome::add_tool_message(decision, step);
    decision.complete_step(step, None);
    let has_unseen_messages = decision.progress.has_unseen_messages();
    if !has_unseen_messages && let Some(end) = end_undoing(decision, step) {
        return end;
    }
    let strategy = strategy::hooks_of(decision.profile());
    strategy.calls_done(decision);
    restart_counters::restart(decision);
    if decision.progress.counters.cut_answers > CUT_ANSWERS {
        let detail =
            "the answers were cut at the output limit inside tool calls; allow more output tokens or ask for less at a time";
        return Next::fail(ProblemCode::from(ModelErrorKind::IncompleteStream), detail);
    }
    // If a message has joined meanwhile, the model must answer it.
    if approval::ends_turn(decision, step) && !has_unseen_messages {
        strategy.close_plan(decision);
        decision.add_assistant_text(prompts::DENIED, FinishReason::Stop);
        return Next::complete(FinishReason::Stop);
    }
    // The rounds of a plan are its steps.
    if progress::phase(decision.before).is_none() {
        count_rounds(decision, step);
    }
    Next::ModelStep
}

/// Ends a run that only undoes a call: the model is not asked before the user writes again.
fn end_undoing(decision: &DecisionBuilder<'_>, step: u32) -> Option<Next> {
    let undo = decision.progress.batch(step).find(|call| call.undoes.is_some())?;
    if undo.state == ToolCallState::Done {
        return Some(Next::complete(FinishReason::Stop));
    }
    let result = undo.outcome.as_ref().map(|outcome| tool_results::cut_text(&outcome.content, QUOTED_CHARS)).unwrap_or_default();
    let (code, detail) = match undo.state {
        ToolCallState::Unknown => {
            (ProblemCode::ToolOutcomeUnknown, format!("it is not known whether {} has taken the call back", undo.name))
        }
        _ => (ProblemCode::ToolFailed, format!("the call was not taken back: {} said: {result}", undo.name)),
    };
    Some(Next::fail(code, detail))
}

/// Counts rounds without progress, and adds a hint at the limit.
fn count_rounds(decision: &mut DecisionBuilder<'_>, step: u32) {
    let profile = decision.profile();
    let has_only_errors = decision.progress.batch(step).all(|call| call.outcome.as_ref().is_some_and(|outcome| outcome.is_error));
    let (tools, record) = (decision.tools(), &decision.progress);
    let repeats = |call: &ToolCall| duplicates::answered_before((profile, tools, record), std::iter::empty(), call).is_some();
    let has_only_duplicates = decision.progress.batch(step).all(repeats);
    let has_progress = decision.progress.batch(step).any(|call| call.state == ToolCallState::Done && !repeats(call));
    let counters = decision.counters();
    counters.continuations = if has_progress { 0 } else { counters.continuations };
    counters.error_rounds = if has_only_errors { counters.error_rounds.saturating_add(1) } else { 0 };
    counters.duplicate_rounds = if has_only_duplicates { counters.duplicate_rounds.saturating_add(1) } else { 0 };
    if profile.error_rounds > 0 && counters.error_rounds >= profile.error_rounds {
        counters.error_rounds = 0;
        decision.hint(prompts::ERROR_ROUNDS);
    }
    if profile.duplicate_calls > 0 && decision.progress.counters.duplicate_rounds >= profile.duplicate_calls {
        decision.force_final(prompts::FORCED_DUPLICATES);
    }
}
