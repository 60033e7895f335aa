//! The transition function: dispatches inputs and continuations to rules.
//!
//! Contains no rule: rules return the continuation, and call no other rule.

use std::ops::ControlFlow;

use crate::domain::conversation::Message;
use crate::domain::event::EventBody;
use crate::domain::ids::CallId;
use crate::domain::model::{ModelTurn, Usage};
use crate::domain::problem::ProblemCode;
use crate::domain::run::{Change, FinishReason, InputRequired, ReleaseCause};
use crate::domain::tool::{ReplayClass, ToolOutcome};
use crate::engine::calls::{server_questions, unknown_outcome};
use crate::engine::machine::builder::DecisionBuilder;
use crate::engine::machine::decision::{Command, Decision, DecisionEnvironment, Durability, Input, PartialAnswer};
use crate::engine::machine::next::{Next, RunEnd};
use crate::engine::machine::state::RunState;
use crate::engine::offer::store_selection;
use crate::engine::offer::usable::Prerequisite;
use crate::engine::steps::store_answer::keep_partial;
use crate::engine::steps::{
    budget, claim, context_window, ending, model_failure, model_step, parallel_calls, time_limits, tool_step,
};
use crate::engine::strategy;

/// Returns the decision about `input`, and adds the input's facts to `state`.
///
/// Depends on its arguments alone and never panics. An input that is impossible in a state gives an empty decision.
pub fn decide(state: &mut RunState, input: Input, environment: &DecisionEnvironment<'_>) -> Decision {
    state.learn(&input);
    if state.is_over() {
        return Decision::default();
    }
    let may_be_lost = may_be_lost(state, &input, &environment.spent);
    let mut decision = DecisionBuilder::new(state, environment);
    decision.charge(environment.spent);
    let mut next = answer(&mut decision, input);
    loop {
        next = match next {
            Next::Wait => break,
            Next::ModelStep => model_step::begin(&mut decision),
            Next::Window => context_window::make_room(&mut decision),
            Next::CallModel(call) => match budget::check_budget(&mut decision, &call) {
                Some(instead) => instead,
                None => model_step::call_model(&mut decision, *call),
            },
            Next::ToolStep(calls) => tool_step::begin(&mut decision, calls),
            Next::ResumeCalls => tool_step::resume(&mut decision),
            Next::Advance => parallel_calls::advance(&mut decision),
            Next::CallsDone(step) => tool_step::end_step(&mut decision, step),
            Next::EndTurn(reason) => model_step::end_turn(&mut decision, reason),
            Next::End(end) => ending::end(&mut decision, end),
            Next::Release(after_ms, cause) => {
                decision.release(after_ms, cause);
                Next::Wait
            }
        };
    }
    let charge = budget::charge_for_call(&decision);
    let mut decision = decision.into_decision(charge);
    if may_be_lost {
        decision.durability = durability_of(&decision);
    }
    decision
}

fn answer(decision: &mut DecisionBuilder<'_>, input: Input) -> Next {
    match input {
        Input::Claimed { tools, contexts, finished } => {
            budget::charge_lost(decision);
            claim::apply_unsaved_outcomes(decision, finished);
            claim::begin_claim(decision, tools, contexts)
        }
        Input::ToolsRanked(ranked) => match strategy::hooks_of(decision.profile()).tools_ranked(decision, &ranked) {
            Some(next) => next,
            None => store_selection::store_ranked_tools(decision, ranked),
        },
        Input::Reserved(..) => budget::continue_after_reply(decision),
        Input::ModelFinished { message, turn, closing } => answered(decision, message, turn, closing),
        Input::ModelFailed(error) => model_failure::failed(decision, error, None),
        Input::ModelCut { error, partial } => model_failure::failed(decision, error, partial),
        Input::ToolFinished(id, outcome) if unknown_outcome::is_asked_about(decision, &outcome) => {
            unknown_outcome::ended_unknown(decision, &id)
        }
        Input::ToolFinished(id, outcome) => tool_step::apply_outcome(decision, &id, outcome),
        Input::ToolPauses(id, pause) => server_questions::ask_all(decision, &id, pause),
        Input::Reconciled(id, answer) => unknown_outcome::apply_reconciliation(decision, &id, answer),
        // A joined message takes effect at the next model call, or when an answer arrives that was requested before the message.
        Input::Joined(_) | Input::Draining => Next::Wait,
        Input::CancelRequested { by, partial, stopped } => {
            stop(decision, partial, Some(FinishReason::Cancelled), stopped);
            Next::End(RunEnd::Cancelled(by))
        }
        Input::Drain { stopped, paused } => drained(decision, stopped, paused),
        Input::TimedOut { partial, stopped } => {
            stop(decision, partial, None, stopped);
            time_limits::fail_for_time(decision)
        }
        Input::GivenUp { why, stopped } => {
            budget::charge_lost(decision);
            claim::apply_unsaved_outcomes(decision, stopped);
            Next::fail(ProblemCode::Internal, why)
        }
    }
}

