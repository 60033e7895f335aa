//! The items of a response's output, and of its input.

use std::collections::HashMap;

use serde_json::{Value, json};

use crate::domain::conversation::message::{
    FilePart, Message, MessageStatus, Part, Role, ToolCallPart, ToolContent, ToolResultPart,
};
use crate::domain::ids::{CallId, InputId, MessageId, RunId};
use crate::domain::run::FinishReason;
use crate::domain::run::question::InputAnswer;
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

/// The names that the protocol gives a kind of text.
pub(super) struct TextNames {
    id_prefix: &'static str,
    pub index: &'static str,
    pub part_added: &'static str,
    pub delta: &'static str,
    pub text_done: &'static str,
    pub part_done: &'static str,
}

impl TextKind {
    pub(super) fn names(self) -> TextNames {
        match self {
            Self::Answer => TextNames {
                id_prefix: "msg_",
                index: "content_index",
                part_added: "response.content_part.added",
                delta: "response.output_text.delta",
                text_done: "response.output_text.done",
                part_done: "response.content_part.done",
            },
            Self::Reasoning => TextNames {
                id_prefix: "rs_",
                index: "summary_index",
                part_added: "response.reasoning_summary_part.added",
                delta: "response.reasoning_summary_text.delta",
                text_done: "response.reasoning_summary_text.done",
                part_done: "response.reasoning_summary_part.done",
            },
        }
    }

    pub(super) fn part(self, text: &str) -> Value {
        match self {
            Self::Answer => json!({ "type": "output_text", "text": text, "annotations": [], "logprobs": [] }),
            Self::Reasoning => json!({ "type": "summary_text", "text": text }),
        }
    }
}

/// Returns the id of the item of a text or reasoning part. It contains the message's id, so that a reference finds the message.
pub(super) fn text_id(kind: TextKind, message: &MessageId, index: u32) -> String {
    format!("{}_{index}", derived(kind.names().id_prefix, message.as_str()))
}

pub(super) fn question_id(id: &InputId) -> String {
    derived("msg_", id.as_str())
}

/// The id prefix of the items of the roles `system` and `developer`.
const SYSTEM_ID_PREFIX: &str = "msg_system_";

/// Returns whether an id is that of an item of the role `system` or `developer`.
pub(super) fn is_system(id: &str) -> bool {
    id.starts_with(SYSTEM_ID_PREFIX)
}

