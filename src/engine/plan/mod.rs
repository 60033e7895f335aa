//! `strategy: plan_execute`: a planner says the steps, a router without history calls one tool for each, and the planner tells what
//! came of them.
//!
//! It is no second loop: each of its model calls is a model step, each of its tool calls goes the way of any other, and where the
//! plan stands is kept with the run's counters. What it has done stands in the history as in any run, so that the loop can take
//! over at every point without doing anything twice: where no plan can be made or a model of it fails, where a later step builds on
//! one that has failed, where no tool was called, and where a message joins the run.

mod named;
mod parse;
mod request;

pub(super) use request::request;

use std::sync::Arc;

use named::names_step;
use parse::Planned;

use super::draft::Draft;
use super::source::Source;
use super::{Command, budget, context, model_step, offer, repeats, results, texts, tool_step};
use crate::domain::context::ContextStrategy;
use crate::domain::event::EventBody;
use crate::domain::ids::CallId;
use crate::domain::message::{Message, Role};
use crate::domain::model::{ModelFinish, ModelTurn, ToolChoice};
use crate::domain::plan::{Plan, PlanPhase, PlanStep, PlanStepState, PlannedStep, Strategy, WithoutVectors};
use crate::domain::record::RunRecord;
use crate::domain::run::{FinishReason, RunStatus};
use crate::domain::tool::{ToolCall, ToolCallState, ToolDefinition};
use crate::domain::tool_filter::{ChosenBy, RankedTools, ToolFilter};
use crate::support::words::words;

/// Answers of the router for one step that may hold no call.
const TRIES: u32 = 3;

/// What stands between two wishes.
const BETWEEN_WISHES: [&str; 3] = ["and", "then", "also"];

/// How much of a failed step's reason stands in a list, in characters.
const LISTED_CHARS: usize = 150;

/// What the run's plan is doing, unless there is none or it is over.
pub(super) fn phase(record: &RunRecord) -> Option<PlanPhase> {
    if record.profile.strategy != Strategy::PlanExecute {
        return None;
    }
    record.counters.plan.as_ref().map(|plan| plan.phase).filter(|phase| *phase != PlanPhase::Over)
}

/// Begins the next model call of a plan. False where the loop goes on by itself.
pub(super) fn begin(draft: &mut Draft<'_>) -> bool {
    if draft.profile().strategy != Strategy::PlanExecute {
        return false;
    }
    if !may_go_on(draft) {
        leave(draft);
        return false;
    }
    let first = if has_acted(draft) { PlanPhase::Over } else { PlanPhase::Planning };
    let plan = draft.counters().plan.get_or_insert_with(|| Plan::empty(first));
    match plan.phase {
        PlanPhase::Over => return false,
        PlanPhase::Planning | PlanPhase::Telling => {}
        PlanPhase::Executing => {
            let step = number(plan.at);
            if !std::mem::replace(&mut plan.is_begun, true) {
                draft.event(EventBody::PlanStepStarted { step });
            }
            if is_unranked(draft) {
                draft.set_status(RunStatus::Processing, None);
                draft.command(Command::RankTools);
                return true;
            }
        }
    }
    draft.set_status(RunStatus::Processing, None);
    let room = context::room(&Source::in_draft(draft));
    // What is too long however short it is made is the loop's, which can leave messages out, and says so where that does not help.
    if room.is_some_and(|room| room.remaining < 0) && draft.profile().context.strategy != ContextStrategy::None {
        leave(draft);
        return false;
    }
    model_step::call(draft, room);
    true
}

/// Whether a plan can be made, or carried on. Whoever forces calls does not plan, and where no tools are on offer there is nothing to plan.
/// A tool that is broken may be a reason to call none any more.
fn may_go_on(draft: &Draft<'_>) -> bool {
    let record = &draft.work.record;
    let choice = &draft.profile().options.tool_choice;
    let is_telling = phase(record) == Some(PlanPhase::Telling);
    let has_tools = is_telling || !offer::usable(draft.tools(), record).is_empty() && !model_step::has_broken_tool(draft);
    has_tools
        && !record.counters.force_final
        && !budget::is_run_over(draft, record.usage)
        && choice.as_ref().is_none_or(|choice| *choice == ToolChoice::Auto)
}

fn number(at: usize) -> u32 {
    u32::try_from(at).unwrap_or(u32::MAX).saturating_add(1)
}

/// The plan is given up: what it has not done is the loop's, which is told of what was done.
fn leave(draft: &mut Draft<'_>) {
    let plan = draft.counters().plan.get_or_insert_with(|| Plan::empty(PlanPhase::Over));
    let was_under_way = plan.phase == PlanPhase::Executing || plan.phase == PlanPhase::Telling;
    plan.phase = PlanPhase::Over;
    close_steps(draft);
    if was_under_way && !draft.work.record.calls.is_empty() {
        draft.hint(texts::PLAN_LEFT);
    }
}

