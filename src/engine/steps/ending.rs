//! Ends a run: adds the terminal event to the decision. [`RunEnd::Completed`] has no open work. Every other end closes all open
//! calls, steps and questions. Must not know why a run ends.

use crate::domain::conversation::{ConversationStatus, Message};
use crate::domain::event::EventBody;
use crate::domain::ids::CallId;
use crate::domain::problem::ProblemBody;
use crate::domain::run::{Change, FinishReason, InputState, Notice, RunOutput, RunStatus};
use crate::domain::tool::{ProgressAtEnd, ToolOutcome};
use crate::engine::calls::outcome;
use crate::engine::calls::outcome::finish_call;
use crate::engine::machine::{Command, DecisionBuilder, Next, RunEnd};
use crate::engine::strategy::{self, stop_analysis};

/// Adds the changes and events that end the run. Returns [`Next::Wait`], because nothing follows.
pub fn end(decision: &mut DecisionBuilder<'_>, end: RunEnd) -> Next {
    match end {
        RunEnd::Completed(reason) => finish_completed(decision, reason, None),
        // The user gets the agent's `final_text` as an answer, and the run keeps the error.
        RunEnd::FinalText(text, error) => {
            close_open_work(decision, "failed");
            decision.add_assistant_text(&text, FinishReason::Stop);
            finish_completed(decision, FinishReason::Stop, Some(error));
        }
        RunEnd::Failed(error) => fail(decision, error),
        RunEnd::Cancelled(by) => cancel(decision, by),
    }
    Next::Wait
}

/// Stores an outcome for every open call and closes the open step. Tells clients to discard the parts of an unfinished model step,
/// with this `reason`.
///
/// Later requests contain the messages of this run, and providers refuse a call without a result.
fn close_open_work(decision: &mut DecisionBuilder<'_>, reason: &str) {
    close_questions(decision);
    let open: Vec<(CallId, ToolOutcome)> = decision
        .progress
        .calls
        .iter()
        .filter(|call| !call.state.is_outcome())
        .map(|call| (call.id.clone(), ProgressAtEnd::of(call).outcome()))
        .collect();
    for (id, outcome) in open {
        finish_call(decision, &id, outcome);
    }
    if let Some(step) = decision.open_tool_step() {
        outcome::add_tool_message(decision, step);
        decision.complete_step(step, None);
    }
    if let Some(step) = decision.open_model_step() {
        decision.reset(step, reason);
        decision.abandon_step(step);
    }
    strategy::hooks_of(decision.profile()).close_plan(decision);
}

fn finish_completed(decision: &mut DecisionBuilder<'_>, finish_reason: FinishReason, error: Option<ProblemBody>) {
    let joined = Some(decision.before.joined);
    let usage = decision.progress.usage;
    decision.conversation_updated(ConversationStatus::from(RunStatus::Completed));
    let notice = stop_analysis::run_ends_with_false_claim(decision).then_some(Notice::NothingWritten);
    let is_json = decision.profile().options.output_schema.is_some();
    let is_of_run = |message: &&Message| message.run_id == decision.progress.fence.run_id;
    let last = decision.progress.history.iter().rev().find(is_of_run);
    let output = last.and_then(|last| RunOutput::of(last, is_json));
    decision.event(EventBody::RunCompleted { finish_reason, usage, output, error: error.clone(), notice });
    decision.change(Change::Finish { status: RunStatus::Completed, finish_reason: Some(finish_reason), error, joined });
    decision.command(Command::Stop);
}

fn fail(decision: &mut DecisionBuilder<'_>, mut error: ProblemBody) {
    close_open_work(decision, "failed");
    // A run that only undoes a call cannot be resumed.
    error.retryable &= !only_undoes(decision);
    decision.conversation_updated(ConversationStatus::from(RunStatus::Failed));
    decision.event(EventBody::RunFailed { error: error.clone() });
    decision.change(Change::Finish { status: RunStatus::Failed, finish_reason: None, error: Some(error), joined: None });
    decision.command(Command::Stop);
}

/// Returns whether the run only undoes a call, and no user message has joined it.
fn only_undoes(decision: &DecisionBuilder<'_>) -> bool {
    let record = decision.before;
    let is_of_user = |message: &Message| message.is_from_user() && message.run_id == record.fence.run_id;
    record.calls.iter().any(|call| call.undoes.is_some()) && !record.history.iter().any(is_of_user)
}

fn cancel(decision: &mut DecisionBuilder<'_>, by: String) {
    close_open_work(decision, "cancelled");
    decision.conversation_updated(ConversationStatus::from(RunStatus::Cancelled));
    decision.event(EventBody::RunCancelled { by });
    let finish_reason = Some(FinishReason::Cancelled);
    decision.change(Change::Finish { status: RunStatus::Cancelled, finish_reason, error: None, joined: None });
    decision.command(Command::Stop);
}

fn close_questions(decision: &mut DecisionBuilder<'_>) {
    for question in std::mem::take(&mut decision.progress.inputs) {
        decision.close_question(&question, InputState::Cancelled);
    }
}
