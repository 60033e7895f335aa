//! The one outcome of a call, and the breaker that takes away a tool that fails too often. Must not know what follows for the step.

use std::sync::Arc;

use crate::domain::agent::BreakerAction;
use crate::domain::conversation::message::ToolContent;
use crate::domain::event::EventBody;
use crate::domain::ids::CallId;
use crate::domain::run::change::Change;
use crate::domain::run::input::{InputKind, InputState};
use crate::domain::tool::{ToolCall, ToolCallState, ToolOutcome};
use crate::engine::machine::DecisionBuilder;
use crate::engine::prompts;
use crate::engine::request::tool_results;

/// Gives a call its one outcome.
pub fn finish_call(decision: &mut DecisionBuilder<'_>, id: &CallId, mut outcome: ToolOutcome) {
    let Some(call) = decision.progress.call(id).filter(|call| !call.state.is_outcome()) else { return };
    let (name, server, arguments) = (call.name.clone(), call.server.clone(), call.arguments.clone());
    let is_made = call.state == ToolCallState::Started;
    // A call with an outcome needs no approval any more.
    if let Some(question) = decision.progress.question_about(id).filter(|question| question.kind == InputKind::Approval).cloned() {
        decision.close_question(&question, InputState::Cancelled);
    }
    if outcome.state == ToolCallState::Failed {
        trip_breaker(decision, &name, &mut outcome);
    }
    let event = if outcome.state == ToolCallState::Unknown {
        EventBody::ToolOutcomeUnknown { call_id: id.clone(), name, server, arguments }
    } else {
        let (content, truncated) = tool_results::cut(&outcome.content, decision.profile().tool_result_chars);
        // A duplicate is answered without being made.
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

/// Starts a call that was made although its rows say otherwise: its start was not stored, or the database lost confirmed commits.
pub fn was_made(decision: &mut DecisionBuilder<'_>, id: &CallId) {
    if let Some(question) = decision.progress.question_about(id).cloned() {
        decision.close_question(&question, InputState::Cancelled);
    }
    decision.start_call(id);
}

/// Stores the outcome of a started call, and returns whether there was one. A state that is no outcome is set by `is_error`.
pub fn record_outcome(decision: &mut DecisionBuilder<'_>, id: &CallId, mut outcome: ToolOutcome) -> bool {
    let is_started = decision.progress.call(id).is_some_and(|call| call.state == ToolCallState::Started);
    // A question to the user has no outcome but the answer.
    if !is_started || decision.progress.asks_user(id) {
        return false;
    }
    if !outcome.state.is_outcome() || (outcome.state == ToolCallState::Done && outcome.is_error) {
        outcome.state = if outcome.is_error { ToolCallState::Failed } else { ToolCallState::Done };
    }
    finish_call(decision, id, outcome);
    true
}

/// Returns whether a tool is broken, so that the next model call is the last one.
pub fn forces_final(decision: &DecisionBuilder<'_>) -> bool {
    match decision.profile().breaker_action {
        BreakerAction::DropTool => false,
        BreakerAction::ForceFinal => decision.before.tools.iter().flatten().any(|tool| is_broken(decision, &tool.name)),
    }
}

/// Drops a tool whose failure, about to be stored, is one too many.
fn trip_breaker(decision: &mut DecisionBuilder<'_>, name: &str, outcome: &mut ToolOutcome) {
    let profile = decision.profile();
    let failures = failures(decision, name).saturating_add(1);
    let is_real = decision.before.tools.iter().flatten().any(|tool| tool.name == name);
    if profile.breaker_failures == 0 || failures < profile.breaker_failures || !is_real {
        return;
    }
    match profile.breaker_action {
        BreakerAction::DropTool => {
            let dropped = &mut decision.counters().dropped_tools;
            if !dropped.iter().any(|known| known == name) {
                dropped.push(name.to_owned());
                outcome.content.push(ToolContent::text(prompts::last_failure(name, failures)));
            }
        }
        // Judged when the whole batch has its outcomes.
        BreakerAction::ForceFinal => {}
    }
}

/// Counts the failures of a tool in this run, and before it as far as they count. Calls that the loop refused are `Cancelled`, not
/// `Failed`.
fn failures(decision: &DecisionBuilder<'_>, name: &str) -> u32 {
    let in_state =
        |state: ToolCallState| decision.progress.calls.iter().filter(move |call| call.name == name && call.state == state).count();
    let before = decision.progress.counters.failed_before.get(name).filter(|_| in_state(ToolCallState::Done) == 0);
    let failed = u32::try_from(in_state(ToolCallState::Failed)).unwrap_or(u32::MAX);
    failed.saturating_add(before.copied().unwrap_or(0))
}

/// Returns whether a tool has failed too often, and also in this run: what failed before may have been repaired since, which would
/// remain unknown if the tool were never called again.
fn is_broken(decision: &DecisionBuilder<'_>, name: &str) -> bool {
    let limit = decision.profile().breaker_failures;
    let fails_now = |call: &Arc<ToolCall>| call.name == name && call.state == ToolCallState::Failed;
    limit > 0 && failures(decision, name) >= limit && decision.progress.calls.iter().any(fails_now)
}
