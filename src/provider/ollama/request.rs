//! Writes requests of Ollama chat.

use std::borrow::Cow;

use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::domain::conversation::{Message, Part, Role, SentContent, ToolCallPart, ToolResultPart};
use crate::domain::model::{ModelError, ModelErrorKind, ModelRequest, ReasoningEffort, ToolChoice};
use crate::domain::run::context::{json_tokens, prose_tokens};
use crate::domain::tool::ToolDefinition;
use crate::provider::catalog::quirks::{model_quirks, starts_with_any};
use crate::provider::http::json_body::{raw, written};
use crate::provider::request::shared_parts::{
    Source, WireFunction, WireTool, arguments_object, current_turn_start, not_sent, result_text, tool_results,
};

/// The smallest window in a request. Larger windows are powers of two, because a server reloads a model when the window changes.
const MIN_WINDOW: u64 = 8_192;

/// The assumed tokens of an answer without a limit.
const ANSWER: u64 = 4_096;

/// The assumed tokens of an image.
const IMAGE: u64 = 1_875;

#[serde_with::skip_serializing_none]
#[derive(Serialize)]
struct Body<'a> {
    model: &'a str,
    messages: Vec<WireMessage<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tools: Vec<Box<RawValue>>,
    format: Option<&'a Value>,
    think: Option<Value>,
    options: Options<'a>,
    stream: bool,
}

#[serde_with::skip_serializing_none]
#[derive(Serialize)]
struct Options<'a> {
    num_ctx: u64,
    temperature: Option<f64>,
    top_p: Option<f64>,
    seed: Option<i64>,
    num_predict: Option<u32>,
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    stop: &'a [String],
}

#[serde_with::skip_serializing_none]
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
    tool_name: Option<&'a str>,
}

impl<'a> WireMessage<'a> {
    fn new(role: &'static str, content: impl Into<Cow<'a, str>>) -> Self {
        let content = content.into();
        Self { role, content, thinking: String::new(), images: Vec::new(), tool_calls: Vec::new(), tool_name: None }
    }
}

/// Serializes a tool before the body, because its length counts for the window.
fn tool(tool: &ToolDefinition) -> Result<Box<RawValue>, ModelError> {
    let parameters = Cow::Borrowed(tool.parameters.as_ref());
    raw(&WireTool::Function { function: WireFunction { name: &tool.name, description: &tool.description, parameters } })
}

pub(super) fn body(request: &ModelRequest, streaming: bool) -> Result<Vec<u8>, ModelError> {
    let options = &request.options;
    let offers_tools = match &options.tool_choice {
        None | Some(ToolChoice::Auto) => true,
        Some(ToolChoice::None) => false,
        Some(ToolChoice::Required | ToolChoice::Tool(_)) => {
            let why = "Ollama has no option to require a tool call; remove options.tool_choice, or use another provider";
            return Err(ModelError::new(ModelErrorKind::InvalidRequest, why));
        }
    };
    let tools = request.tools.iter().filter(|_| offers_tools).map(|definition| tool(definition));
    let (messages, tools) = (messages(request), tools.collect::<Result<Vec<_>, _>>()?);
    let num_ctx = request.window.unwrap_or_else(|| window_for(&messages, &tools, options.max_output_tokens));
    written(&Body {
        model: &request.model,
        messages,
        tools,
        format: options.output_schema.as_ref().map(|output| &output.schema),
        think: options.reasoning_effort.map(|effort| think_option(effort, &request.model)),
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

/// Returns a window for a request and its answer. Without one the server uses its own small window, and silently cuts the beginning of a
/// longer request. The full window of the model may need more memory than the server has.
fn window_for(messages: &[WireMessage<'_>], tools: &[Box<RawValue>], max_output: Option<u32>) -> u64 {
    let of_messages = messages.iter().map(|message| {
        let words = prose_tokens(message.content.len() + message.thinking.len());
        let calls = message.tool_calls.iter().map(|call| json_tokens(call.to_string().len())).sum::<u64>();
        words + calls + IMAGE * message.images.len() as u64
    });
    let of_tools = tools.iter().map(|tool| json_tokens(tool.get().len()));
    let needed = of_messages.sum::<u64>() + of_tools.sum::<u64>() + max_output.map_or(ANSWER, u64::from);
    needed.next_power_of_two().max(MIN_WINDOW)
}

fn think_option(effort: ReasoningEffort, model: &str) -> Value {
    let bare = model.rsplit('/').next().unwrap_or(model);
    let has_levels = starts_with_any(bare, &model_quirks().ollama.thinking_levels);
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
    let turn = current_turn_start(&request.messages);
    for (at, message) in request.messages.iter().enumerate() {
        match message.role {
            Role::User => wire.push(user(message)),
            Role::Assistant => wire.extend(assistant(message, at >= turn)),
            Role::Tool => {
                wire.extend(tool_results(message).map(result));
                wire.extend(image_message(tool_results(message)));
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
                Source::Remote(_) | Source::Unusable => words.push(Cow::Owned(not_sent("image", image))),
            },
            Part::File(file) => words.push(Cow::Owned(not_sent("file", file))),
            Part::Reasoning(_) | Part::ToolCall(_) | Part::ToolResult(_) | Part::Source(_) => {}
        }
    }
    WireMessage { images, ..WireMessage::new("user", words.join("\n")) }
}

/// Returns `None` for a message without sendable content, such as reasoning alone.
fn assistant(message: &Message, with_thinking: bool) -> Option<WireMessage<'_>> {
    let text = message.text();
    // Templates iterate over the arguments, so they must be an object.
    let call = |call: &ToolCallPart| json!({ "function": { "name": call.name, "arguments": arguments_object(call) } });
    let tool_calls: Vec<Value> = message.tool_calls().map(call).collect();
    if text.is_empty() && tool_calls.is_empty() {
        return None;
    }
    let thoughts = message.parts.iter().filter_map(|part| match part {
        Part::Reasoning(reasoning) if with_thinking => Some(reasoning.text.as_str()),
        _ => None,
    });
    Some(WireMessage { thinking: thoughts.collect(), tool_calls, ..WireMessage::new("assistant", text) })
}

fn result(result: &ToolResultPart) -> WireMessage<'_> {
    let content = result_text(result, |media_type| format!("[image, {media_type}: shown in the next message]"));
    WireMessage { tool_name: Some(&result.name), ..WireMessage::new("tool", content) }
}

/// Returns a message with the images of tool results. Templates show images in user messages only.
fn image_message<'a>(results: impl Iterator<Item = &'a ToolResultPart>) -> Option<WireMessage<'a>> {
    let images: Vec<&str> = results
        .flat_map(|result| &result.content)
        .filter_map(|content| match content.as_sent() {
            SentContent::Image { data, .. } => Some(data),
            SentContent::Text(_) => None,
        })
        .collect();
    (!images.is_empty()).then(|| WireMessage { images, ..WireMessage::new("user", "[images of the results of tools]") })
}