/// Returns the item of a text of the role `system` or `developer`. `at` is its position among those of the response `segment`.
pub(super) fn system((run, segment): (&RunId, u32), at: u32, SystemItem { role, text }: &SystemItem) -> Value {
    let content = json!([{ "type": "input_text", "text": text }]);
    let of = derived(SYSTEM_ID_PREFIX, run.as_str());
    let id = if segment == 0 { format!("{of}_{at}") } else { format!("{of}_{segment}_{at}") };
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

/// The prefix of the ids of server tool calls.
const SERVER_CALL_PREFIX: &str = "mcp_";

/// Returns the item of a server tool call that starts. Its arguments are empty, because clients append the deltas to them.
pub(super) fn server_call(id: &CallId, name: &str, approval: Option<String>) -> Value {
    let (server, tool) = label(name);
    json!({
        "type": "mcp_call",
        "id": derived(SERVER_CALL_PREFIX, id.as_str()),
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
pub(super) fn with_result(mut item: Value, output: String, is_error: bool) -> Value {
    if is_error {
        let content = json!([{ "type": "text", "text": output }]);
        item["error"] = json!({ "type": "mcp_tool_execution_error", "content": content });
    } else {
        item["output"] = output.into();
    }
    item["status"] = if is_error { "failed" } else { "completed" }.into();
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

/// Returns the message that answers a question.
pub(super) fn question_answer(id: &InputId, answer: InputAnswer) -> Value {
    let text = answer.text.filter(|text| !text.is_empty()).unwrap_or(answer.choice);
    let content = json!([{ "type": "input_text", "text": text }]);
    let id = derived(ANSWER_ID_PREFIX, id.as_str());
    json!({ "type": "message", "id": id, "status": "completed", "role": "user", "content": content })
}

/// The id prefix of the answers to questions.
pub(super) const ANSWER_ID_PREFIX: &str = "msg_answer_";

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

/// Returns the client's own id of a call that the client has sent; `None` for a call of the model.
fn sent_id<'m>(message: &Message, call: &'m ToolCallPart) -> Option<&'m str> {
    call.provider_call_id.as_deref().filter(|_| message.model.is_none())
}

struct Calls<'m> {
    /// The ids under which the client knows its calls. Calls of server tools have none.
    ids: HashMap<&'m CallId, Option<&'m str>>,
    results: HashMap<&'m CallId, &'m ToolResultPart>,
}

/// Returns the items of stored messages, in their order. A call of a server tool is one item with its result. `is_of_client` tells
/// which calls of the model the client executes. A call that the client has sent is shown as sent.
pub(super) fn of_messages<'m>(
    messages: impl IntoIterator<Item = &'m Message>,
    is_of_client: impl Fn(&CallId) -> bool,
) -> Vec<Value> {
    let messages: Vec<&Message> = messages.into_iter().collect();
    let mut calls = Calls { ids: HashMap::new(), results: HashMap::new() };
    for message in &messages {
        calls.results.extend(message.tool_results().map(|result| (&result.call_id, result)));
        calls.ids.extend(message.tool_calls().map(|call| {
            let own = || is_of_client(&call.call_id).then(|| call.call_id.as_str());
            let shown = sent_id(message, call).map_or_else(own, |id| Some(id).filter(|id| !id.starts_with(SERVER_CALL_PREFIX)));
            (&call.call_id, shown)
        }));
    }
    messages.into_iter().flat_map(|message| of_message(message, &calls)).collect()
}

fn of_message(message: &Message, calls: &Calls<'_>) -> Vec<Value> {
    if message.role == Role::User {
        let content: Vec<Value> = message.parts.iter().filter_map(input_part).collect();
        let id = message.id.as_str();
        return vec![json!({ "type": "message", "id": id, "status": "completed", "role": "user", "content": content })];
    }
    // Sources may follow the text.
    let last = message.parts.iter().rposition(|part| matches!(part, Part::Text(_) | Part::Reasoning(_)));
    let last = last.and_then(|last| u32::try_from(last).ok());
    let text_of = |kind, index, content: &str| {
        let status = if Some(index) == last { answer_status(message) } else { "completed" };
        Some(text(kind, &text_id(kind, &message.id, index), Some(content), status))
    };
    let of_part = |(part, index): (&Part, u32)| match part {
        Part::Text(part) => text_of(TextKind::Answer, index, &part.text),
        Part::Reasoning(part) => text_of(TextKind::Reasoning, index, &part.text),
        Part::ToolCall(part) => Some(of_call(message, part, calls)),
        Part::ToolResult(part) => {
            let mut item = function_output(&part.call_id, &part.content, "completed");
            match calls.ids.get(&part.call_id) {
                Some(Some(id)) => item["call_id"] = (*id).into(),
                // The item of the call has the result.
                Some(None) => return None,
                None => {}
            }
            Some(item)
        }
        Part::Image(_) | Part::File(_) | Part::Source(_) => None,
    };
    message.parts.iter().zip(0_u32..).filter_map(of_part).collect()
}

/// Returns the id of a call that the client has sent. No row of a call leads to its message, so the id names the message.
fn id_in(prefix: &str, message: &Message, call: &ToolCallPart) -> String {
    format!("{}_{}", derived(prefix, call.call_id.as_str()), derived("", message.id.as_str()))
}

fn of_call(message: &Message, call: &ToolCallPart, calls: &Calls<'_>) -> Value {
    let arguments = call.arguments.to_string();
    let status = |complete| match message.status {
        MessageStatus::Complete => complete,
        MessageStatus::Partial => "incomplete",
    };
    if let Some(id) = calls.ids.get(&call.call_id).copied().flatten() {
        let mut item = function_call(&call.call_id, &call.name, &arguments, status("completed"));
        item["call_id"] = id.into();
        if sent_id(message, call).is_some() {
            item["id"] = id_in("fc_", message, call).into();
        }
        return item;
    }
    let mut item = server_call(&call.call_id, &call.name, None);
    item["arguments"] = arguments.into();
    if sent_id(message, call).is_some() {
        item["id"] = id_in(SERVER_CALL_PREFIX, message, call).into();
    }
    match calls.results.get(&call.call_id) {
        Some(result) => with_result(item, tool_text(&result.content), result.is_error),
        None => {
            item["status"] = status("in_progress").into();
            item
        }
    }
}

/// Returns the status of the last text of a message: an answer may be cut by its limit, or by the end of its run.
pub(super) fn answer_status(message: &Message) -> &'static str {
    match (message.status, message.finish_reason) {
        (MessageStatus::Partial, _) | (MessageStatus::Complete, Some(FinishReason::Length)) => "incomplete",
        (MessageStatus::Complete, _) => "completed",
    }
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
    use crate::domain::ids::{ConversationId, PartId};
    use crate::domain::tool::ToolCallState;

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
        let cut = Message { finish_reason: Some(FinishReason::Length), ..whole.clone() };
        let status = |message| of_messages([message], |_| false)[0]["status"].clone();
        assert_eq!([&whole, &partial, &cut].map(status), ["completed", "incomplete", "incomplete"]);
    }

    #[test]
    fn call_of_a_server_is_one_item_with_its_result() {
        let call = |number: u32| CallId::from_stored(format!("call_{number}"));
        let part = || PartId::from_stored("part_1".to_owned());
        let message = |role, parts| {
            let of = (RunId::from_stored("run_1".to_owned()), ConversationId::from_stored("conv_1".to_owned()));
            Message::new(MessageId::from_stored("msg_1".to_owned()), of, role, parts)
        };
        let called = (1..=3).map(|number| {
            Part::ToolCall(ToolCallPart::new(part(), call(number), "files__read".to_owned(), json!({ "n": number })))
        });
        let result = |number, is_error| {
            let content = vec![ToolContent::text("the result")];
            let (call_id, name) = (call(number), "files__read".to_owned());
            Part::ToolResult(ToolResultPart {
                id: part(),
                call_id,
                name,
                content,
                is_error,
                state: ToolCallState::Done,
                undoable: false,
            })
        };
        let messages = [message(Role::Assistant, called.collect()), message(Role::Tool, vec![result(1, false), result(2, true)])];
        let items = of_messages(&messages, |_| false);
        let shown: Vec<_> = items.iter().map(|item| (&item["id"], &item["status"], &item["output"])).collect();
        let (done, failed, open) = (json!("completed"), json!("failed"), json!("in_progress"));
        assert_eq!(shown[0], (&json!("mcp_1"), &done, &json!("the result")));
        assert_eq!(shown[1..], [(&json!("mcp_2"), &failed, &Value::Null), (&json!("mcp_3"), &open, &Value::Null)]);
        let reasons: Vec<&Value> = items.iter().map(|item| &item["error"]["content"][0]["text"]).collect();
        assert_eq!(reasons, [&Value::Null, &json!("the result"), &Value::Null]);
        assert_eq!(
            (&items[0]["server_label"], &items[0]["name"], &items[0]["arguments"]),
            (&json!("files"), &json!("read"), &json!("{\"n\":1}"))
        );
        let of_client = of_messages(&messages, |_| true);
        let types: Vec<&Value> = of_client.iter().map(|item| &item["type"]).collect();
        assert_eq!(types, ["function_call", "function_call", "function_call", "function_call_output", "function_call_output"]);
    }

    #[test]
    fn sent_call_keeps_the_id_of_its_client() {
        let digits = "01980000000070008000000000000001";
        let shown = |id: &str| {
            let part = ToolCallPart::new(
                PartId::from_stored("part_1".to_owned()),
                CallId::from_stored("call_1".to_owned()),
                "look".to_owned(),
                json!({}),
            );
            let part = Part::ToolCall(ToolCallPart { provider_call_id: Some(id.to_owned()), ..part });
            let of = (RunId::from_stored("run_1".to_owned()), ConversationId::from_stored("conv_1".to_owned()));
            let sent = Message::new(MessageId::from_stored(format!("msg_{digits}")), of, Role::Assistant, vec![part]);
            let made = Message { model: Some("acme/large".to_owned()), ..sent.clone() };
            [sent, made].map(|message| {
                let item = of_messages([&message], |_| true).remove(0);
                (item["type"].clone(), item["id"].clone(), item["call_id"].clone())
            })
        };
        let function = |id: String, call: &str| (json!("function_call"), json!(id), json!(call));
        assert_eq!(shown("c1"), [function(format!("fc_1_{digits}"), "c1"), function("fc_1".to_owned(), "call_1")]);
        assert_eq!(shown("mcp_1")[0].0, "mcp_call");
    }
}
