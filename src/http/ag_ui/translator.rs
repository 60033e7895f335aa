//! Translates the events of a run into AG-UI events.
//!
//! Optional fields are absent instead of null, and only clients of release 1.0 get its new fields. Older clients fail on both.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::messages::{self, result_id};
use super::request::AgUiClient;
use crate::domain::conversation::message::{Message, Part, Role, ToolContent};
use crate::domain::event::{EventBody, StoredEvent};
use crate::domain::ids::{CallId, MessageId, PartId, RunId};
use crate::domain::model::Usage;
use crate::domain::run::WaitReason;
use crate::domain::run::question::Question;
use crate::domain::tool::approval::ApprovalRequest;
use crate::domain::tool::client_tool::ClientCall;
use crate::http::clients::pauses::Section;
use crate::http::clients::plan::PlanView;
use crate::http::clients::stream::ChunkTranslator;
use crate::support::json;

/// The facts about a run that its events do not contain.
#[derive(Debug, Clone)]
pub(super) struct AgUiRunFacts {
    pub id: RunId,
    /// The client's name of the thread.
    pub thread: String,
    /// The client's name of the run.
    pub run: String,
    pub client: AgUiClient,
    pub section: Section,
    /// The calls whose results the request has in its messages. Its client would hold a result twice if the response had it too.
    pub client_results: BTreeSet<CallId>,
    /// The messages before the run, as a JSON list. Without them, a step reset sends no snapshot.
    pub messages: Option<Box<str>>,
    /// Events that precede `RUN_STARTED` in the response.
    pub history: Vec<Value>,
}

#[derive(Debug)]
enum OpenPart {
    /// The id of the message, and the number of bytes sent.
    Text(String, usize),
    Reasoning(usize),
    Call(CallId, usize),
}

pub(super) struct AgUiTranslator {
    facts: AgUiRunFacts,
    out: Vec<Value>,
    sends: bool,
    /// Whether `run.queued` was translated. It follows the message that began the run.
    queued: bool,
    started: bool,
    over: bool,
    steps: BTreeSet<String>,
    model_step: Option<u32>,
    parts: BTreeMap<PartId, OpenPart>,
    /// Parts that were shown as a whole.
    complete: BTreeSet<PartId>,
    /// Messages whose id is already the id of a text message in the client.
    texts: BTreeSet<MessageId>,
    calls: BTreeSet<CallId>,
    /// The calls with a result.
    results: BTreeSet<CallId>,
    /// The calls of client tools that have no result.
    requested: Vec<CallId>,
    /// Those of them that this response has shown.
    shown_requests: Vec<ClientCall>,
    /// The messages that this response has shown, and their number when the model step began.
    shown: Vec<Value>,
    shown_before: usize,
    interrupts: Vec<(String, Value)>,
    plan: PlanView,
    budget: Option<Value>,
    model: String,
    usage: Usage,
}

impl ChunkTranslator for AgUiTranslator {
    fn translate(&mut self, event: &StoredEvent) -> Vec<Value> {
        if self.over {
            return Vec::new();
        }
        self.sends = event.seq > self.facts.section.after;
        if let Some(body) = event.body().filter(|_| !self.facts.section.is_void(event)) {
            // An event of another run, such as a queued message, does not begin this run.
            if self.sends && event.run_id.as_ref() == Some(&self.facts.id) {
                self.start();
            }
            self.body(event, body);
        }
        if !self.sends {
            self.shown.clear();
        }
        std::mem::take(&mut self.out)
    }

    fn is_over(&self) -> bool {
        self.over
    }
}

impl AgUiTranslator {
    pub fn new(facts: AgUiRunFacts) -> Self {
        Self {
            facts,
            out: Vec::new(),
            sends: false,
            queued: false,
            started: false,
            over: false,
            steps: BTreeSet::new(),
            model_step: None,
            parts: BTreeMap::new(),
            complete: BTreeSet::new(),
            texts: BTreeSet::new(),
            calls: BTreeSet::new(),
            results: BTreeSet::new(),
            requested: Vec::new(),
            shown_requests: Vec::new(),
            shown: Vec::new(),
            shown_before: 0,
            interrupts: Vec::new(),
            plan: PlanView::default(),
            budget: None,
            model: String::new(),
            usage: Usage::default(),
        }
    }

