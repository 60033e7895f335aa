//! Translates the events of a run into chunks of the UI message stream.
//!
//! The chunks are those that all releases of the AI SDK accept. A newer chunk is sent only if its version was requested.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::assistant_message_id::AssistantMessageId;
use crate::domain::conversation::message::{Message, Part, Role, ToolContent};
use crate::domain::event::{EventBody, StoredEvent};
use crate::domain::ids::{CallId, InputId, MessageId, PartId};
use crate::domain::run::question::InputState;
use crate::domain::run::{FinishReason, WaitReason};
use crate::domain::tool::approval::ApprovalState;
use crate::domain::tool::{ToolCallState, UNKNOWN_OUTCOME};
use crate::http::clients::pauses::Section;
use crate::http::clients::plan::PlanView;
use crate::http::clients::stream::ChunkTranslator;

/// The release of the AI SDK that a client says it uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Version {
    /// Without approvals.
    Five,
    Six,
    Seven,
}

/// The facts about a run that its events do not contain.
#[derive(Debug, Clone)]
pub(super) struct ChatRunFacts {
    pub id: AssistantMessageId,
    pub version: Version,
    pub section: Section,
    /// The names of the tools that the client executes.
    pub client_tools: BTreeSet<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TextKind {
    Text,
    Reasoning,
}

impl TextKind {
    fn chunk(self, what: &str) -> String {
        match self {
            Self::Text => format!("text-{what}"),
            Self::Reasoning => format!("reasoning-{what}"),
        }
    }
}

#[derive(Debug)]
enum OpenPart {
    Text { kind: TextKind, sent: usize },
    Call(CallId),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CallStage {
    Streaming,
    Available,
    Over,
}

#[derive(Debug)]
struct Call {
    name: String,
    arguments: Value,
    stage: CallStage,
    /// Whether an approval of the call was requested.
    asked: bool,
}

#[derive(Debug)]
struct OpenQuestion {
    call: CallId,
    is_approval: bool,
}

pub(super) struct UiMessageTranslator {
    facts: ChatRunFacts,
    /// Chunks of the current event.
    out: Vec<Value>,
    /// Whether the events have come to this message.
    is_reached: bool,
    /// Whether chunks of the current event are sent.
    sends: bool,
    started: bool,
    over: bool,
    step_open: bool,
    /// Whether the open step was emptied, so that the next model call continues it.
    step_empty: bool,
    /// The number of the current model step; `None` during tool calls.
    model_step: Option<u32>,
    parts: BTreeMap<PartId, OpenPart>,
    shown: BTreeSet<PartId>,
    calls: BTreeMap<CallId, Call>,
    step_calls: Vec<CallId>,
    /// The questions about calls that have no answer yet.
    questions: BTreeMap<InputId, OpenQuestion>,
    plan: PlanView,
}

impl ChunkTranslator for UiMessageTranslator {
    fn translate(&mut self, event: &StoredEvent) -> Vec<Value> {
        if self.over {
            return Vec::new();
        }
        self.sends = self.is_reached && event.seq > self.facts.section.after;
        if self.facts.section.is_void(event) {
            // The next model call continues the empty step.
            self.step_empty = self.step_open;
        } else if let Some(body) = event.body() {
            self.body(event, body);
        }
        std::mem::take(&mut self.out)
    }

    fn is_over(&self) -> bool {
        self.over
    }
}

impl UiMessageTranslator {
    pub fn new(facts: ChatRunFacts) -> Self {
        Self {
            is_reached: facts.id.joined.is_none(),
            facts,
            out: Vec::new(),
            sends: false,
            started: false,
            over: false,
            step_open: false,
            step_empty: false,
            model_step: None,
            parts: BTreeMap::new(),
            shown: BTreeSet::new(),
            calls: BTreeMap::new(),
            step_calls: Vec::new(),
            questions: BTreeMap::new(),
            plan: PlanView::default(),
        }
    }

    fn push(&mut self, chunk: Value) {
        if self.sends {
            self.out.push(chunk);
        }
    }

    /// Begins the message, once per response. All responses that continue the message have its id.
    fn start(&mut self, event: &StoredEvent) {
        if self.sends && !std::mem::replace(&mut self.started, true) {
            let metadata = json!({ "run_id": self.facts.id.run, "conversation_id": event.conversation_id });
            self.push(json!({ "type": "start", "messageId": self.facts.id.to_string(), "messageMetadata": metadata }));
        }
    }

