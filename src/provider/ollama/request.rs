//! Writes a request in Ollama's words.

use std::borrow::Cow;

use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use crate::domain::context::{json_tokens, prose_tokens};
use crate::domain::message::{Message, Part, Role, SentContent, ToolResultPart};
use crate::domain::model::{ModelError, ModelRequest, ReasoningEffort, ToolChoice};
use crate::domain::tool::ToolDefinition;
use crate::provider::catalog::quirks::model_quirks;
use crate::provider::compose::{cannot_say, file_text, turn_begins};
use crate::provider::json_body::{raw, written};
use crate::provider::project::{Source, not_sent};

/// The smallest window that is asked for. A model is loaded anew for each other one, so that they double from here.
const LEAST_WINDOW: u64 = 8_192;

/// Room for an answer whose length nobody has bounded, in tokens.
const ANSWER: u64 = 4_096;

/// What a picture costs, in tokens.
const PICTURE: u64 = 1_875;

#[derive(Serialize)]
struct Body<'a> {
    model: &'a str,
    messages: Vec<WireMessage<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tools: Vec<Box<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    format: Option<&'a Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    think: Option<Value>,
    options: Options<'a>,
    stream: bool,
}

#[derive(Serialize)]
struct Tool<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    function: Function<'a>,
}

#[derive(Serialize)]
struct Function<'a> {
    name: &'a str,
    description: &'a str,
    parameters: &'a Value,
}

impl Tool<'_> {
    /// A tool as it stands in the request. It is written once: its length is a part of what the window is made for.
    fn written(tool: &ToolDefinition) -> Result<Box<RawValue>, ModelError> {
        let function = Function { name: &tool.name, description: &tool.description, parameters: &tool.parameters };
        raw(&Tool { kind: "function", function })
    }
}

#[derive(Serialize)]
struct Options<'a> {
    num_ctx: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    temperature: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    top_p: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    seed: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    num_predict: Option<u32>,
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    stop: &'a [String],
}

#[derive(Serialize)]
struct WireMessage<'a> {
    role: &'static str,
    content: Cow<'a, str>,
    #[serde(skip_serializing_if = "String::is_empty")]
    thinking: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    images: Vec<&'a str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_name: Option<&'a str>,
}

impl<'a> WireMessage<'a> {
    fn new(role: &'static str, content: impl Into<Cow<'a, str>>) -> Self {
        let content = content.into();
        Self { role, content, thinking: String::new(), images: Vec::new(), tool_calls: Vec::new(), tool_name: None }
    }
}

/// The body of a request.
pub(super) fn body(request: &ModelRequest, streaming: bool) -> Result<Vec<u8>, ModelError> {
    let options = &request.options;
    let offers_tools = match &options.tool_choice {
        None | Some(ToolChoice::Auto) => true,
        Some(ToolChoice::None) => false,
        Some(ToolChoice::Required | ToolChoice::Tool(_)) => {
            let what = "Ollama cannot be told that a tool must be called";
            return Err(cannot_say(what, "remove options.tool_choice, or use another provider"));
        }
    };
    let tools = request.tools.iter().filter(|_| offers_tools).map(|tool| Tool::written(tool));
    let (messages, tools) = (messages(request), tools.collect::<Result<Vec<_>, _>>()?);
    let num_ctx = request.window.unwrap_or_else(|| window_for(&messages, &tools, options.max_output_tokens));
    written(&Body {
        model: &request.model,
        messages,
        tools,
        format: options.output_schema.as_ref().map(|wanted| &wanted.schema),
        think: options.reasoning_effort.map(|effort| think(effort, &request.model)),
        options: Options {
            num_ctx,
            temperature: options.temperature,
            top_p: options.top_p,
            seed: options.seed,
            num_predict: options.max_output_tokens,
            stop: &options.stop,
        },
        stream: streaming,
    })
}

