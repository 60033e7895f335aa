//! The strategy `plan_execute`: a planner writes the steps, a router without history makes one tool call for each, and the planner reports
//! the results.
//!
//! Its model calls are model steps, its tool calls are ordinary ones, and the run's counters store the plan. The history contains
//! the results as in any run, so that the loop can take over at every point without repeating a call.
//!
//! The loop takes over if no plan can be made, no tool was called, or a model fails. It also takes over if a later step needs a
//! failed one, or a message joins.

use std::ops::ControlFlow;

use super::parse::{self, PlanAnswer};
use super::progress::{call_of, phase, query, result_of};
use super::step_references::names_step;
use crate::domain::conversation::Role;
use crate::domain::event::EventBody;
use crate::domain::ids::CallId;
use crate::domain::model::{ModelFinish, ToolChoice};
use crate::domain::run::{
    ContextStrategy, FinishReason, Plan, PlanPhase, PlanStep, PlanStepState, PlannedStep, RankingFallback, RunStatus,
};
use crate::domain::tool::{RankedTools, SelectionMethod, ToolCallState, ToolFilter};
use crate::engine::calls::duplicates::has_reached_tool_or_denial;
use crate::engine::calls::failing_tools::forces_final;
use crate::engine::calls::planned_calls::{self, Completeness};
use crate::engine::machine::{Command, DecisionBuilder, ModelCall, Next};
use crate::engine::offer::store_selection::select_tools;
use crate::engine::offer::usable::usable_tools;
use crate::engine::prompts;
use crate::engine::request::build;
use crate::engine::steps::json_answer;
use crate::engine::steps::store_answer::{store_answer, store_text};
use crate::engine::strategy::hooks::{Answer, Hooks};
use crate::support::search_words::words;

/// The maximum number of router answers without a call for one step.
const MAX_ROUTER_ANSWERS: u32 = 3;

/// Words that separate two requests of the user.
const REQUEST_SEPARATORS: [&str; 3] = ["and", "then", "also"];

/// Characters of a failed step's reason in a list.
const LISTED_CHARS: usize = 150;

pub struct PlanExecute;

impl Hooks for PlanExecute {
    fn begin_model_call(&self, decision: &mut DecisionBuilder<'_>) -> Option<Next> {
        if !can_continue(decision) {
            give_up(decision, "no tool may be called any more");
            return None;
        }
        let first = if has_acted(decision) { PlanPhase::Over } else { PlanPhase::Planning };
        let plan = decision.counters().plan.get_or_insert_with(|| Plan::empty(first));
        match plan.phase {
            PlanPhase::Over => return None,
            PlanPhase::Planning | PlanPhase::Telling => {}
            PlanPhase::Executing => {
                let step = number(plan.at);
                if !std::mem::replace(&mut plan.is_begun, true) {
                    decision.event(EventBody::PlanStepStarted { step });
                }
                if is_unranked(decision) {
                    decision.set_status(RunStatus::Processing, None);
                    decision.command(Command::RankTools);
                    return Some(Next::Wait);
                }
            }
        }
        decision.set_status(RunStatus::Processing, None);
        let source = decision.source();
        let prepared = build::prepare_request(&source);
        let room = prepared.token_budget(&source);
        // The loop can evict messages from a request that is too long, and reports an error if that does not help.
        if room.is_some_and(|room| room.remaining < 0) && decision.profile().context.strategy != ContextStrategy::None {
            give_up(decision, "its request does not fit into the context window");
            return None;
        }
        Some(Next::CallModel(Box::new(ModelCall { prepared, room })))
    }

    fn tools_ranked(&self, decision: &mut DecisionBuilder<'_>, tools_ranked: &RankedTools) -> Option<Next> {
        phase(&decision.progress)?;
        if decision.open_tool_step().is_some() || !is_unranked(decision) {
            return Some(Next::Wait);
        }
        if tools_ranked.by == SelectionMethod::Lexical && decision.profile().plan.without_vectors == RankingFallback::Loop {
            give_up(decision, "no vectors find the tools of a step");
            return Some(Next::ModelStep);
        }
        let filter = ToolFilter { k: decision.profile().plan.k, ..decision.profile().tool_filter.clone() };
        let query = query(&decision.progress).unwrap_or_default();
        let names = select_tools(&filter, &usable_tools(decision.tools(), &decision.progress), &query, &tools_ranked.names);
        if let Some(plan) = decision.counters().plan.as_mut() {
            plan.chosen = Some(names);
        }
        Some(Next::ModelStep)
    }

