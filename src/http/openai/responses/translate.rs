//! The events of a run as a response: a pure function of the log.
//!
//! A response ends where the run waits for an approval, a client tool or an answer to a question. The answer begins the next
//! response, so a run has one response more than such pauses. The first response has the number 0. Every number and id comes from
//! the log, so each read returns the same stream.

use std::collections::HashMap;

use serde_json::{Value, json};

use crate::domain::conversation::message::Part;
use crate::domain::event::{EventBody, StoredEvent};
use crate::domain::ids::{CallId, InputId, PartId};
use crate::domain::model::Usage;
use crate::domain::problem::ProblemBody;
use crate::domain::run::FinishReason;
use crate::domain::tool::ToolCallState;
use crate::http::clients::pauses::Section;
use crate::http::clients::stream::{ChunkTranslator, push_chunk};
use crate::http::openai::content::question_text;
use crate::http::openai::events::{Flow, Translator};
use crate::http::openai::ids::derived;
use crate::http::openai::responses::items;
use crate::http::openai::responses::object::{Outcome, ResponseDetails};

/// Limit of response events for one event of the log.
const MAX_FRAMES: i64 = 64;

/// Returns the `seq` of the log event that the frame `number` belongs to. `base` is the `seq` of the response's first event.
pub(super) fn event_of_frame(base: i64, number: i64) -> i64 {
    base.saturating_add(number / MAX_FRAMES)
}

/// An item of the output.
struct Item {
    value: Value,
    /// Whether the step that added the item was reset.
    is_void: bool,
}

/// A text or reasoning that is being written.
struct OpenPart {
    item_id: String,
    index: usize,
    kind: items::TextKind,
    text: String,
}

/// Translates the events of a run into one of its responses.
pub(super) struct ResponseTranslator {
    facts: ResponseDetails,
    /// Frames up to this number are left out: the client has them.
    after: i64,
    /// The number of the response that the newest event belongs to.
    segment: u32,
    /// The `seq` of the response's first event.
    base: Option<i64>,
    /// The number of the next frame.
    next: i64,
    created_at: Option<i64>,
    outcome: Outcome,
    items: Vec<Item>,
    /// The index of the first item of the open step.
    step_start: usize,
    open: HashMap<PartId, OpenPart>,
    /// The calls of server tools, with the indexes of their items.
    calls: HashMap<CallId, usize>,
    /// The arguments of all calls. A call that never starts, such as a denied one, has no other event with them.
    arguments: HashMap<CallId, String>,
    /// The ids of the approval requests of calls.
    approvals: HashMap<CallId, String>,
    /// The open questions, in the order of their events.
    questions: Vec<(InputId, String)>,
    usage: Usage,
    /// The pauses so far, with their answers.
    pauses: Section,
    flow: Flow,
    /// The events of the response for the newest event of the log.
    chunks: Vec<Value>,
}

impl ResponseTranslator {
    pub(super) fn new(facts: ResponseDetails, after: Option<i64>) -> Self {
        Self {
            facts,
            after: after.unwrap_or(-1),
            segment: 0,
            base: None,
            next: 0,
            created_at: None,
            outcome: Outcome::Queued,
            items: Vec::new(),
            step_start: 0,
            open: HashMap::new(),
            calls: HashMap::new(),
            arguments: HashMap::new(),
            approvals: HashMap::new(),
            questions: Vec::new(),
            usage: Usage::default(),
            pauses: Section::default(),
            flow: Flow::Continue,
            chunks: Vec::new(),
        }
    }

    /// Returns the response as the log has it so far.
    pub(super) fn response(&self) -> Value {
        let output = self.items.iter().filter(|item| !item.is_void).map(|item| item.value.clone()).collect();
        let usage = self.outcome.is_over().then_some(&self.usage);
        self.facts.response(self.created_at, &self.outcome, output, usage)
    }

    fn is_wanted(&self) -> bool {
        self.segment == self.facts.segment
    }

    fn push(&mut self, kind: &str, mut fields: Value) {
        let number = self.next;
        self.next += 1;
        if number <= self.after || !self.is_wanted() {
            return;
        }
        fields["type"] = kind.into();
        fields["sequence_number"] = number.into();
        self.chunks.push(fields);
    }

