//! What a conversation amounts to at one point of its log, for a client that has seen nothing of it.

use std::collections::VecDeque;

use serde::Serialize;
use serde_json::Value;

use super::stream::PAGE;
use super::{Error, Result};
use crate::domain::approval::{Approval, ApprovalState};
use crate::domain::event::{EventBody, StoredEvent};
use crate::domain::ids::{CallId, ConversationId, MessageId, PartId, UserId};
use crate::domain::input::{InputRequest, InputState};
use crate::domain::message::{Message, MessageStatus, Part, ReasoningPart, TextPart, ToolCallPart};
use crate::domain::run::Run;
use crate::store::{Store, is_full_page};

/// Messages in a snapshot; earlier ones are read from the list of messages.
const MAX_MESSAGES: u32 = 500;

/// A conversation as of `head`. Events after `head` continue it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Snapshot {
    /// The newest messages that are whole, oldest first.
    pub messages: Vec<Message>,
    /// Whether there are earlier messages than these.
    pub truncated: bool,
    /// The run under way.
    pub active_run: Option<ActiveRun>,
    /// Tool calls that wait for a human's consent.
    pub pending_approvals: Vec<Approval>,
    /// Questions to a human that have no answer yet, oldest first.
    pub pending_inputs: Vec<InputRequest>,
    /// The `seq` of the last event that is counted in.
    pub head: i64,
}

/// A run under way, with what it has shown of an unfinished message.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ActiveRun {
    /// The run.
    pub run: Run,
    /// The message that is being written, with its parts so far.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub partial_message: Option<Message>,
}

/// Takes a snapshot. The caller listens to the conversation already.
///
/// Rows are read first and may be older than the end of the log when that is reached; the events in between hold whole
/// messages, which are put in. So the snapshot is exactly the state at `head`, however busy the conversation is.
pub(super) async fn take_snapshot(store: &dyn Store, owner: &UserId, conversation: &ConversationId, head: i64) -> Result<Snapshot> {
    let newest = store.newest_messages(owner, conversation, MAX_MESSAGES).await?;
    let newest = newest.ok_or(Error::NotFound("conversation"))?;
    let active = store.active_run(owner, conversation).await?;
    let since = match &active {
        Some(run) => store.run(owner, &run.id).await?.map_or(head, |view| view.first_seq - 1),
        None => head,
    };
    let mut fold = Fold {
        messages: newest.items.into(),
        truncated: newest.earlier,
        partial: None,
        asked: Vec::new(),
        approvals: Vec::new(),
        runs_changed: false,
    };
    let mut cursor = since.min(head);
    loop {
        let page = store.events(owner, conversation, cursor, PAGE).await?;
        let Some(last) = page.last() else { break };
        let full = is_full_page(&page, PAGE);
        cursor = last.seq;
        for event in &page {
            fold.event(conversation, event, event.seq > head);
        }
        if !full {
            break;
        }
    }
    let active = if fold.runs_changed { store.active_run(owner, conversation).await? } else { active };
    let Fold { messages, truncated, partial, asked, approvals, .. } = fold;
    let active_run = active.map(|run| {
        let partial_message = partial.filter(|message| message.run_id == run.id);
        ActiveRun { run, partial_message }
    });
    Ok(Snapshot {
        messages: messages.into(),
        truncated,
        active_run,
        pending_approvals: approvals,
        pending_inputs: asked,
        head: cursor.max(head),
    })
}

struct Fold {
    messages: VecDeque<Message>,
    truncated: bool,
    partial: Option<Message>,
    asked: Vec<InputRequest>,
    approvals: Vec<Approval>,
    runs_changed: bool,
}

