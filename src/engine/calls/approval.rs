//! Calls that need approval: when a human is asked, and which effect the answer has.
//!
//! A waiting call is `awaiting_approval`, and its question is in the record. The write that starts the call, or stores its outcome, also
//! closes the question. So an answer is used once, also after a crash.

use std::borrow::Cow;
use std::sync::Arc;

use serde_json::Value;

use crate::domain::conversation::Part;
use crate::domain::ids::{CallId, GrantId};
use crate::domain::run::{Change, InputChoice, InputKind, InputRequest, InputState, Question};
use crate::domain::tool::approval::DENY;
use crate::domain::tool::{
    ApprovalMode, ApprovalScope, ApprovalTerms, OnDeny, ReplayClass, ToolCall, ToolCallState, ToolDefinition, ToolOutcome, preview,
};
use crate::engine::calls::outcome::{finish_call, has_undo};
use crate::engine::calls::{arguments, json_repair};
use crate::engine::machine::DecisionBuilder;
use crate::engine::prompts;
use crate::support::json;
use crate::support::text::prefix_chars;

/// Characters of the model's text that clients show beside its call.
const MAX_RATIONALE_CHARS: usize = 1_000;

const CHOICES: [(&str, &str); 2] = [(crate::domain::tool::approval::ALLOW, "Make the call"), (DENY, "Do not make it")];

/// Returns whether a call that has not begun may begin now. Asks the human if necessary, and consumes an answer.
pub fn is_allowed(decision: &mut DecisionBuilder<'_>, id: &CallId) -> bool {
    let Some(call) = decision.progress.call(id).cloned() else { return false };
    let Some(question) = decision.progress.question_about(id).cloned() else {
        return match approval_check(decision, &call) {
            ApprovalCheck::NotNeeded => true,
            ApprovalCheck::Given(grant) => {
                decision.change(Change::GrantCall { id: id.clone(), grant });
                true
            }
            ApprovalCheck::Wanted(terms) => {
                ask(decision, Arc::unwrap_or_clone(call), *terms);
                false
            }
        };
    };
    // A human may be answering this question now: an answer to another question does not count for the call.
    let Some(answer) = question.answer else { return false };
    decision.change(Change::CloseInput { id: question.id, state: InputState::Applied });
    if let Some(arguments) = answer.arguments {
        let hash = json::hash(&arguments);
        decision.change(Change::EditCall { id: id.clone(), arguments, hash });
    }
    true
}

/// Returns whether a call needs a question that was not asked yet.
pub fn needs_question(decision: &DecisionBuilder<'_>, id: &CallId) -> bool {
    let call = decision.progress.call(id).filter(|_| decision.progress.question_about(id).is_none());
    call.is_some_and(|call| matches!(approval_check(decision, call), ApprovalCheck::Wanted(_)))
}

/// Stores the outcome of the step's calls that were denied, or whose question expired.
pub fn store_denials(decision: &mut DecisionBuilder<'_>, step: u32) {
    let waiting: Vec<ToolCall> = calls_waiting_for_approval(decision, step).cloned().collect();
    for call in waiting {
        let Some(question) = decision.progress.question_about(&call.id).cloned() else { continue };
        let text = match &question.answer {
            Some(answer) if answer.choice == DENY => prompts::with_words(prompts::CALL_DENIED, answer.text.as_deref()),
            Some(_) if is_bound_to(decision, &question, &call) => continue,
            Some(_) => prompts::APPROVAL_OUTDATED.to_owned(),
            None if question.expires_in_ms == Some(0) => prompts::APPROVAL_EXPIRED.to_owned(),
            None => continue,
        };
        match question.answer {
            Some(_) => decision.change(Change::CloseInput { id: question.id, state: InputState::Applied }),
            None => decision.close_question(&question, InputState::Expired),
        }
        deny(decision, &call.id, ToolCallState::Denied, text);
    }
    if !ends_turn(decision, step) {
        return;
    }
    let not_begun: Vec<CallId> =
        decision.progress.batch(step).filter(|call| call.has_not_begun()).map(|call| call.id.clone()).collect();
    for id in not_begun {
        deny(decision, &id, ToolCallState::Cancelled, prompts::SIBLING_DENIED.to_owned());
    }
}

/// Returns whether a call of the step was denied and the agent's `on_deny` is `end_turn`.
pub fn ends_turn(decision: &DecisionBuilder<'_>, step: u32) -> bool {
    decision.profile().approval.on_deny == OnDeny::EndTurn
        && decision.progress.batch(step).any(|call| call.state == ToolCallState::Denied)
}

pub fn has_answer(decision: &DecisionBuilder<'_>, step: u32) -> bool {
    calls_waiting_for_approval(decision, step)
        .any(|call| decision.progress.question_about(&call.id).is_some_and(|question| question.answer.is_some()))
}

/// Returns whether a human has edited the arguments of a call.
pub fn is_edited(decision: &DecisionBuilder<'_>, call: &ToolCall) -> bool {
    let may_ask = definition(decision, call)
        .is_some_and(|tool| decision.profile().approval.mode(&tool.name, tool.safety) != ApprovalMode::Auto);
    let undo_arguments = || {
        let message = decision.before.history.iter().rev().find(|message| message.id == call.message_id)?;
        message.parts.iter().find_map(|part| match part {
            Part::ToolCall(part) if part.call_id == call.id => {
                Some(repaired_arguments(call, definition(decision, call), &part.arguments))
            }
            _ => None,
        })
    };
    // Only a run that starts from a call of another run begins with a tool step.
    (may_ask || call.step == 1) && undo_arguments().is_some_and(|undo_arguments| *undo_arguments != call.arguments)
}

