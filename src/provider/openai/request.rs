//! Writes a request in the words of chat completions.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use serde::Serialize;
use serde_json::Value;

use crate::domain::ids::CallId;
use crate::domain::message::{FilePart, Message, Part, Role, ToolContent, ToolResultPart};
use crate::domain::model::ModelRequest;

/// Models that know the limit of output tokens by its newer name only, by the start of their names.
const NEWER_LIMIT_NAME: [&str; 4] = ["o1", "o3", "o4-mini", "gpt-5"];

#[derive(Serialize)]
struct Body<'a> {
    model: &'a str,
    messages: Vec<WireMessage<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tools: Vec<WireTool<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    temperature: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    top_p: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_tokens: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_completion_tokens: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    seed: Option<i64>,
    stream: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    stream_options: Option<StreamOptions>,
}

#[derive(Serialize)]
struct StreamOptions {
    include_usage: bool,
}

#[derive(Serialize)]
#[serde(tag = "role", rename_all = "snake_case")]
enum WireMessage<'a> {
    System {
        content: &'a str,
    },
    User {
        content: Content<'a>,
    },
    Assistant {
        content: Option<Cow<'a, str>>,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        tool_calls: Vec<WireCall<'a>>,
    },
    Tool {
        tool_call_id: Cow<'a, str>,
        content: String,
    },
}

/// A text stands alone where it can: not every server understands lists.
enum Content<'a> {
    Text(Cow<'a, str>),
    List(Vec<ContentPart<'a>>),
}

impl Serialize for Content<'_> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Text(text) => text.serialize(serializer),
            Self::List(parts) => parts.serialize(serializer),
        }
    }
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum ContentPart<'a> {
    Text { text: Cow<'a, str> },
    ImageUrl { image_url: ImageUrl<'a> },
}

#[derive(Serialize)]
struct ImageUrl<'a> {
    url: &'a str,
}

#[derive(Serialize)]
struct WireCall<'a> {
    id: Cow<'a, str>,
    #[serde(rename = "type")]
    kind: &'static str,
    function: WireFunction<'a>,
}

#[derive(Serialize)]
struct WireFunction<'a> {
    name: &'a str,
    arguments: String,
}

#[derive(Serialize)]
struct WireTool<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    function: WireDefinition<'a>,
}

#[derive(Serialize)]
struct WireDefinition<'a> {
    name: &'a str,
    description: &'a str,
    parameters: &'a Value,
}

/// The body of a request.
pub(super) fn body(request: &ModelRequest, streaming: bool) -> Result<Vec<u8>, serde_json::Error> {
    let limit = request.options.max_output_tokens;
    let newer_name = NEWER_LIMIT_NAME.iter().any(|start| request.model.starts_with(start));
    let tools = request.tools.iter().map(|tool| WireTool {
        kind: "function",
        function: WireDefinition { name: &tool.name, description: &tool.description, parameters: &tool.parameters },
    });
    serde_json::to_vec(&Body {
        model: &request.model,
        messages: messages(request),
        tools: tools.collect(),
        temperature: request.options.temperature,
        top_p: request.options.top_p,
        max_tokens: limit.filter(|_| !newer_name),
        max_completion_tokens: limit.filter(|_| newer_name),
        seed: request.options.seed,
        stream: streaming,
        stream_options: streaming.then_some(StreamOptions { include_usage: true }),
    })
}

fn messages(request: &ModelRequest) -> Vec<WireMessage<'_>> {
    let mut wire = Vec::with_capacity(request.messages.len() + 1);
    if !request.system.is_empty() {
        wire.push(WireMessage::System { content: &request.system });
    }
    let mut ids = CallIds::default();
    for message in &request.messages {
        match message.role {
            Role::User => wire.push(WireMessage::User { content: user_content(message) }),
            Role::Assistant => wire.extend(assistant(message, &mut ids)),
            Role::Tool => {
                for part in &message.parts {
                    let Part::ToolResult(result) = part else { continue };
                    wire.push(WireMessage::Tool { tool_call_id: ids.of(&result.call_id), content: result_text(result) });
                }
            }
        }
    }
    wire
}

