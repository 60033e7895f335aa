//! Questions of runs: sends them by elicitation to clients that support it, and describes them for other clients.

use std::collections::BTreeMap;
use std::time::Duration;

use rmcp::model::{
    ClientResult, ElicitRequest, ElicitRequestParams, ElicitResult, ElicitationAction, ElicitationSchema,
    InputRequest as ClientInputRequest, InputRequiredResult, InputResponses, ServerRequest,
};
use rmcp::service::PeerRequestOptions;
use serde_json::{Value, json};

use super::calls::McpToolCall;
use crate::domain::run::Run;
use crate::domain::run::question::{ACCEPT, InputAnswer, InputRequest};
use crate::domain::tool::approval::Approval;
use crate::http::clients::thread::{ApprovalDecision, OpenQuestions, Thread};
use crate::http::wire::problem::HttpResult;
use crate::service::Error;
use crate::support::text;

/// Time limit for an answer within the client's call. The question itself waits longer.
const ELICITATION_TIMEOUT: Duration = Duration::from_secs(10 * 60);
/// Limit of the arguments in a question, in characters.
const MAX_ARGUMENTS: usize = 2_000;

pub(super) enum AskOutcome {
    Answered,
    /// The client asks its user, and repeats the call with the answers.
    Required(InputRequiredResult),
    /// The client cannot ask, or its user gave no answer.
    Unanswered,
}

pub(super) async fn ask(call: &McpToolCall, thread: &Thread, run: &Run, open: &OpenQuestions) -> HttpResult<AskOutcome> {
    let capabilities = call.context().client_capabilities().and_then(|capabilities| capabilities.elicitation);
    // A client that names neither form nor url means forms.
    let can_ask = capabilities.is_some_and(|elicitation| elicitation.form.is_some() || elicitation.url.is_none());
    let forms = if can_ask { forms(run, open) } else { BTreeMap::new() };
    if forms.is_empty() {
        return Ok(AskOutcome::Unanswered);
    }
    if call.repeats_with_answers() {
        let requests =
            forms.into_iter().map(|(id, form)| (id, ClientInputRequest::Elicitation(ElicitRequest::new(form)))).collect();
        return Ok(AskOutcome::Required(InputRequiredResult::new(Some(requests), Some(run.id.to_string()))));
    }
    for (id, form) in forms {
        let Some(result) = elicit(call, run, form).await else { return Ok(AskOutcome::Unanswered) };
        if !store_answer(thread, open, &id, result).await? {
            return Ok(AskOutcome::Unanswered);
        }
    }
    Ok(AskOutcome::Answered)
}

/// Asks the client's user, and waits for the answer.
async fn elicit(call: &McpToolCall, run: &Run, form: ElicitRequestParams) -> Option<ElicitResult> {
    let request = ServerRequest::ElicitRequest(ElicitRequest::new(form));
    let options = PeerRequestOptions::with_timeout(ELICITATION_TIMEOUT);
    let answer = async { call.context().peer.send_request_with_option(request, options).await?.await_response().await };
    match call.notifying(run, answer).await {
        Ok(ClientResult::ElicitResult(result)) => Some(result),
        Ok(_) => None,
        Err(error) => {
            tracing::debug!(%error, run.id = %run.id, "an elicitation was not answered");
            None
        }
    }
}

/// Stores the answers of a repeated call. Returns false if the user cancelled a question: then the run still waits.
pub(super) async fn store_answers(thread: &Thread, open: &OpenQuestions, answers: InputResponses) -> HttpResult<bool> {
    let mut goes_on = true;
    for (id, answer) in answers {
        let result: ElicitResult = serde_json::from_value(answer)
            .map_err(|error| Error::invalid(format!("the answer to {id} is no result of an elicitation: {error}")))?;
        goes_on &= store_answer(thread, open, &id, result).await?;
    }
    Ok(goes_on)
}