/// Closes the steps that are open still: one whose call was under way as that has ended, and those that have none as not begun.
fn close_steps(draft: &mut Draft<'_>) {
    let record = &draft.work.record;
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
        if let Some(step) = draft.counters().plan.as_mut().and_then(|plan| plan.steps.get_mut(at)) {
            step.state = Some(state);
        }
        draft.event(EventBody::PlanStepCompleted { step: number(at), state, call_id });
    }
}

/// The run ends, and the plan with it.
pub(super) fn end(draft: &mut Draft<'_>) {
    if phase(&draft.work.record).is_some() {
        close(draft);
        close_steps(draft);
    }
}

/// The call that was made for a step.
fn call_of<'r>(record: &'r RunRecord, step: &PlanStep) -> Option<&'r ToolCall> {
    record.call(step.call.as_ref()?).map(Arc::as_ref)
}

/// Whether a call was made for a step of the run's plan.
pub(super) fn has_made(record: &RunRecord, call: &CallId) -> bool {
    record.counters.plan.iter().flat_map(|plan| &plan.steps).any(|step| step.call.as_ref() == Some(call))
}

/// A message has joined: the plan knows nothing of it. One that has done nothing yet is made anew.
pub(super) fn interrupted(draft: &mut Draft<'_>) {
    match phase(&draft.work.record) {
        None => {}
        Some(_) if draft.work.record.calls.is_empty() => {
            leave(draft);
            draft.counters().plan = None;
        }
        Some(_) => leave(draft),
    }
}

/// The model step of a plan is finished.
pub(super) fn finished(draft: &mut Draft<'_>, step: u32, message: Message, turn: &ModelTurn, closing: Vec<EventBody>) {
    match phase(&draft.base.record) {
        Some(PlanPhase::Planning) => planned(draft, step, &message, turn),
        Some(PlanPhase::Executing) => routed(draft, step, message, turn, closing),
        Some(PlanPhase::Telling) => told(draft, step, message, turn, closing),
        Some(PlanPhase::Over) | None => {}
    }
}

/// The planner has answered. Nothing of it is kept as a message: the plan stands in the counters and in its event.
fn planned(draft: &mut Draft<'_>, step: u32, message: &Message, turn: &ModelTurn) {
    draft.complete_step(step, Some(turn.usage));
    if draft.work.has_unseen_messages() {
        return model_step::begin(draft);
    }
    let most = draft.profile().plan.max_steps.min(draft.profile().max_rounds) as usize;
    let parsed = parse::plan(&message.text()).filter(|_| turn.finish != ModelFinish::Refused && turn.finish != ModelFinish::Length);
    match longer(draft, parsed, most) {
        Some(Planned::Steps(mut steps)) if is_too_short(draft, &steps, most) => {
            draft.counters().plan = Some(Plan { short: steps.pop(), ..Plan::empty(PlanPhase::Planning) });
        }
        Some(Planned::Answer(_)) if wants_shape(draft) => leave(draft),
        Some(Planned::Answer(answer)) => {
            close(draft);
            draft.say(&answer, FinishReason::Stop);
            return model_step::end_turn(draft, FinishReason::Stop);
        }
        Some(Planned::Steps(steps)) if steps.len() <= most => {
            let shown = steps.iter().zip(1..).map(|(step, number)| PlannedStep {
                step: number,
                server: step.server.clone(),
                description: step.description.clone(),
            });
            draft.event(EventBody::PlanCreated { steps: shown.collect() });
            draft.counters().plan = Some(Plan { steps, ..Plan::empty(PlanPhase::Executing) });
        }
        Some(Planned::Steps(_)) | None => leave(draft),
    }
    model_step::begin(draft);
}

/// Whether the answer has a shape that no words of a planner and no list have. The loop gives it then.
fn wants_shape(draft: &Draft<'_>) -> bool {
    draft.profile().options.output_schema.is_some()
}

/// Whether a plan of one step is one step too few: the user wants several things. The planner is asked once more.
fn is_too_short(draft: &Draft<'_>, steps: &[PlanStep], most: usize) -> bool {
    let is_first = draft.base.record.counters.plan.as_ref().is_none_or(|plan| plan.short.is_none());
    let said = words(&Source::in_draft(draft).said_by_user());
    let wants_several = said.iter().any(|word| BETWEEN_WISHES.contains(&word.as_str()));
    steps.len() == 1 && most > 1 && is_first && wants_several
}

