//! Builds the request to a model that answers in JSON objects.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::domain::conversation::{
    BinaryContent, FilePart, Message, Part, Role, TextPart, ToolCallPart, ToolContent, ToolResultPart,
};
use crate::domain::model::{ModelRequest, OutputSchema, ToolChoice};
use crate::domain::tool::ToolDefinition;
use crate::engine::strategy::json_answers::offer::Offer;
use crate::support::json;

/// Whether the JSON object of a call has the field `rationale`, which is shown to the human who approves the call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reasons {
    Asked,
    NotAsked,
}

/// Describes tools, calls and results as text, because a request for structured output has no fields for them.
pub fn project(request: &mut ModelRequest, reasons: Reasons) {
    let mut tools = std::mem::take(&mut request.tools);
    let choice = request.options.tool_choice.take();
    let offer = Offer::of(choice.as_ref(), !tools.is_empty());
    match choice {
        Some(ToolChoice::None) => tools.clear(),
        Some(ToolChoice::Tool(name)) => tools.retain(|tool| tool.name == name),
        Some(ToolChoice::Auto | ToolChoice::Required) | None => {}
    }
    let answer_schema = request.options.output_schema.take().map(|answer_schema| answer_schema.schema);
    let instruction = one_object(offer, &tools, answer_schema.as_ref(), reasons);
    request.system = if request.system.is_empty() { instruction } else { format!("{}\n\n{instruction}", request.system) };
    let answer = answer_schema.unwrap_or_else(|| json!({ "type": "string" }));
    request.options.output_schema =
        Some(OutputSchema { name: "step".to_owned(), schema: schema(offer, answer, &tools, reasons), strict: false });
    request.messages = history(std::mem::take(&mut request.messages));
}

/// Returns the schema of the object, for providers that enforce a schema.
fn schema(offer: Offer, answer: Value, tools: &[Arc<ToolDefinition>], reasons: Reasons) -> Value {
    let object = |properties: Value, required: &[&str]| json!({ "type": "object", "properties": properties, "required": required, "additionalProperties": false });
    let answers = match offer {
        Offer::Either | Offer::Answer => Some(object(json!({ "answer": answer }), &["answer"])),
        Offer::Call => None,
    };
    let calls = tools.iter().map(|tool| {
        let name = json!({ "type": "string", "enum": [tool.name] });
        let arguments = arguments(&tool.parameters);
        match reasons {
            Reasons::NotAsked => object(json!({ "tool": name, "arguments": arguments }), &["tool", "arguments"]),
            Reasons::Asked => {
                let properties = json!({ "tool": name, "rationale": { "type": "string" }, "arguments": arguments });
                object(properties, &["tool", "rationale", "arguments"])
            }
        }
    });
    let mut all: Vec<Value> = answers.into_iter().chain(calls).collect();
    match (all.len(), all.pop()) {
        (1, Some(only)) => only,
        // Some providers require `type: object` at the top level.
        (_, last) => json!({ "type": "object", "anyOf": all.into_iter().chain(last).collect::<Vec<_>>() }),
    }
}

/// Returns the schema of a tool inside the larger schema. References would point to the wrong root, so a schema with references
/// becomes a schema for any object. The instructions contain the complete schema, and arguments are validated.
fn arguments(parameters: &Arc<Value>) -> Value {
    if has_reference(parameters) { json!({ "type": "object" }) } else { Value::clone(parameters) }
}

fn has_reference(schema: &Value) -> bool {
    ["$ref", "$dynamicRef"].iter().any(|key| schema.get(key).is_some()) || json::children(schema).any(has_reference)
}

