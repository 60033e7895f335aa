//! Calls whose servers need input before they continue (MCP input required): the server has let go of the call, and is called again
//! with the answers.
//!
//! The run waits meanwhile like any other that asks a human. The answers are stored with the call before it is made with them:
//! after a crash the call is judged by its class like any other, and the user is not asked twice.

use std::collections::BTreeMap;

use crate::domain::ids::{CallId, InputId};
use crate::domain::run::change::Change;
use crate::domain::run::handle::{Handle, Pause, Round};
use crate::domain::run::input::{CANCEL, InputAnswer, InputKind, InputRequest, InputState, Question};
use crate::domain::tool::ToolCallState;
use crate::engine::machine::{DecisionBuilder, Next};

/// Asks everything at once that the server needs; without a question, the server is called again.
pub fn pauses(decision: &mut DecisionBuilder<'_>, id: &CallId, pause: Pause) -> Next {
    if !keep(decision, id, pause) {
        return Next::Wait;
    }
    go_on(decision, id);
    Next::Advance
}

/// Stores the pause and asks its questions; returns false without such a call. In a run that is handed back, the next claim
/// continues.
pub fn keep(decision: &mut DecisionBuilder<'_>, id: &CallId, pause: Pause) -> bool {
    let Some(call) = decision.progress.call(id).filter(|call| call.state == ToolCallState::Started).cloned() else {
        return false;
    };
    if decision.progress.question_about(id).is_some() {
        return false;
    }
    let earlier = call.handle.as_ref().and_then(Handle::round).map_or(0, |round| round.questions);
    let Pause { state, given, asks, number } = pause;
    let questions = earlier.saturating_add(u32::try_from(asks.len()).unwrap_or(u32::MAX));
    let mut asked = BTreeMap::new();
    for (key, (text, elicitation)) in asks {
        let question = Question::of_server(text, &call.name, elicitation);
        let request = decision.question(id, InputKind::Elicitation, question, decision.profile().ask_expires_ms);
        asked.insert(key, request.id.clone());
        decision.ask(request);
    }
    let round = Round { state, given, asked, answers: None, questions, number };
    decision.change(Change::ToolHandle(id.clone(), Some(Handle::Round(Box::new(round)))));
    true
}

/// Continues a call if all questions of its server are answered; returns whether it is such a call.
pub fn go_on(decision: &mut DecisionBuilder<'_>, id: &CallId) -> bool {
    let call = decision.progress.call(id);
    let Some(round) = call.and_then(|call| call.handle.as_ref()?.round()).filter(|round| round.answers.is_none()).cloned() else {
        return false;
    };
    let questions: Vec<InputRequest> = decision.progress.questions_of_servers(id).cloned().collect();
    let is_open = |question: &InputRequest| question.answer.is_none() && question.expires_in_ms != Some(0);
    if questions.iter().any(is_open) {
        return true;
    }
    for question in &questions {
        // This also applies a question that has its answer.
        decision.close_question(question, InputState::Expired);
    }
    // An unanswered question cancels the call.
    let answer = |asked: &InputId| {
        let question = questions.iter().find(|question| question.id == *asked);
        question.and_then(|question| question.answer.clone()).unwrap_or_else(|| InputAnswer::new(CANCEL, None))
    };
    let answers = round.asked.iter().map(|(key, asked)| (key.clone(), answer(asked))).collect();
    let round = Round { answers: Some(answers), ..round };
    decision.change(Change::ToolHandle(id.clone(), Some(Handle::Round(Box::new(round)))));
    decision.follow_call(id);
    true
}