    fn push(&mut self, event: Value) {
        if self.sends {
            self.out.push(event);
        }
    }

    fn start(&mut self) {
        if std::mem::replace(&mut self.started, true) {
            return;
        }
        let history = std::mem::take(&mut self.facts.history);
        self.out.extend(history);
        let mut event = json!({ "type": "RUN_STARTED", "threadId": self.facts.thread, "runId": self.facts.run });
        if self.facts.client == AgUiClient::Release1 {
            event["protocolVersion"] = json!("1.0");
        }
        self.push(event);
        self.push_state();
    }

    fn body(&mut self, event: &StoredEvent, body: EventBody) {
        let is_pause = self.facts.section.observe_pause(event.seq, &body);
        if self.plan.observe(&body) {
            self.push_state();
        }
        match body {
            EventBody::RunQueued { .. } => self.queued = true,
            EventBody::RunStarted { model, .. } => self.model = model,
            EventBody::MessageCreated { message } => self.message_created(message),
            EventBody::StepStarted { step, kind, .. } => {
                self.model_step = (kind == "model").then_some(step);
                if self.model_step.is_some() {
                    self.shown_before = self.shown.len();
                }
                let name = format!("{kind}-{step}");
                if self.steps.insert(name.clone()) {
                    self.push(json!({ "type": "STEP_STARTED", "stepName": name }));
                }
            }
            EventBody::StepCompleted { step, usage } => {
                self.end_parts();
                if let Some(usage) = usage {
                    self.usage.add(usage);
                    self.push_state();
                }
                self.end_step(&format!("model-{step}"));
                self.end_step(&format!("tools-{step}"));
            }
            EventBody::StepReset { step, reason } if self.model_step == Some(step) => self.reset(&reason),
            EventBody::PartStarted { message_id, part_id, kind, call_id, name, .. } => {
                self.part_started(&message_id, part_id, &kind, call_id.zip(name));
            }
            EventBody::PartDelta { part_id, delta } => self.delta(&part_id, &delta),
            EventBody::PartCompleted { message_id, part } => self.part_completed(&message_id, part),
            EventBody::MessageCompleted { message } => self.message_completed(message),
            EventBody::ToolStarted { call_id, name, arguments, .. } => self.whole_call(&call_id, &name, &arguments, None),
            EventBody::ToolRequested { call } => {
                self.whole_call(&call.call_id, &call.name, &call.arguments, None);
                self.requested.push(call.call_id.clone());
                if self.sends {
                    self.shown_requests.push(call);
                }
            }
            EventBody::ToolProgress { call_id, progress, total, message } => {
                let mut content = json!({ "toolCallId": call_id, "progress": progress });
                for (field, value) in [("total", total.map(Value::from)), ("message", message.map(Value::from))] {
                    if let Some(value) = value {
                        content[field] = value;
                    }
                }
                let id = format!("{call_id}-progress");
                let kind = "tool_progress";
                self.push(json!({ "type": "ACTIVITY_SNAPSHOT", "messageId": id, "activityType": kind, "content": content }));
            }
            EventBody::ToolCompleted { call_id, content, is_error, .. } => self.call_completed(&call_id, &content, is_error),
            EventBody::ApprovalRequested { id, call_id, request } => {
                if let Some(call) = &call_id {
                    self.whole_call(call, &request.name, &request.arguments, None);
                }
                self.interrupts.push((id.to_string(), approval_interrupt(id.as_str(), call_id.as_ref(), &request)));
            }
            EventBody::InputRequested { id, call_id, question, .. } => {
                self.interrupts.push((id.to_string(), question_interrupt(id.as_str(), call_id.as_ref(), &question)));
            }
            EventBody::ApprovalResolved { id, .. } | EventBody::InputResolved { id, .. } => {
                self.interrupts.retain(|(open, _)| *open != id.as_str());
            }
            EventBody::ContextBudget { unit, window, used, remaining, .. } => {
                self.budget = Some(json!({ "unit": unit, "window": window, "used": used, "remaining": remaining }));
                self.push_state();
            }
            EventBody::RunRetrying { after_ms, error, .. } => {
                let value = json!({ "afterMs": after_ms, "message": error.detail, "code": error.code });
                self.push(json!({ "type": "CUSTOM", "name": "run.retrying", "value": value }));
            }
            EventBody::RunWaiting { reason, .. } if is_pause => self.pause(event.seq, reason),
            EventBody::RunCompleted { finish_reason, notice, .. } => {
                self.close();
                let mut result = json!({ "finishReason": finish_reason });
                if let Some(notice) = notice {
                    result["notice"] = json!(notice);
                }
                let mut end = self.finished();
                end["result"] = result;
                if self.facts.client == AgUiClient::Release1 {
                    end["outcome"] = json!({ "type": "success" });
                }
                self.push(end);
                self.over = true;
            }
            EventBody::RunFailed { error } => self.fail(&error.detail, &error.code),
            EventBody::RunCancelled { .. } if self.facts.client == AgUiClient::Release1 => {
                self.close();
                let mut end = self.finished();
                end["outcome"] = json!({ "type": "cancelled" });
                self.push(end);
                self.over = true;
            }
            EventBody::RunCancelled { .. } => self.fail("the run was cancelled", "cancelled"),
            _ => {}
        }
    }