    fn body(&mut self, event: &StoredEvent, body: EventBody) {
        // A queued run has no answer yet: the client shows the message as submitted.
        if !matches!(body, EventBody::RunQueued { .. } | EventBody::MessageCreated { .. } | EventBody::ConversationUpdated { .. }) {
            self.start(event);
        }
        let is_pause = self.facts.section.observe_pause(event.seq, &body);
        if self.plan.observe(&body) {
            self.push(json!({ "type": "data-plan", "id": "plan", "data": { "steps": self.plan } }));
        }
        match body {
            EventBody::StepStarted { step, kind, .. } => {
                self.model_step = (kind == "model").then_some(step);
                if self.model_step.is_some() {
                    self.begin_model_step();
                }
            }
            EventBody::StepReset { step, .. } if self.model_step == Some(step) => self.reset(),
            EventBody::PartStarted { part_id, kind, call_id, name, .. } => {
                self.part_started(part_id, &kind, call_id.zip(name));
            }
            EventBody::PartDelta { part_id, delta } => self.delta(&part_id, &delta),
            EventBody::PartCompleted { part, .. } => self.part_completed(part),
            EventBody::MessageCompleted { message } => self.message_completed(message),
            EventBody::MessageCreated { message } => self.message_created(&message.id),
            EventBody::ToolStarted { call_id, name, arguments, .. } => self.call_available(call_id, &name, &arguments),
            EventBody::ToolRequested { call } => self.call_available(call.call_id, &call.name, &call.arguments),
            EventBody::ToolProgress { call_id, progress, total, message } => {
                let output = json!({ "progress": progress, "total": total, "message": message });
                self.output(&call_id, &output, true);
            }
            EventBody::ToolCompleted { call_id, state, content, is_error, .. } => {
                self.call_completed(&call_id, state, &content, is_error);
            }
            EventBody::ToolOutcomeUnknown { call_id, .. } => self.output_error(&call_id, UNKNOWN_OUTCOME),
            EventBody::ApprovalRequested { id, call_id: Some(call), request } => {
                self.call_available(call.clone(), &request.name, &request.arguments);
                if let Some(call) = self.calls.get_mut(&call) {
                    call.asked = true;
                }
                self.push(match self.facts.version {
                    Version::Five => {
                        let data = json!({ "state": "pending", "toolCallId": call, "request": request });
                        json!({ "type": "data-approval-request", "id": id, "data": data })
                    }
                    Version::Six | Version::Seven => approval_request(&id, &call),
                });
                self.questions.insert(id, OpenQuestion { call, is_approval: true });
            }
            EventBody::ApprovalResolved { id, call_id, status, reason, .. } => {
                self.questions.remove(&id);
                self.approval_resolved(&id.to_string(), call_id.as_ref(), status, reason);
            }
            EventBody::InputRequested { id, kind, call_id, question } => {
                let data = json!({ "state": InputState::Pending, "kind": kind, "toolCallId": call_id, "question": question });
                self.push(json!({ "type": "data-input-request", "id": id, "data": data }));
                if let Some(call) = call_id {
                    self.questions.insert(id, OpenQuestion { call, is_approval: false });
                }
            }
            EventBody::InputResolved { id, state, answer, .. } => {
                self.questions.remove(&id);
                let data = json!({ "state": state, "answer": answer });
                self.push(json!({ "type": "data-input-request", "id": id, "data": data }));
            }
            EventBody::RunRetrying { after_ms, error, model } => {
                let data = json!({ "afterMs": after_ms, "error": error.detail, "code": error.code, "model": model });
                self.push(json!({ "type": "data-retry", "data": data, "transient": true }));
            }
            EventBody::RunWaiting { reason, .. } if is_pause => self.pause(event.seq, reason),
            EventBody::RunCompleted { finish_reason, usage, notice, .. } => {
                self.close_step();
                let metadata = json!({ "finish_reason": finish_reason, "usage": usage, "notice": notice });
                let reason = ui_finish_reason(finish_reason);
                self.push(json!({ "type": "finish", "finishReason": reason, "messageMetadata": metadata }));
                self.over = true;
            }
            EventBody::RunFailed { error } => {
                self.close_step();
                self.push(json!({ "type": "error", "errorText": error.detail }));
                self.over = true;
            }
            EventBody::RunCancelled { by } => {
                self.close_step();
                self.push(match self.facts.version {
                    Version::Five | Version::Six => json!({ "type": "abort" }),
                    Version::Seven => json!({ "type": "abort", "reason": format!("cancelled by {by}") }),
                });
                self.over = true;
            }
            _ => {}
        }
    }

