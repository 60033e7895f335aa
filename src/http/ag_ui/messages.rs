//! Messages of AG-UI and of TanStack AI.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use crate::domain::conversation::message::{FilePart, Message, Part, Role, ToolContent, ToolResultPart};
use crate::domain::ids::{CallId, MessageId, RunId};
use crate::http::clients::thread::messages_by_run;

/// Returns the id of the message with the result of a call.
pub(super) fn result_id(call: &CallId) -> String {
    format!("{call}-result")
}

/// Returns the content of a tool result as a string, the only form that older clients accept. Content other than text becomes JSON.
pub(super) fn result_content(content: &[ToolContent]) -> String {
    let is_text = content.iter().all(|piece| piece.as_text().is_some());
    if is_text { ToolContent::joined_text(content) } else { json!(content).to_string() }
}

/// Adds a part of an assistant message to the shown messages. `text` is the message id under which the client gets a text part.
pub(super) fn show(shown: &mut Vec<Value>, message: &MessageId, text: &str, part: &Part) {
    match part {
        Part::Text(part) => match shown.iter_mut().find(|known| known["id"] == text) {
            Some(known) => known["content"] = json!(part.text),
            None => shown.push(json!({ "id": text, "role": "assistant", "content": part.text })),
        },
        Part::Reasoning(part) => shown.push(json!({ "id": part.id, "role": "reasoning", "content": part.text })),
        Part::ToolCall(call) => {
            let function = json!({ "name": call.name, "arguments": call.arguments.to_string() });
            let call = json!({ "id": call.call_id, "type": "function", "function": function });
            let owner = shown.iter_mut().rev().find(|known| known["id"] == message.as_str());
            match owner.and_then(Value::as_object_mut) {
                Some(owner) => {
                    if let Value::Array(calls) = owner.entry("toolCalls").or_insert_with(|| json!([])) {
                        calls.push(call);
                    }
                }
                None => shown.push(json!({ "id": message, "role": "assistant", "toolCalls": [call] })),
            }
        }
        Part::ToolResult(_) | Part::Image(_) | Part::File(_) | Part::Source(_) => {}
    }
}

/// Returns the messages of a conversation in the order of their runs. Omits the answer and the tool results of the run `streaming`:
/// its stream contains them.
pub(super) fn ag_ui_messages(messages: &[Message], streaming: Option<&RunId>) -> Vec<Value> {
    let mut shown = Vec::new();
    for message in visible(messages, streaming) {
        match message.role {
            Role::User => {
                let parts: Vec<Value> = message.parts.iter().filter_map(input_part).collect();
                let content = match message.parts.as_slice() {
                    [Part::Text(text)] => json!(text.text),
                    _ => json!(parts),
                };
                shown.push(json!({ "id": message.id, "role": "user", "content": content }));
            }
            Role::Assistant => {
                let mut texts = 0;
                for part in &message.parts {
                    texts += u32::from(matches!(part, Part::Text(_)));
                    // The first text of a message has the id of the message.
                    let text = if texts <= 1 { message.id.as_str() } else { part.id().as_str() };
                    show(&mut shown, &message.id, text, part);
                }
            }
            Role::Tool => {
                for result in message.tool_results() {
                    let (call, content) = (&result.call_id, result_content(&result.content));
                    let mut message = json!({ "id": result_id(call), "role": "tool", "toolCallId": call, "content": content });
                    if result.is_error {
                        message["error"] = json!(content);
                    }
                    shown.push(message);
                }
            }
        }
    }
    shown
}

fn visible<'m>(messages: &'m [Message], streaming: Option<&RunId>) -> Vec<&'m Message> {
    messages_by_run(messages).into_iter().filter(|message| is_visible(message, streaming)).collect()
}

/// Returns whether clients see a message. The stream of the run `streaming` contains its answer.
pub(super) fn is_visible(message: &Message, streaming: Option<&RunId>) -> bool {
    !message.internal && (message.role == Role::User || streaming.is_none_or(|run| *run != message.run_id))
}

fn input_part(part: &Part) -> Option<Value> {
    let source = |file: &FilePart| Some(json!({ "type": "url", "value": file.url.as_ref()?, "mimeType": file.media_type }));
    match part {
        Part::Text(part) => Some(json!({ "type": "text", "text": part.text })),
        Part::Image(file) => Some(json!({ "type": "image", "source": source(file)? })),
        Part::File(file) => Some(json!({ "type": "document", "source": source(file)? })),
        Part::Reasoning(_) | Part::ToolCall(_) | Part::ToolResult(_) | Part::Source(_) => None,
    }
}

/// Returns the messages of a conversation in the format of TanStack AI, in the order of their runs. Omits those of the run
/// `streaming`.
pub(super) fn tanstack_messages(messages: &[Message], streaming: Option<&RunId>) -> Vec<Value> {
    let results: BTreeMap<&CallId, &ToolResultPart> =
        messages.iter().flat_map(Message::tool_results).map(|result| (&result.call_id, result)).collect();
    let mut shown = Vec::new();
    for message in visible(messages, streaming).into_iter().filter(|message| message.role != Role::Tool) {
        let mut parts = Vec::new();
        let mut done = BTreeSet::new();
        for part in &message.parts {
            match part {
                Part::Text(part) => parts.push(json!({ "type": "text", "content": part.text })),
                Part::Reasoning(part) => parts.push(json!({ "type": "thinking", "content": part.text })),
                Part::ToolCall(call) => {
                    parts.push(json!({
                        "type": "tool-call", "id": call.call_id, "name": call.name, "arguments": call.arguments.to_string(),
                        "input": call.arguments, "state": "input-complete",
                    }));
                    if let Some(result) = results.get(&call.call_id).filter(|_| done.insert(&call.call_id)) {
                        let state = if result.is_error { "error" } else { "complete" };
                        let content = result_content(&result.content);
                        let mut part =
                            json!({ "type": "tool-result", "toolCallId": call.call_id, "content": content, "state": state });
                        if result.is_error {
                            part["error"] = json!(content);
                        }
                        parts.push(part);
                    }
                }
                Part::Image(_) | Part::File(_) => parts.extend(input_part(part)),
                Part::ToolResult(_) | Part::Source(_) => {}
            }
        }
        shown.push(json!({ "id": message.id, "role": message.role, "parts": parts, "createdAt": message.created_at }));
    }
    shown
}