    fn model_answered(&self, decision: &mut DecisionBuilder<'_>, answer: Answer) -> ControlFlow<Next, Answer> {
        ControlFlow::Break(match phase(decision.before) {
            Some(PlanPhase::Planning) => handle_plan(decision, answer),
            Some(PlanPhase::Executing) => routed(decision, answer),
            Some(PlanPhase::Telling) => reported(decision, answer),
            Some(PlanPhase::Over) | None => return ControlFlow::Continue(answer),
        })
    }

    fn calls_done(&self, decision: &mut DecisionBuilder<'_>) {
        let record = &decision.progress;
        if phase(record) != Some(PlanPhase::Executing) {
            return;
        }
        let step = record.counters.plan.as_ref().and_then(|plan| plan.steps.get(plan.at));
        let call = step.and_then(|step| call_of(record, step));
        let has_succeeded = call.is_some_and(|call| call.state == ToolCallState::Done);
        finish_step(decision, if has_succeeded { PlanStepState::Done } else { PlanStepState::Failed });
    }

    /// Gives up the plan, because it does not consider the joined message. If the run has made no call yet, the planner makes a new
    /// plan.
    fn message_joined(&self, decision: &mut DecisionBuilder<'_>) {
        if phase(&decision.progress).is_none() {
            return;
        }
        let is_made_anew = decision.progress.calls.is_empty();
        give_up(decision, "a message joined that it does not know");
        if is_made_anew {
            decision.counters().plan = None;
        }
    }

    fn model_failed(&self, decision: &mut DecisionBuilder<'_>, step: u32) -> Next {
        let counters = decision.counters();
        (counters.model_failures, counters.breaker_wait_ms) = (0, 0);
        decision.reset(step, "retry");
        decision.abandon_step(step);
        if phase(&decision.progress) == Some(PlanPhase::Telling) {
            return list(decision);
        }
        give_up(decision, "its model failed");
        Next::ModelStep
    }

    fn close_plan(&self, decision: &mut DecisionBuilder<'_>) {
        if phase(&decision.progress).is_some() {
            close(decision);
            close_steps(decision);
        }
    }
}

/// Returns whether a plan can be made or continued. Tools must be on offer, and neither a limit nor a failing tool may force an
/// answer. The request must not force or forbid a call.
fn can_continue(decision: &DecisionBuilder<'_>) -> bool {
    let record = &decision.progress;
    let choice = &decision.profile().options.tool_choice;
    let is_telling = phase(record) == Some(PlanPhase::Telling);
    let has_tools = is_telling || !usable_tools(decision.tools(), record).is_empty() && !forces_final(decision);
    has_tools
        && !record.counters.force_final
        && !decision.profile().is_spent(record.usage)
        && choice.as_ref().is_none_or(|choice| *choice == ToolChoice::Auto)
}

fn number(at: usize) -> u32 {
    u32::try_from(at).unwrap_or(u32::MAX).saturating_add(1)
}

/// Gives the plan up for a reason: the loop continues, with a hint about the completed steps.
fn give_up(decision: &mut DecisionBuilder<'_>, reason: &str) {
    if phase(&decision.progress).is_some() {
        decision.event(EventBody::PlanRejected { reason: reason.to_owned() });
    }
    let plan = decision.counters().plan.get_or_insert_with(|| Plan::empty(PlanPhase::Over));
    let was_under_way = plan.phase == PlanPhase::Executing || plan.phase == PlanPhase::Telling;
    plan.phase = PlanPhase::Over;
    close_steps(decision);
    if was_under_way && !decision.progress.calls.is_empty() {
        decision.hint(prompts::PLAN_GIVEN_UP);
    }
}

/// Closes the open steps: by the result of their call, or as skipped without one.
fn close_steps(decision: &mut DecisionBuilder<'_>) {
    let record = &decision.progress;
    let open = record.counters.plan.iter().flat_map(|plan| plan.steps.iter().zip(0..)).filter(|(step, _)| step.state.is_none());
    let closed: Vec<(usize, PlanStepState, Option<CallId>)> = open
        .map(|(step, at)| {
            let state = match call_of(record, step).map(|call| call.state) {
                None => PlanStepState::Skipped,
                Some(ToolCallState::Done) => PlanStepState::Done,
                Some(_) => PlanStepState::Failed,
            };
            (at, state, step.call.clone())
        })
        .collect();
    for (at, state, call_id) in closed {
        if let Some(step) = decision.counters().plan.as_mut().and_then(|plan| plan.steps.get_mut(at)) {
            step.state = Some(state);
        }
        decision.event(EventBody::PlanStepCompleted { step: number(at), state, call_id });
    }
}