impl Fold {
    /// Takes one event in. `late`: the rows may not have had it yet when they were read.
    fn event(&mut self, conversation: &ConversationId, event: &StoredEvent, late: bool) {
        if late && event.kind.starts_with("run.") {
            self.runs_changed = true;
        }
        if event.ends_run() {
            self.partial = None;
        }
        let Some(body) = parse(event) else { return };
        match body {
            EventBody::MessageCreated { message } | EventBody::MessageCompleted { message } => {
                if self.partial.as_ref().is_some_and(|partial| partial.id == message.id) {
                    self.partial = None;
                }
                if late {
                    self.put(message);
                }
            }
            EventBody::StepStarted { .. } | EventBody::StepReset { .. } => self.partial = None,
            EventBody::MessageStarted { message_id, role } => {
                self.partial = event.run_id.clone().map(|run_id| Message {
                    id: message_id,
                    conversation_id: conversation.clone(),
                    run_id,
                    role,
                    status: MessageStatus::Partial,
                    parts: Vec::new(),
                    finish_reason: None,
                    model: None,
                    usage: None,
                    internal: false,
                    feedback: None,
                    created_at: event.at.to_rfc3339(),
                });
            }
            EventBody::PartStarted { message_id, part_id, kind, call_id, name, .. } => {
                self.part_started(&message_id, part_id, &kind, call_id, name);
            }
            EventBody::PartDelta { part_id, delta } => self.delta(&part_id, &delta),
            EventBody::PartCompleted { message_id, part } => self.part_completed(&message_id, part),
            EventBody::InputRequested { id, kind, call_id, question } => {
                let Some(run_id) = event.run_id.clone() else { return };
                let conversation_id = conversation.clone();
                let state = InputState::Pending;
                let (answer, expires_in_ms) = (None, None);
                self.asked.push(InputRequest {
                    id,
                    conversation_id,
                    run_id,
                    call_id,
                    kind,
                    question,
                    state,
                    answer,
                    expires_in_ms,
                });
            }
            EventBody::ApprovalRequested { id, call_id, request } => {
                let Some(run_id) = event.run_id.clone() else { return };
                self.approvals.push(Approval {
                    id,
                    conversation_id: conversation.clone(),
                    run_id,
                    call_id,
                    request: *request,
                    status: ApprovalState::Pending,
                    scope: None,
                    edited_arguments: None,
                    reason: None,
                    resolved_by: None,
                    created_at: event.at.to_rfc3339(),
                    resolved_at: None,
                    expires_at: None,
                });
            }
            EventBody::ApprovalResolved { id, .. } => self.approvals.retain(|approval| approval.id != id),
            EventBody::InputResolved { id, .. } => self.asked.retain(|request| request.id != id),
            EventBody::RunQueued { supersedes, .. } | EventBody::ConversationUpdated { supersedes, .. } => {
                self.messages.retain(|message| !supersedes.contains(&message.id));
            }
            EventBody::RunStarted { .. }
            | EventBody::RunResumed { .. }
            | EventBody::RunRetrying { .. }
            | EventBody::ContextBudget { .. }
            | EventBody::ContextCompacted { .. }
            | EventBody::ToolQuarantined { .. }
            | EventBody::ModelAdapted { .. }
            | EventBody::RunWaiting { .. }
            | EventBody::RunCompleted { .. }
            | EventBody::RunFailed { .. }
            | EventBody::RunCancelled { .. }
            | EventBody::StepCompleted { .. }
            | EventBody::ToolStarted { .. }
            | EventBody::ToolProgress { .. }
            | EventBody::ToolCompleted { .. }
            | EventBody::ToolOutcomeUnknown { .. }
            | EventBody::PlanCreated { .. }
            | EventBody::PlanStepStarted { .. }
            | EventBody::PlanStepCompleted { .. } => {}
        }
    }

    fn put(&mut self, message: Message) {
        if let Some(known) = self.messages.iter_mut().find(|known| known.id == message.id) {
            *known = message;
            return;
        }
        self.messages.push_back(message);
        if self.messages.len() > MAX_MESSAGES as usize {
            self.messages.pop_front();
            self.truncated = true;
        }
    }

    fn part_started(&mut self, message_id: &MessageId, id: PartId, kind: &str, call_id: Option<CallId>, name: Option<String>) {
        let Some(message) = self.partial.as_mut().filter(|message| message.id == *message_id) else { return };
        let part = match (kind, call_id) {
            ("text", _) => Part::Text(TextPart { id, text: String::new() }),
            ("reasoning", _) => Part::Reasoning(ReasoningPart { id, text: String::new(), raw: None }),
            ("tool_call", Some(call_id)) => {
                let arguments = serde_json::json!({ "_raw": "" });
                Part::ToolCall(ToolCallPart {
                    id,
                    call_id,
                    name: name.unwrap_or_default(),
                    arguments,
                    provider_call_id: None,
                    raw: None,
                    undoes: None,
                })
            }
            // A kind that this version does not know is shown when it is complete.
            _ => return,
        };
        message.parts.push(part);
    }

    fn delta(&mut self, part_id: &PartId, delta: &str) {
        let Some(message) = &mut self.partial else { return };
        let Some(part) = message.parts.iter_mut().find(|part| part.id() == part_id) else { return };
        match part {
            Part::Text(part) => part.text.push_str(delta),
            Part::Reasoning(part) => part.text.push_str(delta),
            Part::ToolCall(part) => {
                if let Some(Value::String(raw)) = part.arguments.get_mut("_raw") {
                    raw.push_str(delta);
                }
            }
            Part::ToolResult(_) | Part::Image(_) | Part::File(_) => {}
        }
    }

    fn part_completed(&mut self, message_id: &MessageId, part: Part) {
        let Some(message) = self.partial.as_mut().filter(|message| message.id == *message_id) else { return };
        match message.parts.iter_mut().find(|known| known.id() == part.id()) {
            Some(known) => *known = part,
            None => message.parts.push(part),
        }
    }
}

/// The event's body; `None` for types that this version does not know.
fn parse(event: &StoredEvent) -> Option<EventBody> {
    let data: &serde_json::value::RawValue = serde_json::from_str(&event.data).ok()?;
    serde_json::from_str(&format!("{{\"type\":\"{}\",\"data\":{}}}", event.kind, data)).ok()
}
