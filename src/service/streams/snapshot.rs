//! Snapshots: the state of a conversation at one point of its log, for a client without a cursor.

use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use crate::domain::conversation::message::{Message, MessageStatus, Part, ReasoningPart, TextPart, ToolCallPart};
use crate::domain::event::{EventBody, StoredEvent};
use crate::domain::frame_limit::fit;
use crate::domain::ids::{CallId, ConversationId, MessageId, PartId, UserId};
use crate::domain::run::Run;
use crate::domain::run::question::{InputRequest, InputState};
use crate::domain::tool::approval::{Approval, ApprovalState};
use crate::domain::tool::client_tool::ClientCall;
use crate::service::reports::owned_log::PAGE;
use crate::service::{Error, Result};
use crate::store::{BeforeCursor, EarlierPage, ServiceStore, is_full_page};

/// Limit of messages in a snapshot. Earlier ones are in the list of messages.
const MAX_MESSAGES: u32 = 500;

/// Limit of the messages in a snapshot, in bytes of JSON. A message is included completely or not at all.
const MAX_MESSAGE_BYTES: usize = 256 * 1024;

/// Limit of the unfinished message in a snapshot, in bytes of JSON.
const MAX_PARTIAL_BYTES: usize = 96 * 1024;

/// Limit of all approvals and questions in a snapshot, in bytes of JSON.
const MAX_QUESTION_BYTES: usize = 128 * 1024;

/// The state of a conversation at `head`. Events after `head` continue it.
#[derive(Debug, Clone, PartialEq)]
pub struct Snapshot {
    /// The newest complete messages, oldest first, as many as fit.
    pub messages: Vec<Message>,
    /// The cursor of the messages before these; `None` if there are none.
    pub before: Option<BeforeCursor>,
    pub active_run: Option<ActiveRun>,
    pub pending_approvals: Vec<Approval>,
    /// Questions without an answer, oldest first.
    pub pending_inputs: Vec<InputRequest>,
    /// Calls of client tools without a result, oldest first.
    pub pending_calls: Vec<ClientCall>,
    /// The `seq` of the last included event.
    pub head: i64,
}

impl Snapshot {
    /// Renders the data of `stream.snapshot`, with `before` as the text of its cursor. It fits into a frame: a question that is too
    /// large is shortened, and refers to its own resource.
    pub fn data(&self, before: Option<&str>) -> String {
        let mut approvals: Vec<_> = self.pending_approvals.iter().map(json).collect();
        let mut inputs: Vec<_> = self.pending_inputs.iter().map(json).collect();
        let mut calls: Vec<_> = self.pending_calls.iter().map(json).collect();
        if approvals.iter().chain(&inputs).chain(&calls).map(String::len).sum::<usize>() > MAX_QUESTION_BYTES {
            let each = MAX_QUESTION_BYTES / (approvals.len() + inputs.len() + calls.len());
            for entry in &mut calls {
                *entry = fit(std::mem::take(entry), each, || None);
            }
            for (entry, approval) in approvals.iter_mut().zip(&self.pending_approvals) {
                *entry = fit(std::mem::take(entry), each, || Some(format!("/api/v1/approvals/{}", approval.id)));
            }
            for (entry, input) in inputs.iter_mut().zip(&self.pending_inputs) {
                *entry = fit(std::mem::take(entry), each, || Some(format!("/api/v1/input-requests/{}", input.id)));
            }
        }
        format!(
            "{{\"messages\":{},\"truncated\":{},\"before\":{},\"active_run\":{},\"pending_approvals\":[{}],\"pending_inputs\":[{}],\"pending_calls\":[{}],\"head\":{}}}",
            json(&self.messages),
            before.is_some(),
            json(&before),
            json(&self.active_run),
            approvals.join(","),
            inputs.join(","),
            calls.join(","),
            self.head,
        )
    }
}

fn json<T: Serialize>(value: &T) -> String {
    serde_json::to_string(value).unwrap_or_else(|_| "null".to_owned())
}

/// The active run of a conversation.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct ActiveRun {
    /// The run.
    pub run: Run,
    /// The message that the run is writing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub partial_message: Option<Message>,
}