/// Dispatches an answer to the rule that reads it: the strategy, the selection of tool categories, or the loop.
fn answered(decision: &mut DecisionBuilder<'_>, message: Message, turn: ModelTurn, closing: Vec<EventBody>) -> Next {
    let before = decision.progress.usage;
    let Some(answer) = model_step::accept_answer(decision, message, turn, closing) else { return Next::Wait };
    match strategy::hooks_of(decision.profile()).model_answered(decision, answer) {
        ControlFlow::Break(next) => next,
        ControlFlow::Continue(answer) if decision.source_before().missing_prerequisite() == Prerequisite::Categories => {
            store_selection::store_categories(decision, &answer)
        }
        ControlFlow::Continue(answer) => model_step::apply_answer(decision, answer, before),
    }
}

/// Stores the shown part of a stopped answer, and the outcomes of stopped calls.
fn stop(
    decision: &mut DecisionBuilder<'_>,
    partial: Option<PartialAnswer>,
    finish_reason: Option<FinishReason>,
    stopped: Vec<(CallId, ToolOutcome)>,
) {
    if let (Some(step), Some(partial)) = (decision.open_model_step(), partial) {
        keep_partial(decision, step, partial, finish_reason);
    }
    claim::record_outcomes(decision, stopped);
}

/// Hands the run back. An open model step is void and begins again at the next claim. Calls under way stay `started`; the next
/// claim decides about them by their replay class. Calls that wait for input keep their questions.
fn drained(decision: &mut DecisionBuilder<'_>, stopped: Vec<(CallId, ToolOutcome)>, paused: Vec<(CallId, InputRequired)>) -> Next {
    claim::record_outcomes(decision, stopped);
    for (id, pause) in paused {
        server_questions::store_pause(decision, &id, pause);
    }
    if let Some(step) = decision.open_model_step() {
        decision.reset(step, ReleaseCause::Drain.as_str());
        decision.abandon_step(step);
    }
    Next::Release(Some(0), ReleaseCause::Drain)
}

/// Returns whether losing an input is harmless, because a model or a read tool can be asked again. Losing `spent` usage is not
/// harmless: only this worker knows it, and no other attempt would charge it.
fn may_be_lost(state: &RunState, input: &Input, spent: &Usage) -> bool {
    let may_come_again = match input {
        Input::Claimed { .. } | Input::ToolsRanked(_) | Input::Reserved(..) | Input::ModelFinished { .. } => true,
        Input::ToolFinished(id, _) => state.record.call(id).is_some_and(|call| call.replay == ReplayClass::Read),
        _ => false,
    };
    may_come_again && *spent == Usage::default()
}

pub fn durability_of(decision: &Decision) -> Durability {
    // The cost of a call is stored before another reservation.
    let charges = decision.changes.iter().any(|change| matches!(change, Change::ChargeBudget { .. }));
    let stays_here = |command: &Command| match command {
        Command::CallModel(_) | Command::RankTools => true,
        Command::RunTool(call) => call.server.is_none() && call.replay == ReplayClass::Read,
        Command::Reserve(_) | Command::Reconcile(_) | Command::Stop => false,
    };
    match !charges && !decision.commands.is_empty() && decision.commands.iter().all(stays_here) {
        true => Durability::Behind,
        false => Durability::Before,
    }
}