/// Stores an answer, unless the question has one. Returns false if the user cancelled the question: then it stays open.
async fn store_answer(thread: &Thread, open: &OpenQuestions, id: &str, result: ElicitResult) -> HttpResult<bool> {
    let is_accepted = match result.action {
        ElicitationAction::Accept => true,
        ElicitationAction::Decline => false,
        _ => return Ok(false),
    };
    let content = result.content.unwrap_or_default();
    if let Some(approval) = open.approvals.iter().find(|approval| approval.id.as_str() == id) {
        let approved = is_accepted && content["approve"].as_bool().unwrap_or(true);
        let reason = content["reason"].as_str().filter(|reason| !reason.is_empty()).map(str::to_owned);
        thread.decide(&approval.id, ApprovalDecision { approved, reason, arguments: None }).await?;
    }
    if let Some(asked) = open.questions.iter().find(|asked| asked.id.as_str() == id) {
        let answer = if is_accepted { accepted(asked, content) } else { asked.declining_answer() };
        match thread.service().resolve_input(thread.principal(), &asked.id, answer, None).await {
            // Another client has answered meanwhile, or the run has gone on without an answer.
            Ok(_) | Err(Error::Conflict(_)) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(true)
}

fn accepted(asked: &InputRequest, content: Value) -> InputAnswer {
    if asked.question.form().is_some() {
        let content = if content.is_object() { content } else { json!({}) };
        return InputAnswer { content: Some(content), ..InputAnswer::new(ACCEPT, None) };
    }
    let field = |name: &str| content[name].as_str().filter(|text| !text.is_empty()).map(str::to_owned);
    InputAnswer::new(field("choice").unwrap_or_default(), field("text"))
}

/// Returns the form of each question that a client can show, by the question's id.
fn forms(run: &Run, open: &OpenQuestions) -> BTreeMap<String, ElicitRequestParams> {
    let approvals =
        open.approvals.iter().map(|approval| (approval.id.to_string(), approval_message(run, approval), approval_form()));
    let questions =
        open.questions.iter().filter_map(|asked| Some((asked.id.to_string(), asked.question.text.clone(), form(asked)?)));
    let forms = approvals.chain(questions).filter_map(|(id, message, form)| {
        let requested_schema: ElicitationSchema = serde_json::from_value(form).ok()?;
        Some((id, ElicitRequestParams::FormElicitationParams { meta: None, message, requested_schema }))
    });
    forms.collect()
}

fn approval_form() -> Value {
    json!({
        "type": "object",
        "properties": {
            "approve": { "type": "boolean", "title": "Allow this call", "default": true },
            "reason": { "type": "string", "title": "Reason" },
        },
    })
}

/// Returns the form of a question; `None` for a question that the user answers at a URL.
fn form(asked: &InputRequest) -> Option<Value> {
    let question = &asked.question;
    if question.elicitation.as_ref().is_some_and(|elicitation| elicitation.url.is_some()) {
        return None;
    }
    if let Some(form) = question.form() {
        return Some(form.clone());
    }
    let values: Vec<&str> = question.choices.iter().map(|choice| choice.value.as_str()).collect();
    let (name, field) = match values.is_empty() {
        true => ("text", json!({ "type": "string", "title": "Answer" })),
        false => ("choice", json!({ "type": "string", "title": "Answer", "enum": values })),
    };
    Some(json!({ "type": "object", "properties": { name: field }, "required": [name] }))
}

fn approval_message(run: &Run, approval: &Approval) -> String {
    let request = &approval.request;
    let arguments = request.arguments.to_string();
    format!("The agent {} wants to call {} with {}", run.agent, request.name, text::prefix_chars(&arguments, MAX_ARGUMENTS))
}

/// Describes the open questions, and the ways to answer them.
pub(super) fn described(call: &McpToolCall, run: &Run, open: &OpenQuestions) -> String {
    let approvals = open.approvals.iter().map(|approval| approval_message(run, approval));
    let questions = approvals.chain(open.questions.iter().map(|asked| asked.question.text.clone()));
    let list: Vec<String> = questions.map(|question| format!("- {question}\n")).collect();
    format!(
        "The run {} waits for the user:\n{}The user decides in the inbox of the chat page ({}) or through the API. Then call run_wait.",
        run.id,
        list.concat(),
        call.address("/#/inbox"),
    )
}

/// Returns the open questions for structured content.
pub(super) fn listed(call: &McpToolCall, open: &OpenQuestions) -> Vec<Value> {
    let approvals = open.approvals.iter().map(|approval| {
        let address = call.address(&format!("/api/v1/approvals/{}", approval.id));
        let request = &approval.request;
        json!({ "id": approval.id, "kind": "approval", "tool": request.name, "arguments": request.arguments, "answer_url": address })
    });
    let questions = open.questions.iter().map(|asked| {
        let address = call.address(&format!("/api/v1/input-requests/{}", asked.id));
        json!({ "id": asked.id, "kind": asked.kind, "text": asked.question.text, "answer_url": address })
    });
    approvals.chain(questions).collect()
}