    fn push_response(&mut self, kind: &str) {
        let fields = json!({ "response": self.response() });
        self.push(kind, fields);
    }

    fn begin(&mut self, event: &StoredEvent) {
        self.base = Some(event.seq);
        self.next = 0;
        self.created_at = Some(event.at.0 / 1000);
        let is_queued = self.segment == 0 && self.facts.is_background();
        self.outcome = if is_queued { Outcome::Queued } else { Outcome::InProgress };
        self.push_response("response.created");
        match is_queued {
            true => self.push_response("response.queued"),
            false => self.push_response("response.in_progress"),
        }
    }

    fn add(&mut self, item: Value) -> usize {
        let index = self.items.len();
        self.push("response.output_item.added", json!({ "output_index": index, "item": item }));
        self.items.push(Item { value: item, is_void: false });
        index
    }

    fn finish_item(&mut self, index: usize, item: Value) {
        self.push("response.output_item.done", json!({ "output_index": index, "item": item }));
        if let Some(known) = self.items.get_mut(index) {
            known.value = item;
        }
    }

    fn part_started(&mut self, id: PartId, item_id: String, kind: items::TextKind) {
        let index = self.add(items::text(kind, &item_id, None, "in_progress"));
        let fields = json!({ "item_id": item_id, "output_index": index, kind.index(): 0, "part": kind.part("") });
        self.push(kind.part_added(), fields);
        self.open.insert(id, OpenPart { item_id, index, kind, text: String::new() });
    }

    fn part_delta(&mut self, id: &PartId, delta: &str) {
        let Some(part) = self.open.get_mut(id) else { return };
        part.text.push_str(delta);
        let kind = part.kind;
        let mut fields = json!({ "item_id": part.item_id, "output_index": part.index, kind.index(): 0, "delta": delta });
        if kind == items::TextKind::Answer {
            fields["logprobs"] = json!([]);
        }
        self.push(kind.delta(), fields);
    }

    fn part_ended(&mut self, id: &PartId, text: &str) {
        let Some(OpenPart { item_id, index, kind, .. }) = self.open.remove(id) else { return };
        let mut fields = json!({ "item_id": item_id, "output_index": index, kind.index(): 0, "text": text });
        if kind == items::TextKind::Answer {
            fields["logprobs"] = json!([]);
        }
        self.push(kind.text_done(), fields);
        let fields = json!({ "item_id": item_id, "output_index": index, kind.index(): 0, "part": kind.part(text) });
        self.push(kind.part_done(), fields);
        self.finish_item(index, items::text(kind, &item_id, Some(text), "completed"));
    }

    /// Voids the items of the open step.
    fn reset(&mut self) {
        self.close_open_parts();
        for item in self.items.iter_mut().skip(self.step_start) {
            item.is_void = true;
        }
    }

    /// Closes the items of the open parts as incomplete, in their order, so that a replay has the same frames. Their texts do not
    /// end: clients parse a text that ends, and fail on half of a JSON object.
    fn close_open_parts(&mut self) {
        let mut open: Vec<OpenPart> = self.open.drain().map(|(_, part)| part).collect();
        open.sort_unstable_by_key(|part| part.index);
        for OpenPart { item_id, index, kind, text } in open {
            self.finish_item(index, items::text(kind, &item_id, Some(&text), "incomplete"));
        }
    }

    fn call_started(&mut self, id: &CallId, name: &str) -> usize {
        if let Some(index) = self.calls.get(id) {
            return *index;
        }
        let item = items::server_call(id, name, self.approvals.get(id).cloned());
        let item_id = item["id"].clone();
        let index = self.add(item);
        let arguments: Value = self.arguments.get(id).map_or("{}", String::as_str).into();
        if let Some(item) = self.items.get_mut(index) {
            item.value["arguments"] = arguments.clone();
        }
        let fields = json!({ "item_id": item_id, "output_index": index, "delta": arguments });
        self.push("response.mcp_call_arguments.delta", fields);
        let fields = json!({ "item_id": item_id, "output_index": index, "arguments": arguments });
        self.push("response.mcp_call_arguments.done", fields);
        self.push("response.mcp_call.in_progress", json!({ "item_id": item_id, "output_index": index }));
        self.calls.insert(id.clone(), index);
        index
    }