/// Takes a snapshot. The caller must be subscribed to the conversation.
///
/// Rows are read first and may be older than the end of the log. The later events contain complete messages, which are added. So
/// the snapshot is exactly the state at its `head`, however busy the conversation is. If the unfinished message is too large for a
/// frame, `head` is the event before the message begins: the stream then repeats the message from its start.
pub(in crate::service) async fn take_snapshot(
    store: &dyn ServiceStore,
    owner: &UserId,
    conversation: &ConversationId,
    head: i64,
) -> Result<Snapshot> {
    let page = EarlierPage { before: None, limit: MAX_MESSAGES, bytes: MAX_MESSAGE_BYTES };
    let newest = store.earlier_messages(owner, conversation, page).await?;
    let newest = newest.ok_or(Error::NotFound("conversation"))?;
    let active = store.active_run(owner, conversation).await?;
    let since = match &active {
        Some(run) => store.run(owner, &run.id).await?.map_or(head, |view| view.first_seq - 1),
        None => head,
    };
    let messages = newest.items.into_iter().map(|(position, message)| (Some(position), message)).collect();
    let mut fold = SnapshotBuilder { messages, ..SnapshotBuilder::default() };
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
    let active = if fold.has_changed_runs { store.active_run(owner, conversation).await? } else { active };
    let mut cursor = cursor.max(head);
    if fold.partial.as_ref().is_some_and(|partial| json(partial).len() > MAX_PARTIAL_BYTES) {
        cursor = fold.back_to_beginning();
    }
    let (messages, before) = newest_that_fit(fold.messages, newest.earlier);
    let active_run = active.map(|run| {
        let partial_message = fold.partial.filter(|message| message.run_id == run.id);
        ActiveRun { run, partial_message }
    });
    let SnapshotBuilder { approvals: pending_approvals, questions: pending_inputs, calls: pending_calls, .. } = fold;
    Ok(Snapshot { messages, before, active_run, pending_approvals, pending_inputs, pending_calls, head: cursor })
}

/// A message with its position, which is unknown if the message comes from an event.
type MessageWithCursor = (Option<BeforeCursor>, Message);

/// Returns the newest messages that fit into a snapshot, and the cursor of the messages before them. `has_earlier`: messages before
/// all of these exist.
fn newest_that_fit(messages: Vec<MessageWithCursor>, has_earlier: bool) -> (Vec<Message>, Option<BeforeCursor>) {
    // The brackets of the array.
    let mut bytes = 2;
    let fitting = messages.iter().rev().take(MAX_MESSAGES as usize).take_while(|(_, message)| {
        // Includes the comma after it.
        bytes += json(message).len() + 1;
        bytes <= MAX_MESSAGE_BYTES
    });
    let left_out = messages.len() - fitting.count();
    let before = (has_earlier || left_out > 0).then(|| {
        let first = messages.get(left_out).and_then(|(position, _)| *position);
        let after_left_out = || {
            let (Some(BeforeCursor(position)), _) = messages.get(left_out.checked_sub(1)?)? else { return None };
            Some(BeforeCursor(position.saturating_add(1)))
        };
        // Without a known position, the client reads from the newest message: some messages may be repeated, but none is missing.
        first.or_else(after_left_out).unwrap_or(BeforeCursor(i64::MAX))
    });
    (messages.into_iter().skip(left_out).map(|(_, message)| message).collect(), before)
}

#[derive(Default)]
struct SnapshotBuilder {
    messages: Vec<MessageWithCursor>,
    partial: Option<Message>,
    questions: Vec<InputRequest>,
    approvals: Vec<Approval>,
    calls: Vec<ClientCall>,
    before_message: StateBeforeMessage,
    has_changed_runs: bool,
}

/// The state at the event before the unfinished message began.
#[derive(Default)]
struct StateBeforeMessage {
    seq: i64,
    questions: Vec<InputRequest>,
    approvals: Vec<Approval>,
    calls: Vec<ClientCall>,
    /// The messages that were stored since.
    later: Vec<MessageId>,
}

