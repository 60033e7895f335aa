//! The transition function: which rule answers which input.

use std::sync::Arc;

use super::draft::Draft;
use super::{
    Decision, Input, PartialAnswer, RunState, Surroundings, analysis, budget, model_failure, model_step, offer, rounds, texts,
    tool_step, unknown,
};
use crate::domain::agent::OnInterrupt;
use crate::domain::change::{Change, ReleaseCause, StepKind};
use crate::domain::event::EventBody;
use crate::domain::handle::Pause;
use crate::domain::ids::CallId;
use crate::domain::message::{Message, MessageStatus, Role};
use crate::domain::problem::ProblemCode;
use crate::domain::prompt::{ProvidedContext, ServerNote};
use crate::domain::record::ClaimCause;
use crate::domain::run::FinishReason;
use crate::domain::tool::{MAX_NESTING, ToolDefinition, ToolOutcome};
use crate::support::json::is_deeper_than;

/// What follows from `input` in `state`. Pure; never panics, whatever order inputs come in: an input that makes no sense in a
/// state gives an empty decision.
#[must_use]
pub fn decide(state: &RunState, input: Input, surroundings: &Surroundings<'_>) -> Decision {
    if state.is_over() {
        return Decision::default();
    }
    let mut draft = Draft::new(state, surroundings);
    draft.charge(surroundings.spent);
    match input {
        Input::Claimed { tools, contexts, finished } => {
            budget::charge_lost(&mut draft);
            take_up(&mut draft, finished);
            claimed(&mut draft, tools, contexts);
        }
        Input::ToolsRanked(ranked) => offer::ranked(&mut draft, ranked),
        Input::Reserved => budget::answered(&mut draft),
        Input::ModelFinished { message, turn, closing } => model_step::finished(&mut draft, message, &turn, closing),
        Input::ModelFailed(error) => model_failure::failed(&mut draft, error, None),
        Input::ModelCut { error, partial } => model_failure::failed(&mut draft, error, partial),
        Input::ToolFinished(id, outcome) => tool_step::finished(&mut draft, &id, outcome),
        Input::ToolPauses(id, pause) => rounds::pauses(&mut draft, &id, pause),
        Input::Reconciled(id, answer) => unknown::reconciled(&mut draft, &id, answer),
        // The message is stored, and the driver has told the state: nothing follows until the next model call, or until an
        // answer comes that did not know of it.
        Input::Joined(_) => {}
        Input::CancelRequested { by, partial, stopped } => cancelled(&mut draft, by, partial, stopped),
        Input::Drain { stopped, paused } => drained(&mut draft, stopped, paused),
        Input::TimedOut { partial, stopped } => {
            if let (Some(step), Some(partial)) = (draft.open_model_step(), partial) {
                model_step::keep_partial(&mut draft, step, partial, None);
            }
            record_outcomes(&mut draft, stopped);
            model_step::fail_for_time(&mut draft);
        }
        Input::GivenUp { why, stopped } => {
            budget::charge_lost(&mut draft);
            take_up(&mut draft, stopped);
            draft.fail(ProblemCode::Internal, why);
        }
    }
    draft.done()
}

fn claimed(draft: &mut Draft<'_>, tools: Vec<Arc<ToolDefinition>>, contexts: Option<Vec<ProvidedContext>>) {
    let record = &draft.base.record;
    let profile = draft.profile();
    // A run that goes on from a call of another one begins with the tools of that one.
    let is_first_start = record.tools.is_none() || record.cause == ClaimCause::First;
    if let Some(by) = &record.cancel_requested_by {
        end_lost_step(draft);
        return draft.cancel(by.clone());
    }
    if record.is_poison() {
        end_lost_step(draft);
        let detail = format!("the run's worker died {} times; the run was given up", record.crashes);
        return draft.fail(ProblemCode::Poison, detail);
    }
    if record.cause == ClaimCause::Crash && profile.on_interrupt == OnInterrupt::Fail && !is_first_start {
        end_lost_step(draft);
        return draft.fail(ProblemCode::Interrupted, "the run's worker died and the agent does not resume; resume the run by hand");
    }
    if let Some(contexts) = contexts {
        draft.change(Change::KeepContexts(contexts));
    }
    if is_first_start {
        draft.event(EventBody::RunStarted {
            model: profile.model.clone(),
            agent: profile.name.clone(),
            agent_version: profile.version,
            left_out: left_out(draft),
        });
        draft.change(Change::Started);
        for name in draft.base.held() {
            draft.event(EventBody::ToolQuarantined { name: name.clone(), reason: texts::CHANGED_TOOL.to_owned() });
        }
        if record.tools.is_none() {
            draft.change(Change::FreezeTools(frozen(tools, profile.tools.as_deref())));
            analysis::correct_claim(draft);
        }
        return go_on(draft);
    }
    draft.change(Change::Started);
    draft.event(EventBody::RunResumed { cause: record.cause.as_str().to_owned() });
    if draft.is_out_of_time() {
        end_lost_step(draft);
        return model_step::fail_for_time(draft);
    }
    void_lost_step(draft);
    go_on(draft);
}