    /// Begins the message after the user's message that has joined the run. The calls so far are parts of the earlier message, which
    /// this response cannot change.
    fn message_created(&mut self, id: &MessageId) {
        if self.facts.id.joined.as_ref() == Some(id) {
            self.is_reached = true;
            // A part that was begun before is sent whole at its end.
            self.parts.clear();
            self.step_open = false;
            self.calls.clear();
            self.step_calls.clear();
            self.questions.clear();
        }
    }

    fn begin_model_step(&mut self) {
        if std::mem::take(&mut self.step_empty) {
            return;
        }
        self.close_step();
        self.open_step();
        self.step_calls.clear();
    }

    fn open_step(&mut self) {
        if !std::mem::replace(&mut self.step_open, true) {
            self.push(json!({ "type": "start-step" }));
        }
    }

    fn close_step(&mut self) {
        self.end_parts();
        if std::mem::take(&mut self.step_open) {
            self.push(json!({ "type": "finish-step" }));
        }
    }

    fn end_parts(&mut self) {
        for (id, part) in std::mem::take(&mut self.parts) {
            match part {
                OpenPart::Text { kind, .. } => self.push(json!({ "type": kind.chunk("end"), "id": id })),
                OpenPart::Call(call) => self.void_call(&call),
            }
        }
    }

    /// Ends a call that is never made.
    fn void_call(&mut self, id: &CallId) {
        const VOID: &str = "the call was not made: the model call was cut off or repeated";
        let Some(call) = self.calls.get_mut(id) else { return };
        let (name, stage) = (call.name.clone(), std::mem::replace(&mut call.stage, CallStage::Over));
        let mut chunk = match stage {
            CallStage::Over => return,
            CallStage::Available => json!({ "type": "tool-output-error", "toolCallId": id, "errorText": VOID }),
            CallStage::Streaming => {
                json!({ "type": "tool-input-error", "toolCallId": id, "toolName": name, "input": null, "errorText": VOID })
            }
        };
        self.mark(&name, &mut chunk);
        self.push(chunk);
    }

    /// Voids everything that the model step has shown.
    fn reset(&mut self) {
        if self.facts.version == Version::Seven {
            self.parts.clear();
            for call in std::mem::take(&mut self.step_calls) {
                self.calls.remove(&call);
            }
            if self.step_open {
                self.push(json!({ "type": "reset-step" }));
                self.step_empty = true;
            }
            return;
        }
        self.end_parts();
        for call in std::mem::take(&mut self.step_calls) {
            self.void_call(&call);
        }
        self.close_step();
    }

    /// Marks a chunk of a server tool. The client executes calls without these marks.
    fn mark(&self, name: &str, chunk: &mut Value) {
        if !self.facts.client_tools.contains(name) {
            chunk["dynamic"] = json!(true);
            chunk["providerExecuted"] = json!(true);
        }
    }

    fn part_started(&mut self, id: PartId, kind: &str, call: Option<(CallId, String)>) {
        let kind = match (kind, call) {
            ("text", _) => TextKind::Text,
            ("reasoning", _) => TextKind::Reasoning,
            ("tool_call", Some((call, name))) => {
                self.open_step();
                let mut chunk = json!({ "type": "tool-input-start", "toolCallId": call, "toolName": name });
                self.mark(&name, &mut chunk);
                self.push(chunk);
                self.step_calls.push(call.clone());
                let new = Call { name, arguments: Value::Null, stage: CallStage::Streaming, asked: false };
                self.calls.insert(call.clone(), new);
                self.parts.insert(id, OpenPart::Call(call));
                return;
            }
            // Other parts are sent when they are complete.
            _ => return,
        };
        self.open_step();
        self.push(json!({ "type": kind.chunk("start"), "id": id }));
        self.parts.insert(id, OpenPart::Text { kind, sent: 0 });
    }

