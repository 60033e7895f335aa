//! Stores answers of models. Must not know what follows from an answer.

use crate::domain::conversation::{Message, MessageStatus, Part};
use crate::domain::event::EventBody;
use crate::domain::model::Usage;
use crate::domain::run::FinishReason;
use crate::engine::machine::{DecisionBuilder, PartialAnswer};

pub fn store_answer(decision: &mut DecisionBuilder<'_>, step: u32, mut message: Message, closing: Vec<EventBody>, usage: Usage) {
    // Some providers report a plain stop with calls.
    if message.finish_reason == Some(FinishReason::Stop) && message.tool_calls().next().is_some() {
        message.finish_reason = Some(FinishReason::ToolCalls);
    }
    for event in closing {
        decision.event(event);
    }
    // An answer without parts has not been shown, and is not stored.
    if !message.parts.is_empty() {
        decision.complete_message(message);
    }
    decision.complete_step(step, Some(usage));
}

/// Stores an answer without its calls, which are not executed.
pub fn store_text(decision: &mut DecisionBuilder<'_>, step: u32, message: Message, closing: Vec<EventBody>, usage: Usage) {
    let (message, closing) = without_calls(decision, step, message, closing, "calls_dropped");
    store_answer(decision, step, message, closing, usage);
}

/// Removes calls that are not executed, because a call without a result cannot be sent. If calls were shown, all parts are voided and the
/// text is shown again, so that readers of the log see the stored answer.
fn without_calls(
    decision: &mut DecisionBuilder<'_>,
    step: u32,
    mut message: Message,
    closing: Vec<EventBody>,
    reason: &str,
) -> (Message, Vec<EventBody>) {
    if message.tool_calls().next().is_none() {
        return (message, closing);
    }
    message.parts.retain(|part| !matches!(part, Part::ToolCall(_)));
    decision.reset(step, reason);
    if !message.parts.is_empty() {
        decision.show(&message);
    }
    (message, Vec::new())
}

/// Stores a stopped answer without its calls. If it has no other parts, the step stays open, and its end voids the shown parts.
pub fn keep_partial(
    decision: &mut DecisionBuilder<'_>,
    step: u32,
    PartialAnswer { message: partial, closing }: PartialAnswer,
    finish_reason: Option<FinishReason>,
) {
    if decision.before.history.iter().any(|known| known.id == partial.id) {
        return;
    }
    if partial.parts.iter().all(|part| matches!(part, Part::ToolCall(_))) {
        return;
    }
    let partial = Message { status: MessageStatus::Partial, finish_reason, ..partial };
    let reason = if finish_reason == Some(FinishReason::Cancelled) { "cancelled" } else { "calls_dropped" };
    let (partial, closing) = without_calls(decision, step, partial, closing, reason);
    for event in closing {
        decision.event(event);
    }
    decision.complete_message(partial);
    decision.abandon_step(step);
}