/// Accepts the planner's answer. The counters and an event store a plan; only an answer without steps becomes a message.
fn handle_plan(decision: &mut DecisionBuilder<'_>, Answer { step, message, turn, .. }: Answer) -> Next {
    decision.complete_step(step, Some(turn.usage));
    if decision.progress.has_unseen_messages() {
        return Next::ModelStep;
    }
    let most = decision.profile().plan.max_steps.min(decision.profile().max_rounds) as usize;
    let parsed = parse::plan(&message.text()).filter(|_| turn.finish != ModelFinish::Refused && turn.finish != ModelFinish::Length);
    match longer_plan(decision, parsed, most) {
        Some(PlanAnswer::Steps(mut steps)) if needs_longer_plan(decision, &steps, most) => {
            decision.counters().plan = Some(Plan { short: steps.pop(), ..Plan::empty(PlanPhase::Planning) });
        }
        Some(PlanAnswer::Answer(_)) if wants_shape(decision) => {
            give_up(decision, "an answer without steps is not of the wanted shape");
        }
        Some(PlanAnswer::Answer(answer)) => {
            close(decision);
            decision.add_assistant_text(&answer, FinishReason::Stop);
            return Next::EndTurn(FinishReason::Stop);
        }
        Some(PlanAnswer::Steps(steps)) if steps.len() <= most => {
            let listed_steps = steps.iter().zip(1..).map(|(step, number)| PlannedStep {
                step: number,
                server: step.server.clone(),
                description: step.description.clone(),
            });
            decision.event(EventBody::PlanCreated { steps: listed_steps.collect() });
            decision.counters().plan = Some(Plan { steps, ..Plan::empty(PlanPhase::Executing) });
        }
        Some(PlanAnswer::Steps(steps)) => {
            let reason = format!("the plan has {} steps, and the agent carries out at most {most}", steps.len());
            give_up(decision, &reason);
        }
        None => give_up(
            decision,
            match turn.finish {
                ModelFinish::Length => "the planner's answer was cut at the output limit",
                ModelFinish::Refused => "the planner refused",
                ModelFinish::Stop | ModelFinish::ToolCalls => "the planner's answer holds no steps",
            },
        ),
    }
    Next::ModelStep
}

/// Returns whether the answer must match a schema, which only the loop can enforce.
fn wants_shape(decision: &DecisionBuilder<'_>) -> bool {
    decision.profile().options.output_schema.is_some()
}

/// Returns whether the planner is asked once more: it planned one step, and the user asked for several things.
fn needs_longer_plan(decision: &DecisionBuilder<'_>, steps: &[PlanStep], most: usize) -> bool {
    let is_first = decision.before.counters.plan.as_ref().is_none_or(|plan| plan.short.is_none());
    let query = words(&decision.source().text_of_user_messages());
    let wants_several = query.iter().any(|word| REQUEST_SEPARATORS.contains(&word.as_str()));
    steps.len() == 1 && most > 1 && is_first && wants_several
}

/// Returns the second plan if it is longer and allowed, else the first one.
fn longer_plan(decision: &DecisionBuilder<'_>, second: Option<PlanAnswer>, most: usize) -> Option<PlanAnswer> {
    let Some(short) = decision.before.counters.plan.as_ref().and_then(|plan| plan.short.clone()) else { return second };
    let is_longer = |planned: &PlanAnswer| match planned {
        PlanAnswer::Steps(steps) => (2..=most).contains(&steps.len()),
        PlanAnswer::Answer(_) => false,
    };
    Some(second.filter(is_longer).unwrap_or_else(|| PlanAnswer::Steps(vec![short])))
}

/// Accepts the router's answer: makes its call, or repeats the request.
fn routed(decision: &mut DecisionBuilder<'_>, Answer { step, message, turn, closing }: Answer) -> Next {
    let is_whole = turn.malformed.is_none() && matches!(turn.finish, ModelFinish::Stop | ModelFinish::ToolCalls);
    let call = message.tool_calls().next().map(|call| call.call_id.clone()).filter(|_| is_whole);
    let Some(plan) = decision.counters().plan.as_mut() else { return Next::Wait };
    let at = plan.at;
    if let (Some(call), Some(planned)) = (call, plan.steps.get_mut(at)) {
        planned.call = Some(call);
        let calls = planned_calls::plan_calls(decision, &message, &turn, step.saturating_add(1), Completeness::Whole);
        store_answer(decision, step, message, closing, turn.usage);
        return Next::ToolStep(calls);
    }
    plan.tries = plan.tries.saturating_add(1);
    let is_given_up = plan.tries >= MAX_ROUTER_ANSWERS;
    if !message.parts.is_empty() {
        decision.reset(step, "plan");
    }
    decision.complete_step(step, Some(turn.usage));
    if is_given_up {
        finish_step(decision, PlanStepState::Failed);
    }
    Next::ModelStep
}

