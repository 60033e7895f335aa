//! The messages of a request, in an order and shape that every provider accepts.
//!
//! The transcript is a copy; stored messages do not change. Even if calls were cancelled, cut off or lost, each tool call has exactly one
//! result directly after its message, in call order.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use serde_json::json;

use crate::domain::conversation::{Message, MessageStatus, Part, Role, TextPart, ToolCallPart, ToolContent, ToolResultPart};
use crate::domain::ids::{CallId, MessageId, PartId, RunId};
use crate::domain::run::RunRecord;
use crate::domain::tool::{ToolCall, ToolCallState};
use crate::engine::offer::usable::Prerequisite;
use crate::engine::prompts;
use crate::engine::request::eviction::{self, Eviction};
use crate::engine::request::request_source::{RequestMessages, RequestSource};
use crate::engine::request::tool_results;
use crate::engine::request::transcript_rules::{MAX_NAME, is_sendable_name};
use crate::engine::strategy::plan::progress;

pub fn sendable(source: &RequestSource<'_>) -> Vec<Message> {
    let record = source.record;
    let RequestMessages { covered_user_messages, uncovered, .. } = source.request_messages();
    let is_text_only = source.missing_prerequisite() == Prerequisite::Categories || progress::phase(record).is_some();
    let mut builder = Builder::new(record, &uncovered, is_text_only);
    for message in covered_user_messages.into_iter().chain(uncovered) {
        // Hints are sent only in their own run.
        if message.internal && message.run_id != record.fence.run_id {
            continue;
        }
        match message.role {
            Role::User => builder.user(message),
            Role::Assistant => builder.assistant(message),
            // Results are added after their calls; results without a call are dropped.
            Role::Tool => {}
        }
    }
    let mut messages = builder.finish(record);
    if record.counters.halved {
        eviction::halve(&mut messages);
    }
    messages
}

/// Returns whether the request of the current model step contains signed content, or ids of the provider.
pub fn holds_signed(source: &RequestSource<'_>) -> bool {
    let messages = sendable(source);
    messages.iter().flat_map(|message| &message.parts).any(|part| match part {
        Part::Reasoning(_) => true,
        Part::ToolCall(call) => call.raw.is_some() || call.provider_call_id.is_some(),
        Part::Text(_) | Part::ToolResult(_) | Part::Image(_) | Part::File(_) | Part::Source(_) => false,
    })
}

/// Returns what halving the request would drop.
pub fn left_out_by_halving(source: &RequestSource<'_>) -> Eviction {
    eviction::halve(&mut sendable(source))
}

struct Builder<'a> {
    results: HashMap<&'a CallId, &'a ToolResultPart>,
    rows: HashMap<&'a CallId, &'a ToolCall>,
    limit: usize,
    /// Whether calls, their results and reasoning are omitted.
    is_text_only: bool,
    /// The model that gets the request. `None` if its provider refused signed content.
    reader: Option<&'a str>,
    called: HashSet<&'a CallId>,
    echoed: HashSet<&'a str>,
    /// Pictures of answers. Providers take pictures from users only, so the next user message shows them.
    pictures: Vec<Part>,
    messages: Vec<Message>,
}

