//! Builds requests that every provider accepts.
//!
//! What is stored is never touched: the request is made from a copy. Whatever was cancelled, cut off or lost, each tool call
//! has exactly one result directly after its message, in call order.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use serde_json::{Value, json};

use super::compaction::{self, LeftOut};
use super::{RunState, offer, results, structured, texts};
use crate::domain::agent::OutputMode;
use crate::domain::ids::CallId;
use crate::domain::message::{Message, MessageStatus, Part, Role, TextPart, ToolCallPart, ToolContent, ToolResultPart};
use crate::domain::model::{ModelOptions, ModelRequest, ToolChoice};
use crate::domain::record::RunRecord;
use crate::domain::tool::{ToolCall, ToolCallState, ToolDefinition};

/// The request of the current model step: system prompt, sendable history, tools on offer.
#[must_use]
pub fn model_request(state: &RunState) -> ModelRequest {
    let record = &state.record;
    let mut options = ModelOptions { tool_choice: tool_choice(state), ..record.profile.options.clone() };
    let tools: Vec<ToolDefinition> = match offer::missing_in(state) {
        // Such a call is about the tools alone: whatever forces or forms the user's answer is for the next one.
        offer::Missing::Categories => {
            (options.tool_choice, options.output_schema) = (None, None);
            vec![offer::selector(&record.profile.tool_filter, &state.usable_tools())]
        }
        offer::Missing::Nothing | offer::Missing::Ranking => state.offered_tools().into_iter().cloned().collect(),
    };
    let mut request = ModelRequest {
        owner: Some(record.owner.clone()),
        model: record.model().to_owned(),
        system: record.profile.system_prompt.trim().to_owned(),
        messages: sendable(state),
        tools,
        options,
    };
    match record.profile.output {
        OutputMode::Tools => {}
        OutputMode::Structured => structured::project(&mut request),
    }
    request
}

/// Which tools the current model step may or must call.
pub(super) fn tool_choice(state: &RunState) -> Option<ToolChoice> {
    let choice = state.record.profile.options.tool_choice.as_ref();
    let may_be = may_be_forced(choice, state.record.counters.rounds, &state.offered_tools());
    choice.filter(|_| may_be).cloned()
}

/// A choice that forces a call holds for the first answer only, or the run could never end; and a choice among no tools, or of
/// one that is not on offer, is refused by providers.
fn may_be_forced(choice: Option<&ToolChoice>, rounds: u32, tools: &[&ToolDefinition]) -> bool {
    match choice {
        None => false,
        Some(ToolChoice::Auto | ToolChoice::None) => !tools.is_empty(),
        Some(ToolChoice::Required) => rounds == 0 && !tools.is_empty(),
        Some(ToolChoice::Tool(name)) => rounds == 0 && tools.iter().any(|tool| tool.name == *name),
    }
}

fn sendable(state: &RunState) -> Vec<Message> {
    let record = &state.record;
    let mut builder = Builder::new(record, offer::missing_in(state) == offer::Missing::Categories);
    for message in &record.history {
        // Hints hold for the run in which they were given.
        if message.internal && message.run_id != record.fence.run_id {
            continue;
        }
        match message.role {
            Role::User => builder.user(message),
            Role::Assistant => builder.assistant(message),
            // Results stand with their calls; those of calls that are not there are dropped.
            Role::Tool => {}
        }
    }
    let mut messages = builder.finish(state);
    if record.counters.halved {
        compaction::halve(&mut messages);
    }
    messages
}

/// Whether the request of the current model step holds what its model has signed, or ids that its provider gave.
pub(super) fn holds_signed(state: &RunState) -> bool {
    let messages = sendable(state);
    messages.iter().flat_map(|message| &message.parts).any(|part| match part {
        Part::Reasoning(_) => true,
        Part::ToolCall(call) => call.raw.is_some() || call.provider_call_id.is_some(),
        Part::Text(_) | Part::ToolResult(_) | Part::Image(_) | Part::File(_) => false,
    })
}

/// What a halved request would leave out. Nothing, if it cannot be made smaller.
pub(super) fn left_out_by_halving(state: &RunState) -> LeftOut {
    compaction::halve(&mut sendable(state))
}