    fn delta(&mut self, id: &PartId, delta: &str) {
        let chunk = match self.parts.get_mut(id) {
            Some(OpenPart::Text { kind, sent }) => {
                *sent += delta.len();
                json!({ "type": kind.chunk("delta"), "id": id, "delta": delta })
            }
            Some(OpenPart::Call(call)) => json!({ "type": "tool-input-delta", "toolCallId": call, "inputTextDelta": delta }),
            None => return,
        };
        self.push(chunk);
    }

    fn part_completed(&mut self, part: Part) {
        self.step_empty = false;
        self.shown.insert(part.id().clone());
        match part {
            Part::Text(part) => self.text_completed(part.id, TextKind::Text, &part.text),
            Part::Reasoning(part) => self.text_completed(part.id, TextKind::Reasoning, &part.text),
            Part::ToolCall(part) => {
                self.parts.remove(&part.id);
                self.call_available(part.call_id, &part.name, &part.arguments);
            }
            Part::Image(part) | Part::File(part) => {
                self.open_step();
                if let Some(url) = &part.url {
                    self.push(json!({ "type": "file", "url": url, "mediaType": part.media_type }));
                }
            }
            Part::Source(part) => {
                self.open_step();
                self.push(match part.url {
                    Some(url) => {
                        let title = part.title.unwrap_or_else(|| url.clone());
                        json!({ "type": "source-url", "sourceId": part.id, "url": url, "title": title })
                    }
                    None => {
                        let title = part.title.or(part.text).unwrap_or_default();
                        json!({ "type": "source-document", "sourceId": part.id, "mediaType": "text/plain", "title": title })
                    }
                });
            }
            Part::ToolResult(_) => {}
        }
    }

    /// Ends a text part. Text that its deltas did not contain is sent first.
    fn text_completed(&mut self, id: PartId, kind: TextKind, text: &str) {
        let sent = match self.parts.remove(&id) {
            Some(OpenPart::Text { sent, .. }) => sent,
            Some(OpenPart::Call(_)) | None => {
                self.open_step();
                self.push(json!({ "type": kind.chunk("start"), "id": id }));
                0
            }
        };
        if let Some(rest) = text.get(sent..).filter(|rest| !rest.is_empty()) {
            self.push(json!({ "type": kind.chunk("delta"), "id": id, "delta": rest }));
        }
        self.push(json!({ "type": kind.chunk("end"), "id": id }));
    }

    /// Sends the parts of a message that earlier events did not show.
    fn message_completed(&mut self, message: Message) {
        for result in message.tool_results() {
            self.call_completed(&result.call_id, result.state, &result.content, result.is_error);
        }
        if message.role != Role::Assistant || message.internal {
            return;
        }
        for part in message.parts {
            if !self.shown.contains(part.id()) {
                self.part_completed(part);
            }
        }
    }

    fn call_available(&mut self, id: CallId, name: &str, arguments: &Value) {
        let known = self.calls.get_mut(&id);
        let name = known.as_ref().map_or_else(|| name.to_owned(), |call| call.name.clone());
        match known {
            Some(call) if call.stage != CallStage::Streaming => return,
            Some(call) => (call.stage, call.arguments) = (CallStage::Available, arguments.clone()),
            None => {
                let (arguments, stage) = (arguments.clone(), CallStage::Available);
                self.calls.insert(id.clone(), Call { name: name.clone(), arguments, stage, asked: false });
                self.step_calls.push(id.clone());
            }
        }
        self.open_step();
        let mut chunk = json!({ "type": "tool-input-available", "toolCallId": id, "toolName": name, "input": arguments });
        self.mark(&name, &mut chunk);
        self.push(chunk);
    }

    fn output(&mut self, id: &CallId, output: &Value, preliminary: bool) {
        let Some(call) = self.calls.get(id) else { return };
        let mut chunk = json!({ "type": "tool-output-available", "toolCallId": id, "output": output });
        if preliminary {
            chunk["preliminary"] = json!(true);
        }
        self.mark(&call.name, &mut chunk);
        self.push(chunk);
    }

    fn output_error(&mut self, id: &CallId, text: &str) {
        let Some(call) = self.calls.get(id) else { return };
        let mut chunk = json!({ "type": "tool-output-error", "toolCallId": id, "errorText": text });
        self.mark(&call.name, &mut chunk);
        self.push(chunk);
    }