    fn push_state(&mut self) {
        let mut snapshot = json!({ "plan": self.plan, "usage": state_usage(&self.usage) });
        if let Some(budget) = &self.budget {
            snapshot["budget"] = budget.clone();
        }
        self.push(json!({ "type": "STATE_SNAPSHOT", "snapshot": snapshot }));
    }

    fn end_step(&mut self, name: &str) {
        if self.steps.remove(name) {
            self.push(json!({ "type": "STEP_FINISHED", "stepName": name }));
        }
    }

    /// Ends all open parts and steps.
    fn close(&mut self) {
        self.end_parts();
        for name in std::mem::take(&mut self.steps) {
            self.push(json!({ "type": "STEP_FINISHED", "stepName": name }));
        }
    }

    fn end_parts(&mut self) {
        for (id, part) in std::mem::take(&mut self.parts) {
            self.end_part(&id, &part);
        }
    }

    fn end_part(&mut self, id: &PartId, part: &OpenPart) {
        match part {
            OpenPart::Text(message, _) => self.push(json!({ "type": "TEXT_MESSAGE_END", "messageId": message })),
            OpenPart::Reasoning(_) => {
                self.push(json!({ "type": "REASONING_MESSAGE_END", "messageId": id }));
                self.push(json!({ "type": "REASONING_END", "messageId": id }));
            }
            OpenPart::Call(call, _) => self.push(json!({ "type": "TOOL_CALL_END", "toolCallId": call })),
        }
    }

    /// Voids the messages of the model step: they stay in the client with an empty text. Sends no snapshot if the earlier messages
    /// are unknown, because a snapshot replaces all messages of the client.
    fn reset(&mut self, reason: &str) {
        let open: Vec<String> = self
            .parts
            .values()
            .filter_map(|part| if let OpenPart::Text(message, _) = part { Some(message.clone()) } else { None })
            .collect();
        self.end_parts();
        let since = self.shown.split_off(self.shown_before.min(self.shown.len()));
        let (sent, voided): (Vec<Value>, Vec<Value>) = since.into_iter().partition(|message| message["role"] == "user");
        self.shown.extend(sent);
        let ids = voided.iter().filter_map(|message| message["id"].as_str().map(str::to_owned)).chain(open);
        let emptied = ids.map(|id| json!({ "id": id, "role": "assistant", "content": "" }));
        let earlier = self.facts.messages.as_deref().and_then(|json| serde_json::from_str::<Vec<Value>>(json).ok());
        if let Some(mut snapshot) = earlier.filter(|_| self.sends) {
            // If the client joined late, the earlier messages may already contain some of the shown ones.
            let is_new = |message: &&Value| snapshot.iter().all(|known| known["id"] != message["id"]);
            let new: Vec<Value> = self.shown.iter().filter(is_new).cloned().collect();
            snapshot.extend(new.into_iter().chain(emptied));
            self.push(json!({ "type": "MESSAGES_SNAPSHOT", "messages": snapshot }));
        }
        self.push(json!({ "type": "CUSTOM", "name": "step.reset", "value": { "reason": reason } }));
    }

