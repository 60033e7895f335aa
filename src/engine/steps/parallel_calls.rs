//! Decides which calls of a tool step run at the same time, and in which order they start. An exclusive call runs alone.
//!
//! Owns the start, the waits and the end of the step. Must not know what outcomes mean for the model.

use crate::domain::agent::{OnUnknown, ToolErrorPolicy};
use crate::domain::event::EventBody;
use crate::domain::ids::CallId;
use crate::domain::problem::ProblemCode;
use crate::domain::run::{ReleaseCause, RunStatus, WaitReason};
use crate::domain::tool::{ToolCallState, ToolOutcome};
use crate::engine::calls::outcome::finish_call;
use crate::engine::calls::{approval, ask_user, client_call, unknown_outcome};
use crate::engine::machine::{DecisionBuilder, Next};
use crate::engine::prompts;
use crate::engine::request::tool_results;

/// Characters of a failed call's result in the run's error.
const QUOTED_CHARS: usize = 500;

/// Starts calls, waits for answers, or ends the step if every call has its outcome.
pub fn advance(decision: &mut DecisionBuilder<'_>) -> Next {
    let Some(step) = decision.open_tool_step() else { return Next::Wait };
    let in_state = |decision: &DecisionBuilder<'_>, state: ToolCallState| -> Vec<CallId> {
        decision.progress.batch(step).filter(|call| call.state == state).map(|call| call.id.clone()).collect()
    };
    let started_calls = |decision: &DecisionBuilder<'_>| -> (Vec<CallId>, Vec<CallId>) {
        in_state(decision, ToolCallState::Started).into_iter().partition(|id| decision.progress.question_about(id).is_some())
    };
    let mut under_way = started_calls(decision).1;
    let may_begin = !decision.facts.is_draining;
    if may_begin {
        approval::store_denials(decision, step);
    }
    if may_begin && failure(decision, step).is_none() {
        begin_calls(decision, step, &mut under_way);
    }
    if !under_way.is_empty() {
        return Next::Wait;
    }
    if let Some((code, detail)) = failure(decision, step) {
        return Next::fail(code, detail);
    }
    // No call is under way. A worker that drains starts no call, so the next claim starts the remaining calls.
    if !may_begin && (!in_state(decision, ToolCallState::Planned).is_empty() || approval::has_answer(decision, step)) {
        return Next::Release(Some(0), ReleaseCause::Drain);
    }
    let (to_client, to_user): (Vec<CallId>, Vec<CallId>) =
        started_calls(decision).0.into_iter().partition(|id| client_call::is_client_call(decision, id));
    if let Some(id) = to_user.first() {
        return wait_for_answers(decision, id, WaitReason::Input);
    }
    if let Some(id) = in_state(decision, ToolCallState::AwaitingApproval).first() {
        return wait_for_answers(decision, id, WaitReason::Approval);
    }
    if let Some(id) = to_client.first() {
        return wait_for_answers(decision, id, WaitReason::ClientTool);
    }
    Next::CallsDone(step)
}