    fn call_completed(&mut self, id: &CallId, state: ToolCallState, content: &[ToolContent], is_error: bool) {
        let Some(call) = self.calls.get_mut(id).filter(|call| call.stage != CallStage::Over) else { return };
        call.stage = CallStage::Over;
        let (name, asked) = (call.name.clone(), call.asked);
        if state == ToolCallState::Denied && asked && self.facts.version > Version::Five {
            self.push(json!({ "type": "tool-output-denied", "toolCallId": id }));
        } else if is_error {
            self.output_error(id, &ToolContent::joined_text(content));
        } else {
            let output = if self.facts.client_tools.contains(&name) { client_output(content) } else { tool_output(content) };
            self.output(id, &output, false);
        }
    }

    fn approval_resolved(&mut self, id: &str, call: Option<&CallId>, status: ApprovalState, reason: Option<String>) {
        let approved = status == ApprovalState::Allowed;
        match self.facts.version {
            Version::Five => {
                let data = json!({ "state": status, "toolCallId": call, "reason": reason });
                self.push(json!({ "type": "data-approval-request", "id": id, "data": data }));
            }
            Version::Six => {}
            Version::Seven => {
                let mut chunk = json!({ "type": "tool-approval-response", "approvalId": id, "approved": approved });
                if let Some(reason) = reason {
                    chunk["reason"] = json!(reason);
                }
                self.push(chunk);
            }
        }
    }

    /// Repeats the calls that wait for a human without `providerExecuted`, if the client has executed its own calls of the step.
    ///
    /// The client sends a message again when all its calls have outputs, and ignores calls that a provider executes. It would repeat
    /// the results for as long as the run waits. The input stays incomplete, because the client executes a call whose input is
    /// complete.
    fn repeat_waiting_calls(&mut self) {
        let step = self.step_calls.iter().filter_map(|id| self.calls.get(id));
        let mut own = step.filter(|call| self.facts.client_tools.contains(&call.name)).peekable();
        if own.peek().is_none() || own.any(|call| call.stage != CallStage::Over) {
            return;
        }
        let mut chunks = Vec::new();
        for (question, OpenQuestion { call: id, is_approval }) in &self.questions {
            let Some(call) = self.calls.get(id).filter(|call| call.stage == CallStage::Available) else { continue };
            let (kind, input) = ("tool-input-start", call.arguments.to_string());
            chunks.push(json!({
                "type": kind, "toolCallId": id, "toolName": call.name, "dynamic": true, "providerExecuted": false,
            }));
            chunks.push(json!({ "type": "tool-input-delta", "toolCallId": id, "inputTextDelta": input }));
            if *is_approval && self.facts.version > Version::Five {
                chunks.push(approval_request(question, id));
            }
        }
        chunks.into_iter().for_each(|chunk| self.push(chunk));
    }

    /// Ends the response where the run waits, unless the wait is over.
    fn pause(&mut self, seq: i64, reason: WaitReason) {
        if seq > self.facts.section.passed {
            self.repeat_waiting_calls();
            self.close_step();
            let metadata = json!({ "waiting": reason });
            self.push(json!({ "type": "finish", "finishReason": "tool-calls", "messageMetadata": metadata }));
            self.over = true;
        } else if !self.sends {
            // The earlier response has ended here, and with it the step.
            self.close_step();
        }
    }
}

fn approval_request(id: &InputId, call: &CallId) -> Value {
    json!({ "type": "tool-approval-request", "approvalId": id, "toolCallId": call })
}

/// Returns the content of a tool result as the output of a tool part: a text, or a list of contents.
pub(super) fn tool_output(content: &[ToolContent]) -> Value {
    let is_text = content.iter().all(|piece| piece.as_text().is_some());
    if is_text { json!(ToolContent::joined_text(content)) } else { json!(content) }
}

/// Returns the output of a client tool. A text that is a JSON object or list becomes that value.
pub(super) fn client_output(content: &[ToolContent]) -> Value {
    let output = tool_output(content);
    let value = output.as_str().filter(|text| text.starts_with(['{', '[']));
    value.and_then(|text| serde_json::from_str(text).ok()).unwrap_or(output)
}

fn ui_finish_reason(reason: FinishReason) -> &'static str {
    match reason {
        FinishReason::Stop => "stop",
        FinishReason::ToolCalls => "tool-calls",
        FinishReason::Length => "length",
        FinishReason::Refused => "content-filter",
        FinishReason::MaxRounds | FinishReason::Budget | FinishReason::Cancelled => "other",
    }
}
