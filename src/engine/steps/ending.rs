//! The end of a run: every call has its outcome, every step and question is closed, and the log says how it went. Must not know why
//! a run ends.

use crate::domain::conversation::ConversationStatus;
use crate::domain::conversation::message::{Message, Role};
use crate::domain::event::EventBody;
use crate::domain::ids::CallId;
use crate::domain::problem::ProblemBody;
use crate::domain::run::change::Change;
use crate::domain::run::input::InputState;
use crate::domain::run::{FinishReason, Notice, RunStatus};
use crate::domain::tool::{ToolCallState, ToolOutcome};
use crate::engine::calls::outcome::finish_call;
use crate::engine::calls::tool_message;
use crate::engine::machine::{Command, DecisionBuilder, End, Next};
use crate::engine::prompts;
use crate::engine::strategy::{self, stop_analysis};

pub fn end(decision: &mut DecisionBuilder<'_>, end: End) -> Next {
    match end {
        End::Completed(reason) => finish_completed(decision, reason, None),
        // The user gets an answer, and the run keeps the error.
        End::LastWords(text, error) => {
            settle(decision, "failed");
            decision.say(&text, FinishReason::Stop);
            finish_completed(decision, FinishReason::Stop, Some(error));
        }
        End::Failed(error) => fail(decision, error),
        End::Cancelled(by) => cancel(decision, by),
    }
    Next::Wait
}

/// Gives every open call an outcome and closes the open step, so that the messages can always be sent after the run. Parts that an
/// unfinished model step has streamed become void, for `reason`.
fn settle(decision: &mut DecisionBuilder<'_>, reason: &str) {
    close_questions(decision);
    let open: Vec<(CallId, ToolOutcome)> = decision
        .progress
        .calls
        .iter()
        .filter_map(|call| {
            let (state, text) = match () {
                () if call.state.is_outcome() => return None,
                () if call.has_not_begun() => (ToolCallState::Cancelled, prompts::NEVER_BEGUN),
                () if call.replay.may_repeat() => (ToolCallState::Cancelled, prompts::STOPPED_AT_END),
                () => (ToolCallState::Unknown, prompts::UNKNOWN_AT_END),
            };
            Some((call.id.clone(), ToolOutcome { state, ..ToolOutcome::failed(text, 0) }))
        })
        .collect();
    for (id, outcome) in open {
        finish_call(decision, &id, outcome);
    }
    if let Some(step) = decision.open_tool_step() {
        tool_message::add(decision, step);
        decision.complete_step(step, None);
    }
    if let Some(step) = decision.open_model_step() {
        decision.reset(step, reason);
        decision.abandon_step(step);
    }
    strategy::of(decision.profile()).ended(decision);
}

fn finish_completed(decision: &mut DecisionBuilder<'_>, finish_reason: FinishReason, error: Option<ProblemBody>) {
    let joined = Some(decision.before.joined);
    let usage = decision.progress.usage;
    decision.conversation_updated(ConversationStatus::from(RunStatus::Completed));
    let notice = stop_analysis::ends_with_empty_claim(decision).then_some(Notice::NothingWritten);
    decision.event(EventBody::RunCompleted { finish_reason, usage, error: error.clone(), notice });
    decision.change(Change::Finish { status: RunStatus::Completed, finish_reason: Some(finish_reason), error, joined });
    decision.command(Command::Stop);
}

fn fail(decision: &mut DecisionBuilder<'_>, mut error: ProblemBody) {
    settle(decision, "failed");
    // A run that undoes a call cannot be resumed.
    error.retryable &= !only_undoes(decision);
    decision.conversation_updated(ConversationStatus::from(RunStatus::Failed));
    decision.event(EventBody::RunFailed { error: error.clone() });
    decision.change(Change::Finish { status: RunStatus::Failed, finish_reason: None, error: Some(error), joined: None });
    decision.command(Command::Stop);
}

/// Returns whether the run was made to undo a call, and no user message has joined it.
fn only_undoes(decision: &DecisionBuilder<'_>) -> bool {
    let record = decision.before;
    let is_asked = |message: &Message| message.role == Role::User && !message.internal && message.run_id == record.fence.run_id;
    record.calls.iter().any(|call| call.undoes.is_some()) && !record.history.iter().any(is_asked)
}

fn cancel(decision: &mut DecisionBuilder<'_>, by: String) {
    settle(decision, "cancelled");
    decision.conversation_updated(ConversationStatus::from(RunStatus::Cancelled));
    decision.event(EventBody::RunCancelled { by });
    let finish_reason = Some(FinishReason::Cancelled);
    decision.change(Change::Finish { status: RunStatus::Cancelled, finish_reason, error: None, joined: None });
    decision.command(Command::Stop);
}

fn close_questions(decision: &mut DecisionBuilder<'_>) {
    for request in std::mem::take(&mut decision.progress.inputs) {
        decision.close_question(&request, InputState::Cancelled);
    }
}
