//! Calls that were started and whose outcome nobody knows: what their class says, what their server says, what a human says.

use std::sync::Arc;

use super::draft::Draft;
use super::tool_step::{advance, record_outcome};
use super::{asking, rounds, texts};
use crate::domain::agent::OnUnknown;
use crate::domain::change::Change;
use crate::domain::handle::Handle;
use crate::domain::ids::CallId;
use crate::domain::input::{InputAnswer, InputChoice, InputKind, InputRequest, InputState, Question};
use crate::domain::message::ToolContent;
use crate::domain::tool::{Reconciled, ReplayClass, ToolCall, ToolCallState, ToolOutcome};

/// The answers that a human can give, and what they mean.
const HAPPENED: (&str, &str) = ("happened", "It took effect: go on");
const DID_NOT_HAPPEN: (&str, &str) = ("did_not_happen", "It did not: run it again");
const SKIP: (&str, &str) = ("skip", "Unclear: tell the model so, and go on");

/// Judges a call that was started by a worker that is gone.
pub(super) fn judge(draft: &mut Draft<'_>, id: &CallId) {
    if rounds::go_on(draft, id) {
        return;
    }
    // Whoever asked is gone with the connection on which the answer was awaited.
    close_questions_of_server(draft, id);
    if let Some(question) = draft.work.question_about(id).cloned() {
        if let Some(answer) = question.answer {
            // Before it is acted on: should the worker die over it, nobody knows again, and the answer is of before.
            draft.change(Change::InputClosed { id: question.id, state: InputState::Applied });
            match question.kind {
                InputKind::Question => asking::answered(draft, id, &answer),
                InputKind::UnknownOutcome | InputKind::Elicitation | InputKind::Approval => act_on(draft, id, &answer),
            }
        } else if question.expires_in_ms == Some(0) {
            draft.close_question(&question, InputState::Expired);
            match question.kind {
                InputKind::Question => asking::unanswered(draft, id),
                InputKind::UnknownOutcome | InputKind::Elicitation | InputKind::Approval => {
                    unknown(draft, id, texts::NOBODY_ANSWERED.to_owned());
                }
            }
        }
        return;
    }
    let Some(call) = started(draft, id) else { return };
    // Whatever its class: it is under way, and another call would be a second one.
    if call.handle.as_ref().and_then(Handle::task).is_some() {
        return draft.follow_call(id);
    }
    match call.replay {
        ReplayClass::Read | ReplayClass::Idempotent | ReplayClass::Keyed { .. } | ReplayClass::KeyedMeta { .. } => {
            draft.run_call(id);
        }
        ReplayClass::Reconcile { .. } => draft.reconcile_call(id),
        ReplayClass::Unsafe => nobody_knows(draft, id, texts::UNKNOWN_AFTER_CRASH.to_owned()),
    }
}

/// Nobody waits any more for the answers to what a call's server has asked.
pub(super) fn close_questions_of_server(draft: &mut Draft<'_>, id: &CallId) {
    let of_servers: Vec<InputRequest> = draft.work.questions_of_servers(id).cloned().collect();
    for question in of_servers {
        draft.close_question(&question, InputState::Cancelled);
    }
}

/// Whether a call that has not begun stands for one of an earlier run that may have taken effect, and about which its server can be
/// asked. Whoever has to allow it allows that too: what its server says may be that it is to be made.
pub(super) fn is_of_earlier_run(draft: &Draft<'_>, id: &CallId) -> bool {
    let of_earlier_run = |call: &Arc<ToolCall>| call.key.is_some() && matches!(call.replay, ReplayClass::Reconcile { .. });
    draft.work.record.call(id).is_some_and(of_earlier_run)
}