    fn part_started(&mut self, message: &MessageId, id: PartId, kind: &str, call: Option<(CallId, String)>) {
        match (kind, call) {
            ("text", _) => {
                let message = self.begin_text(message, &id);
                self.parts.insert(id, OpenPart::Text(message, 0));
            }
            ("reasoning", _) => {
                self.begin_reasoning(&id);
                self.parts.insert(id, OpenPart::Reasoning(0));
            }
            ("tool_call", Some((call, name))) => {
                self.begin_call(&call, &name, Some(message));
                self.parts.insert(id, OpenPart::Call(call, 0));
            }
            // Other parts have no event.
            _ => {}
        }
    }

    /// Begins a text. The first text of a message has the id of the message, and each later one has the id of its part.
    fn begin_text(&mut self, message: &MessageId, part: &PartId) -> String {
        let id = if self.texts.insert(message.clone()) { message.to_string() } else { part.to_string() };
        self.push(json!({ "type": "TEXT_MESSAGE_START", "messageId": id, "role": "assistant" }));
        id
    }

    fn begin_reasoning(&mut self, id: &PartId) {
        self.push(json!({ "type": "REASONING_START", "messageId": id }));
        self.push(json!({ "type": "REASONING_MESSAGE_START", "messageId": id, "role": "reasoning" }));
    }

    fn begin_call(&mut self, call: &CallId, name: &str, message: Option<&MessageId>) {
        self.calls.insert(call.clone());
        let mut event = json!({ "type": "TOOL_CALL_START", "toolCallId": call, "toolCallName": name });
        if let Some(message) = message {
            event["parentMessageId"] = json!(message);
        }
        self.push(event);
    }

    fn delta(&mut self, id: &PartId, delta: &str) {
        if delta.is_empty() {
            return;
        }
        let event = match self.parts.get_mut(id) {
            Some(OpenPart::Text(message, sent)) => {
                *sent += delta.len();
                json!({ "type": "TEXT_MESSAGE_CONTENT", "messageId": message, "delta": delta })
            }
            Some(OpenPart::Reasoning(sent)) => {
                *sent += delta.len();
                json!({ "type": "REASONING_MESSAGE_CONTENT", "messageId": id, "delta": delta })
            }
            Some(OpenPart::Call(call, sent)) => {
                *sent += delta.len();
                json!({ "type": "TOOL_CALL_ARGS", "toolCallId": call, "delta": delta })
            }
            None => return,
        };
        self.push(event);
    }

    /// Ends a part. Content that its deltas did not contain is sent first.
    fn part_completed(&mut self, message: &MessageId, part: Part) {
        if !self.complete.insert(part.id().clone()) {
            return;
        }
        let open = self.parts.remove(part.id());
        let (open, whole) = match &part {
            Part::Text(text) => {
                let open = open.unwrap_or_else(|| OpenPart::Text(self.begin_text(message, &text.id), 0));
                (open, text.text.clone())
            }
            Part::Reasoning(reasoning) => {
                let open = open.unwrap_or_else(|| {
                    self.begin_reasoning(&reasoning.id);
                    OpenPart::Reasoning(0)
                });
                (open, reasoning.text.clone())
            }
            Part::ToolCall(call) => {
                let open = open.unwrap_or_else(|| {
                    self.begin_call(&call.call_id, &call.name, Some(message));
                    OpenPart::Call(call.call_id.clone(), 0)
                });
                (open, call.arguments.to_string())
            }
            Part::Source(source) => return self.push(json!({ "type": "CUSTOM", "name": "source", "value": source })),
            Part::Image(file) | Part::File(file) => {
                return self.push(json!({ "type": "CUSTOM", "name": "file", "value": file }));
            }
            Part::ToolResult(_) => return,
        };
        let id = part.id().clone();
        let sent = match &open {
            // The arguments as the model wrote them may differ from the parsed ones, so the rest is not sent.
            OpenPart::Call(_, sent) if *sent > 0 => whole.len(),
            OpenPart::Text(_, sent) | OpenPart::Reasoning(sent) | OpenPart::Call(_, sent) => *sent,
        };
        let rest = whole.get(sent..).unwrap_or_default().to_owned();
        let shown_id = match &open {
            OpenPart::Text(message, _) => message.clone(),
            OpenPart::Reasoning(_) | OpenPart::Call(..) => id.to_string(),
        };
        self.parts.insert(id.clone(), open);
        self.delta(&id, &rest);
        if let Some(open) = self.parts.remove(&id) {
            self.end_part(&id, &open);
        }
        messages::show(&mut self.shown, message, &shown_id, &part);
    }

