//! The items of a response's output, and of its input.

use serde_json::{Value, json};

use crate::domain::conversation::message::{FilePart, Message, MessageStatus, Part, Role, ToolContent};
use crate::domain::ids::{CallId, InputId, MessageId, RunId};
use crate::domain::tool::approval::ApprovalRequest;
use crate::http::openai::ids::derived;
use crate::http::openai::responses::request::SystemItem;

/// The `server_label` of tools that come from no MCP server.
const OWN_TOOLS: &str = "capstan";

/// The kind of a part that is sent in deltas.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TextKind {
    Answer,
    Reasoning,
}

impl TextKind {
    pub(super) fn index(self) -> &'static str {
        match self {
            Self::Answer => "content_index",
            Self::Reasoning => "summary_index",
        }
    }

    pub(super) fn part(self, text: &str) -> Value {
        match self {
            Self::Answer => json!({ "type": "output_text", "text": text, "annotations": [], "logprobs": [] }),
            Self::Reasoning => json!({ "type": "summary_text", "text": text }),
        }
    }

    pub(super) fn part_added(self) -> &'static str {
        match self {
            Self::Answer => "response.content_part.added",
            Self::Reasoning => "response.reasoning_summary_part.added",
        }
    }

    pub(super) fn delta(self) -> &'static str {
        match self {
            Self::Answer => "response.output_text.delta",
            Self::Reasoning => "response.reasoning_summary_text.delta",
        }
    }

    pub(super) fn text_done(self) -> &'static str {
        match self {
            Self::Answer => "response.output_text.done",
            Self::Reasoning => "response.reasoning_summary_text.done",
        }
    }

    pub(super) fn part_done(self) -> &'static str {
        match self {
            Self::Answer => "response.content_part.done",
            Self::Reasoning => "response.reasoning_summary_part.done",
        }
    }
}

/// Returns the id of the item of a text or reasoning part. It contains the message's id, so that a reference finds the message.
pub(super) fn text_id(kind: TextKind, message: &MessageId, index: u32) -> String {
    let prefix = match kind {
        TextKind::Answer => "msg_",
        TextKind::Reasoning => "rs_",
    };
    format!("{}_{index}", derived(prefix, message.as_str()))
}

/// Returns the id of the message that asks a question.
pub(super) fn question_id(id: &InputId) -> String {
    derived("msg_", id.as_str())
}

/// The id prefix of the items of the roles `system` and `developer`.
const SYSTEM_ID_PREFIX: &str = "msg_system_";

/// Returns whether an id is that of an item of the role `system` or `developer`.
pub(super) fn is_system(id: &str) -> bool {
    id.starts_with(SYSTEM_ID_PREFIX)
}

/// Returns the item of a text of the role `system` or `developer`. `at` is its position among those of the run.
pub(super) fn system(run: &RunId, at: u32, SystemItem { role, text }: &SystemItem) -> Value {
    let content = json!([{ "type": "input_text", "text": text }]);
    let id = format!("{}_{at}", derived(SYSTEM_ID_PREFIX, run.as_str()));
    json!({ "type": "message", "id": id, "status": "completed", "role": role, "content": content })
}

/// Returns the item of a text. Without `text`, the item has no content yet.
pub(super) fn text(kind: TextKind, id: &str, text: Option<&str>, status: &str) -> Value {
    let parts: Vec<Value> = text.map(|text| kind.part(text)).into_iter().collect();
    match kind {
        TextKind::Answer => json!({ "type": "message", "id": id, "status": status, "role": "assistant", "content": parts }),
        TextKind::Reasoning => json!({ "type": "reasoning", "id": id, "summary": parts, "status": status }),
    }
}

/// Returns the item of a client tool call. `arguments` is JSON text.
pub(super) fn function_call(call: &CallId, name: &str, arguments: &str, status: &str) -> Value {
    json!({
        "type": "function_call",
        "id": derived("fc_", call.as_str()),
        "call_id": call,
        "name": name,
        "arguments": arguments,
        "status": status,
    })
}

/// Splits the name that models see into the server label and the tool name.
fn label(name: &str) -> (&str, &str) {
    name.split_once("__").unwrap_or((OWN_TOOLS, name))
}

/// Joins a server label and a tool name to the name that models see.
pub(super) fn joined_name(label: &str, tool: String) -> String {
    if label.is_empty() || label == OWN_TOOLS { tool } else { format!("{label}__{tool}") }
}

/// Returns the item of a server tool call that starts. Its arguments are empty, because clients append the deltas to them.
pub(super) fn server_call(id: &CallId, name: &str, approval: Option<String>) -> Value {
    let (server, tool) = label(name);
    json!({
        "type": "mcp_call",
        "id": derived("mcp_", id.as_str()),
        "server_label": server,
        "name": tool,
        "arguments": "",
        "approval_request_id": approval,
        "output": null,
        "error": null,
        "status": "in_progress",
    })
}