/// Starts the calls that may run beside those `under_way`, in order, and asks about those that need approval.
///
/// An [exclusive](is_exclusive) call is a barrier: it starts after all earlier calls finish, and later calls wait for it. So its
/// effects keep the model's order. If a human approves calls in another order, they start in the human's order.
fn begin_calls(decision: &mut DecisionBuilder<'_>, step: u32, under_way: &mut Vec<CallId>) {
    let limit = decision.profile().tool_parallelism.max(1) as usize;
    let mut exclusive_runs = under_way.iter().any(|id| is_exclusive(decision, id));
    // Facts about the earlier calls: one waits for an answer, an exclusive one waits for an answer, one must start before any later
    // call.
    let (mut call_waits, mut exclusive_waits, mut must_start_first) = (false, false, false);
    let calls: Vec<CallId> = decision.progress.batch(step).map(|call| call.id.clone()).collect();
    for id in calls {
        let Some(call) = decision.progress.call(&id) else { continue };
        let (is_exclusive, is_asked_about) = (is_exclusive(decision, &id), decision.progress.question_about(&id).is_some());
        if !call.has_not_begun() {
            let waits = call.outcome.is_none() && is_asked_about;
            call_waits |= waits;
            exclusive_waits |= waits && is_exclusive;
            continue;
        }
        // Questions are asked at once, so that humans and clients can answer meanwhile.
        let is_full = under_way.len() >= limit;
        let (is_question, is_client_call) = (ask_user::is_ask_user_call(decision, &id), client_call::is_client_call(decision, &id));
        if is_full && !is_client_call && !approval::needs_question(decision, &id) {
            continue;
        }
        if refuse_dropped(decision, &id) {
            continue;
        }
        if !is_question && !approval::needs_question(decision, &id) {
            let must_wait = !under_way.is_empty() && (is_exclusive || exclusive_runs);
            must_start_first |= must_wait;
            if must_start_first || !is_asked_about && (exclusive_waits || is_exclusive && call_waits) {
                exclusive_waits |= is_exclusive;
                continue;
            }
        }
        if !approval::is_allowed(decision, &id) {
            call_waits = true;
            exclusive_waits |= is_exclusive;
            continue;
        }
        if is_question || is_client_call {
            if is_question {
                ask_user::ask_question(decision, &id);
            } else {
                client_call::wait_for_client(decision, &id);
            }
            call_waits |= decision.progress.waits_for_answer(&id);
            continue;
        }
        exclusive_runs |= is_exclusive;
        if unknown_outcome::is_of_earlier_run(decision, &id) {
            decision.take_over_call(&id);
        } else {
            decision.run_call(&id);
        }
        under_way.push(id);
    }
}

fn is_exclusive(decision: &DecisionBuilder<'_>, id: &CallId) -> bool {
    let Some(call) = decision.progress.call(id) else { return false };
    decision.before.tools.iter().flatten().any(|tool| tool.name == call.name && tool.safety.alone)
}

/// Releases the run, because every remaining call waits for a human or a client. The event names the question about this call, or
/// the call itself if the client executes it.
fn wait_for_answers(decision: &mut DecisionBuilder<'_>, id: &CallId, reason: WaitReason) -> Next {
    let id = match reason {
        // The client's result names the call.
        WaitReason::ClientTool => Some(id.to_string()),
        WaitReason::Approval | WaitReason::Input | WaitReason::Backoff | WaitReason::Budget => {
            decision.progress.question_about(id).map(|question| question.id.to_string())
        }
    };
    decision.event(EventBody::RunWaiting { reason, id, detail: None });
    decision.set_status(RunStatus::Waiting, Some(reason));
    let first_to_expire = decision.progress.inputs.iter().filter_map(|question| question.expires_in_ms).min();
    let wake_after = [decision.time_left(), first_to_expire].into_iter().flatten().min();
    Next::Release(wake_after, ReleaseCause::Waiting)
}

/// Refuses a planned call whose tool was dropped meanwhile.
fn refuse_dropped(decision: &mut DecisionBuilder<'_>, id: &CallId) -> bool {
    let dropped = &decision.progress.counters.dropped_tools;
    let Some(name) = decision.progress.call(id).filter(|call| dropped.contains(&call.name)).map(|call| call.name.clone()) else {
        return false;
    };
    let outcome = ToolOutcome { state: ToolCallState::Cancelled, ..ToolOutcome::failed(prompts::dropped_tool(&name), 0) };
    finish_call(decision, id, outcome);
    true
}

/// Returns why the outcomes so far fail the run, if the agent is configured so.
fn failure(decision: &DecisionBuilder<'_>, step: u32) -> Option<(ProblemCode, String)> {
    let profile = decision.profile();
    if profile.on_unknown == OnUnknown::Fail
        && let Some(call) = decision.progress.batch(step).find(|call| call.state == ToolCallState::Unknown)
    {
        return Some((ProblemCode::ToolOutcomeUnknown, format!("it is not known whether a call of {} took effect", call.name)));
    }
    if profile.tool_error == ToolErrorPolicy::FailRun
        && let Some(call) = decision.progress.batch(step).find(|call| call.state == ToolCallState::Failed)
    {
        let text = call.outcome.as_ref().map(|outcome| tool_results::cut_text(&outcome.content, QUOTED_CHARS)).unwrap_or_default();
        return Some((ProblemCode::ToolFailed, format!("{} failed: {text}", call.name)));
    }
    None
}
