//! Calls that a human has to allow first: when somebody is asked, and what follows from the answer.
//!
//! A call that waits is `awaiting_approval` and has its question in the record. An answer is acted on in the write that starts
//! the call or gives it its outcome, so that it is used once, whatever crashes.

use std::borrow::Cow;
use std::sync::Arc;

use serde_json::Value;

use super::draft::Draft;
use super::{lenient, texts};
use crate::domain::approval::{ApprovalMode, ApprovalScope, ApprovalTerms, DENY, OnDeny};
use crate::domain::change::Change;
use crate::domain::ids::{CallId, GrantId};
use crate::domain::input::{InputChoice, InputKind, InputRequest, InputState, Question};
use crate::domain::message::Part;
use crate::domain::preview;
use crate::domain::tool::{ReplayClass, ToolCall, ToolCallState, ToolDefinition, ToolOutcome};
use crate::support::json;
use crate::support::text::prefix_chars;

/// The most characters of what a model says that stand beside its call.
const MAX_RATIONALE_CHARS: usize = 1_000;

/// The answers that a human can give, and what they mean.
const CHOICES: [(&str, &str); 2] = [(crate::domain::approval::ALLOW, "Make the call"), (DENY, "Do not make it")];

/// Whether a call that has not begun may begin now. Asks if somebody must be asked; an answer that is there is used up.
pub(super) fn is_given(draft: &mut Draft<'_>, id: &CallId) -> bool {
    let Some(call) = draft.work.record.call(id).cloned() else { return false };
    let Some(question) = draft.work.question_about(id).cloned() else {
        return match consent(draft, &call) {
            Consent::NotNeeded => true,
            Consent::Given(grant) => {
                draft.change(Change::ToolGranted { id: id.clone(), grant });
                true
            }
            Consent::Wanted(terms) => {
                ask(draft, Arc::unwrap_or_clone(call), *terms);
                false
            }
        };
    };
    // Whoever is asked about this call may be answering at this moment: no answer to another one counts for it.
    let Some(answer) = question.answer else { return false };
    draft.change(Change::InputClosed { id: question.id, state: InputState::Applied });
    if let Some(arguments) = answer.arguments {
        let hash = json::hash(&arguments);
        draft.change(Change::ToolEdited { id: id.clone(), arguments, hash });
    }
    true
}

/// Whether somebody must be asked before a call, and was not yet.
pub(super) fn is_to_be_asked(draft: &Draft<'_>, id: &CallId) -> bool {
    let call = draft.work.record.call(id).filter(|_| draft.work.question_about(id).is_none());
    call.is_some_and(|call| matches!(consent(draft, call), Consent::Wanted(_)))
}

/// Gives the calls of a step their outcome that were denied, or that nobody allowed in time.
pub(super) fn take_denials(draft: &mut Draft<'_>, step: u32) {
    let waiting: Vec<ToolCall> = waiting(draft, step).cloned().collect();
    for call in waiting {
        let Some(question) = draft.work.question_about(&call.id).cloned() else { continue };
        let text = match &question.answer {
            Some(answer) if answer.choice == DENY => texts::with_words(texts::NOT_ALLOWED, answer.text.as_deref()),
            Some(_) if is_bound_to(draft, &question, &call) => continue,
            Some(_) => texts::ALLOWED_OTHERWISE.to_owned(),
            None if question.expires_in_ms == Some(0) => texts::NOBODY_ALLOWED.to_owned(),
            None => continue,
        };
        match question.answer {
            Some(_) => draft.change(Change::InputClosed { id: question.id, state: InputState::Applied }),
            None => draft.close_question(&question, InputState::Expired),
        }
        deny(draft, &call.id, ToolCallState::Denied, text);
    }
    if !ends_turn(draft, step) {
        return;
    }
    let left: Vec<CallId> = draft.work.batch(step).filter(|call| call.has_not_begun()).map(|call| call.id.clone()).collect();
    for id in left {
        deny(draft, &id, ToolCallState::Cancelled, texts::DENIED_BESIDE.to_owned());
    }
}

/// Whether a call of the step was denied and the agent's turn ends with that.
pub(super) fn ends_turn(draft: &Draft<'_>, step: u32) -> bool {
    draft.profile().approval.on_deny == OnDeny::EndTurn && draft.work.batch(step).any(|call| call.state == ToolCallState::Denied)
}

/// Whether an answer waits to be acted on.
pub(super) fn has_answer(draft: &Draft<'_>, step: u32) -> bool {
    waiting(draft, step).any(|call| draft.work.question_about(&call.id).is_some_and(|question| question.answer.is_some()))
}

/// Whether a human has changed what a call is made with.
pub(super) fn is_edited(draft: &Draft<'_>, call: &ToolCall) -> bool {
    let may_ask =
        definition(draft, call).is_some_and(|tool| draft.profile().approval.mode(&tool.name, tool.safety) != ApprovalMode::Auto);
    let wanted = || {
        let message = draft.base.record.history.iter().rev().find(|message| message.id == call.message_id)?;
        message.parts.iter().find_map(|part| match part {
            Part::ToolCall(part) if part.call_id == call.id => Some(as_mended(call, &part.arguments)),
            _ => None,
        })
    };
    // No other run begins with a step of tools.
    (may_ask || call.step == 1) && wanted().is_some_and(|wanted| *wanted != call.arguments)
}