/// The server of a call has been asked whether it took effect.
pub(super) fn reconciled(draft: &mut Draft<'_>, id: &CallId, answer: Reconciled) {
    let is_asked = |call: Arc<ToolCall>| matches!(call.replay, ReplayClass::Reconcile { .. });
    if !started(draft, id).is_some_and(is_asked) || draft.work.question_about(id).is_some() {
        return;
    }
    match answer {
        Reconciled::Happened(outcome) => {
            record_outcome(draft, id, outcome);
        }
        Reconciled::DidNotHappen => draft.run_call(id),
        Reconciled::Unclear(reason) => nobody_knows(draft, id, texts::unknown_after_asking(&reason)),
    }
    advance(draft);
}

/// Whether an outcome of a call is one that a human is asked about first.
pub(super) fn is_asked_about(draft: &Draft<'_>, outcome: &ToolOutcome) -> bool {
    draft.profile().on_unknown == OnUnknown::Ask && outcome.state == ToolCallState::Unknown
}

/// A call has ended, in this worker's sight, in a way that nobody can judge.
pub(super) fn ended_unknown(draft: &mut Draft<'_>, id: &CallId) {
    if started(draft, id).is_some() && draft.work.question_about(id).is_none() {
        ask(draft, id);
        advance(draft);
    }
}

/// What follows is the agent's to say.
fn nobody_knows(draft: &mut Draft<'_>, id: &CallId, text: String) {
    match draft.profile().on_unknown {
        OnUnknown::Rerun => draft.run_call(id),
        OnUnknown::Ask => ask(draft, id),
        OnUnknown::TellModel | OnUnknown::Fail => unknown(draft, id, text),
    }
}

/// Nobody has measured how long it took: the audit says how long ago it was started, by the clock of the database.
fn unknown(draft: &mut Draft<'_>, id: &CallId, text: String) {
    let outcome = ToolOutcome { state: ToolCallState::Unknown, ..ToolOutcome::failed(text, 0) };
    draft.finish_call(id, outcome);
}

fn ask(draft: &mut Draft<'_>, id: &CallId) {
    let Some(call) = started(draft, id) else { return };
    let choice = |(value, label): (&str, &str)| InputChoice { value: value.to_owned(), label: label.to_owned() };
    let fence = &draft.base.record.fence;
    let request = InputRequest {
        id: draft.input_id(),
        conversation_id: fence.conversation_id.clone(),
        run_id: fence.run_id.clone(),
        call_id: Some(call.id.clone()),
        kind: InputKind::UnknownOutcome,
        question: Question {
            text: texts::did_it_happen(&call.name),
            choices: [HAPPENED, DID_NOT_HAPPEN, SKIP].map(choice).into(),
            tool: Some(call.name.clone()),
            arguments: Some(call.arguments.clone()),
            form: None,
            elicitation: None,
            approval: None,
        },
        state: InputState::Pending,
        answer: None,
        expires_in_ms: Some(draft.profile().ask_expires_ms).filter(|limit| *limit > 0),
    };
    draft.ask(request);
}

fn act_on(draft: &mut Draft<'_>, id: &CallId, answer: &InputAnswer) {
    let words = answer.text.as_deref();
    if answer.choice == HAPPENED.0 {
        // Not measured either.
        let content = vec![ToolContent::text(texts::with_words(texts::HAPPENED, words))];
        draft.finish_call(id, ToolOutcome { state: ToolCallState::Done, content, is_error: false, duration_ms: 0 });
    } else if answer.choice == DID_NOT_HAPPEN.0 {
        // What its server worked on came to nothing: it is called again, and not asked for that once more.
        if started(draft, id).is_some_and(|call| call.handle.is_some()) {
            draft.change(Change::ToolHandle(id.clone(), None));
        }
        draft.run_call(id);
    } else {
        unknown(draft, id, texts::with_words(texts::NOBODY_KNOWS, words));
    }
}

fn started(draft: &Draft<'_>, id: &CallId) -> Option<Arc<ToolCall>> {
    draft.work.record.call(id).filter(|call| call.state == ToolCallState::Started).cloned()
}