    /// Keeps a user message that was sent after the run was queued, for a snapshot. `facts.messages` has the message that began the
    /// run.
    fn message_created(&mut self, message: Message) {
        if self.queued && message.role == Role::User {
            self.shown.extend(messages::ag_ui_messages(&[message], None));
        }
    }

    /// Sends the parts and results of a message that earlier events did not show. A call with an unknown outcome has its result only
    /// here.
    fn message_completed(&mut self, message: Message) {
        for result in message.tool_results().filter(|_| !message.internal) {
            self.call_completed(&result.call_id, &result.content, result.is_error);
        }
        if message.role == Role::Assistant && !message.internal {
            for part in message.parts {
                self.part_completed(&message.id, part);
            }
        }
    }

    /// Sends a whole call, unless its parts were sent before.
    fn whole_call(&mut self, call: &CallId, name: &str, arguments: &Value, message: Option<&MessageId>) {
        if self.calls.contains(call) {
            return;
        }
        self.begin_call(call, name, message);
        self.push(json!({ "type": "TOOL_CALL_ARGS", "toolCallId": call, "delta": arguments.to_string() }));
        self.push(json!({ "type": "TOOL_CALL_END", "toolCallId": call }));
    }

    fn call_completed(&mut self, call: &CallId, content: &[ToolContent], is_error: bool) {
        if !self.results.insert(call.clone()) {
            return;
        }
        let is_requested = self.requested.contains(call);
        self.requested.retain(|requested| requested != call);
        self.shown_requests.retain(|requested| requested.call_id != *call);
        if is_requested && self.facts.client_results.contains(call) {
            return;
        }
        let content = messages::result_content(content);
        let id = result_id(call);
        self.push(json!({ "type": "TOOL_CALL_RESULT", "messageId": id, "toolCallId": call, "content": content, "role": "tool" }));
        let mut shown = json!({ "id": id, "role": "tool", "toolCallId": call, "content": content });
        if is_error {
            shown["error"] = json!(content);
        }
        self.shown.push(shown);
    }

    fn finished(&self) -> Value {
        let mut end = json!({ "type": "RUN_FINISHED", "threadId": self.facts.thread, "runId": self.facts.run });
        end["usage"] = json!([token_usage(&self.model, &self.usage)]);
        end
    }

    fn fail(&mut self, message: &str, code: &str) {
        self.close();
        self.push(json!({ "type": "RUN_ERROR", "message": message, "code": code }));
        self.over = true;
    }

    /// Sends `tool-input-available` for each open client call, for TanStack AI. The client executes a call at this event, even if the
    /// result follows, so only an open pause sends it.
    fn request_calls(&mut self) {
        for ClientCall { call_id, name, arguments, .. } in std::mem::take(&mut self.shown_requests) {
            let value = json!({ "toolCallId": call_id, "toolName": name, "input": arguments });
            self.push(json!({ "type": "CUSTOM", "name": "tool-input-available", "value": value }));
        }
    }