/// Ends a step; the next step, the report, or the loop follows.
fn finish_step(decision: &mut DecisionBuilder<'_>, state: PlanStepState) {
    let Some(plan) = decision.counters().plan.as_mut() else { return };
    let at = plan.at;
    let Some(step) = plan.steps.get_mut(at) else { return };
    step.state = Some(state);
    let call_id = step.call.clone();
    (plan.at, plan.tries, plan.is_begun, plan.chosen) = (at + 1, 0, false, None);
    let is_needed = state == PlanStepState::Failed && plan.steps[at + 1..].iter().any(|later| names_step(&later.description, at));
    let is_last = at + 1 == plan.steps.len();
    decision.event(EventBody::PlanStepCompleted { step: number(at), state, call_id });
    if is_needed {
        return give_up(decision, &format!("step {} failed, and a later step needs it", number(at)));
    }
    if is_last && !has_called(decision) {
        return give_up(decision, "none of its steps called a tool that exists");
    }
    if is_last && let Some(plan) = decision.counters().plan.as_mut() {
        plan.phase = PlanPhase::Telling;
    }
}

/// Returns whether tools were called since the last user message, before the plan. The planner does not see these calls and would
/// repeat them, but the loop sees them.
fn has_acted(decision: &DecisionBuilder<'_>) -> bool {
    let history = decision.before.history.iter().rev();
    let mut turn = history.take_while(|message| message.role != Role::User || message.internal);
    !decision.progress.calls.is_empty() || turn.any(|message| message.tool_calls().next().is_some())
}

/// Returns whether the plan has called any existing tool. Refused calls do not count; denied ones do, since the loop would ask again.
fn has_called(decision: &DecisionBuilder<'_>) -> bool {
    let record = &decision.progress;
    let steps = record.counters.plan.iter().flat_map(|plan| &plan.steps);
    let mut calls = steps.filter_map(|step| call_of(record, step)).filter(|call| has_reached_tool_or_denial(call));
    calls.any(|call| decision.tools().iter().any(|tool| tool.name == call.name))
}

/// Accepts the planner's report. A list replaces a report without text.
fn reported(decision: &mut DecisionBuilder<'_>, answer: Answer) -> Next {
    let Answer { step, message, turn, closing } = json_answer::enforce_schema(decision, answer);
    let has_words = !message.text().trim().is_empty() && turn.malformed.is_none();
    if has_words || turn.finish == ModelFinish::Refused {
        let reason = turn.finish.as_finish_reason();
        store_text(decision, step, message, closing, turn.usage);
        close(decision);
        return Next::EndTurn(reason);
    }
    if !message.parts.is_empty() {
        decision.reset(step, "plan");
    }
    decision.complete_step(step, Some(turn.usage));
    list(decision)
}

/// Reports the results without the planner: as a list, or by a forced answer of the agent's own model.
fn list(decision: &mut DecisionBuilder<'_>) -> Next {
    if wants_shape(decision) {
        close(decision);
        decision.force_final(prompts::PLAN_DONE);
        return Next::ModelStep;
    }
    let record = &decision.progress;
    let steps = record.counters.plan.as_ref().map(|plan| plan.steps.as_slice()).unwrap_or_default();
    let lines = steps.iter().map(|step| {
        let (word, result) = result_of(record, step, LISTED_CHARS);
        match step.state {
            Some(PlanStepState::Done) => format!("- {}: {word}", step.description),
            Some(PlanStepState::Failed | PlanStepState::Skipped) | None => format!("- {}: {word} ({result})", step.description),
        }
    });
    let text = lines.collect::<Vec<_>>().join("\n");
    close(decision);
    decision.add_assistant_text(&text, FinishReason::Stop);
    Next::EndTurn(FinishReason::Stop)
}

fn close(decision: &mut DecisionBuilder<'_>) {
    if let Some(plan) = decision.counters().plan.as_mut() {
        plan.phase = PlanPhase::Over;
    }
}

/// Returns whether the tools of the current step are not selected yet.
fn is_unranked(decision: &DecisionBuilder<'_>) -> bool {
    let record = &decision.progress;
    phase(record) == Some(PlanPhase::Executing)
        && record.counters.plan.as_ref().is_some_and(|plan| plan.chosen.is_none())
        && usable_tools(decision.tools(), record).len() > decision.profile().plan.k
}
