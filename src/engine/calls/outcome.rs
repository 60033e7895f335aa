//! The one outcome of a call.
//!
//! Owns recording it. Must not know what follows from it for the step.

use crate::domain::change::Change;
use crate::domain::event::EventBody;
use crate::domain::ids::CallId;
use crate::domain::input::{InputKind, InputState};
use crate::domain::tool::{ToolCallState, ToolOutcome};
use crate::engine::calls::breaker;
use crate::engine::machine::DecisionBuilder;
use crate::engine::request::tool_results;

/// A call gets its one outcome.
pub(in crate::engine) fn finish_call(decision: &mut DecisionBuilder<'_>, id: &CallId, mut outcome: ToolOutcome) {
    let Some(call) = decision.progress.record.call(id).filter(|call| !call.state.is_outcome()) else { return };
    let (name, server, arguments) = (call.name.clone(), call.server.clone(), call.arguments.clone());
    let is_made = call.state == ToolCallState::Started;
    // One that has its outcome otherwise needs nobody's consent any more.
    if let Some(question) = decision.progress.question_about(id).filter(|question| question.kind == InputKind::Approval).cloned() {
        decision.close_question(&question, InputState::Cancelled);
    }
    if outcome.state == ToolCallState::Failed {
        breaker::trip(decision, &name, &mut outcome);
    }
    let event = if outcome.state == ToolCallState::Unknown {
        EventBody::ToolOutcomeUnknown { call_id: id.clone(), name, server, arguments }
    } else {
        let (content, cut) = tool_results::cut(&outcome.content, decision.profile().tool_result_chars);
        // A repeated call is answered without being made.
        let undoable = is_made && outcome.state == ToolCallState::Done && has_undo(decision, &name);
        EventBody::ToolCompleted {
            call_id: id.clone(),
            name,
            server,
            state: outcome.state,
            content,
            is_error: outcome.is_error,
            duration_ms: outcome.duration_ms,
            truncated: cut == tool_results::Cut::Shortened,
            undoable,
        }
    };
    decision.event(event);
    decision.change(Change::ToolFinished(id.clone(), outcome));
}

/// Whether calls of a tool can be taken back.
pub(in crate::engine) fn has_undo(decision: &DecisionBuilder<'_>, name: &str) -> bool {
    let tools = || decision.before.tools.iter().flatten();
    let rule = tools().find(|tool| tool.name == name).and_then(|tool| Some((&tool.server, tool.undo.as_ref()?)));
    rule.is_some_and(|(server, rule)| tools().any(|tool| tool.server == *server && tool.tool == rule.tool))
}

/// A call that has not begun by the rows was made nevertheless: its start was not stored, or the database has lost what it had confirmed.
pub(in crate::engine) fn was_made(decision: &mut DecisionBuilder<'_>, id: &CallId) {
    if let Some(question) = decision.progress.question_about(id).cloned() {
        decision.close_question(&question, InputState::Cancelled);
    }
    decision.start_call(id);
}

/// Whether an outcome was taken in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::engine) enum Recorded {
    /// The call has it now.
    Yes,
    /// The call is unknown, has not begun, or has an outcome.
    No,
}

/// Stores the outcome of a call that was started. One that is no outcome state becomes one by its `is_error`.
pub(in crate::engine) fn record_outcome(decision: &mut DecisionBuilder<'_>, id: &CallId, mut outcome: ToolOutcome) -> Recorded {
    let is_started = decision.progress.record.calls.iter().any(|call| call.id == *id && call.state == ToolCallState::Started);
    // What the user is asked has no outcome but the answer.
    if !is_started || decision.progress.asks_user(id) {
        return Recorded::No;
    }
    if !outcome.state.is_outcome() || (outcome.state == ToolCallState::Done && outcome.is_error) {
        outcome.state = if outcome.is_error { ToolCallState::Failed } else { ToolCallState::Done };
    }
    finish_call(decision, id, outcome);
    Recorded::Yes
}