/// A window in which a request and its answer have room, where nobody has said one. Without it the server takes its own, which is
/// small, and cuts the beginning of what does not fit without a word; the whole window of the model may need more memory than it has.
fn window_for(messages: &[WireMessage<'_>], tools: &[Box<RawValue>], max_output: Option<u32>) -> u64 {
    let of_messages = messages.iter().map(|message| {
        let words = prose_tokens(message.content.len() + message.thinking.len());
        let calls = message.tool_calls.iter().map(|call| json_tokens(call.to_string().len())).sum::<u64>();
        words + calls + PICTURE * message.images.len() as u64
    });
    let of_tools = tools.iter().map(|tool| json_tokens(tool.get().len()));
    let needed = of_messages.sum::<u64>() + of_tools.sum::<u64>() + max_output.map_or(ANSWER, u64::from);
    needed.next_power_of_two().max(LEAST_WINDOW)
}

fn think(effort: ReasoningEffort, model: &str) -> Value {
    let has_levels = model_quirks().ollama.has_thinking_levels(model);
    match effort {
        ReasoningEffort::None => false.into(),
        _ if !has_levels => true.into(),
        ReasoningEffort::Minimal | ReasoningEffort::Low => "low".into(),
        ReasoningEffort::Medium => "medium".into(),
        ReasoningEffort::High | ReasoningEffort::XHigh | ReasoningEffort::Max => "high".into(),
    }
}

fn messages(request: &ModelRequest) -> Vec<WireMessage<'_>> {
    let mut wire = Vec::with_capacity(request.messages.len() + 1);
    if !request.system.is_empty() {
        wire.push(WireMessage::new("system", request.system.as_str()));
    }
    let turn = turn_begins(&request.messages);
    for (at, message) in request.messages.iter().enumerate() {
        match message.role {
            Role::User => wire.push(user(message)),
            Role::Assistant => wire.extend(assistant(message, at >= turn)),
            Role::Tool => {
                let results =
                    message.parts.iter().filter_map(|part| if let Part::ToolResult(part) = part { Some(part) } else { None });
                wire.extend(results.clone().map(result));
                wire.extend(shown(results));
            }
        }
    }
    wire
}

fn user(message: &Message) -> WireMessage<'_> {
    let (mut words, mut images): (Vec<Cow<'_, str>>, _) = (Vec::new(), Vec::new());
    for part in &message.parts {
        match part {
            Part::Text(text) => words.push(Cow::Borrowed(&text.text)),
            Part::Image(image) => match Source::of(image) {
                Source::Inline { data, .. } => images.push(data),
                Source::Remote(_) | Source::Nowhere => words.push(Cow::Owned(not_sent("image", image))),
            },
            Part::File(file) => words.push(Cow::Owned(file_text(file).unwrap_or_else(|| not_sent("file", file)))),
            Part::Reasoning(_) | Part::ToolCall(_) | Part::ToolResult(_) => {}
        }
    }
    WireMessage { images, ..WireMessage::new("user", words.join("\n")) }
}

/// `None` for a message of which nothing can be sent, such as one that held reasoning only.
fn assistant(message: &Message, with_thinking: bool) -> Option<WireMessage<'_>> {
    let text = message.text();
    let tool_calls: Vec<Value> = message
        .tool_calls()
        .map(|call| {
            // Templates go through the arguments, so they must be an object.
            let arguments = match &call.arguments {
                Value::Object(arguments) => arguments.clone(),
                other => Map::from_iter([("_raw".to_owned(), other.clone())]),
            };
            json!({ "function": { "name": call.name, "arguments": arguments } })
        })
        .collect();
    if text.is_empty() && tool_calls.is_empty() {
        return None;
    }
    let thoughts = message.parts.iter().filter_map(|part| match part {
        Part::Reasoning(reasoning) if with_thinking => Some(reasoning.text.as_str()),
        Part::Reasoning(_) | Part::Text(_) | Part::ToolCall(_) | Part::ToolResult(_) | Part::Image(_) | Part::File(_) => None,
    });
    Some(WireMessage { thinking: thoughts.collect(), tool_calls, ..WireMessage::new("assistant", text) })
}

fn result(result: &ToolResultPart) -> WireMessage<'_> {
    let lines: Vec<Cow<'_, str>> = result
        .content
        .iter()
        .map(|content| match content.as_sent() {
            SentContent::Text(text) => text,
            SentContent::Image { media_type, .. } => Cow::Owned(format!("[image, {media_type}: shown in the next message]")),
        })
        .collect();
    let is_blank = lines.iter().all(|line| line.is_empty());
    let content = if is_blank { "(no output)".to_owned() } else { lines.join("\n") };
    WireMessage { tool_name: Some(&result.name), ..WireMessage::new("tool", content) }
}

/// The images of tool results, which templates show in messages of the user only.
fn shown<'a>(results: impl Iterator<Item = &'a ToolResultPart>) -> Option<WireMessage<'a>> {
    let images: Vec<&str> = results
        .flat_map(|result| &result.content)
        .filter_map(|content| match content.as_sent() {
            SentContent::Image { data, .. } => Some(data),
            SentContent::Text(_) => None,
        })
        .collect();
    (!images.is_empty()).then(|| WireMessage { images, ..WireMessage::new("user", "[images of the results of tools]") })
}
