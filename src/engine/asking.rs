//! The tool that asks the user: its calls are questions, and the answers are their outcomes.

use std::sync::Arc;

use serde_json::{Value, json};

use super::draft::Draft;
use super::texts;
use crate::domain::change::Change;
use crate::domain::event::EventBody;
use crate::domain::form;
use crate::domain::ids::CallId;
use crate::domain::input::{ACCEPT, DECLINE, InputAnswer, InputChoice, InputKind, InputRequest, InputState, Question};
use crate::domain::message::ToolContent;
use crate::domain::tool::{ASK_USER, ToolCall, ToolCallState, ToolOutcome};

/// The most answers to choose from; more are left out, and the user may write.
const MAX_CHOICES: usize = 20;

/// The answers to a form.
const FORM_CHOICES: [(&str, &str); 2] = [(ACCEPT, "Fill the form in"), (DECLINE, "Give no answer")];

/// Whether a call is a question to the user.
pub(super) fn is_question(draft: &Draft<'_>, id: &CallId) -> bool {
    let tools = draft.base.record.tools.iter().flatten();
    let name = find(draft, id).map(|call| call.name.as_str());
    tools.into_iter().any(|tool| tool.server.is_none() && tool.tool == ASK_USER && Some(tool.name.as_str()) == name)
}

/// Whether the user has been asked and the run has not acted on an answer.
pub(super) fn is_open(draft: &Draft<'_>, id: &CallId) -> bool {
    draft.work.question_about(id).is_some_and(|question| question.kind == InputKind::Question)
}

/// Asks. The call is `started` until there is an answer.
pub(super) fn begin(draft: &mut Draft<'_>, id: &CallId) {
    let Some(call) = find(draft, id).cloned() else { return };
    let Some(text) = call.arguments.get("question").and_then(Value::as_str).filter(|text| !text.trim().is_empty()) else {
        return draft.finish_call(id, ToolOutcome::failed(texts::NO_QUESTION, 0));
    };
    let choices = call.arguments.get("choices").and_then(Value::as_array).into_iter().flatten();
    let choices = choices.filter_map(Value::as_str).filter(|choice| !choice.trim().is_empty()).take(MAX_CHOICES);
    let mut choices: Vec<InputChoice> =
        choices.map(|choice| InputChoice { value: choice.to_owned(), label: choice.to_owned() }).collect();
    let form = call.arguments.get("form").filter(|form| !form.is_null() && **form != json!({})).cloned();
    if let Some(form) = &form {
        let checked = if choices.is_empty() { form::check(form) } else { Err(texts::CHOICES_AND_FORM.to_owned()) };
        if let Err(reason) = checked {
            return draft.finish_call(id, ToolOutcome::failed(reason, 0));
        }
        choices = FORM_CHOICES.map(|(value, label)| InputChoice { value: value.to_owned(), label: label.to_owned() }).into();
    }
    draft.event(EventBody::ToolStarted {
        call_id: call.id.clone(),
        name: call.name.clone(),
        server: None,
        arguments: call.arguments.clone(),
        repair: call.repair.clone(),
        undoes: None,
    });
    draft.change(Change::ToolStarted(call.id.clone()));
    let fence = &draft.base.record.fence;
    let request = InputRequest {
        id: draft.input_id(),
        conversation_id: fence.conversation_id.clone(),
        run_id: fence.run_id.clone(),
        call_id: Some(call.id),
        kind: InputKind::Question,
        question: Question { text: text.to_owned(), choices, tool: None, arguments: None, form, elicitation: None, approval: None },
        state: InputState::Pending,
        answer: None,
        expires_in_ms: Some(draft.profile().ask_expires_ms).filter(|limit| *limit > 0),
    };
    draft.ask(request);
}

/// The user has answered: that is what the model reads.
pub(super) fn answered(draft: &mut Draft<'_>, id: &CallId, answer: &InputAnswer) {
    let content = answer.content.as_ref().map(Value::to_string);
    let words = [content.as_deref().or(Some(answer.choice.as_str())), answer.text.as_deref()];
    let words: Vec<&str> = words.into_iter().flatten().filter(|words| !words.is_empty()).collect();
    let content = vec![ToolContent::text(words.join("\n"))];
    draft.finish_call(id, ToolOutcome { state: ToolCallState::Done, content, is_error: false, duration_ms: 0 });
}

/// Nobody has answered in time.
pub(super) fn unanswered(draft: &mut Draft<'_>, id: &CallId) {
    draft.finish_call(id, ToolOutcome::failed(texts::NO_ANSWER, 0));
}

fn find<'d>(draft: &'d Draft<'_>, id: &CallId) -> Option<&'d ToolCall> {
    draft.work.record.call(id).map(Arc::as_ref)
}