/// The arguments that a model wrote, as they were judged.
fn as_mended<'a>(call: &ToolCall, written: &'a Value) -> Cow<'a, Value> {
    let raw = written.get("_raw").and_then(Value::as_str);
    let is_mended = call.repair.as_ref().is_some_and(|repair| !repair.arguments.is_empty());
    match raw.filter(|_| is_mended).and_then(lenient::mend) {
        Some(mended) => Cow::Owned(mended.value),
        None => Cow::Borrowed(written),
    }
}

fn waiting<'d>(draft: &'d Draft<'_>, step: u32) -> impl Iterator<Item = &'d ToolCall> {
    draft.work.batch(step).filter(|call| call.state == ToolCallState::AwaitingApproval)
}

fn definition<'d>(draft: &'d Draft<'_>, call: &ToolCall) -> Option<&'d ToolDefinition> {
    draft.base.record.tools.iter().flatten().find(|tool| tool.name == call.name).map(|tool| &**tool)
}

/// Whether a human is asked before a call.
enum Consent {
    /// Nobody has to be.
    NotNeeded,
    /// An earlier answer holds for it.
    Given(GrantId),
    /// Somebody has to be, and this is what.
    Wanted(Box<ApprovalTerms>),
}

fn consent(draft: &Draft<'_>, call: &ToolCall) -> Consent {
    let Some(tool) = definition(draft, call) else { return Consent::NotNeeded };
    let scopes = match draft.profile().approval.mode(&tool.name, tool.safety) {
        ApprovalMode::Auto => return Consent::NotNeeded,
        ApprovalMode::AlwaysAsk => vec![ApprovalScope::Once],
        ApprovalMode::Ask if tool.safety.destructive => vec![ApprovalScope::Once],
        ApprovalMode::Ask => {
            let hash = tool.consent_hash();
            let given = draft.base.grants().iter().find(|grant| grant.covers(tool.server.as_deref(), &tool.tool, &hash));
            if let Some(grant) = given {
                return Consent::Given(grant.id.clone());
            }
            vec![ApprovalScope::Once, ApprovalScope::Conversation, ApprovalScope::Always]
        }
    };
    Consent::Wanted(Box::new(ApprovalTerms {
        server: tool.server.clone(),
        tool: tool.tool.clone(),
        description: tool.description.clone(),
        arguments_hash: call.arguments_hash.clone(),
        definition_hash: tool.definition_hash.clone(),
        // The call itself is refused where it leads elsewhere by then.
        consent_hash: tool.destination.is_some().then(|| tool.consent_hash().into_owned()),
        rationale: rationale(draft, call),
        preview: preview::preview(tool.preview.as_deref(), &call.arguments),
        destructive: tool.safety.destructive,
        undoable: draft.has_undo(&tool.name),
        undoes: call.undoes.clone(),
        scopes,
        parameters: tool.parameters.clone(),
        key_argument: match &tool.replay {
            ReplayClass::Keyed { argument } => Some(argument.clone()),
            _ => None,
        },
    }))
}

/// What the model said in the answer that makes the call. Of a call that no model has made there is none.
fn rationale(draft: &Draft<'_>, call: &ToolCall) -> Option<String> {
    let mut known = draft.work.record.history.iter().chain(&draft.base.record.history);
    let said = known.find(|message| message.id == call.message_id && message.model.is_some())?.text();
    let said = prefix_chars(said.trim(), MAX_RATIONALE_CHARS);
    (!said.is_empty()).then(|| said.to_owned())
}

/// Whether the question was about this call as it stands, of the tool as it is.
fn is_bound_to(draft: &Draft<'_>, question: &InputRequest, call: &ToolCall) -> bool {
    let tool = definition(draft, call);
    question.question.approval.as_ref().is_some_and(|terms| {
        terms.arguments_hash == call.arguments_hash && tool.is_some_and(|tool| tool.definition_hash == terms.definition_hash)
    })
}

fn ask(draft: &mut Draft<'_>, call: ToolCall, terms: ApprovalTerms) {
    let fence = &draft.base.record.fence;
    let request = InputRequest {
        id: draft.input_id(),
        conversation_id: fence.conversation_id.clone(),
        run_id: fence.run_id.clone(),
        call_id: Some(call.id.clone()),
        kind: InputKind::Approval,
        question: Question {
            text: texts::may_it_run(&call.name),
            choices: CHOICES.map(|(value, label)| InputChoice { value: value.to_owned(), label: label.to_owned() }).into(),
            tool: Some(call.name),
            arguments: Some(call.arguments),
            form: None,
            elicitation: None,
            approval: Some(Box::new(terms)),
        },
        state: InputState::Pending,
        answer: None,
        expires_in_ms: Some(draft.profile().approval.expires_ms).filter(|limit| *limit > 0),
    };
    draft.ask(request);
    draft.change(Change::ToolAsked(call.id));
}

fn deny(draft: &mut Draft<'_>, id: &CallId, state: ToolCallState, text: String) {
    draft.finish_call(id, ToolOutcome { state, ..ToolOutcome::failed(text, 0) });
}