/// Adds the result to the item of a server tool call.
pub(super) fn with_result(mut item: Value, output: String, is_error: bool, status: &str) -> Value {
    if is_error {
        let content = json!([{ "type": "text", "text": output }]);
        item["error"] = json!({ "type": "mcp_tool_execution_error", "content": content });
    } else {
        item["output"] = output.into();
    }
    item["status"] = status.into();
    item
}

pub(super) fn approval_id(id: &InputId) -> String {
    derived("mcpr_", id.as_str())
}

pub(super) fn approval_request(id: &InputId, request: &ApprovalRequest) -> Value {
    let (server, tool) = label(&request.name);
    json!({
        "type": "mcp_approval_request",
        "id": approval_id(id),
        "server_label": server,
        "name": tool,
        "arguments": request.arguments.to_string(),
    })
}

/// Returns the text of a tool result. Content that has no text form becomes `[image]`.
pub(super) fn tool_text(content: &[ToolContent]) -> String {
    let texts =
        content.iter().map(|piece| piece.as_sent().into_text().map_or_else(|| "[image]".to_owned(), |text| text.into_owned()));
    texts.collect::<Vec<_>>().join("\n")
}

/// Returns the item with the result of a client tool call.
pub(super) fn function_output(call: &CallId, content: &[ToolContent], status: &str) -> Value {
    json!({
        "type": "function_call_output",
        "id": derived("fco_", call.as_str()),
        "call_id": call,
        "output": tool_text(content),
        "status": status,
    })
}

/// Returns the items of a stored message, oldest first.
pub(super) fn of_message(message: &Message) -> Vec<Value> {
    if message.role == Role::User {
        let content: Vec<Value> = message.parts.iter().filter_map(input_part).collect();
        let id = message.id.as_str();
        return vec![json!({ "type": "message", "id": id, "status": "completed", "role": "user", "content": content })];
    }
    let status = match message.status {
        MessageStatus::Complete => "completed",
        MessageStatus::Partial => "incomplete",
    };
    let text_of = |kind, index, content: &str| Some(text(kind, &text_id(kind, &message.id, index), Some(content), status));
    let of_part = |(part, index): (&Part, u32)| match part {
        Part::Text(part) => text_of(TextKind::Answer, index, &part.text),
        Part::Reasoning(part) => text_of(TextKind::Reasoning, index, &part.text),
        Part::ToolCall(part) => Some(function_call(&part.call_id, &part.name, &part.arguments.to_string(), status)),
        Part::ToolResult(part) => Some(function_output(&part.call_id, &part.content, status)),
        Part::Image(_) | Part::File(_) | Part::Source(_) => None,
    };
    message.parts.iter().zip(0_u32..).filter_map(of_part).collect()
}

fn input_part(part: &Part) -> Option<Value> {
    match part {
        Part::Text(part) => Some(json!({ "type": "input_text", "text": part.text })),
        Part::Image(FilePart { file_id, url, .. }) => {
            let url = url.as_ref().filter(|_| file_id.is_none());
            Some(json!({ "type": "input_image", "detail": "auto", "file_id": file_id, "image_url": url }))
        }
        Part::File(FilePart { file_id, name, url, .. }) => {
            let mut item = json!({ "type": "input_file", "file_id": file_id, "filename": name });
            if let Some(url) = url.as_ref().filter(|_| file_id.is_none()) {
                item["file_url"] = url.as_str().into();
            }
            Some(item)
        }
        Part::Reasoning(_) | Part::ToolCall(_) | Part::ToolResult(_) | Part::Source(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::conversation::message::TextPart;
    use crate::domain::ids::{ConversationId, PartId, RunId};

    #[test]
    fn file_without_a_stored_copy_has_its_url() {
        let part = |file: FilePart| input_part(&Part::File(file)).unwrap();
        let of = || FilePart::of(PartId::from_stored("part_1".to_owned()), "application/pdf");
        let url = "https://example.com/a.pdf";
        let linked = part(FilePart { url: Some(url.to_owned()), ..of() });
        assert_eq!(linked["file_url"], url);
        let stored = part(FilePart { url: Some("/files/1".to_owned()), file_id: Some("file_1".to_owned()), ..of() });
        assert_eq!((&stored["file_id"], stored.get("file_url")), (&json!("file_1"), None));
    }

    #[test]
    fn partial_message_becomes_incomplete_item() {
        let part = Part::Text(TextPart { id: PartId::from_stored("part_1".to_owned()), text: "half an".to_owned() });
        let of = (RunId::from_stored("run_1".to_owned()), ConversationId::from_stored("conv_1".to_owned()));
        let whole = Message::new(MessageId::from_stored("msg_1".to_owned()), of, Role::Assistant, vec![part]);
        let partial = Message { status: MessageStatus::Partial, ..whole.clone() };
        assert_eq!(of_message(&whole)[0]["status"], "completed");
        assert_eq!(of_message(&partial)[0]["status"], "incomplete");
    }
}
