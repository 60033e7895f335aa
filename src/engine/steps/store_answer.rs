//! Storing what a model has said.
//!
//! Owns which parts of an answer are kept. Must not know what follows from the answer.

use crate::domain::change::Change;
use crate::domain::event::EventBody;
use crate::domain::message::{Message, MessageStatus, Part};
use crate::domain::model::Usage;
use crate::domain::run::FinishReason;
use crate::engine::machine::{DecisionBuilder, PartialAnswer};

pub fn store_answer(decision: &mut DecisionBuilder<'_>, step: u32, message: Message, closing: Vec<EventBody>, usage: Usage) {
    for event in closing {
        decision.event(event);
    }
    // Nothing was shown of an answer without parts, and nothing is kept of it.
    if !message.parts.is_empty() {
        decision.event(EventBody::MessageCompleted { message: message.clone() });
        decision.change(Change::AddMessage(message));
    }
    decision.complete_step(step, Some(usage));
}

/// Stores an answer whose calls are not carried out.
pub fn store_words(decision: &mut DecisionBuilder<'_>, step: u32, message: Message, closing: Vec<EventBody>, usage: Usage) {
    let (message, closing) = without_calls(decision, step, message, closing, "calls_dropped");
    store_answer(decision, step, message, closing, usage);
}

/// Calls that are not carried out are not kept: a call without a result cannot be sent. Where some were shown, all that was
/// shown is void and the words are shown again, so that whoever reads the log has what is stored and nothing else.
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

/// Keeps the words that were shown of an answer that was stopped. If there are none, the step stays open, and its end says that what
/// was shown is void.
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
    decision.event(EventBody::MessageCompleted { message: partial.clone() });
    decision.change(Change::AddMessage(partial));
    decision.abandon_step(step);
}