/// The servers whose tools the run is about to get, and not all of them. A run that goes on from another one has the tools of that.
fn left_out(draft: &Draft<'_>) -> Vec<String> {
    if draft.base.record.tools.is_some() {
        return Vec::new();
    }
    let wanted = draft.profile().tools.as_ref();
    let may_use = |note: &&ServerNote| wanted.is_none_or(|names| names.iter().any(|name| name.starts_with(&note.prefix)));
    let notes = draft.base.servers().iter().filter(|note| note.left_out).filter(may_use);
    notes.map(|note| note.name.clone()).collect()
}

/// The tools of the run from now on: those that the agent may use, each name once. A schema that is nested too deeply to be
/// stored within a set becomes one that takes any object: the tool's server still tests what it is given.
fn frozen(tools: Vec<Arc<ToolDefinition>>, wanted: Option<&[String]>) -> Vec<Arc<ToolDefinition>> {
    let mut kept: Vec<Arc<ToolDefinition>> = Vec::with_capacity(tools.len());
    for mut tool in tools {
        if is_deeper_than(&tool.parameters, MAX_NESTING) {
            Arc::make_mut(&mut tool).parameters = Arc::new(serde_json::json!({ "type": "object" }));
        }
        let is_wanted = wanted.is_none_or(|names| names.contains(&tool.name));
        if is_wanted && kept.iter().all(|known| known.name != tool.name) {
            kept.push(tool);
        }
    }
    kept
}

/// Takes up a run where its rows say it stands.
fn go_on(draft: &mut Draft<'_>) {
    if draft.open_tool_step().is_some() {
        return tool_step::resume(draft);
    }
    // Everything that follows an answer is committed with it, so an answer without an end is rare; but asking the model again
    // would give the user two.
    if draft.open_model_step().is_none() && draft.newest_message().is_some_and(is_answer) {
        let reason = draft.newest_message().and_then(|message| message.finish_reason).unwrap_or(FinishReason::Stop);
        return model_step::end_turn(draft, reason);
    }
    model_step::begin(draft);
}

fn is_answer(message: &Message) -> bool {
    message.role == Role::Assistant
        && message.status == MessageStatus::Complete
        && message.tool_calls().next().is_none()
        && !message.text().trim().is_empty()
}

/// What a dead attempt has shown of a model step is void. The step, if there is one, stays open: it begins again.
fn void_lost_step(draft: &mut Draft<'_>) -> Option<u32> {
    let step = draft.open_model_step()?;
    let reason = match draft.base.record.cause {
        ClaimCause::First | ClaimCause::Crash | ClaimCause::Reload => "crash",
        ClaimCause::HandedBack => "handed_back",
        ClaimCause::Timer | ClaimCause::Request => "retry",
    };
    draft.reset(step, reason);
    Some(step)
}

/// The same in a run that ends here.
fn end_lost_step(draft: &mut Draft<'_>) {
    if let Some(step) = void_lost_step(draft) {
        draft.abandon_step(step);
    }
}

fn cancelled(draft: &mut Draft<'_>, by: String, partial: Option<PartialAnswer>, stopped: Vec<(CallId, ToolOutcome)>) {
    if let (Some(step), Some(partial)) = (draft.open_model_step(), partial) {
        model_step::keep_partial(draft, step, partial, Some(FinishReason::Cancelled));
    }
    record_outcomes(draft, stopped);
    draft.cancel(by);
}

/// Hands the run back. A model step under way is void and begins again at the next claim; calls under way stay `started` and
/// are judged by their class there. Those that their servers have let go of wait for their answers.
fn drained(draft: &mut Draft<'_>, stopped: Vec<(CallId, ToolOutcome)>, paused: Vec<(CallId, Pause)>) {
    record_outcomes(draft, stopped);
    for (id, pause) in paused {
        rounds::keep(draft, &id, pause);
    }
    if let Some(step) = draft.open_model_step() {
        draft.reset(step, ReleaseCause::Drain.as_str());
        draft.abandon_step(step);
    }
    draft.release(Some(0), ReleaseCause::Drain);
}

/// Takes in what this worker knows of calls and could not store. A call that has not begun by the rows was made nevertheless when
/// the database has lost what it had confirmed: that is told again, and the call is not made again.
fn take_up(draft: &mut Draft<'_>, finished: Vec<(CallId, ToolOutcome)>) {
    for (id, outcome) in finished {
        if draft.work.record.calls.iter().any(|call| call.id == id && call.has_not_begun()) {
            tool_step::was_made(draft, &id);
        }
        if !unknown::is_asked_about(draft, &outcome) {
            tool_step::record_outcome(draft, &id, outcome);
        }
    }
}

fn record_outcomes(draft: &mut Draft<'_>, stopped: Vec<(CallId, ToolOutcome)>) {
    for (id, outcome) in stopped {
        tool_step::record_outcome(draft, &id, outcome);
    }
}

/// The number of the next step of a kind: a model step that ended without a result is done again under its number.
pub(super) fn next_step(draft: &Draft<'_>, kind: StepKind) -> u32 {
    use crate::domain::change::StepStatus;
    match draft.work.record.steps.last() {
        None => 1,
        Some(row) if row.kind == kind && kind == StepKind::Model && row.status != StepStatus::Completed => row.step,
        Some(row) => row.step.saturating_add(1),
    }
}
