//! Calls whose servers need input before they continue (MCP input required): the server has ended the call, and is called again with the
//! answers.
//!
//! The run waits like any other that asks a human. The answers are stored with the call before the server gets them. After a crash
//! the replay class decides whether the call is repeated, and the user is not asked twice.

use std::collections::BTreeMap;

use crate::domain::ids::{CallId, InputId};
use crate::domain::run::question::CANCEL;
use crate::domain::run::{Change, Handle, InputAnswer, InputKind, InputRequest, InputRequired, InputState, Question, Round};
use crate::domain::tool::ToolCallState;
use crate::engine::machine::{DecisionBuilder, Next};

/// Asks all questions of the server at once; without a question, calls the server again.
pub fn ask_all(decision: &mut DecisionBuilder<'_>, id: &CallId, pause: InputRequired) -> Next {
    if !store_pause(decision, id, pause) {
        return Next::Wait;
    }
    continue_if_answered(decision, id);
    Next::Advance
}

/// Stores the server's request and asks its questions. Returns false if the call is not `started` or already has a question. If the
/// run is handed back, the next claim continues the call.
pub fn store_pause(decision: &mut DecisionBuilder<'_>, id: &CallId, pause: InputRequired) -> bool {
    let Some(call) = decision.progress.call(id).filter(|call| call.state == ToolCallState::Started).cloned() else {
        return false;
    };
    if decision.progress.question_about(id).is_some() {
        return false;
    }
    let earlier = call.handle.as_ref().and_then(Handle::round).map_or(0, |round| round.questions);
    let InputRequired { state, given, asks, number } = pause;
    let questions = earlier.saturating_add(u32::try_from(asks.len()).unwrap_or(u32::MAX));
    let mut asked = BTreeMap::new();
    for (key, (text, elicitation)) in asks {
        let question = Question::of_server(text, &call.name, elicitation);
        let request = decision.question(id, InputKind::Elicitation, question, decision.profile().ask_expires_ms);
        asked.insert(key, request.id.clone());
        decision.ask(request);
    }
    let round = Round { state, given, asked, answers: None, questions, number };
    decision.change(Change::SetHandle(id.clone(), Some(Handle::Round(Box::new(round)))));
    true
}

/// Continues the call if all questions of its server are answered or expired. Returns whether the call was waiting for such
/// answers.
pub fn continue_if_answered(decision: &mut DecisionBuilder<'_>, id: &CallId) -> bool {
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
        // Also marks an answered question as applied.
        decision.close_question(question, InputState::Expired);
    }
    // An unanswered question cancels the call.
    let answer = |asked: &InputId| {
        let question = questions.iter().find(|question| question.id == *asked);
        question.and_then(|question| question.answer.clone()).unwrap_or_else(|| InputAnswer::new(CANCEL, None))
    };
    let answers = round.asked.iter().map(|(key, asked)| (key.clone(), answer(asked))).collect();
    let round = Round { answers: Some(answers), ..round };
    decision.change(Change::SetHandle(id.clone(), Some(Handle::Round(Box::new(round)))));
    decision.follow_call(id);
    true
}
