//! The tool `ask_user`: a call asks the user a question, and the answer is the outcome of the call.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::domain::conversation::ToolContent;
use crate::domain::ids::CallId;
use crate::domain::run::question::{ACCEPT, DECLINE};
use crate::domain::run::{InputAnswer, InputChoice, InputKind, Question};
use crate::domain::tool::form;
use crate::domain::tool::{ASK_USER, ToolCall, ToolCallState, ToolOutcome};
use crate::engine::calls::outcome::finish_call;
use crate::engine::machine::DecisionBuilder;
use crate::engine::prompts;

/// The maximum number of choices. Further choices are dropped, because the user can also write an answer.
const MAX_CHOICES: usize = 20;

const FORM_CHOICES: [(&str, &str); 2] = [(ACCEPT, "Fill the form in"), (DECLINE, "Give no answer")];

pub fn is_ask_user_call(decision: &DecisionBuilder<'_>, id: &CallId) -> bool {
    let tools = decision.before.tools.iter().flatten();
    let name = find(decision, id).map(|call| call.name.as_str());
    tools.into_iter().any(|tool| tool.server.is_none() && tool.tool == ASK_USER && Some(tool.name.as_str()) == name)
}

/// Asks the user. The call stays `started` until the answer.
pub fn ask_question(decision: &mut DecisionBuilder<'_>, id: &CallId) {
    let Some(call) = find(decision, id).cloned() else { return };
    let Some(text) = call.arguments.get("question").and_then(Value::as_str).filter(|text| !text.trim().is_empty()) else {
        return finish_call(decision, id, ToolOutcome::failed(prompts::NO_QUESTION, 0));
    };
    let choices = call.arguments.get("choices").and_then(Value::as_array).into_iter().flatten();
    let choices = choices.filter_map(Value::as_str).filter(|choice| !choice.trim().is_empty()).take(MAX_CHOICES);
    let mut choices: Vec<InputChoice> =
        choices.map(|choice| InputChoice { value: choice.to_owned(), label: choice.to_owned() }).collect();
    let form = call.arguments.get("form").filter(|form| !form.is_null() && **form != json!({})).cloned();
    if let Some(form) = &form {
        let checked = if choices.is_empty() { form::check(form) } else { Err(prompts::CHOICES_AND_FORM.to_owned()) };
        if let Err(reason) = checked {
            return finish_call(decision, id, ToolOutcome::failed(reason, 0));
        }
        choices = InputChoice::all(&FORM_CHOICES);
    }
    decision.start_call(id);
    let question = Question { text: text.to_owned(), choices, form, ..Question::default() };
    decision.ask(decision.question(id, InputKind::Question, question, decision.profile().ask_expires_ms));
}

/// Stores the user's answer as the call's outcome.
pub fn apply_answer(decision: &mut DecisionBuilder<'_>, id: &CallId, answer: &InputAnswer) {
    let content = answer.content.as_ref().map(Value::to_string);
    let words = [content.as_deref().or(Some(answer.choice.as_str())), answer.text.as_deref()];
    let words: Vec<&str> = words.into_iter().flatten().filter(|words| !words.is_empty()).collect();
    let content = vec![ToolContent::text(words.join("\n"))];
    finish_call(decision, id, ToolOutcome { state: ToolCallState::Done, content, is_error: false, duration_ms: 0 });
}

pub fn end_unanswered(decision: &mut DecisionBuilder<'_>, id: &CallId) {
    finish_call(decision, id, ToolOutcome::failed(prompts::NO_ANSWER, 0));
}

fn find<'d>(decision: &'d DecisionBuilder<'_>, id: &CallId) -> Option<&'d ToolCall> {
    decision.progress.call(id).map(Arc::as_ref)
}
