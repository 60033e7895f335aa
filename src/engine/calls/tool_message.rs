//! Builds and stores the message with the results of a tool step.

use crate::domain::conversation::message::{Part, Role, ToolContent};
use crate::domain::event::EventBody;
use crate::domain::tool::{ToolCall, ToolCallState};
use crate::engine::calls::approval;
use crate::engine::calls::duplicates::answered_before;
use crate::engine::calls::outcome::has_undo;
use crate::engine::machine::DecisionBuilder;
use crate::engine::prompts;
use crate::engine::request::tool_results;

pub fn add(decision: &mut DecisionBuilder<'_>, step: u32) {
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