/// Returns the arguments of a model after JSON repair.
fn repaired_arguments<'a>(call: &ToolCall, tool: Option<&ToolDefinition>, written: &'a Value) -> Cow<'a, Value> {
    let raw = written.get("_raw").and_then(Value::as_str);
    let is_repaired = call.repair.as_ref().is_some_and(|repair| !repair.arguments.is_empty());
    let mut repaired = match raw.filter(|_| is_repaired).and_then(json_repair::repair) {
        Some(repaired) => Cow::Owned(repaired.value),
        None => Cow::Borrowed(written),
    };
    if is_repaired && let Some(tool) = tool {
        arguments::leave_out_nulls(repaired.to_mut(), &tool.parameters);
    }
    repaired
}

fn calls_waiting_for_approval<'d>(decision: &'d DecisionBuilder<'_>, step: u32) -> impl Iterator<Item = &'d ToolCall> {
    decision.progress.batch(step).filter(|call| call.state == ToolCallState::AwaitingApproval)
}

fn definition<'d>(decision: &'d DecisionBuilder<'_>, call: &ToolCall) -> Option<&'d ToolDefinition> {
    decision.before.tools.iter().flatten().find(|tool| tool.name == call.name).map(|tool| &**tool)
}

enum ApprovalCheck {
    NotNeeded,
    Given(GrantId),
    /// A human must be asked about these terms.
    Wanted(Box<ApprovalTerms>),
}

fn approval_check(decision: &DecisionBuilder<'_>, call: &ToolCall) -> ApprovalCheck {
    // The client of the run decides itself about its tools.
    let Some(tool) = definition(decision, call).filter(|tool| !tool.by_client) else { return ApprovalCheck::NotNeeded };
    let scopes = match decision.profile().approval.mode(&tool.name, tool.safety) {
        ApprovalMode::Auto => return ApprovalCheck::NotNeeded,
        ApprovalMode::AlwaysAsk => vec![ApprovalScope::Once],
        ApprovalMode::Ask => {
            let hash = tool.consent_hash();
            let covering = decision.facts.grants.iter().find(|grant| grant.covers(tool.server.as_deref(), &tool.tool, &hash));
            if let Some(grant) = covering {
                return ApprovalCheck::Given(grant.id.clone());
            }
            vec![ApprovalScope::Once, ApprovalScope::Conversation, ApprovalScope::Always]
        }
    };
    ApprovalCheck::Wanted(Box::new(ApprovalTerms {
        server: tool.server.clone(),
        tool: tool.tool.clone(),
        description: tool.description.clone(),
        arguments_hash: call.arguments_hash.clone(),
        definition_hash: tool.definition_hash.clone(),
        // A call is refused if its server has moved since the question.
        consent_hash: tool.destination.is_some().then(|| tool.consent_hash().into_owned()),
        rationale: rationale(decision, call),
        preview: preview::preview(tool.preview.as_deref(), &call.arguments),
        destructive: tool.safety.destructive,
        undoable: has_undo(decision, &tool.name),
        undoes: call.undoes.clone(),
        scopes,
        parameters: tool.parameters.clone(),
        key_argument: match &tool.replay {
            ReplayClass::Keyed { argument } => Some(argument.clone()),
            _ => None,
        },
    }))
}

/// Returns the text of the answer with the call, if a model made the call.
fn rationale(decision: &DecisionBuilder<'_>, call: &ToolCall) -> Option<String> {
    let mut known = decision.progress.history.iter().chain(&decision.before.history);
    let rationale = known.find(|message| message.id == call.message_id && message.model.is_some())?.text();
    let rationale = prefix_chars(rationale.trim(), MAX_RATIONALE_CHARS);
    (!rationale.is_empty()).then(|| rationale.to_owned())
}

/// Returns whether the question is about this call and this version of the tool.
fn is_bound_to(decision: &DecisionBuilder<'_>, question: &InputRequest, call: &ToolCall) -> bool {
    let tool = definition(decision, call);
    question.question.approval.as_ref().is_some_and(|terms| {
        terms.arguments_hash == call.arguments_hash && tool.is_some_and(|tool| tool.definition_hash == terms.definition_hash)
    })
}

fn ask(decision: &mut DecisionBuilder<'_>, call: ToolCall, terms: ApprovalTerms) {
    let question = Question {
        text: prompts::approval_question(&call.name),
        choices: InputChoice::all(&CHOICES),
        tool: Some(call.name),
        arguments: Some(call.arguments),
        approval: Some(Box::new(terms)),
        ..Question::default()
    };
    decision.ask(decision.question(&call.id, InputKind::Approval, question, decision.profile().approval.expires_ms));
    decision.change(Change::RequestApproval(call.id));
}

fn deny(decision: &mut DecisionBuilder<'_>, id: &CallId, state: ToolCallState, text: String) {
    finish_call(decision, id, ToolOutcome { state, ..ToolOutcome::failed(text, 0) });
}