    fn call_ended(&mut self, id: &CallId, name: &str, output: String, is_error: bool) {
        if self.facts.is_client_tool(name) {
            return;
        }
        let index = self.call_started(id, name);
        let Some(item) = self.items.get(index).map(|item| item.value.clone()) else { return };
        let fields = json!({ "item_id": item["id"], "output_index": index });
        let (kind, status) =
            if is_error { ("response.mcp_call.failed", "failed") } else { ("response.mcp_call.completed", "completed") };
        self.push(kind, fields);
        self.finish_item(index, items::with_result(item, output, is_error, status));
    }

    /// Shows the open questions as messages, which the user answers by a message.
    fn ask(&mut self) {
        for (id, text) in self.questions.clone() {
            let part = PartId::from_stored(derived("part_", id.as_str()));
            self.part_started(part.clone(), items::question_id(&id), items::TextKind::Answer);
            self.part_delta(&part, &text);
            self.part_ended(&part, &text);
        }
    }

    fn end(&mut self, kind: &str, outcome: Outcome, flow: Flow) -> Flow {
        self.close_open_parts();
        self.outcome = outcome;
        self.push_response(kind);
        flow
    }

    /// Begins the next response of the run.
    fn next_segment(&mut self) {
        self.segment += 1;
        (self.base, self.outcome, self.usage) = (None, Outcome::InProgress, Usage::default());
        self.items.clear();
        self.calls.clear();
        self.open.clear();
        self.step_start = 0;
    }

    fn apply(&mut self, event: &StoredEvent, body: EventBody) -> Flow {
        let at = event.at.0 / 1000;
        let is_pause = self.pauses.observe_pause(event.seq, &body);
        match body {
            EventBody::RunStarted { .. } if self.outcome == Outcome::Queued => {
                self.outcome = Outcome::InProgress;
                self.push_response("response.in_progress");
            }
            EventBody::StepStarted { .. } => self.step_start = self.items.len(),
            EventBody::StepReset { .. } => self.reset(),
            EventBody::StepCompleted { usage: Some(usage), .. } => self.usage.add(usage),
            EventBody::PartStarted { message_id, part_id, index, kind, .. } => {
                let kind = match kind.as_str() {
                    "text" => items::TextKind::Answer,
                    "reasoning" => items::TextKind::Reasoning,
                    _ => return Flow::Continue,
                };
                self.part_started(part_id, items::text_id(kind, &message_id, index), kind);
            }
            EventBody::PartDelta { part_id, delta } => self.part_delta(&part_id, &delta),
            EventBody::PartCompleted { part, .. } => match &part {
                Part::Text(part) => self.part_ended(&part.id, &part.text),
                Part::Reasoning(part) => self.part_ended(&part.id, &part.text),
                Part::ToolCall(part) => {
                    self.arguments.insert(part.call_id.clone(), part.arguments.to_string());
                }
                Part::ToolResult(_) | Part::Image(_) | Part::File(_) | Part::Source(_) => {}
            },
            EventBody::ToolRequested { call } => {
                let arguments = call.arguments.to_string();
                let item = items::function_call(&call.call_id, &call.name, "", "in_progress");
                let item_id = item["id"].clone();
                let index = self.add(item);
                let fields = json!({ "item_id": item_id, "output_index": index, "delta": arguments });
                self.push("response.function_call_arguments.delta", fields);
                let fields = json!({ "item_id": item_id, "output_index": index, "arguments": arguments });
                self.push("response.function_call_arguments.done", fields);
                self.finish_item(index, items::function_call(&call.call_id, &call.name, &arguments, "completed"));
            }
            EventBody::ToolStarted { call_id, name, arguments, .. } if !self.facts.is_client_tool(&name) => {
                self.arguments.insert(call_id.clone(), arguments.to_string());
                self.call_started(&call_id, &name);
            }
            EventBody::ToolCompleted { call_id, state: ToolCallState::Cancelled, .. }
                if self.facts.limits_calls() && !self.calls.contains_key(&call_id) => {}
            EventBody::ToolCompleted { call_id, name, content, is_error, .. } => {
                self.call_ended(&call_id, &name, items::tool_text(&content), is_error);
            }
            EventBody::ToolOutcomeUnknown { call_id, name, .. } => {
                let output = "the call may or may not have taken effect".to_owned();
                self.call_ended(&call_id, &name, output, true);
            }
            EventBody::ApprovalRequested { id, call_id, request } => {
                let item = items::approval_request(&id, &request);
                if let (Some(call), Some(id)) = (call_id, item["id"].as_str()) {
                    self.approvals.insert(call, id.to_owned());
                }
                let index = self.add(item.clone());
                self.finish_item(index, item);
            }
            EventBody::InputRequested { id, question, .. } => self.questions.push((id, question_text(&question))),
            EventBody::InputResolved { id, .. } => self.questions.retain(|(open, _)| *open != id),
            EventBody::RunWaiting { .. } if is_pause => {
                self.ask();
                return self.end("response.completed", Outcome::Completed { at }, Flow::Suspended);
            }
            EventBody::RunCompleted { finish_reason, .. } => {
                let reason = match finish_reason {
                    FinishReason::Stop | FinishReason::ToolCalls | FinishReason::Cancelled => {
                        return self.end("response.completed", Outcome::Completed { at }, Flow::End);
                    }
                    FinishReason::Length | FinishReason::Budget => "max_output_tokens",
                    FinishReason::MaxRounds => "max_messages",
                    FinishReason::Refused => "content_filter",
                };
                return self.end("response.incomplete", Outcome::Incomplete { reason }, Flow::End);
            }
            EventBody::RunFailed { error } => {
                return self.end("response.failed", Outcome::Failed(Box::new(error)), Flow::End);
            }
            EventBody::RunCancelled { .. } => {
                return self.end("response.incomplete", Outcome::Cancelled, Flow::End);
            }
            _ => {}
        }
        Flow::Continue
    }
}