/// The second plan, if it is one that is longer and may be carried out, and else the short one.
fn longer(draft: &Draft<'_>, second: Option<Planned>, most: usize) -> Option<Planned> {
    let Some(short) = draft.base.record.counters.plan.as_ref().and_then(|plan| plan.short.clone()) else { return second };
    let is_longer = |planned: &Planned| match planned {
        Planned::Steps(steps) => (2..=most).contains(&steps.len()),
        Planned::Answer(_) => false,
    };
    Some(second.filter(is_longer).unwrap_or_else(|| Planned::Steps(vec![short])))
}

/// The router has answered: with a call, or it is asked again.
fn routed(draft: &mut Draft<'_>, step: u32, message: Message, turn: &ModelTurn, closing: Vec<EventBody>) {
    let is_whole = turn.malformed.is_none() && matches!(turn.finish, ModelFinish::Stop | ModelFinish::ToolCalls);
    let call = message.tool_calls().next().map(|call| call.call_id.clone()).filter(|_| is_whole);
    let Some(plan) = draft.counters().plan.as_mut() else { return };
    let at = plan.at;
    if let (Some(call), Some(planned)) = (call, plan.steps.get_mut(at)) {
        planned.call = Some(call);
        let calls = tool_step::planned(draft, &message, turn, step.saturating_add(1), tool_step::Completeness::Whole);
        model_step::store_answer(draft, step, message, closing, turn.usage);
        return tool_step::begin(draft, calls);
    }
    plan.tries = plan.tries.saturating_add(1);
    let is_given_up = plan.tries >= TRIES;
    if !message.parts.is_empty() {
        draft.reset(step, "plan");
    }
    draft.complete_step(step, Some(turn.usage));
    if is_given_up {
        step_over(draft, PlanStepState::Failed);
    }
    model_step::begin(draft);
}

/// The calls of a step have their outcomes.
pub(super) fn called(draft: &mut Draft<'_>) {
    if phase(&draft.work.record) != Some(PlanPhase::Executing) {
        return;
    }
    let record = &draft.work.record;
    let step = record.counters.plan.as_ref().and_then(|plan| plan.steps.get(plan.at));
    let call = step.and_then(|step| call_of(record, step));
    let has_succeeded = call.is_some_and(|call| call.state == ToolCallState::Done);
    step_over(draft, if has_succeeded { PlanStepState::Done } else { PlanStepState::Failed });
}

/// A step has ended: the next one follows, the telling of all, or the loop.
fn step_over(draft: &mut Draft<'_>, state: PlanStepState) {
    let Some(plan) = draft.counters().plan.as_mut() else { return };
    let at = plan.at;
    let Some(step) = plan.steps.get_mut(at) else { return };
    step.state = Some(state);
    let call_id = step.call.clone();
    (plan.at, plan.tries, plan.is_begun, plan.chosen) = (at + 1, 0, false, None);
    let is_needed = state == PlanStepState::Failed && plan.steps[at + 1..].iter().any(|later| names_step(&later.description, at));
    let is_last = at + 1 == plan.steps.len();
    draft.event(EventBody::PlanStepCompleted { step: number(at), state, call_id });
    if is_needed || (is_last && !has_called(draft)) {
        return leave(draft);
    }
    if is_last && let Some(plan) = draft.counters().plan.as_mut() {
        plan.phase = PlanPhase::Telling;
    }
}

/// Whether tools were called in this turn before there was a plan: by the run that this one goes on from, or by a worker that knows no
/// plans. The planner reads no calls and would have them made again; the loop reads them.
fn has_acted(draft: &Draft<'_>) -> bool {
    let history = draft.base.record.history.iter().rev();
    let mut turn = history.take_while(|message| message.role != Role::User || message.internal);
    !draft.work.record.calls.is_empty() || turn.any(|message| message.tool_calls().next().is_some())
}

/// Whether the plan has called any tool that there is: calls that were refused do not count. What a human has denied does, as the
/// loop would only ask them again.
fn has_called(draft: &Draft<'_>) -> bool {
    let record = &draft.work.record;
    let steps = record.counters.plan.iter().flat_map(|plan| &plan.steps);
    let mut calls = steps.filter_map(|step| call_of(record, step)).filter(|call| repeats::was_let_through(call));
    calls.any(|call| draft.tools().iter().any(|tool| tool.name == call.name))
}

/// The planner has told what came of the steps. If it has nothing to say, a list does.
fn told(draft: &mut Draft<'_>, step: u32, message: Message, turn: &ModelTurn, closing: Vec<EventBody>) {
    let has_words = !message.text().trim().is_empty();
    if has_words || turn.finish == ModelFinish::Refused {
        let reason = turn.finish.as_finish_reason();
        model_step::store_words(draft, step, message, closing, turn.usage);
        close(draft);
        return model_step::end_turn(draft, reason);
    }
    if !message.parts.is_empty() {
        draft.reset(step, "plan");
    }
    draft.complete_step(step, Some(turn.usage));
    list(draft);
}

