//! Calls of client tools: each waits like a question, and the result of the client is its outcome.

use crate::domain::ids::CallId;
use crate::domain::run::{InputAnswer, InputKind, Question};
use crate::domain::tool::client_tool::client_result;
use crate::domain::tool::{ToolCallState, ToolOutcome};
use crate::engine::calls::outcome::finish_call;
use crate::engine::machine::DecisionBuilder;
use crate::engine::offer::usable::is_client_tool;
use crate::engine::prompts;

pub fn is_client_call(decision: &DecisionBuilder<'_>, id: &CallId) -> bool {
    decision.progress.call(id).is_some_and(|call| is_client_tool(decision.before, &call.name))
}

/// Requests the result from the client. The call stays `started` until the client sends it.
pub fn wait_for_client(decision: &mut DecisionBuilder<'_>, id: &CallId) {
    let Some(call) = decision.progress.call(id).cloned() else { return };
    decision.start_call(id);
    let question = Question {
        text: prompts::client_call(&call.name),
        tool: Some(call.name.clone()),
        arguments: Some(call.arguments.clone()),
        ..Question::default()
    };
    decision.ask(decision.question(id, InputKind::ClientTool, question, decision.profile().ask_expires_ms));
}

/// Stores the client's result as the call's outcome.
pub fn apply_result(decision: &mut DecisionBuilder<'_>, id: &CallId, answer: &InputAnswer) {
    let (content, is_error) = client_result(answer);
    let state = if is_error { ToolCallState::Failed } else { ToolCallState::Done };
    finish_call(decision, id, ToolOutcome { state, content, is_error, duration_ms: 0 });
}

pub fn end_unanswered(decision: &mut DecisionBuilder<'_>, id: &CallId) {
    finish_call(decision, id, ToolOutcome::failed(prompts::NO_CLIENT_RESULT, 0));
}