struct Builder<'a> {
    results: HashMap<&'a CallId, &'a ToolResultPart>,
    rows: HashMap<&'a CallId, &'a ToolCall>,
    limit: usize,
    /// Calls and what goes with them are left out.
    words_only: bool,
    /// The model that reads the request, unless its provider has refused what it is said to have signed.
    reader: Option<&'a str>,
    called: HashSet<&'a CallId>,
    echoed: HashSet<&'a str>,
    messages: Vec<Message>,
}

impl<'a> Builder<'a> {
    fn new(record: &'a RunRecord, words_only: bool) -> Self {
        let (history, calls) = (&record.history, &record.calls);
        let mut results = HashMap::new();
        for part in history.iter().filter(|message| message.role == Role::Tool).flat_map(|message| &message.parts) {
            if let Part::ToolResult(result) = part {
                results.entry(&result.call_id).or_insert(result);
            }
        }
        let rows = calls.iter().map(|call| (&call.id, call)).collect();
        Self {
            results,
            rows,
            limit: record.profile.tool_result_chars,
            words_only,
            reader: (!record.counters.unsigned).then(|| record.model()),
            called: HashSet::new(),
            echoed: HashSet::new(),
            messages: Vec::new(),
        }
    }

    fn user(&mut self, message: &Message) {
        let parts: Vec<Part> = message.parts.iter().filter(|part| is_user_content(part)).cloned().collect();
        if !parts.is_empty() {
            self.push(Message { parts, ..message.head() });
        }
    }

    fn assistant(&mut self, message: &'a Message) {
        let mut parts = Vec::with_capacity(message.parts.len());
        let mut answers = Vec::new();
        // What one model has signed, and the ids that its provider gave, mean nothing to another, which refuses them.
        let is_own = message.model.is_some() && message.model.as_deref() == self.reader;
        for part in &message.parts {
            match part {
                Part::Text(text) if !text.text.trim().is_empty() => parts.push(part.clone()),
                // Whoever is asked for categories alone is told of no other tool.
                Part::ToolCall(_) | Part::Reasoning(_) if self.words_only => {}
                Part::Reasoning(reasoning) if is_own && (!reasoning.text.is_empty() || reasoning.raw.is_some()) => {
                    parts.push(part.clone());
                }
                // A partial message has no calls: they were never carried out.
                Part::ToolCall(call) if message.status == MessageStatus::Complete && self.called.insert(&call.call_id) => {
                    parts.push(Part::ToolCall(self.call(call, is_own)));
                    answers.push(Part::ToolResult(self.result(call)));
                }
                Part::Text(_) | Part::Reasoning(_) | Part::ToolCall(_) => {}
                Part::ToolResult(_) | Part::Image(_) | Part::File(_) => {}
            }
        }
        // Reasoning alone is nothing that can be sent.
        if !parts.iter().any(|part| matches!(part, Part::Text(_) | Part::ToolCall(_))) {
            return;
        }
        self.push(Message { parts, ..message.head() });
        if !answers.is_empty() {
            let head = Message { role: Role::Tool, finish_reason: None, usage: None, model: None, ..message.head() };
            self.messages.push(Message { parts: answers, ..head });
        }
    }