    /// Ends the response where the run waits, unless the wait is over.
    fn pause(&mut self, seq: i64, reason: WaitReason) {
        if seq <= self.facts.section.passed {
            if !self.sends {
                // The earlier response has ended here, with its open parts and steps.
                self.close();
            }
            return;
        }
        self.close();
        self.request_calls();
        let mut end = self.finished();
        let mut interrupts: Vec<Value> =
            self.interrupts.iter().map(|(_, interrupt)| with_binding(interrupt.clone(), &self.facts.run)).collect();
        if self.facts.client == AgUiClient::TanStack {
            interrupts = interrupts.into_iter().map(for_tanstack).collect();
        }
        if !interrupts.is_empty() && reason != WaitReason::Backoff {
            end["outcome"] = json!({ "type": "interrupt", "interrupts": interrupts });
        } else if self.facts.client == AgUiClient::Release1 {
            end["outcome"] = json!({ "type": "success", "pendingToolCallIds": self.requested });
        }
        self.push(end);
        self.over = true;
    }
}

/// Adds the metadata that TanStack AI needs to answer an interrupt. `run` is the `runId` of the interrupted run. The client refuses
/// an answer if the hash differs from that of the schema.
pub(super) fn with_binding(mut interrupt: Value, run: &str) -> Value {
    let schema = format!("sha256:{}", json::hash(&interrupt["responseSchema"]));
    interrupt["metadata"]["tanstack:interruptBinding"] = json!({
        "v": 1, "kind": "generic", "interruptId": interrupt["id"], "interruptedRunId": run, "generation": 0,
        "responseSchemaHash": schema,
    });
    interrupt
}

/// Gives the interrupt of an approval the form that `addToolApprovalResponse` of TanStack AI resolves. It ignores an approval with
/// another reason, or without `input`.
pub(super) fn for_tanstack(mut interrupt: Value) -> Value {
    if interrupt["metadata"]["kind"] == "approval" {
        interrupt["reason"] = json!("approval_required");
        interrupt["metadata"]["input"] = interrupt["metadata"]["arguments"].clone();
    }
    interrupt
}

pub(super) fn approval_interrupt(id: &str, call: Option<&CallId>, request: &ApprovalRequest) -> Value {
    let schema = json!({
        "type": "object",
        "properties": {
            "approved": { "type": "boolean" },
            "reason": { "type": "string" },
            "arguments": { "type": "object" },
        },
        "required": ["approved"],
    });
    let mut interrupt = json!({
        "id": id,
        "reason": "tool_call",
        "message": format!("Allow {}? {}", request.name, request.preview),
        "responseSchema": schema,
        "metadata": {
            "kind": "approval", "toolName": request.name, "arguments": request.arguments, "destructive": request.destructive,
        },
    });
    if let Some(call) = call {
        interrupt["toolCallId"] = json!(call);
    }
    interrupt
}

pub(super) fn question_interrupt(id: &str, call: Option<&CallId>, question: &Question) -> Value {
    let values: Vec<&str> = question.choices.iter().map(|choice| choice.value.as_str()).collect();
    let mut properties = json!({ "text": { "type": "string" } });
    if !values.is_empty() {
        properties["choice"] = json!({ "type": "string", "enum": values });
    }
    if let Some(form) = question.form() {
        properties["content"] = form.clone();
    }
    let mut interrupt = json!({
        "id": id,
        "reason": "input_required",
        "message": question.text,
        "responseSchema": { "type": "object", "properties": properties },
        "metadata": { "kind": "question", "choices": question.choices },
    });
    if let Some(call) = call {
        interrupt["toolCallId"] = json!(call);
    }
    interrupt
}

fn state_usage(usage: &Usage) -> Value {
    json!({
        "inputTokens": usage.input_tokens,
        "outputTokens": usage.output_tokens,
        "totalTokens": usage.input_tokens.saturating_add(usage.output_tokens),
    })
}

fn token_usage(model: &str, usage: &Usage) -> Value {
    let mut shown = state_usage(usage);
    shown["reasoningTokens"] = json!(usage.reasoning_tokens);
    shown["cachedInputTokens"] = json!(usage.cached_input_tokens);
    if let Some((provider, name)) = model.split_once('/') {
        (shown["provider"], shown["model"]) = (json!(provider), json!(name));
    }
    shown
}
