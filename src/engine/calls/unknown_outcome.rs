//! Calls that were started and whose outcome nobody knows: what their class says, what their server says, what a human says.

use std::sync::Arc;

use crate::domain::agent::OnUnknown;
use crate::domain::change::Change;
use crate::domain::handle::Handle;
use crate::domain::ids::CallId;
use crate::domain::input::{InputAnswer, InputChoice, InputKind, InputRequest, InputState, Question};
use crate::domain::message::ToolContent;
use crate::domain::tool::{Reconciled, ReplayClass, ToolCall, ToolCallState, ToolOutcome};
use crate::engine::calls::outcome::{finish_call, record_outcome};
use crate::engine::calls::{ask_user, server_questions};
use crate::engine::machine::{DecisionBuilder, Next};
use crate::engine::prompts;

/// The answers that a human can give, and what they mean.
const HAPPENED: (&str, &str) = ("happened", "It took effect: go on");
const DID_NOT_HAPPEN: (&str, &str) = ("did_not_happen", "It did not: run it again");
const SKIP: (&str, &str) = ("skip", "Unclear: tell the model so, and go on");

/// Judges a call that was started by a worker that is gone.
pub fn judge(decision: &mut DecisionBuilder<'_>, id: &CallId) {
    if server_questions::go_on(decision, id) {
        return;
    }
    // Whoever asked is gone with the connection on which the answer was awaited.
    close_questions_of_server(decision, id);
    if let Some(question) = decision.progress.question_about(id).cloned() {
        if let Some(answer) = question.answer {
            // Before it is acted on: should the worker die over it, nobody knows again, and the answer is of before.
            decision.change(Change::InputClosed { id: question.id, state: InputState::Applied });
            match question.kind {
                InputKind::Question => ask_user::answered(decision, id, &answer),
                InputKind::UnknownOutcome | InputKind::Elicitation | InputKind::Approval => act_on(decision, id, &answer),
            }
        } else if question.expires_in_ms == Some(0) {
            decision.close_question(&question, InputState::Expired);
            match question.kind {
                InputKind::Question => ask_user::unanswered(decision, id),
                InputKind::UnknownOutcome | InputKind::Elicitation | InputKind::Approval => {
                    unknown(decision, id, prompts::NOBODY_ANSWERED.to_owned());
                }
            }
        }
        return;
    }
    let Some(call) = started(decision, id) else { return };
    // Whatever its class: it is under way, and another call would be a second one.
    if call.handle.as_ref().and_then(Handle::task).is_some() {
        return decision.follow_call(id);
    }
    match call.replay {
        ReplayClass::Read | ReplayClass::Idempotent | ReplayClass::Keyed { .. } | ReplayClass::KeyedMeta { .. } => {
            decision.run_call(id);
        }
        ReplayClass::Reconcile { .. } => decision.reconcile_call(id),
        ReplayClass::Unsafe => nobody_knows(decision, id, prompts::UNKNOWN_AFTER_CRASH.to_owned()),
    }
}

/// Nobody waits any more for the answers to what a call's server has asked.
pub fn close_questions_of_server(decision: &mut DecisionBuilder<'_>, id: &CallId) {
    let of_servers: Vec<InputRequest> = decision.progress.questions_of_servers(id).cloned().collect();
    for question in of_servers {
        decision.close_question(&question, InputState::Cancelled);
    }
}

/// Whether a call that has not begun stands for one of an earlier run that may have taken effect, and about which its server can be
/// asked. Whoever has to allow it allows that too: what its server says may be that it is to be made.
pub fn is_of_earlier_run(decision: &DecisionBuilder<'_>, id: &CallId) -> bool {
    let of_earlier_run = |call: &Arc<ToolCall>| call.key.is_some() && matches!(call.replay, ReplayClass::Reconcile { .. });
    decision.progress.record.call(id).is_some_and(of_earlier_run)
}

