//! The parts of a request that several dialects share.
//!
//! Owns the ids of calls within a request and the text that replaces unsendable content. Must not know any dialect.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use serde::Serialize;
use serde_json::{Value, json};

use crate::domain::conversation::message::{
    FilePart, Message, Part, Role, SentContent, TextPart, ToolCallPart, ToolContent, ToolResultPart,
};
use crate::domain::ids::{CallId, PartId};
use crate::domain::model::{ModelRequest, OutputSchema};
use crate::provider::catalog::models;

#[derive(Default)]
pub(in crate::provider) struct CallIds<'a> {
    used: HashSet<&'a str>,
    sent: HashMap<&'a CallId, &'a str>,
}

impl<'a> CallIds<'a> {
    /// Returns the provider's id of a call; `None` if an earlier call in the request already uses it.
    pub(in crate::provider) fn provider_id(&mut self, call: &'a ToolCallPart) -> Option<&'a str> {
        let id = call.provider_call_id.as_deref().filter(|id| !id.is_empty() && self.used.insert(id))?;
        self.sent.insert(&call.call_id, id);
        Some(id)
    }

    /// Returns the provider's id under which the call of a result was sent.
    pub(in crate::provider) fn provider_id_of_result(&self, result: &ToolResultPart) -> Option<&'a str> {
        self.sent.get(&result.call_id).copied()
    }

    /// Returns the provider's id of a call, else our own.
    pub(in crate::provider) fn id(&mut self, call: &'a ToolCallPart) -> &'a str {
        self.provider_id(call).unwrap_or(call.call_id.as_str())
    }

    pub(in crate::provider) fn sent_call_id(&self, result: &'a ToolResultPart) -> &'a str {
        self.provider_id_of_result(result).unwrap_or(result.call_id.as_str())
    }
}

/// Returns the text that replaces content which its dialect cannot express.
pub(in crate::provider) fn not_sent(kind: &str, file: &FilePart) -> String {
    if let Some(text) = &file.text {
        return text.clone();
    }
    let name = file.name.as_deref().unwrap_or("without a name");
    format!("[{kind} {name}, {}: not sent to the model]", file.media_type)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::provider) enum Source<'a> {
    Inline {
        media_type: &'a str,
        data: &'a str,
    },
    Remote(&'a str),
    /// The provider has no access to the content.
    Unusable,
}

impl<'a> Source<'a> {
    pub(in crate::provider) fn of(file: &'a FilePart) -> Self {
        let Some(url) = file.url.as_deref() else { return Self::Unusable };
        if let Some(rest) = url.strip_prefix("data:") {
            return match rest.split_once(";base64,") {
                // A media type may have parameters, which providers do not accept.
                Some((kind, data)) => {
                    let kind = kind.split(';').next().unwrap_or_default();
                    Self::Inline { media_type: if kind.is_empty() { &file.media_type } else { kind }, data }
                }
                None => Self::Unusable,
            };
        }
        if url.starts_with("https://") || url.starts_with("http://") { Self::Remote(url) } else { Self::Unusable }
    }
}

/// A tool definition of chat completions and Ollama.
#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(in crate::provider) enum WireTool<'a> {
    Function { function: WireFunction<'a> },
}

#[derive(Serialize)]
pub(in crate::provider) struct WireFunction<'a> {
    pub(in crate::provider) name: &'a str,
    pub(in crate::provider) description: &'a str,
    pub(in crate::provider) parameters: Cow<'a, Value>,
}

/// Returns the arguments of a call as an object: providers refuse arguments that are not an object.
pub(in crate::provider) fn arguments_object(call: &ToolCallPart) -> Cow<'_, Value> {
    let arguments = &call.arguments;
    if arguments.is_object() { Cow::Borrowed(arguments) } else { Cow::Owned(json!({ "_raw": arguments })) }
}

pub(in crate::provider) fn tool_results(message: &Message) -> impl Iterator<Item = &ToolResultPart> + Clone {
    message.parts.iter().filter_map(|part| if let Part::ToolResult(result) = part { Some(result) } else { None })
}

pub(in crate::provider) const NO_OUTPUT: &str = "(no output)";

/// Returns a tool's result as text. `note` replaces each image.
pub(in crate::provider) fn result_text(result: &ToolResultPart, note: impl Fn(&str) -> String) -> String {
    let line = |content| match ToolContent::as_sent(content) {
        SentContent::Text(text) => text,
        SentContent::Image { media_type, .. } => Cow::Owned(note(media_type)),
    };
    let lines: Vec<Cow<'_, str>> = result.content.iter().map(line).collect();
    if lines.iter().all(|line| line.is_empty()) { NO_OUTPUT.to_owned() } else { lines.join("\n") }
}

/// Returns the position of the first message after the last user message.
pub(in crate::provider) fn current_turn_start(messages: &[Message]) -> usize {
    messages.iter().rposition(|message| message.role == Role::User).map_or(0, |at| at + 1)
}

/// Returns whether a model accepts a separate system prompt.
pub(in crate::provider) fn takes_system(model: &str) -> bool {
    models::model(model).system_role != Some(false)
}

/// Moves the system prompt into the first user message, if the model accepts no system prompt.
pub(in crate::provider) fn for_model(request: &ModelRequest) -> Cow<'_, ModelRequest> {
    let mut request = Cow::Borrowed(request);
    if !takes_system(&request.model) {
        system_in_message(&mut request);
    }
    request
}

/// Puts the schema of the answer into the system prompt.
pub(in crate::provider) fn schema_in_prompt(request: &mut Cow<'_, ModelRequest>) {
    if request.options.output_schema.is_none() {
        return;
    }
    let request = request.to_mut();
    if let Some(OutputSchema { schema, .. }) = request.options.output_schema.take() {
        request.system = with_schema(&request.system, &schema);
    }
}

/// Returns a system prompt that asks for an answer of this schema.
pub(in crate::provider) fn with_schema(system: &str, schema: &Value) -> String {
    let schema_prompt = format!("Your answer must be JSON that matches this JSON Schema, and nothing else:\n{schema}");
    if system.is_empty() { schema_prompt } else { format!("{system}\n\n{schema_prompt}") }
}

/// Puts the system prompt before the first user message.
pub(in crate::provider) fn system_in_message(request: &mut Cow<'_, ModelRequest>) {
    if request.system.is_empty() || request.messages.iter().all(|message| message.role != Role::User) {
        return;
    }
    let changed = request.to_mut();
    let system = std::mem::take(&mut changed.system);
    let Some(first) = changed.messages.iter_mut().find(|message| message.role == Role::User) else { return };
    match first.parts.iter_mut().find_map(|part| if let Part::Text(text) = part { Some(text) } else { None }) {
        Some(part) => part.text = format!("{system}\n\n{}", part.text),
        // Providers never see the ids of parts.
        None => first.parts.insert(0, Part::Text(TextPart { id: PartId::from_stored(first.id.as_str().to_owned()), text: system })),
    }
}
