//! Snapshots: the state of a conversation at one point of its log, for a client that has none of it.

use serde::Serialize;
use serde_json::Value;

use crate::domain::conversation::message::{Message, MessageStatus, Part, ReasoningPart, TextPart, ToolCallPart};
use crate::domain::event::{EventBody, StoredEvent};
use crate::domain::frame::fit;
use crate::domain::ids::{CallId, ConversationId, MessageId, PartId, UserId};
use crate::domain::run::Run;
use crate::domain::run::input::{InputRequest, InputState};
use crate::domain::tool::approval::{Approval, ApprovalState};
use crate::service::reports::owned_log::PAGE;
use crate::service::{Error, Result};
use crate::store::{BeforeCursor, EarlierPage, ServiceStore, is_full_page};

/// Messages in a snapshot; earlier ones are read from the list of messages.
const MAX_MESSAGES: u32 = 500;

/// Bytes of the messages in a snapshot, as JSON. Each message is in it whole, or not at all.
const MAX_MESSAGE_BYTES: usize = 256 * 1024;

/// Bytes of the unfinished message in a snapshot, as JSON.
const MAX_PARTIAL_BYTES: usize = 96 * 1024;

/// Bytes of the approvals and questions in a snapshot together, as JSON.
const MAX_QUESTION_BYTES: usize = 128 * 1024;

/// The state of a conversation as of `head`. Events after `head` continue it.
#[derive(Debug, Clone, PartialEq)]
pub struct Snapshot {
    /// The newest messages that are complete, oldest first, as many as fit.
    pub messages: Vec<Message>,
    /// The cursor of the messages before these; `None` if there are none.
    pub before: Option<BeforeCursor>,
    pub active_run: Option<ActiveRun>,
    pub pending_approvals: Vec<Approval>,
    /// Questions without an answer, oldest first.
    pub pending_inputs: Vec<InputRequest>,
    /// The `seq` of the last event in it.
    pub head: i64,
}

impl Snapshot {
    /// Renders the data of `stream.snapshot`, with `before` as the text of its cursor. It fits into a frame: an approval or question that is
    /// too large is shortened, and names its own resource.
    pub fn data(&self, before: Option<&str>) -> String {
        let mut approvals: Vec<_> = self.pending_approvals.iter().map(json).collect();
        let mut inputs: Vec<_> = self.pending_inputs.iter().map(json).collect();
        if approvals.iter().chain(&inputs).map(String::len).sum::<usize>() > MAX_QUESTION_BYTES {
            let each = MAX_QUESTION_BYTES / (approvals.len() + inputs.len());
            for (shown, approval) in approvals.iter_mut().zip(&self.pending_approvals) {
                *shown = fit(std::mem::take(shown), each, || Some(format!("/api/v1/approvals/{}", approval.id)));
            }
            for (shown, input) in inputs.iter_mut().zip(&self.pending_inputs) {
                *shown = fit(std::mem::take(shown), each, || Some(format!("/api/v1/input-requests/{}", input.id)));
            }
        }
        format!(
            "{{\"messages\":{},\"truncated\":{},\"before\":{},\"active_run\":{},\"pending_approvals\":[{}],\"pending_inputs\":[{}],\"head\":{}}}",
            json(&self.messages),
            before.is_some(),
            json(&before),
            json(&self.active_run),
            approvals.join(","),
            inputs.join(","),
            self.head,
        )
    }
}

fn json<T: Serialize>(value: &T) -> String {
    serde_json::to_string(value).unwrap_or_else(|_| "null".to_owned())
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ActiveRun {
    pub run: Run,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub partial_message: Option<Message>,
}

/// Takes a snapshot. The caller must be subscribed to the conversation.
///
/// Rows are read first and may be older than the end of the log when that is reached; the events in between hold whole messages, which are
/// put in. So the snapshot is exactly the state at its `head`, however busy the conversation is. Where the unfinished message is too large
/// for a frame, that `head` is the event before the message begins: the stream then repeats the message from its start.
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
    let messages = newest.items.into_iter().map(|(place, message)| (Some(place), message)).collect();
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
    let active = if fold.runs_changed { store.active_run(owner, conversation).await? } else { active };
    let mut cursor = cursor.max(head);
    if fold.partial.as_ref().is_some_and(|partial| json(partial).len() > MAX_PARTIAL_BYTES) {
        cursor = fold.back_to_beginning();
    }
    let (messages, before) = newest_that_fit(fold.messages, newest.earlier);
    let active_run = active.map(|run| {
        let partial_message = fold.partial.filter(|message| message.run_id == run.id);
        ActiveRun { run, partial_message }
    });
    Ok(Snapshot { messages, before, active_run, pending_approvals: fold.approvals, pending_inputs: fold.asked, head: cursor })
}