/// The server of a call has been asked whether it took effect.
pub fn reconciled(decision: &mut DecisionBuilder<'_>, id: &CallId, answer: Reconciled) -> Next {
    let is_asked = |call: Arc<ToolCall>| matches!(call.replay, ReplayClass::Reconcile { .. });
    if !started(decision, id).is_some_and(is_asked) || decision.progress.question_about(id).is_some() {
        return Next::Wait;
    }
    match answer {
        Reconciled::Happened(outcome) => {
            record_outcome(decision, id, outcome);
        }
        Reconciled::DidNotHappen => decision.run_call(id),
        Reconciled::Unclear(reason) => nobody_knows(decision, id, prompts::unknown_after_asking(&reason)),
    }
    Next::Advance
}

/// Whether an outcome of a call is one that a human is asked about first.
pub fn is_asked_about(decision: &DecisionBuilder<'_>, outcome: &ToolOutcome) -> bool {
    decision.profile().on_unknown == OnUnknown::Ask && outcome.state == ToolCallState::Unknown
}

/// A call has ended, in this worker's sight, in a way that nobody can judge.
pub fn ended_unknown(decision: &mut DecisionBuilder<'_>, id: &CallId) -> Next {
    if started(decision, id).is_none() || decision.progress.question_about(id).is_some() {
        return Next::Wait;
    }
    ask(decision, id);
    Next::Advance
}

/// What follows is the agent's to say.
fn nobody_knows(decision: &mut DecisionBuilder<'_>, id: &CallId, text: String) {
    match decision.profile().on_unknown {
        OnUnknown::Rerun => decision.run_call(id),
        OnUnknown::Ask => ask(decision, id),
        OnUnknown::TellModel | OnUnknown::Fail => unknown(decision, id, text),
    }
}

/// Nobody has measured how long it took: the audit says how long ago it was started, by the clock of the database.
fn unknown(decision: &mut DecisionBuilder<'_>, id: &CallId, text: String) {
    let outcome = ToolOutcome { state: ToolCallState::Unknown, ..ToolOutcome::failed(text, 0) };
    finish_call(decision, id, outcome);
}

fn ask(decision: &mut DecisionBuilder<'_>, id: &CallId) {
    let Some(call) = started(decision, id) else { return };
    let choice = |(value, label): (&str, &str)| InputChoice { value: value.to_owned(), label: label.to_owned() };
    let question = Question {
        text: prompts::did_it_happen(&call.name),
        choices: [HAPPENED, DID_NOT_HAPPEN, SKIP].map(choice).into(),
        tool: Some(call.name.clone()),
        arguments: Some(call.arguments.clone()),
        form: None,
        elicitation: None,
        approval: None,
    };
    decision.ask(decision.question(id, InputKind::UnknownOutcome, question, decision.profile().ask_expires_ms));
}

fn act_on(decision: &mut DecisionBuilder<'_>, id: &CallId, answer: &InputAnswer) {
    let words = answer.text.as_deref();
    if answer.choice == HAPPENED.0 {
        // Not measured either.
        let content = vec![ToolContent::text(prompts::with_words(prompts::HAPPENED, words))];
        finish_call(decision, id, ToolOutcome { state: ToolCallState::Done, content, is_error: false, duration_ms: 0 });
    } else if answer.choice == DID_NOT_HAPPEN.0 {
        // What its server worked on came to nothing: it is called again, and not asked for that once more.
        if started(decision, id).is_some_and(|call| call.handle.is_some()) {
            decision.change(Change::ToolHandle(id.clone(), None));
        }
        decision.run_call(id);
    } else {
        unknown(decision, id, prompts::with_words(prompts::NOBODY_KNOWS, words));
    }
}

fn started(decision: &DecisionBuilder<'_>, id: &CallId) -> Option<Arc<ToolCall>> {
    decision.progress.record.call(id).filter(|call| call.state == ToolCallState::Started).cloned()
}
