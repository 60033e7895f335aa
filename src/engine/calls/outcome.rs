//! Stores the one outcome of a call, and drops a tool that fails too often. Must not know the consequences for the step.

use std::sync::Arc;

use crate::domain::agent::BreakerAction;
use crate::domain::conversation::message::ToolContent;
use crate::domain::event::EventBody;
use crate::domain::ids::CallId;
use crate::domain::run::change::Change;
use crate::domain::run::question::{InputKind, InputState};
use crate::domain::tool::{ToolCall, ToolCallState, ToolOutcome};
use crate::engine::machine::DecisionBuilder;
use crate::engine::prompts;
use crate::engine::request::tool_results;

/// Stores the one outcome of a call.
pub fn finish_call(decision: &mut DecisionBuilder<'_>, id: &CallId, mut outcome: ToolOutcome) {
    let Some(call) = decision.progress.call(id).filter(|call| !call.state.is_outcome()) else { return };
    let (name, server, arguments) = (call.name.clone(), call.server.clone(), call.arguments.clone());
    let is_made = call.state == ToolCallState::Started;
    // A call with an outcome needs no approval.
    if let Some(question) = decision.progress.question_about(id).filter(|question| question.kind == InputKind::Approval).cloned() {
        decision.close_question(&question, InputState::Cancelled);
    }
    let is_blank = |piece: &ToolContent| piece.as_text().is_some_and(|text| text.trim().is_empty());
    if outcome.is_error && outcome.content.iter().all(is_blank) {
        outcome.content = vec![ToolContent::text(prompts::FAILED_SILENTLY)];
    }
    if outcome.state == ToolCallState::Failed {
        drop_failing_tool(decision, &name, &mut outcome);
    }
    let event = if outcome.state == ToolCallState::Unknown {
        EventBody::ToolOutcomeUnknown { call_id: id.clone(), name, server, arguments }
    } else {
        let (content, truncated) = tool_results::cut(&outcome.content, decision.profile().tool_result_chars);
        // A duplicate was not executed.
        let undoable = is_made && outcome.state == ToolCallState::Done && has_undo(decision, &name);
        EventBody::ToolCompleted {
            call_id: id.clone(),
            name,
            server,
            state: outcome.state,
            content,
            is_error: outcome.is_error,
            duration_ms: outcome.duration_ms,
            truncated,
            undoable,
        }
    };
    decision.event(event);
    decision.change(Change::ToolFinished(id.clone(), outcome));
}

/// Returns whether calls of a tool can be undone.
pub fn has_undo(decision: &DecisionBuilder<'_>, name: &str) -> bool {
    let tools = || decision.before.tools.iter().flatten();
    let rule = tools().find(|tool| tool.name == name).and_then(|tool| Some((&tool.server, tool.undo.as_ref()?)));
    rule.is_some_and(|(server, rule)| tools().any(|tool| tool.server == *server && tool.tool == rule.tool))
}

/// Marks a call as started that was made without a stored start: its commit was delayed, or the database lost confirmed commits.
pub fn mark_started(decision: &mut DecisionBuilder<'_>, id: &CallId) {
    if let Some(question) = decision.progress.question_about(id).cloned() {
        decision.close_question(&question, InputState::Cancelled);
    }
    decision.start_call(id);
}

/// Stores the outcome of a started call, and returns whether there was such a call. `is_error` replaces a state that is no outcome.
pub fn record_outcome(decision: &mut DecisionBuilder<'_>, id: &CallId, mut outcome: ToolOutcome) -> bool {
    let is_started = decision.progress.call(id).is_some_and(|call| call.state == ToolCallState::Started);
    // Only the answer of the user or the client is the outcome of such a call.
    if !is_started || decision.progress.waits_for_answer(id) {
        return false;
    }
    if !outcome.state.is_outcome() || (outcome.state == ToolCallState::Done && outcome.is_error) {
        outcome.state = if outcome.is_error { ToolCallState::Failed } else { ToolCallState::Done };
    }
    finish_call(decision, id, outcome);
    true
}

/// Returns whether a tool is broken, or names that no tool has were called too often, so that the next model call is the last one.
pub fn forces_final(decision: &DecisionBuilder<'_>) -> bool {
    let limit = decision.profile().breaker_failures;
    let has_broken = || match decision.profile().breaker_action {
        BreakerAction::DropTool => false,
        BreakerAction::ForceFinal => decision.before.tools.iter().flatten().any(|tool| is_broken(decision, &tool.name)),
    };
    limit > 0 && (unknown_names(decision) >= limit || has_broken())
}

/// Counts the failed calls of names that no tool has, since the newest message of the user.
fn unknown_names(decision: &DecisionBuilder<'_>) -> u32 {
    let record = &decision.progress;
    let is_counted = |call: &&Arc<ToolCall>| {
        call.state == ToolCallState::Failed && call.step > record.counters.heard_step && !is_real(decision, &call.name)
    };
    u32::try_from(record.calls.iter().filter(is_counted).count()).unwrap_or(u32::MAX)
}

fn is_real(decision: &DecisionBuilder<'_>, name: &str) -> bool {
    decision.before.tools.iter().flatten().any(|tool| tool.name == name)
}

/// Drops a tool when the failure that is about to be stored reaches the limit.
fn drop_failing_tool(decision: &mut DecisionBuilder<'_>, name: &str, outcome: &mut ToolOutcome) {
    let profile = decision.profile();
    let is_real = is_real(decision, name);
    let failures = if is_real { failures(decision, name) } else { unknown_names(decision) }.saturating_add(1);
    if profile.breaker_failures == 0 || failures < profile.breaker_failures {
        return;
    }
    // Without a tool that could be dropped, the model is to answer.
    let action = if is_real { profile.breaker_action } else { BreakerAction::ForceFinal };
    let was_open = if is_real { is_broken(decision, name) } else { failures > profile.breaker_failures };
    if !was_open {
        let name = is_real.then(|| name.to_owned());
        decision.event(EventBody::ToolBreakerOpened { name, failures, action });
    }
    match action {
        BreakerAction::DropTool => {
            let dropped = &mut decision.counters().dropped_tools;
            if !dropped.iter().any(|known| known == name) {
                dropped.push(name.to_owned());
                outcome.content.push(ToolContent::text(prompts::last_failure(name, failures)));
            }
        }
        // Checked after the outcomes of all calls of the step.
        BreakerAction::ForceFinal => {}
    }
}

/// Counts the failures of a tool in this run, and the earlier ones that still count. Calls that the loop refused are `Cancelled`, not
/// `Failed`.
fn failures(decision: &DecisionBuilder<'_>, name: &str) -> u32 {
    let in_state =
        |state: ToolCallState| decision.progress.calls.iter().filter(move |call| call.name == name && call.state == state).count();
    let before = decision.progress.counters.failed_before.get(name).filter(|_| in_state(ToolCallState::Done) == 0);
    let failed = u32::try_from(in_state(ToolCallState::Failed)).unwrap_or(u32::MAX);
    failed.saturating_add(before.copied().unwrap_or(0))
}

/// Returns whether a tool has failed too often, with at least one failure in this run: an earlier cause may have been repaired since, and
/// only another call can show that.
fn is_broken(decision: &DecisionBuilder<'_>, name: &str) -> bool {
    let limit = decision.profile().breaker_failures;
    let fails_now = |call: &Arc<ToolCall>| call.name == name && call.state == ToolCallState::Failed;
    limit > 0 && failures(decision, name) >= limit && decision.progress.calls.iter().any(fails_now)
}