/// Rewrites a history as if the model had always answered in JSON objects. Each answer and each call is an object, and each result
/// is a user message.
fn history(messages: Vec<Message>) -> Vec<Message> {
    let mut projected = Vec::with_capacity(messages.len());
    let mut calls: Option<(Message, Vec<ToolCallPart>, String)> = None;
    for message in messages {
        match message.role {
            Role::User => message.append_to(&mut projected),
            Role::Assistant => {
                let words = message.text();
                let (head, own) = split_calls(message);
                if own.is_empty() {
                    head.append_to(&mut projected);
                } else {
                    calls = Some((head, own, words));
                }
            }
            Role::Tool => {
                let Some((head, own, mut words)) = calls.take() else { continue };
                for (call, result) in own.into_iter().zip(message.parts) {
                    // The text before the first call becomes the rationale of that call.
                    let rationale = match std::mem::take(&mut words) {
                        none if none.trim().is_empty() => String::new(),
                        words => format!(r#""rationale":{},"#, json!(words)),
                    };
                    let object = format!(r#"{{"tool":{},{rationale}"arguments":{}}}"#, json!(call.name), call.arguments);
                    let parts = vec![Part::Text(TextPart { id: call.id, text: object })];
                    Message { parts, ..head.clone() }.append_to(&mut projected);
                    Message { role: Role::User, parts: result_parts(result), ..head.head() }.append_to(&mut projected);
                }
            }
        }
    }
    projected
}

/// Splits an answer into a message and its calls. Without calls, the message has the text as a JSON object; with calls, it has no
/// parts. Reasoning is omitted, because its signature covers ordinary calls.
fn split_calls(message: Message) -> (Message, Vec<ToolCallPart>) {
    let words = message.text();
    let mut head = message.head();
    let mut own = Vec::new();
    let mut id = None;
    for part in message.parts {
        match part {
            Part::ToolCall(call) => own.push(call),
            Part::Text(text) => id = id.or(Some(text.id)),
            Part::Reasoning(_) | Part::ToolResult(_) | Part::Image(_) | Part::File(_) | Part::Source(_) => {}
        }
    }
    if let Some(id) = id.filter(|_| own.is_empty()) {
        head.parts.push(Part::Text(TextPart { id, text: json!({ "answer": words }).to_string() }));
    }
    (head, own)
}

/// Converts a result to user content. Its text is a JSON string, so that it cannot look like the user's text.
fn result_parts(part: Part) -> Vec<Part> {
    let Part::ToolResult(ToolResultPart { id, name, content, is_error, .. }) = part else { return Vec::new() };
    let mut text = String::new();
    let mut add = |piece: &str| {
        if !text.is_empty() {
            text.push('\n');
        }
        text.push_str(piece);
    };
    let mut pictures = Vec::new();
    for piece in content {
        match piece {
            ToolContent::Text { text } => add(&text),
            ToolContent::Image(BinaryContent { media_type, file_id, size, url, name, data }) => {
                let url = data.map(|data| format!("data:{media_type};base64,{data}")).or(url);
                pictures.push(Part::Image(FilePart { file_id, size, url, name, ..FilePart::of(id.clone(), media_type) }));
            }
            ToolContent::File(file) => add(&file.note("file")),
        }
    }
    let word = if is_error { "error" } else { "result" };
    let call_as_json = format!(r#"{{"tool":{},"{word}":{}}}"#, json!(name), json!(text));
    let mut parts = vec![Part::Text(TextPart { id, text: call_as_json })];
    parts.append(&mut pictures);
    parts
}

/// Describes the JSON objects, the tools, and the schema of the answer if one is required.
fn one_object(offer: Offer, tools: &[Arc<ToolDefinition>], answer_schema: Option<&Value>, reasons: Reasons) -> String {
    let words = match answer_schema {
        None => r#"{"answer": "your words"}"#.to_owned(),
        Some(schema) => format!(r#"{{"answer": ...}}, whose value has this JSON Schema: {schema}"#),
    };
    let call = match reasons {
        Reasons::NotAsked => r#"{"tool": "its name", "arguments": {...}}"#,
        Reasons::Asked => r#"{"tool": "its name", "rationale": "your reason", "arguments": {...}}"#,
    };
    let mut text = String::from("Each of your answers is exactly one JSON object, with no text before or after it.\n");
    match offer {
        Offer::Either => {
            text.push_str(&format!("To call a tool: {call}\nTo answer the user, at the end: {words}\n"));
        }
        Offer::Answer => text.push_str(&format!("Answer the user: {words}\nNo tools are available now.\n")),
        Offer::Call => text.push_str(&format!("Call a tool: {call}\n")),
    }
    if !tools.is_empty() {
        text.push_str("After a call you are given its result, and answer again. Never write a result yourself. The tools:\n");
    }
    for tool in tools {
        let ToolDefinition { name, description, parameters, .. } = &**tool;
        text.push_str(&format!("\n{name}: {}\nArguments, as a JSON Schema: {parameters}\n", description.trim()));
    }
    text.trim_end().to_owned()
}
