//! Started calls whose outcome is unknown: their replay class, their server, or a human decides.

use std::sync::Arc;

use crate::domain::agent::OnUnknown;
use crate::domain::conversation::ToolContent;
use crate::domain::ids::CallId;
use crate::domain::run::{Change, Handle, InputAnswer, InputChoice, InputKind, InputRequest, InputState, Question};
use crate::domain::tool::{Reconciled, ReplayClass, ToolCall, ToolCallState, ToolOutcome};
use crate::engine::calls::outcome::{finish_call, record_outcome};
use crate::engine::calls::{ask_user, client_call, server_questions};
use crate::engine::machine::{DecisionBuilder, Next};
use crate::engine::prompts;

/// The choices of a human.
const HAPPENED: (&str, &str) = ("happened", "It took effect: continue");
const DID_NOT_HAPPEN: (&str, &str) = ("did_not_happen", "It had no effect: run it again");
const SKIP: (&str, &str) = ("skip", "Unknown: tell the model, and continue");

/// Decides about a call that an earlier claim started.
pub fn decide_unknown_outcome(decision: &mut DecisionBuilder<'_>, id: &CallId) {
    if server_questions::continue_if_answered(decision, id) {
        return;
    }
    // Closes the server's questions, because the connection that waited for the answers has ended.
    close_questions_of_server(decision, id);
    if let Some(question) = decision.progress.question_about(id).cloned() {
        if let Some(answer) = question.answer {
            // The question is closed before its answer takes effect. After a crash, the outcome is unknown again, and the old
            // answer does not apply.
            decision.change(Change::CloseInput { id: question.id, state: InputState::Applied });
            match question.kind {
                InputKind::Question => ask_user::apply_answer(decision, id, &answer),
                InputKind::ClientTool => client_call::apply_result(decision, id, &answer),
                InputKind::UnknownOutcome | InputKind::Elicitation | InputKind::Approval => act_on(decision, id, &answer),
            }
        } else if question.expires_in_ms == Some(0) {
            decision.close_question(&question, InputState::Expired);
            match question.kind {
                InputKind::Question => ask_user::end_unanswered(decision, id),
                InputKind::ClientTool => client_call::end_unanswered(decision, id),
                InputKind::UnknownOutcome | InputKind::Elicitation | InputKind::Approval => {
                    end_with_unknown_outcome(decision, id, prompts::UNANSWERED.to_owned());
                }
            }
        }
        return;
    }
    let Some(call) = started_call(decision, id) else { return };
    // Follows a task under way, because another call would start a second task.
    if call.handle.as_ref().and_then(Handle::task).is_some() {
        return decision.follow_call(id);
    }
    match call.replay {
        ReplayClass::Read | ReplayClass::Idempotent | ReplayClass::Keyed { .. } | ReplayClass::KeyedMeta { .. } => {
            decision.run_call(id);
        }
        ReplayClass::Reconcile { .. } => decision.reconcile_call(id),
        ReplayClass::Unsafe => report_unknown_outcome(decision, id, prompts::UNKNOWN_AFTER_CRASH.to_owned()),
    }
}

/// Closes the questions of a call whose server no longer waits for answers.
pub fn close_questions_of_server(decision: &mut DecisionBuilder<'_>, id: &CallId) {
    let of_servers: Vec<InputRequest> = decision.progress.questions_of_servers(id).cloned().collect();
    for question in of_servers {
        decision.close_question(&question, InputState::Cancelled);
    }
}

/// Returns whether an unstarted call repeats a call of an earlier run that may have taken effect. The server of the call must be
/// able to answer that. The approval of the call comes before this question to the server, because the reply may cause the call.
pub fn is_of_earlier_run(decision: &DecisionBuilder<'_>, id: &CallId) -> bool {
    let of_earlier_run = |call: &Arc<ToolCall>| call.key.is_some() && matches!(call.replay, ReplayClass::Reconcile { .. });
    decision.progress.call(id).is_some_and(of_earlier_run)
}