/// The model of a plan could not be asked, and no further try is left.
pub(super) fn model_failed(draft: &mut Draft<'_>, step: u32) {
    let counters = draft.counters();
    (counters.model_failures, counters.left_alone_ms) = (0, 0);
    draft.reset(step, "retry");
    draft.abandon_step(step);
    if phase(&draft.work.record) == Some(PlanPhase::Telling) {
        return list(draft);
    }
    leave(draft);
    model_step::begin(draft);
}

/// Tells what came of the steps without the planner: by a list, or by the agent's own model, which has nothing left to do.
fn list(draft: &mut Draft<'_>) {
    if wants_shape(draft) {
        close(draft);
        draft.force_final(texts::PLAN_DONE);
        return model_step::begin(draft);
    }
    let record = &draft.work.record;
    let steps = record.counters.plan.as_ref().map(|plan| plan.steps.as_slice()).unwrap_or_default();
    let lines = steps.iter().map(|step| {
        let (word, result) = result_of(record, step, LISTED_CHARS);
        match step.state {
            Some(PlanStepState::Done) => format!("- {}: {word}", step.description),
            Some(PlanStepState::Failed | PlanStepState::Skipped) | None => format!("- {}: {word} ({result})", step.description),
        }
    });
    let text = lines.collect::<Vec<_>>().join("\n");
    close(draft);
    draft.say(&text, FinishReason::Stop);
    model_step::end_turn(draft, FinishReason::Stop);
}

/// The plan has come to its end.
fn close(draft: &mut Draft<'_>) {
    if let Some(plan) = draft.counters().plan.as_mut() {
        plan.phase = PlanPhase::Over;
    }
}

/// The word for how a step ended, and what came of it, in so many characters.
fn result_of(record: &RunRecord, step: &PlanStep, limit: usize) -> (&'static str, String) {
    let call = call_of(record, step);
    let result = match call {
        Some(call) => call.outcome.as_ref().map_or_else(String::new, |outcome| results::gist(&outcome.content, limit)),
        None => texts::NO_CALL_FOR_STEP.to_owned(),
    };
    let word = match (step.state, call.map(|call| call.state)) {
        (Some(PlanStepState::Done), _) => "ok",
        (_, Some(ToolCallState::Unknown)) => "unknown, it may have taken effect",
        (Some(PlanStepState::Failed | PlanStepState::Skipped) | None, _) => "failed",
    };
    (word, result)
}

// The tools of a step.

/// What the tools of the step under way are searched by.
pub(super) fn query(record: &RunRecord) -> Option<String> {
    let plan = record.counters.plan.as_ref().filter(|_| phase(record) == Some(PlanPhase::Executing))?;
    let step = plan.steps.get(plan.at)?;
    Some(format!("{} {}", step.server.as_deref().unwrap_or_default(), step.description).trim().to_owned())
}

/// Whether the tools of the step under way are still to be chosen.
fn is_unranked(draft: &Draft<'_>) -> bool {
    let record = &draft.work.record;
    phase(record) == Some(PlanPhase::Executing)
        && record.counters.plan.as_ref().is_some_and(|plan| plan.chosen.is_none())
        && offer::usable(draft.tools(), record).len() > draft.profile().plan.k
}

/// The tools are in order for the step under way. False if it does not wait for that.
pub(super) fn ranked(draft: &mut Draft<'_>, ranked: &RankedTools) -> bool {
    if phase(&draft.work.record).is_none() {
        return false;
    }
    if draft.open_tool_step().is_some() || !is_unranked(draft) {
        return true;
    }
    if ranked.by == ChosenBy::Lexical && draft.profile().plan.without_vectors == WithoutVectors::Loop {
        leave(draft);
        model_step::begin(draft);
        return true;
    }
    let filter = ToolFilter { k: draft.profile().plan.k, ..draft.profile().tool_filter.clone() };
    let said = query(&draft.work.record).unwrap_or_default();
    let names = offer::best(&filter, &offer::usable(draft.tools(), &draft.work.record), &said, &ranked.names);
    if let Some(plan) = draft.counters().plan.as_mut() {
        plan.chosen = Some(names);
    }
    model_step::begin(draft);
    true
}

/// The tools that a model of a plan is offered, of those that the run may use: the router those of its step, the planner none.
pub(super) fn offered<'t>(
    usable: Vec<&'t Arc<ToolDefinition>>,
    record: &RunRecord,
    phase: PlanPhase,
) -> Vec<&'t Arc<ToolDefinition>> {
    if phase != PlanPhase::Executing {
        return Vec::new();
    }
    let chosen = record.counters.plan.as_ref().and_then(|plan| plan.chosen.as_ref());
    usable.into_iter().filter(|tool| chosen.is_none_or(|names| names.contains(&tool.name))).collect()
}