    /// A call with a name and arguments that providers take back, whatever their model has made up, and with the provider's
    /// id only where it is the first of its kind: our own id is the identity.
    fn call(&mut self, call: &'a ToolCallPart, is_own: bool) -> ToolCallPart {
        let arguments = match &call.arguments {
            Value::Object(_) => call.arguments.clone(),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
                json!({ "_raw": call.arguments.to_string() })
            }
        };
        let provider_call_id = call.provider_call_id.as_deref().filter(|id| is_own && !id.is_empty() && self.echoed.insert(id));
        ToolCallPart {
            id: call.id.clone(),
            call_id: call.call_id.clone(),
            name: sendable_name(&call.name).into_owned(),
            arguments,
            provider_call_id: provider_call_id.map(str::to_owned),
            raw: call.raw.clone().filter(|_| is_own),
        }
    }

    fn result(&self, call: &ToolCallPart) -> ToolResultPart {
        let name = sendable_name(&call.name).into_owned();
        if let Some(result) = self.results.get(&call.call_id) {
            return ToolResultPart { name, content: results::cut(&result.content, self.limit).0, ..(*result).clone() };
        }
        if let Some(row) = self.rows.get(&call.call_id) {
            return ToolResultPart { name, ..results::part(call.id.clone(), row, self.limit) };
        }
        ToolResultPart {
            id: call.id.clone(),
            call_id: call.call_id.clone(),
            name,
            content: vec![ToolContent::text(results::missing(ToolCallState::Unknown.as_str()))],
            is_error: true,
            state: ToolCallState::Unknown,
        }
    }

    /// Adds a message, or its parts to the one before if the same side goes on speaking.
    fn push(&mut self, message: Message) {
        match self.messages.last_mut() {
            Some(last) if last.role == message.role => last.parts.extend(message.parts),
            Some(_) | None => self.messages.push(message),
        }
    }

    /// A request begins with the user and ends with something to answer.
    fn finish(mut self, state: &RunState) -> Vec<Message> {
        if self.messages.first().is_none_or(|message| message.role != Role::User) {
            let opening = if self.messages.is_empty() { texts::GO_ON } else { texts::NO_BEGINNING };
            self.messages.insert(0, user_text(state, self.messages.first(), opening));
        }
        if self.messages.last().is_some_and(|message| message.role == Role::Assistant) {
            let closing = user_text(state, self.messages.last(), texts::GO_ON);
            self.messages.push(closing);
        }
        self.messages
    }
}

fn is_user_content(part: &Part) -> bool {
    match part {
        Part::Text(text) => !text.text.trim().is_empty(),
        Part::Image(_) | Part::File(_) => true,
        Part::Reasoning(_) | Part::ToolCall(_) | Part::ToolResult(_) => false,
    }
}

/// The longest tool name that all providers take, in characters.
const MAX_NAME: usize = 64;

fn is_sendable_name(name: &str) -> bool {
    (1..=MAX_NAME).contains(&name.len()) && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-')
}

/// A name that providers take back. Models make up names that their own providers then refuse.
fn sendable_name(name: &str) -> Cow<'_, str> {
    if is_sendable_name(name) {
        return Cow::Borrowed(name);
    }
    let mended: String =
        name.chars().take(MAX_NAME).map(|c| if c.is_ascii_alphanumeric() || c == '_' || c == '-' { c } else { '_' }).collect();
    Cow::Owned(if mended.is_empty() { "unknown".to_owned() } else { mended })
}

/// A message that stands only in the request. Its ids are borrowed from a neighbour: no provider sees them.
fn user_text(state: &RunState, near: Option<&Message>, text: &str) -> Message {
    let fence = &state.record.fence;
    let uuid = fence.run_id.as_str().trim_start_matches(crate::domain::ids::RunId::PREFIX);
    let id = crate::domain::ids::PartId::from_stored(format!("{}{uuid}", crate::domain::ids::PartId::PREFIX));
    Message {
        id: near.map_or_else(
            || crate::domain::ids::MessageId::from_stored(format!("{}{uuid}", crate::domain::ids::MessageId::PREFIX)),
            |message| message.id.clone(),
        ),
        conversation_id: fence.conversation_id.clone(),
        run_id: fence.run_id.clone(),
        role: Role::User,
        status: MessageStatus::Complete,
        parts: vec![Part::Text(TextPart { id, text: text.to_owned() })],
        finish_reason: None,
        model: None,
        usage: None,
        internal: true,
        created_at: String::new(),
    }
}