impl ChunkTranslator for ResponseTranslator {
    fn translate(&mut self, event: &StoredEvent) -> Vec<Value> {
        let Some(body) = event.body() else { return Vec::new() };
        // The message that began the run is its input.
        if self.base.is_none() && matches!(body, EventBody::MessageCreated { .. }) && self.segment == 0 {
            return Vec::new();
        }
        match self.base {
            None => self.begin(event),
            Some(base) => self.next = event.seq.saturating_sub(base).saturating_mul(MAX_FRAMES),
        }
        let flow = self.apply(event, body);
        if self.is_wanted() || flow == Flow::End {
            self.flow = flow;
        } else if flow == Flow::Suspended {
            self.next_segment();
        }
        std::mem::take(&mut self.chunks)
    }

    fn is_over(&self) -> bool {
        self.flow != Flow::Continue
    }
}

impl Translator for ResponseTranslator {
    fn flow(&self) -> Flow {
        self.flow
    }

    fn interrupt(&mut self, problem: &ProblemBody) -> Vec<Value> {
        let (code, message) = (&problem.code, &problem.detail);
        vec![json!({ "type": "error", "sequence_number": self.next, "code": code, "message": message, "param": null })]
    }

    fn write(&self, chunks: &[Value], out: &mut String) {
        for chunk in chunks {
            let kind = chunk["type"].as_str().unwrap_or_default();
            out.extend(["event: ", kind, "\ndata: "]);
            push_chunk(out, chunk);
        }
        // Open Responses requires it; the SDKs of OpenAI take it for the end.
        if self.is_over() {
            out.push_str("data: [DONE]\n\n");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::agent::AgentProfile;
    use crate::domain::conversation::message::{Message, ReasoningPart, Role, TextPart, ToolCallPart, ToolContent};
    use crate::domain::event::NewEvent;
    use crate::domain::ids::{ConversationId, InputId, MessageId, RunId};
    use crate::domain::problem::ProblemCode;
    use crate::domain::run::question::{InputKind, InputState, Question};
    use crate::domain::run::{Run, RunStatus, WaitReason};
    use crate::domain::tool::approval::{ApprovalRequest, ApprovalState};
    use crate::domain::tool::client_tool::{ClientCall, ClientTool};
    use crate::support::clock::UnixMillis;
    use crate::support::ids::SequentialIds;

    struct Log {
        ids: SequentialIds,
        run: Run,
        events: Vec<StoredEvent>,
    }

    fn run(ids: &SequentialIds) -> Run {
        Run {
            id: RunId::generate(ids),
            conversation_id: ConversationId::generate(ids),
            status: RunStatus::Processing,
            reason: None,
            agent: "default".to_owned(),
            agent_version: 1,
            model: "acme/large".to_owned(),
            attempt: 1,
            finish_reason: None,
            usage: None,
            output: None,
            error: None,
            trace_id: None,
            created_at: "2026-01-01T00:00:00.000Z".to_owned(),
            started_at: None,
            finished_at: None,
        }
    }

    impl Log {
        fn new() -> Self {
            let ids = SequentialIds::default();
            let run = run(&ids);
            let mut log = Self { ids, run, events: Vec::new() };
            let of = (log.run.id.clone(), log.run.conversation_id.clone());
            let message = Message::new(MessageId::generate(&log.ids), of, Role::User, Vec::new());
            log.add(EventBody::MessageCreated { message });
            log.add(EventBody::RunQueued { position: 0, supersedes: Vec::new() });
            let (model, agent) = (log.run.model.clone(), log.run.agent.clone());
            log.add(EventBody::RunStarted { model, agent, agent_version: 1, left_out: Vec::new() });
            log
        }

        fn add(&mut self, body: EventBody) {
            // Events of other runs lie between those of this one.
            let seq = 40 + 3 * i64::try_from(self.events.len()).unwrap();
            let event = NewEvent::new(&body, Some(self.run.id.clone()), 1, UnixMillis(1_767_225_600_000 + seq));
            self.events.push(event.stored(self.run.conversation_id.clone(), seq));
        }

        fn step(&mut self, step: u32) {
            self.add(EventBody::StepStarted { step, kind: "model".to_owned(), tools: None });
        }

        fn part(&mut self, kind: &str, deltas: &[&str], is_complete: bool) {
            let (message_id, id) = (MessageId::generate(&self.ids), PartId::generate(&self.ids));
            let (call_id, name) = (None, None);
            let (part_id, kind_name) = (id.clone(), kind.to_owned());
            self.add(EventBody::PartStarted { message_id: message_id.clone(), part_id, index: 0, kind: kind_name, call_id, name });
            for delta in deltas {
                self.add(EventBody::PartDelta { part_id: id.clone(), delta: (*delta).to_owned() });
            }
            let text = deltas.concat();
            if is_complete {
                let part = match kind {
                    "text" => Part::Text(TextPart { id, text }),
                    _ => Part::Reasoning(ReasoningPart { id, text, raw: None }),
                };
                self.add(EventBody::PartCompleted { message_id, part });
            }
        }

        fn call(&mut self, name: &str, is_error: bool) {
            let call_id = CallId::generate(&self.ids);
            self.add(EventBody::ToolStarted {
                call_id: call_id.clone(),
                name: name.to_owned(),
                server: None,
                arguments: json!({"path": "a"}),
                repair: None,
                undoes: None,
            });
            self.result(call_id, name, is_error);
        }

        /// Adds a call that is refused before it starts.
        fn refused_call(&mut self, name: &str) {
            let (message_id, id, call_id) =
                (MessageId::generate(&self.ids), PartId::generate(&self.ids), CallId::generate(&self.ids));
            let part = ToolCallPart::new(id, call_id.clone(), name.to_owned(), json!({"path": "b"}));
            self.add(EventBody::PartCompleted { message_id, part: Part::ToolCall(part) });
            self.result(call_id, name, true);
        }

        fn result(&mut self, call_id: CallId, name: &str, is_error: bool) {
            self.add(EventBody::ToolCompleted {
                call_id,
                name: name.to_owned(),
                server: None,
                state: if is_error { ToolCallState::Failed } else { ToolCallState::Done },
                content: vec![ToolContent::text("the result")],
                is_error,
                duration_ms: 1,
                truncated: false,
                undoable: false,
            });
        }

        fn ask_client(&mut self) -> CallId {
            let call_id = CallId::generate(&self.ids);
            let (name, arguments) = ("look".to_owned(), json!({"at": 1}));
            let started = EventBody::ToolStarted {
                call_id: call_id.clone(),
                name: name.clone(),
                server: None,
                arguments: arguments.clone(),
                repair: None,
                undoes: None,
            };
            self.add(started);
            self.add(EventBody::ToolRequested { call: ClientCall { call_id: call_id.clone(), name, arguments, expires_at: None } });
            self.add(EventBody::RunWaiting { reason: WaitReason::ClientTool, id: None, detail: None });
            call_id
        }

        fn completed(&mut self, finish_reason: FinishReason) {
            self.add(EventBody::RunCompleted { finish_reason, usage: Usage::default(), output: None, error: None, notice: None });
        }

        fn translator(&self, segment: u32, after: Option<i64>) -> ResponseTranslator {
            let client_tools = vec![ClientTool { name: "look".to_owned(), description: String::new(), parameters: None }];
            let profile = AgentProfile { client_tools, ..AgentProfile::default() };
            ResponseTranslator::new(ResponseDetails::of(&self.run, segment, &profile), after)
        }

        /// Returns the frames of a response, and the response.
        fn read(&self, segment: u32, after: Option<i64>) -> (Vec<Value>, Value) {
            let mut translator = self.translator(segment, after);
            let mut frames = String::new();
            for event in &self.events {
                let chunks = translator.translate(event);
                translator.write(&chunks, &mut frames);
                if translator.is_over() {
                    break;
                }
            }
            (parsed(&frames), translator.response())
        }
    }

    fn parsed(frames: &str) -> Vec<Value> {
        let frames = frames.strip_suffix("data: [DONE]\n\n").unwrap().split_terminator("\n\n").map(|frame| {
            let (name, data) = frame.split_once('\n').unwrap();
            let data: Value = serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap();
            assert_eq!(name.strip_prefix("event: "), data["type"].as_str());
            data
        });
        frames.collect()
    }

    fn kinds(frames: &[Value]) -> Vec<&str> {
        frames.iter().map(|frame| frame["type"].as_str().unwrap().strip_prefix("response.").unwrap()).collect()
    }

    /// Returns a run with every kind of item, a step that began again, and two answers of its client.
    fn eventful() -> Log {
        let mut log = Log::new();
        log.step(1);
        log.part("reasoning", &["so", "me"], true);
        log.part("text", &["Hello wor"], false);
        log.add(EventBody::StepReset { step: 1, reason: "crash".to_owned() });
        log.part("text", &["Hello", " world"], true);
        log.call("files__read", false);
        log.call("calculate", true);
        log.ask_client();
        log.add(EventBody::RunResumed { cause: "request".to_owned() });
        log.step(3);
        let (id, call_id) = (InputId::generate(&log.ids), Some(CallId::generate(&log.ids)));
        let request = ApprovalRequest {
            name: "mail__send".to_owned(),
            server: Some("mail".to_owned()),
            tool: "send".to_owned(),
            description: String::new(),
            arguments: json!({"to": "b"}),
            arguments_hash: String::new(),
            rationale: None,
            preview: String::new(),
            destructive: false,
            undoable: false,
            scopes: Vec::new(),
        };
        log.add(EventBody::ApprovalRequested { id, call_id, request: Box::new(request) });
        log.add(EventBody::RunWaiting { reason: WaitReason::Approval, id: None, detail: None });
        log.add(EventBody::RunResumed { cause: "request".to_owned() });
        log.step(5);
        log.part("text", &["Done", "."], true);
        log.completed(FinishReason::Stop);
        log
    }

    #[test]
    fn text_run_has_the_minimal_grammar() {
        let mut log = Log::new();
        log.step(1);
        log.part("text", &["Hel", "lo"], true);
        log.add(EventBody::StepCompleted { step: 1, usage: Some(Usage { input_tokens: 5, output_tokens: 2, ..Usage::default() }) });
        log.completed(FinishReason::Stop);
        let (frames, response) = log.read(0, None);
        let expected = [
            "created",
            "in_progress",
            "output_item.added",
            "content_part.added",
            "output_text.delta",
            "output_text.delta",
            "output_text.done",
            "content_part.done",
            "output_item.done",
            "completed",
        ];
        assert_eq!(kinds(&frames), expected);
        assert_eq!((&response["status"], &response["output"][0]["content"][0]["text"]), (&json!("completed"), &json!("Hello")));
        assert_eq!((&response["usage"]["total_tokens"], &response["model"]), (&json!(7), &json!("acme/large")));
        assert_eq!(frames.last().unwrap()["response"], response);
        assert_eq!(response["id"], log.run.id.as_str().replace("run_", "resp_"));
    }

    #[test]
    fn run_has_one_response_for_each_answer_of_its_client() {
        let log = eventful();
        let (frames, first) = log.read(0, None);
        let types = |response: &Value| -> Vec<String> {
            response["output"].as_array().unwrap().iter().map(|item| item["type"].as_str().unwrap().to_owned()).collect()
        };
        // The first text and the reasoning before it were taken back.
        assert_eq!(types(&first), ["message", "mcp_call", "mcp_call", "function_call"]);
        let output = first["output"].as_array().unwrap();
        assert_eq!((&output[1]["server_label"], &output[1]["name"]), (&json!("files"), &json!("read")));
        assert_eq!((&output[1]["output"], &output[2]["status"]), (&json!("the result"), &json!("failed")));
        assert_eq!((&output[2]["server_label"], &output[3]["arguments"]), (&json!("capstan"), &json!("{\"at\":1}")));
        let incomplete: Vec<&Value> = frames.iter().filter(|frame| frame["item"]["status"] == "incomplete").collect();
        assert_eq!((incomplete.len(), &incomplete[0]["type"]), (1, &json!("response.output_item.done")));
        let (frames, second) = log.read(1, None);
        assert_eq!(types(&second), ["mcp_approval_request"]);
        assert_eq!(kinds(&frames), ["created", "in_progress", "output_item.added", "output_item.done", "completed"]);
        assert_eq!(second["previous_response_id"], first["id"]);
        let (_, third) = log.read(2, None);
        assert_eq!((types(&third), &third["previous_response_id"]), (vec!["message".to_owned()], &second["id"]));
        let mut translator = log.translator(3, None);
        let chunks: Vec<Value> = log.events.iter().flat_map(|event| translator.translate(event)).collect();
        assert_eq!(chunks, [Value::Null; 0], "there is no fourth response");
    }

    #[test]
    fn question_is_a_message_until_it_is_answered() {
        let mut log = Log::new();
        log.step(1);
        let (id, call_id) = (InputId::generate(&log.ids), Some(CallId::generate(&log.ids)));
        let question = Question { text: "Which?".to_owned(), ..Question::default() };
        log.add(EventBody::InputRequested { id: id.clone(), kind: InputKind::Question, call_id, question });
        let waiting = || EventBody::RunWaiting { reason: WaitReason::Input, id: None, detail: None };
        log.add(waiting());
        log.add(EventBody::RunResumed { cause: "request".to_owned() });
        // Another call has woken the run.
        log.add(waiting());
        log.add(EventBody::InputResolved { id, state: InputState::Answered, answer: None, by: None });
        log.completed(FinishReason::Stop);
        for segment in [0, 1] {
            let (frames, response) = log.read(segment, None);
            assert_eq!(response["output"][0]["content"][0]["text"], "Which?", "{response}");
            assert_eq!((*kinds(&frames).last().unwrap(), &response["status"]), ("completed", &json!("completed")));
        }
        assert_eq!(log.read(2, None).1["output"], json!([]));
    }

    // The worker claims the run at the first of two decisions, and reports a wait for the second, which is stored already.
    #[test]
    fn wait_for_a_stored_decision_is_no_response() {
        let mut log = Log::new();
        let [first, second] = [(), ()].map(|()| InputId::generate(&log.ids));
        let waiting = |id: &InputId| EventBody::RunWaiting { reason: WaitReason::Approval, id: Some(id.to_string()), detail: None };
        let allowed = |id: &InputId| EventBody::ApprovalResolved {
            id: id.clone(),
            call_id: None,
            status: ApprovalState::Allowed,
            scope: None,
            edited_arguments: None,
            reason: None,
            by: None,
        };
        for body in [waiting(&first), allowed(&first), allowed(&second), waiting(&second)] {
            log.add(body);
        }
        log.step(3);
        log.part("text", &["Done."], true);
        log.completed(FinishReason::Stop);
        let (frames, response) = log.read(1, None);
        assert_eq!((*kinds(&frames).last().unwrap(), &response["output"][0]["content"][0]["text"]), ("completed", &json!("Done.")));
    }

    // Clients append the deltas to the arguments of the item that was added.
    #[test]
    fn server_call_is_added_before_its_arguments() {
        let mut log = Log::new();
        log.step(1);
        log.call("files__read", false);
        log.refused_call("files__drop");
        log.completed(FinishReason::Stop);
        let (frames, response) = log.read(0, None);
        let texts = |kind: &str, pointer: &str| -> Vec<String> {
            let frames = frames.iter().filter(|frame| frame["type"] == format!("response.{kind}"));
            frames.map(|frame| frame.pointer(pointer).unwrap().as_str().unwrap().to_owned()).collect()
        };
        let arguments = [r#"{"path":"a"}"#, r#"{"path":"b"}"#];
        assert_eq!(texts("output_item.added", "/item/arguments"), ["", ""]);
        assert_eq!(texts("mcp_call_arguments.delta", "/delta"), arguments);
        assert_eq!(texts("mcp_call_arguments.done", "/arguments"), arguments);
        assert_eq!(texts("output_item.done", "/item/arguments"), arguments);
        let output = response["output"].as_array().unwrap();
        assert_eq!(output.iter().map(|item| item["arguments"].as_str().unwrap()).collect::<Vec<_>>(), arguments);
    }

    #[test]
    fn response_cut_at_each_frame_resumes_with_the_same_frames() {
        let log = eventful();
        for segment in 0..3 {
            let (whole, response) = log.read(segment, None);
            let numbers: Vec<i64> = whole.iter().map(|frame| frame["sequence_number"].as_i64().unwrap()).collect();
            assert_eq!(numbers[0], 0);
            assert!(numbers.is_sorted_by(|one, next| one < next), "{numbers:?}");
            for cut in 0..whole.len() {
                let (rest, same) = log.read(segment, Some(numbers[cut]));
                assert_eq!((rest.as_slice(), &same), (&whole[cut + 1..], &response), "cut after frame {cut} of response {segment}");
            }
        }
    }

    #[test]
    fn end_of_run_is_the_end_of_its_response() {
        for (body, kind, status) in [
            (EventBody::RunFailed { error: ProblemCode::ProviderRateLimit.body("slow down") }, "failed", "failed"),
            (EventBody::RunCancelled { by: "user".to_owned() }, "incomplete", "cancelled"),
        ] {
            let mut log = Log::new();
            log.step(1);
            log.part("text", &["Hel"], false);
            log.add(body);
            let (frames, response) = log.read(0, None);
            assert_eq!((*kinds(&frames).last().unwrap(), &response["status"]), (kind, &json!(status)));
            let opened = kinds(&frames).iter().filter(|kind| **kind == "output_item.added").count();
            let closed = kinds(&frames).iter().filter(|kind| **kind == "output_item.done").count();
            assert_eq!((opened, closed), (1, 1), "each item is closed");
            assert!(!kinds(&frames).contains(&"output_text.done"), "a client would parse the text");
        }
        for (reason, shown) in [(FinishReason::Length, "max_output_tokens"), (FinishReason::Refused, "content_filter")] {
            let mut log = Log::new();
            log.completed(reason);
            let (frames, response) = log.read(0, None);
            assert_eq!((*kinds(&frames).last().unwrap(), &response["incomplete_details"]["reason"]), ("incomplete", &json!(shown)));
        }
    }
}