/// Applies the server's answer about a call.
pub fn apply_reconciliation(decision: &mut DecisionBuilder<'_>, id: &CallId, answer: Reconciled) -> Next {
    let is_asked = |call: Arc<ToolCall>| matches!(call.replay, ReplayClass::Reconcile { .. });
    if !started_call(decision, id).is_some_and(is_asked) || decision.progress.question_about(id).is_some() {
        return Next::Wait;
    }
    match answer {
        Reconciled::Happened(outcome) => {
            record_outcome(decision, id, outcome);
        }
        Reconciled::DidNotHappen => decision.run_call(id),
        Reconciled::Unclear(reason) => report_unknown_outcome(decision, id, prompts::unknown_after_asking(&reason)),
    }
    Next::Advance
}

/// Returns whether a human is asked about an unknown outcome before the model gets it.
pub fn is_asked_about(decision: &DecisionBuilder<'_>, outcome: &ToolOutcome) -> bool {
    decision.profile().on_unknown == OnUnknown::Ask && outcome.state == ToolCallState::Unknown
}

/// Asks a human about a call whose outcome this worker could not determine.
pub fn ended_unknown(decision: &mut DecisionBuilder<'_>, id: &CallId) -> Next {
    if started_call(decision, id).is_none() || decision.progress.question_about(id).is_some() {
        return Next::Wait;
    }
    ask_for_approval(decision, id);
    Next::Advance
}

fn report_unknown_outcome(decision: &mut DecisionBuilder<'_>, id: &CallId, text: String) {
    match decision.profile().on_unknown {
        OnUnknown::Rerun => decision.run_call(id),
        OnUnknown::Ask => ask_for_approval(decision, id),
        OnUnknown::TellModel | OnUnknown::Fail => end_with_unknown_outcome(decision, id, text),
    }
}

/// Stores an unknown outcome without a duration, which the audit measures by the database's clock.
fn end_with_unknown_outcome(decision: &mut DecisionBuilder<'_>, id: &CallId, text: String) {
    let outcome = ToolOutcome { state: ToolCallState::Unknown, ..ToolOutcome::failed(text, 0) };
    finish_call(decision, id, outcome);
}

fn ask_for_approval(decision: &mut DecisionBuilder<'_>, id: &CallId) {
    let Some(call) = started_call(decision, id) else { return };
    let question = Question {
        text: prompts::did_it_happen(&call.name),
        choices: InputChoice::all(&[HAPPENED, DID_NOT_HAPPEN, SKIP]),
        tool: Some(call.name.clone()),
        arguments: Some(call.arguments.clone()),
        ..Question::default()
    };
    decision.ask(decision.question(id, InputKind::UnknownOutcome, question, decision.profile().ask_expires_ms));
}

fn act_on(decision: &mut DecisionBuilder<'_>, id: &CallId, answer: &InputAnswer) {
    let words = answer.text.as_deref();
    if answer.choice == HAPPENED.0 {
        let content = vec![ToolContent::text(prompts::with_words(prompts::CONFIRMED_BY_HUMAN, words))];
        finish_call(decision, id, ToolOutcome { state: ToolCallState::Done, content, is_error: false, duration_ms: 0 });
    } else if answer.choice == DID_NOT_HAPPEN.0 {
        // The human says that the call had no effect. The tool is called again, and an MCP task of the call is no longer polled.
        if started_call(decision, id).is_some_and(|call| call.handle.is_some()) {
            decision.change(Change::SetHandle(id.clone(), None));
        }
        decision.run_call(id);
    } else {
        end_with_unknown_outcome(decision, id, prompts::with_words(prompts::LEFT_UNCLEAR, words));
    }
}

fn started_call(decision: &DecisionBuilder<'_>, id: &CallId) -> Option<Arc<ToolCall>> {
    decision.progress.call(id).filter(|call| call.state == ToolCallState::Started).cloned()
}