/// Why a provider would refuse a history.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unsendable {
    /// There is nothing to answer.
    #[error("the history holds no message")]
    Nothing,
    /// Message number `at` speaks out of turn: the first is not the user's, one side speaks twice, results stand without
    /// calls, or the last is an answer.
    #[error("message {at} speaks out of turn")]
    OutOfTurn {
        /// Counts from 0.
        at: usize,
    },
    /// Message number `at` says nothing.
    #[error("message {at} is empty")]
    Empty {
        /// Counts from 0.
        at: usize,
    },
    /// Message number `at` holds a part that its role cannot have, arguments that are no object, or a name that no
    /// tool can have.
    #[error("message {at} holds a part that does not belong there")]
    Misplaced {
        /// Counts from 0.
        at: usize,
    },
    /// The calls of message number `at` are not answered one by one, in order, by the message after it.
    #[error("the calls of message {at} are not answered in order")]
    Unanswered {
        /// Counts from 0.
        at: usize,
    },
    /// A call, or the provider's id of one, stands twice in the history.
    #[error("call {call_id} stands in the history twice")]
    RepeatedCall {
        /// The call.
        call_id: CallId,
    },
}

/// Tests a history against the rules that providers have in common.
///
/// # Errors
/// The first rule that is broken.
pub fn check_sendable(messages: &[Message]) -> Result<(), Unsendable> {
    let Some(last) = messages.last() else { return Err(Unsendable::Nothing) };
    let mut seen = HashSet::new();
    let mut echoed = HashSet::new();
    let mut before: Option<&Message> = None;
    for (at, message) in messages.iter().enumerate() {
        check_parts(at, message)?;
        let expected: Vec<&CallId> =
            before.map(|message| message.tool_calls().map(|call| &call.call_id).collect()).unwrap_or_default();
        if !expected.is_empty() && message.role != Role::Tool {
            return Err(Unsendable::Unanswered { at: at - 1 });
        }
        match (message.role, before.map(|message| message.role)) {
            (Role::User, Some(Role::User))
            | (Role::Assistant, None | Some(Role::Assistant))
            | (Role::Tool, None | Some(Role::User | Role::Tool)) => return Err(Unsendable::OutOfTurn { at }),
            (Role::Tool, Some(Role::Assistant)) => {
                if expected.is_empty() {
                    return Err(Unsendable::OutOfTurn { at });
                }
                if results_of(message) != expected {
                    return Err(Unsendable::Unanswered { at: at - 1 });
                }
            }
            (Role::User, None | Some(Role::Assistant | Role::Tool)) | (Role::Assistant, Some(Role::User | Role::Tool)) => {}
        }
        for call in message.tool_calls() {
            let is_echoed = call.provider_call_id.as_deref().is_some_and(|id| !echoed.insert(id));
            if !seen.insert(&call.call_id) || is_echoed {
                return Err(Unsendable::RepeatedCall { call_id: call.call_id.clone() });
            }
        }
        before = Some(message);
    }
    if last.role == Role::Assistant {
        let at = messages.len() - 1;
        let is_open = last.tool_calls().next().is_some();
        return Err(if is_open { Unsendable::Unanswered { at } } else { Unsendable::OutOfTurn { at } });
    }
    Ok(())
}

fn results_of(message: &Message) -> Vec<&CallId> {
    message.parts.iter().filter_map(|part| if let Part::ToolResult(result) = part { Some(&result.call_id) } else { None }).collect()
}

fn check_parts(at: usize, message: &Message) -> Result<(), Unsendable> {
    let mut says_something = false;
    for part in &message.parts {
        let (belongs, says) = match (part, message.role) {
            (Part::Text(text), Role::User | Role::Assistant) => (!text.text.trim().is_empty(), true),
            (Part::Reasoning(_), Role::Assistant) => (true, false),
            (Part::ToolCall(call), Role::Assistant) => (call.arguments.is_object() && is_sendable_name(&call.name), true),
            (Part::ToolResult(result), Role::Tool) => (!result.content.is_empty(), true),
            (Part::Image(_) | Part::File(_), Role::User) => (true, true),
            (Part::Text(_), Role::Tool)
            | (Part::Reasoning(_) | Part::ToolCall(_), Role::User | Role::Tool)
            | (Part::ToolResult(_), Role::User | Role::Assistant)
            | (Part::Image(_) | Part::File(_), Role::Assistant | Role::Tool) => (false, false),
        };
        if !belongs {
            return Err(Unsendable::Misplaced { at });
        }
        says_something |= says;
    }
    if says_something { Ok(()) } else { Err(Unsendable::Empty { at }) }
}
