//! Stores the one outcome of a call, and the message with the results of a tool step. Must not know the consequences for the step.

use crate::domain::conversation::{Part, Role, ToolContent};
use crate::domain::event::EventBody;
use crate::domain::ids::CallId;
use crate::domain::run::{Change, InputKind, InputState};
use crate::domain::tool::{ToolCall, ToolCallState, ToolOutcome};
use crate::engine::calls::approval;
use crate::engine::calls::duplicates::answered_before;
use crate::engine::calls::failing_tools::drop_failing_tool;
use crate::engine::machine::DecisionBuilder;
use crate::engine::prompts;
use crate::engine::request::tool_results;

/// Stores the outcome of a call, unless the call already has one.
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
    decision.change(Change::FinishCall(id.clone(), outcome));
}

/// Returns whether calls of a tool can be undone.
pub fn has_undo(decision: &DecisionBuilder<'_>, name: &str) -> bool {
    let tools = || decision.before.tools.iter().flatten();
    let rule = tools().find(|tool| tool.name == name).and_then(|tool| Some((&tool.server, tool.undo.as_ref()?)));
    rule.is_some_and(|(server, rule)| tools().any(|tool| tool.server == *server && tool.tool == rule.tool))
}

/// Marks a call as started whose start is not stored: the commit of the start was delayed, or the database lost confirmed commits.
pub fn mark_started(decision: &mut DecisionBuilder<'_>, id: &CallId) {
    if let Some(question) = decision.progress.question_about(id).cloned() {
        decision.close_question(&question, InputState::Cancelled);
    }
    decision.start_call(id);
}

/// Stores the outcome of a started call, and returns whether there was such a call. `is_error` decides the state if the given state
/// is not an outcome or contradicts it.
pub fn record_outcome(decision: &mut DecisionBuilder<'_>, id: &CallId, mut outcome: ToolOutcome) -> bool {
    let is_started = decision.progress.call(id).is_some_and(|call| call.state == ToolCallState::Started);
    // A call that waits for an answer gets its outcome only from the user or the client.
    if !is_started || decision.progress.waits_for_answer(id) {
        return false;
    }
    if !outcome.state.is_outcome() || (outcome.state == ToolCallState::Done && outcome.is_error) {
        outcome.state = if outcome.is_error { ToolCallState::Failed } else { ToolCallState::Done };
    }
    finish_call(decision, id, outcome);
    true
}

pub fn add_tool_message(decision: &mut DecisionBuilder<'_>, step: u32) {
    let limit = decision.profile().tool_result_chars;
    let part = |call: &ToolCall| {
        let mut part = tool_results::part(decision.part_id(), call, limit);
        // A duplicate has no effect that could be undone.
        let is_quoted =
            || answered_before((decision.profile(), decision.tools(), &decision.progress), std::iter::empty(), call).is_some();
        part.undoable = call.state == ToolCallState::Done && has_undo(decision, &call.name) && !is_quoted();
        if let Some(repair) = &call.repair {
            part.content.insert(0, ToolContent::text(prompts::repair_note(repair, &call.name)));
        }
        if approval::is_edited(decision, call) {
            part.content.insert(0, ToolContent::text(prompts::edited_arguments(&call.arguments)));
        }
        Part::ToolResult(part)
    };
    let parts = decision.progress.batch(step).map(part).collect();
    let message = decision.message(Role::Tool, parts);
    decision.event(EventBody::MessageStarted { message_id: message.id.clone(), role: Role::Tool });
    decision.complete_message(message);
}