/// A message with its place, which is unknown if the message comes from an event.
type Placed = (Option<BeforeCursor>, Message);

/// Keeps the newest messages that fit into a snapshot, and returns the place of the messages before them. `earlier` says that there are
/// messages before all of these.
fn newest_that_fit(messages: Vec<Placed>, earlier: bool) -> (Vec<Message>, Option<BeforeCursor>) {
    // The brackets of the list.
    let mut bytes = 2;
    let fitting = messages.iter().rev().take(MAX_MESSAGES as usize).take_while(|(_, message)| {
        // With the comma after it.
        bytes += json(message).len() + 1;
        bytes <= MAX_MESSAGE_BYTES
    });
    let left_out = messages.len() - fitting.count();
    let before = (earlier || left_out > 0).then(|| {
        let first = messages.get(left_out).and_then(|(place, _)| *place);
        let after_left_out = || {
            let (Some(BeforeCursor(place)), _) = messages.get(left_out.checked_sub(1)?)? else { return None };
            Some(BeforeCursor(place.saturating_add(1)))
        };
        // Without a known place, from the newest on: messages may come twice, and none is missing.
        first.or_else(after_left_out).unwrap_or(BeforeCursor(i64::MAX))
    });
    (messages.into_iter().skip(left_out).map(|(_, message)| message).collect(), before)
}

#[derive(Default)]
struct SnapshotBuilder {
    messages: Vec<Placed>,
    partial: Option<Message>,
    asked: Vec<InputRequest>,
    approvals: Vec<Approval>,
    begun: Beginning,
    runs_changed: bool,
}

/// The state at the event before the unfinished message began.
#[derive(Default)]
struct Beginning {
    seq: i64,
    asked: Vec<InputRequest>,
    approvals: Vec<Approval>,
    /// The messages that were stored since.
    later: Vec<MessageId>,
}

impl SnapshotBuilder {
    /// Undoes all events since the unfinished message began. Returns the `seq` of the last one that still counts.
    fn back_to_beginning(&mut self) -> i64 {
        let Beginning { seq, asked, approvals, later } = std::mem::take(&mut self.begun);
        self.messages.retain(|(_, message)| !later.contains(&message.id));
        (self.partial, self.asked, self.approvals) = (None, asked, approvals);
        seq
    }

    /// Applies one event. `late`: the rows may have been read before it.
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
                self.begun.later.push(message.id.clone());
                if late {
                    self.put(message);
                }
            }
            EventBody::StepStarted { .. } | EventBody::StepReset { .. } => self.partial = None,
            EventBody::MessageStarted { message_id, role } => {
                let (asked, approvals) = (self.asked.clone(), self.approvals.clone());
                self.begun = Beginning { seq: event.seq - 1, asked, approvals, later: Vec::new() };
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
                self.asked.push(InputRequest {
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
            EventBody::InputResolved { id, .. } => self.asked.retain(|request| request.id != id),
            EventBody::RunQueued { supersedes, .. } | EventBody::ConversationUpdated { supersedes, .. } => {
                self.messages.retain(|(_, message)| !supersedes.contains(&message.id));
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

/// Reads the body of an event; `None` for types that this version does not know.
fn parse(event: &StoredEvent) -> Option<EventBody> {
    let data: &serde_json::value::RawValue = serde_json::from_str(&event.data).ok()?;
    serde_json::from_str(&format!("{{\"type\":\"{}\",\"data\":{}}}", event.kind, data)).ok()
}