impl<'a> Builder<'a> {
    fn new(record: &'a RunRecord, uncovered: &[&'a Message], is_text_only: bool) -> Self {
        let calls = &record.calls;
        let mut results = HashMap::new();
        let tool_messages = uncovered.iter().filter(|message| message.role == Role::Tool);
        for result in tool_messages.flat_map(|message| message.tool_results()) {
            results.entry(&result.call_id).or_insert(result);
        }
        let rows = calls.iter().map(|call| (&call.id, call.as_ref())).collect();
        Self {
            results,
            rows,
            limit: record.profile.tool_result_chars,
            is_text_only,
            reader: (!record.counters.unsigned).then(|| record.model()),
            called: HashSet::new(),
            echoed: HashSet::new(),
            pictures: Vec::new(),
            messages: Vec::new(),
        }
    }

    fn user(&mut self, message: &Message) {
        let own: Vec<Part> = message.parts.iter().filter(|part| is_user_content(part)).cloned().collect();
        if !own.is_empty() {
            let parts = std::mem::take(&mut self.pictures).into_iter().chain(own).collect();
            Message { parts, ..message.head() }.append_to(&mut self.messages);
        }
    }

    fn assistant(&mut self, message: &'a Message) {
        let mut parts = Vec::with_capacity(message.parts.len());
        let mut answers = Vec::new();
        // Other models refuse signed content and provider ids.
        let is_own = message.model.is_some() && message.model.as_deref() == self.reader;
        for part in &message.parts {
            match part {
                Part::Text(text) if !text.text.trim().is_empty() => parts.push(part.clone()),
                // Requests for categories and of plans declare other tools, and some providers refuse calls of undeclared tools.
                Part::ToolCall(_) | Part::Reasoning(_) if self.is_text_only => {}
                Part::Reasoning(reasoning) if is_own && (!reasoning.text.is_empty() || reasoning.raw.is_some()) => {
                    parts.push(part.clone());
                }
                // Calls of a partial message were never executed.
                Part::ToolCall(call) if message.status == MessageStatus::Complete && self.called.insert(&call.call_id) => {
                    parts.push(Part::ToolCall(self.call(call, is_own)));
                    answers.push(Part::ToolResult(self.result(call)));
                }
                Part::Image(picture) => {
                    let text = format!("[picture {}, {}, which the user was shown]", picture.shown_name(), picture.media_type);
                    parts.push(Part::Text(TextPart { id: picture.id.clone(), text }));
                    self.pictures.push(part.clone());
                }
                Part::Text(_) | Part::Reasoning(_) | Part::ToolCall(_) => {}
                Part::ToolResult(_) | Part::File(_) | Part::Source(_) => {}
            }
        }
        // Providers refuse a message with reasoning alone.
        if !parts.iter().any(|part| matches!(part, Part::Text(_) | Part::ToolCall(_))) {
            return;
        }
        Message { parts, ..message.head() }.append_to(&mut self.messages);
        if !answers.is_empty() {
            let head = Message { role: Role::Tool, finish_reason: None, usage: None, model: None, ..message.head() };
            self.messages.push(Message { parts: answers, ..head });
        }
    }

    /// Returns a call with a name and arguments that providers accept. Sends each provider call id only once, because `call_id`
    /// alone identifies a call.
    fn call(&mut self, call: &'a ToolCallPart, is_own: bool) -> ToolCallPart {
        let is_object = call.arguments.is_object();
        let arguments = if is_object { call.arguments.clone() } else { json!({ "_raw": call.arguments.to_string() }) };
        let provider_call_id = call.provider_call_id.as_deref().filter(|id| is_own && !id.is_empty() && self.echoed.insert(id));
        ToolCallPart {
            id: call.id.clone(),
            call_id: call.call_id.clone(),
            name: sendable_name(&call.name).into_owned(),
            arguments,
            provider_call_id: provider_call_id.map(str::to_owned),
            raw: call.raw.clone().filter(|_| is_own),
            undoes: None,
        }
    }

    fn result(&self, call: &ToolCallPart) -> ToolResultPart {
        let name = sendable_name(&call.name).into_owned();
        if let Some(result) = self.results.get(&call.call_id) {
            return ToolResultPart { name, content: tool_results::cut(&result.content, self.limit).0, ..(*result).clone() };
        }
        if let Some(row) = self.rows.get(&call.call_id) {
            return ToolResultPart { name, ..tool_results::part(call.id.clone(), row, self.limit) };
        }
        ToolResultPart {
            id: call.id.clone(),
            call_id: call.call_id.clone(),
            name,
            content: vec![ToolContent::text(tool_results::missing(ToolCallState::Unknown.as_str()))],
            is_error: true,
            state: ToolCallState::Unknown,
            undoable: false,
        }
    }

    /// Makes the request begin with a user message and end with a user message or tool results.
    fn finish(mut self, record: &RunRecord) -> Vec<Message> {
        if self.messages.first().is_none_or(|message| message.role != Role::User) {
            let opening = if self.messages.is_empty() { prompts::CONTINUE } else { prompts::HISTORY_CUT };
            self.messages.insert(0, user_text(record, self.messages.first(), opening));
        }
        if self.messages.last().is_some_and(|message| message.role == Role::Assistant) {
            let closing = user_text(record, self.messages.last(), prompts::CONTINUE);
            self.messages.push(closing);
        }
        self.messages
    }
}

fn is_user_content(part: &Part) -> bool {
    match part {
        Part::Text(text) => !text.text.trim().is_empty(),
        Part::Image(_) | Part::File(_) => true,
        Part::Reasoning(_) | Part::ToolCall(_) | Part::ToolResult(_) | Part::Source(_) => false,
    }
}

/// Returns a name that providers accept. Some models invent names that their own providers refuse.
fn sendable_name(name: &str) -> Cow<'_, str> {
    if is_sendable_name(name) {
        return Cow::Borrowed(name);
    }
    let mended: String =
        name.chars().take(MAX_NAME).map(|c| if c.is_ascii_alphanumeric() || c == '_' || c == '-' { c } else { '_' }).collect();
    Cow::Owned(if mended.is_empty() { "unknown".to_owned() } else { mended })
}

/// Returns a user message. Its ids are those of a neighbour: no provider sees them.
pub fn user_text(record: &RunRecord, near: Option<&Message>, text: &str) -> Message {
    let fence = &record.fence;
    let uuid = fence.run_id.as_str().trim_start_matches(RunId::PREFIX);
    let part = PartId::from_stored(format!("{}{uuid}", PartId::PREFIX));
    let id = near.map_or_else(|| MessageId::from_stored(format!("{}{uuid}", MessageId::PREFIX)), |message| message.id.clone());
    Message::of_request(id, fence.ids(), Role::User, TextPart { id: part, text: text.to_owned() })
}
