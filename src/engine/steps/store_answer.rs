//! Stores answers of models. Must not know what follows from an answer.

use crate::domain::conversation::message::{Message, MessageStatus, Part};
use crate::domain::event::EventBody;
use crate::domain::model::Usage;
use crate::domain::run::FinishReason;
use crate::engine::machine::{DecisionBuilder, PartialAnswer};

pub fn store_answer(decision: &mut DecisionBuilder<'_>, step: u32, message: Message, closing: Vec<EventBody>, usage: Usage) {
    for event in closing {
        decision.event(event);
    }
    // An answer without parts was not shown, and is not kept.
    if !message.parts.is_empty() {
        decision.complete_message(message);
    }
    decision.complete_step(step, Some(usage));
}

/// Stores an answer whose calls are not executed.
pub fn store_words(decision: &mut DecisionBuilder<'_>, step: u32, message: Message, closing: Vec<EventBody>, usage: Usage) {
    let (message, closing) = without_calls(decision, step, message, closing, "calls_dropped");
    store_answer(decision, step, message, closing, usage);
}

/// Drops calls that are not executed, because a call without a result cannot be sent. If some were shown, all is void and the words
/// are shown again, so that readers of the log have what is stored.
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

/// Keeps the words of a stopped answer. Without words the step stays open, and its end voids what was shown.
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