fn user_content(message: &Message) -> Content<'_> {
    let mut parts: Vec<ContentPart<'_>> = message
        .parts
        .iter()
        .filter_map(|part| match part {
            Part::Text(text) => Some(ContentPart::Text { text: Cow::Borrowed(text.text.as_str()) }),
            Part::Image(image) => Some(picture(image)),
            Part::File(file) => Some(ContentPart::Text { text: Cow::Owned(not_sent("file", file)) }),
            Part::Reasoning(_) | Part::ToolCall(_) | Part::ToolResult(_) => None,
        })
        .collect();
    match (parts.pop(), parts.is_empty()) {
        (Some(ContentPart::Text { text }), true) => Content::Text(text),
        (Some(last), _) => {
            parts.push(last);
            Content::List(parts)
        }
        (None, _) => Content::Text(Cow::Borrowed("")),
    }
}

fn picture(image: &FilePart) -> ContentPart<'_> {
    match &image.url {
        Some(url) => ContentPart::ImageUrl { image_url: ImageUrl { url } },
        None => ContentPart::Text { text: Cow::Owned(not_sent("image", image)) },
    }
}

/// What the model reads in place of something that this wire cannot carry.
fn not_sent(what: &str, file: &FilePart) -> String {
    let name = file.name.as_deref().unwrap_or("without a name");
    format!("[{what} {name}, {}: not sent to the model]", file.media_type)
}

/// `None` for a message of which nothing can be sent, such as one that held reasoning only.
fn assistant<'a>(message: &'a Message, ids: &mut CallIds<'a>) -> Option<WireMessage<'a>> {
    let text = message.text();
    let tool_calls: Vec<WireCall<'_>> = message
        .tool_calls()
        .map(|call| WireCall {
            id: ids.mint(&call.call_id, call.provider_call_id.as_deref()),
            kind: "function",
            function: WireFunction { name: &call.name, arguments: arguments_text(&call.arguments) },
        })
        .collect();
    if text.is_empty() && tool_calls.is_empty() {
        return None;
    }
    Some(WireMessage::Assistant { content: (!text.is_empty()).then_some(Cow::Owned(text)), tool_calls })
}

/// The arguments as the model wrote them: a text that was no JSON object goes back as an object that quotes it, because
/// providers refuse a history with broken arguments.
fn arguments_text(arguments: &Value) -> String {
    if arguments.is_object() { arguments.to_string() } else { serde_json::json!({ "_raw": arguments }).to_string() }
}

fn result_text(result: &ToolResultPart) -> String {
    let lines: Vec<Cow<'_, str>> = result
        .content
        .iter()
        .map(|content| match content {
            ToolContent::Text { text } => Cow::Borrowed(text.as_str()),
            ToolContent::Image { media_type, .. } => Cow::Owned(format!("[image, {media_type}: not sent to the model]")),
        })
        .collect();
    if lines.iter().all(|line| line.is_empty()) { "(no output)".to_owned() } else { lines.join("\n") }
}

/// The ids of calls within one request. A provider gets its own id back where it has one that no other call of the request
/// has; else it gets ours.
#[derive(Default)]
struct CallIds<'a> {
    used: HashSet<&'a str>,
    sent: HashMap<&'a CallId, &'a str>,
}

impl<'a> CallIds<'a> {
    fn mint(&mut self, call: &'a CallId, providers: Option<&'a str>) -> Cow<'a, str> {
        let id = match providers {
            Some(id) if !id.is_empty() && self.used.insert(id) => id,
            Some(_) | None => call.as_str(),
        };
        self.sent.insert(call, id);
        Cow::Borrowed(id)
    }

    fn of(&self, call: &'a CallId) -> Cow<'a, str> {
        Cow::Borrowed(self.sent.get(call).copied().unwrap_or(call.as_str()))
    }
}
