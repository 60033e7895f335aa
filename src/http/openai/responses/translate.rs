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
use crate::domain::tool::{ToolCallState, UNKNOWN_OUTCOME};
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
    /// The item of the text that ended last, with its index. The next event tells whether the text was cut.
    ended: Option<(usize, Value)>,
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
            ended: None,
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
        let fields = json!({ "item_id": item_id, "output_index": index, kind.names().index: 0, "part": kind.part("") });
        self.push(kind.names().part_added, fields);
        self.open.insert(id, OpenPart { item_id, index, kind, text: String::new() });
    }

    fn part_delta(&mut self, id: &PartId, delta: &str) {
        let Some(part) = self.open.get_mut(id) else { return };
        part.text.push_str(delta);
        let kind = part.kind;
        let mut fields = json!({ "item_id": part.item_id, "output_index": part.index, kind.names().index: 0, "delta": delta });
        if kind == items::TextKind::Answer {
            fields["logprobs"] = json!([]);
        }
        self.push(kind.names().delta, fields);
    }

    fn part_ended(&mut self, id: &PartId, text: &str) {
        let Some(OpenPart { item_id, index, kind, .. }) = self.open.remove(id) else { return };
        let mut fields = json!({ "item_id": item_id, "output_index": index, kind.names().index: 0, "text": text });
        if kind == items::TextKind::Answer {
            fields["logprobs"] = json!([]);
        }
        self.push(kind.names().text_done, fields);
        let fields = json!({ "item_id": item_id, "output_index": index, kind.names().index: 0, "part": kind.part(text) });
        self.push(kind.names().part_done, fields);
        let item = items::text(kind, &item_id, Some(text), "completed");
        if kind == items::TextKind::Reasoning {
            self.finish_item(index, item);
            return;
        }
        if let Some(known) = self.items.get_mut(index) {
            known.value = item.clone();
        }
        self.ended = Some((index, item));
    }

    fn finish_text(&mut self, status: &str) {
        if let Some((index, mut item)) = self.ended.take() {
            item["status"] = status.into();
            self.finish_item(index, item);
        }
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
        self.push(if is_error { "response.mcp_call.failed" } else { "response.mcp_call.completed" }, fields);
        self.finish_item(index, items::with_result(item, output, is_error));
    }

    /// Shows the open questions as messages, which the user answers by a message.
    fn ask(&mut self) {
        for (id, text) in self.questions.clone() {
            let part = PartId::from_stored(derived("part_", id.as_str()));
            self.part_started(part.clone(), items::question_id(&id), items::TextKind::Answer);
            self.part_delta(&part, &text);
            self.part_ended(&part, &text);
            self.finish_text("completed");
        }
    }

    fn end(&mut self, kind: &str, outcome: Outcome, flow: Flow) -> Flow {
        self.close_open_parts();
        self.outcome = outcome;
        self.push_response(kind);
        flow
    }

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
        match &body {
            EventBody::MessageCompleted { message } => self.finish_text(items::answer_status(message)),
            // Sources come between a text and the end of its message.
            EventBody::PartStarted { kind, .. } if kind == "source" => {}
            EventBody::PartCompleted { part: Part::Source(_), .. } => {}
            _ => self.finish_text("completed"),
        }
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
                self.call_ended(&call_id, &name, UNKNOWN_OUTCOME.to_owned(), true);
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
#[path = "translate_tests.rs"]
mod tests;