impl SnapshotBuilder {
    /// Reverts all events since the unfinished message began. Returns the `seq` of the last event that still counts.
    fn back_to_beginning(&mut self) -> i64 {
        let StateBeforeMessage { seq, questions, approvals, calls, later } = std::mem::take(&mut self.before_message);
        self.messages.retain(|(_, message)| !later.contains(&message.id));
        (self.partial, self.questions, self.approvals, self.calls) = (None, questions, approvals, calls);
        seq
    }

    /// Applies one event. `may_postdate_rows`: the rows may have been read before it.
    fn event(&mut self, conversation: &ConversationId, event: &StoredEvent, may_postdate_rows: bool) {
        if may_postdate_rows && event.kind.starts_with("run.") {
            self.has_changed_runs = true;
        }
        if event.ends_run() {
            self.partial = None;
        }
        let Some(body) = event.body() else { return };
        match body {
            EventBody::MessageCreated { message } | EventBody::MessageCompleted { message } => {
                if self.partial.as_ref().is_some_and(|partial| partial.id == message.id) {
                    self.partial = None;
                }
                self.before_message.later.push(message.id.clone());
                if may_postdate_rows {
                    self.put(message);
                }
            }
            EventBody::StepStarted { .. } | EventBody::StepReset { .. } => self.partial = None,
            EventBody::MessageStarted { message_id, role } => {
                let (questions, approvals, calls) = (self.questions.clone(), self.approvals.clone(), self.calls.clone());
                self.before_message = StateBeforeMessage { seq: event.seq - 1, questions, approvals, calls, later: Vec::new() };
                self.partial = event.run_id.clone().map(|run_id| Message {
                    status: MessageStatus::Partial,
                    created_at: event.at.to_rfc3339(),
                    ..Message::new(message_id, (run_id, conversation.clone()), role, Vec::new())
                });
            }
            EventBody::PartStarted { message_id, part_id, kind, call_id, name, .. } => {
                self.part_started(&message_id, part_id, &kind, call_id, name);
            }
            EventBody::PartDelta { part_id, delta } => self.delta(&part_id, &delta),
            EventBody::PartCompleted { message_id, part } => self.part_completed(&message_id, part),
            EventBody::InputRequested { id, kind, call_id, question } => {
                let Some(run_id) = event.run_id.clone() else { return };
                self.questions.push(InputRequest {
                    id,
                    conversation_id: conversation.clone(),
                    run_id,
                    call_id,
                    kind,
                    question,
                    state: InputState::Pending,
                    answer: None,
                    expires_in_ms: None,
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
            EventBody::ToolRequested { call } => self.calls.push(call),
            EventBody::ToolCompleted { call_id, .. } | EventBody::ToolOutcomeUnknown { call_id, .. } => {
                self.calls.retain(|call| call.call_id != call_id);
            }
            EventBody::InputResolved { id, .. } => self.questions.retain(|request| request.id != id),
            EventBody::RunQueued { supersedes, .. } | EventBody::ConversationUpdated { supersedes, .. } => {
                self.messages.retain(|(_, message)| !supersedes.contains(&message.id));
            }
            _ => {}
        }
    }

    fn put(&mut self, message: Message) {
        match self.messages.iter_mut().find(|(_, known)| known.id == message.id) {
            Some((_, known)) => *known = message,
            None => self.messages.push((None, message)),
        }
    }

    fn part_started(&mut self, message_id: &MessageId, id: PartId, kind: &str, call_id: Option<CallId>, name: Option<String>) {
        let Some(message) = self.partial.as_mut().filter(|message| message.id == *message_id) else { return };
        let part = match (kind, call_id) {
            ("text", _) => Part::Text(TextPart { id, text: String::new() }),
            ("reasoning", _) => Part::Reasoning(ReasoningPart { id, text: String::new(), raw: None }),
            ("tool_call", Some(call_id)) => {
                let arguments = serde_json::json!({ "_raw": "" });
                Part::ToolCall(ToolCallPart::new(id, call_id, name.unwrap_or_default(), arguments))
            }
            // A part of an unknown kind appears when it is complete.
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
            Part::ToolResult(_) | Part::Image(_) | Part::File(_) | Part::Source(_) => {}
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
