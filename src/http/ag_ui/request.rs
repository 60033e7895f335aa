//! The input of an AG-UI run. The client sends its whole history. The server uses only the new messages, because it stores the
//! rest.

use std::collections::BTreeSet;

use serde::Deserialize;
use serde_json::Value;
use utoipa::ToSchema;

use crate::domain::ids::CallId;
use crate::domain::tool::client_tool::ClientTool;
use crate::http::clients::body::null_is_absent;
use crate::http::wire::problem::HttpResult;
use crate::service::{Content, Error, NewPart, NewToolResult};

/// The input of a run. Unknown fields are ignored.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct RunInput {
    pub thread_id: String,
    pub run_id: String,
    /// Present if the client uses AG-UI 1.0 or later.
    pub protocol_version: Option<String>,
    #[serde(default, deserialize_with = "null_is_absent")]
    pub messages: Vec<Value>,
    #[serde(default, deserialize_with = "null_is_absent")]
    tools: Vec<FrontendTool>,
    #[serde(default, deserialize_with = "null_is_absent")]
    context: Vec<ContextItem>,
    forwarded_props: Option<Value>,
    resume: Option<Vec<ResumeEntry>>,
    /// A copy of `forwardedProps`, which only TanStack AI sends.
    data: Option<Value>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AgUiClient {
    /// A client of AG-UI 0.0.59 or earlier.
    BeforeRelease1,
    /// A client of AG-UI 1.0 or later.
    Release1,
    /// TanStack AI, which reads the events of 0.0.59, and has rules of its own for interrupts.
    TanStack,
}

#[derive(Debug, Deserialize, ToSchema)]
struct FrontendTool {
    name: String,
    #[serde(default, deserialize_with = "null_is_absent")]
    description: String,
    parameters: Option<Value>,
}

/// A fact that the client's application adds to the instructions of the run.
#[derive(Debug, Deserialize, ToSchema)]
struct ContextItem {
    #[serde(default, deserialize_with = "null_is_absent")]
    description: String,
    #[serde(default)]
    value: Value,
}

/// The answer to an interrupt.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct ResumeEntry {
    pub interrupt_id: String,
    pub status: ResumeStatus,
    #[serde(default)]
    pub payload: Value,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum ResumeStatus {
    Resolved,
    Cancelled,
}

/// The new facts in an input: answers to a run, a message of the user, or both.
#[derive(Debug)]
pub(super) struct RunIntent<'a> {
    pub interrupt_answers: &'a [ResumeEntry],
    /// Tool results at the end of the history, or directly before its last message of the user. Clients repeat old results.
    pub results: Vec<ToolMessage<'a>>,
    /// The last message, or the message directly before the results.
    pub message: Option<UserMessage<'a>>,
    /// Whether the message is the last one, so that the client asks for an answer to it.
    pub ends_with_message: bool,
}

impl RunIntent<'_> {
    pub fn has_answers(&self) -> bool {
        !self.interrupt_answers.is_empty() || !self.results.is_empty()
    }
}

/// A message of the user, as the client sent it.
#[derive(Debug)]
pub(super) struct UserMessage<'a>(&'a Value);

impl<'a> UserMessage<'a> {
    pub fn content(&self) -> HttpResult<Content> {
        content(self.0)
    }

    /// Returns the id that the client gave the message.
    pub fn name(&self) -> Option<&'a str> {
        self.0["id"].as_str().filter(|name| !name.is_empty())
    }
}

/// A message with the result of a call, as the client sent it.
#[derive(Debug)]
pub(super) struct ToolMessage<'a> {
    pub call_id: CallId,
    message: &'a Value,
}

/// Limit of the messages that a stream keeps for a snapshot, in bytes of JSON.
pub(super) const MAX_KEPT_BYTES: usize = 256 * 1024;

/// Returns messages as JSON for a snapshot, or `None` above [`MAX_KEPT_BYTES`]. A stream holds them in memory until it ends.
pub(super) fn kept_messages(messages: &[Value]) -> Option<Box<str>> {
    let json = serde_json::to_string(messages).ok()?;
    (json.len() <= MAX_KEPT_BYTES).then(|| json.into())
}

impl RunInput {
    pub fn client(&self) -> AgUiClient {
        match (&self.protocol_version, &self.data) {
            (Some(_), _) => AgUiClient::Release1,
            (None, Some(_)) => AgUiClient::TanStack,
            (None, None) => AgUiClient::BeforeRelease1,
        }
    }

    pub fn tools(&self) -> Vec<ClientTool> {
        let tool = |tool: &FrontendTool| ClientTool {
            name: tool.name.clone(),
            description: tool.description.clone(),
            // Clients send an empty schema for a tool without arguments.
            parameters: tool.parameters.clone().filter(|schema| schema.as_object().is_some_and(|schema| !schema.is_empty())),
        };
        self.tools.iter().map(tool).collect()
    }

    /// Returns the model in `forwardedProps`, if it has the form `provider/name`.
    pub fn model(&self) -> Option<String> {
        self.forwarded_props.as_ref()?.get("model")?.as_str().filter(|model| model.contains('/')).map(str::to_owned)
    }

    /// Returns the instructions of the client: its `system` and `developer` messages, and its context.
    pub fn instructions(&self) -> String {
        let texts = self.messages.iter().filter(|message| message["role"] == "system" || message["role"] == "developer");
        let mut texts: Vec<String> = texts.map(instruction_text).filter(|text| !text.is_empty()).collect();
        texts.extend(self.context_text());
        texts.join("\n\n")
    }

    fn context_text(&self) -> Option<String> {
        if self.context.is_empty() {
            return None;
        }
        let line = |item: &ContextItem| {
            let value = item.value.as_str().map_or_else(|| item.value.to_string(), str::to_owned);
            format!("- {}: {value}", item.description)
        };
        let lines: Vec<String> = self.context.iter().map(line).collect();
        Some(format!("The user's application says:\n{}", lines.join("\n")))
    }

    /// Returns the calls of this server whose results the messages contain.
    pub fn client_results(&self) -> BTreeSet<CallId> {
        self.messages.iter().filter(|message| is_result(message)).filter_map(ToolMessage::of).map(|result| result.call_id).collect()
    }

    pub fn intent(&self) -> HttpResult<RunIntent<'_>> {
        let interrupt_answers = self.resume.as_deref().unwrap_or_default();
        let (last, earlier) = match self.messages.split_last() {
            Some((last, earlier)) if last["role"] == "user" => (Some(last), earlier),
            Some(_) | None => (None, self.messages.as_slice()),
        };
        let first_result = earlier.iter().rposition(|message| !is_result(message)).map_or(0, |at| at + 1);
        let (before, results) = earlier.split_at(first_result);
        if interrupt_answers.is_empty() && last.is_none() && results.is_empty() {
            return Err(Error::field("/messages", "must end with a message of the user, or with results of tools").into());
        }
        let before = before.last().filter(|message| message["role"] == "user" && !results.is_empty());
        Ok(RunIntent {
            interrupt_answers,
            results: results.iter().filter_map(ToolMessage::of).collect(),
            message: last.or(before).map(UserMessage),
            ends_with_message: last.is_some(),
        })
    }
}

impl<'a> ToolMessage<'a> {
    /// Returns `None` if the message has no call id of this server.
    fn of(message: &'a Value) -> Option<Self> {
        let call_id = message["toolCallId"].as_str()?.parse().ok()?;
        Some(Self { call_id, message })
    }

    /// Returns the result. The error text precedes the other content.
    pub fn result(&self) -> HttpResult<NewToolResult> {
        let error = self.message["error"].as_str();
        let returned = if self.message["content"].is_null() { Content::Text(String::new()) } else { content(self.message)? };
        let content = match (error, returned) {
            (None, content) => content,
            (Some(error), Content::Text(text)) if text.is_empty() || text == error => Content::Text(error.to_owned()),
            (Some(error), Content::Text(text)) => Content::Text(format!("{error}\n{text}")),
            (Some(error), Content::Parts(mut parts)) => {
                parts.insert(0, NewPart::Text { text: error.to_owned() });
                Content::Parts(parts)
            }
        };
        Ok(NewToolResult { call_id: self.call_id.clone(), content, is_error: error.is_some() })
    }
}

/// Returns the text of a `system` or `developer` message. Files in it have no meaning as instructions.
fn instruction_text(message: &Value) -> String {
    match &message["content"] {
        Value::String(text) => text.clone(),
        Value::Array(parts) => parts.iter().filter_map(|part| part["text"].as_str()).collect::<Vec<_>>().join("\n"),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => String::new(),
    }
}

fn is_result(message: &Value) -> bool {
    message["role"] == "tool"
}

fn content(message: &Value) -> HttpResult<Content> {
    match &message["content"] {
        Value::String(text) => Ok(Content::Text(text.clone())),
        Value::Array(parts) => {
            let parts: Option<Vec<NewPart>> = parts.iter().map(new_part).collect();
            let unknown = || Error::field("/messages", "the newest message has a part of an unknown kind");
            Ok(Content::Parts(parts.ok_or_else(unknown)?))
        }
        _ => Err(Error::field("/messages", "the newest message must have a text or a list of parts as content").into()),
    }
}

fn new_part(part: &Value) -> Option<NewPart> {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let kind = part["type"].as_str()?;
    if kind == "text" {
        return Some(NewPart::Text { text: text(&part["text"]).or_else(|| text(&part["content"]))? });
    }
    let (source, name) = (&part["source"], text(&part["filename"]));
    let file_id = match source["type"] == "file" {
        true => Some(source["value"].as_str()?.parse().ok()?),
        false => None,
    };
    let media_type = text(&source["mimeType"]).or_else(|| text(&part["mimeType"]));
    let data = (source["type"] == "data").then(|| text(&source["value"])).flatten().or_else(|| text(&part["data"]));
    let url = match data {
        _ if file_id.is_some() => None,
        Some(data) => Some(format!("data:{};base64,{data}", media_type.as_deref().unwrap_or("application/octet-stream"))),
        None => text(&source["value"]).or_else(|| text(&part["url"])),
    };
    let is_picture = kind == "image" || media_type.as_deref().is_some_and(|kind| kind.starts_with("image/"));
    if !is_picture {
        return Some(NewPart::File { media_type, url, file_id, name });
    }
    // The server knows the media type of a stored file.
    let media_type = media_type.or_else(|| file_id.is_none().then(|| "image/png".to_owned()));
    Some(NewPart::Image { media_type, url, file_id, name })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn input(messages: Value) -> RunInput {
        serde_json::from_value(json!({ "threadId": "t", "runId": "r", "messages": messages })).unwrap()
    }

    fn result(mut message: Value) -> HttpResult<NewToolResult> {
        let call = json!({ "id": "m1", "role": "tool", "toolCallId": format!("call_{:032x}", 1) });
        message.as_object_mut().unwrap().extend(call.as_object().unwrap().clone());
        let input = input(json!([message]));
        input.intent().unwrap().results[0].result()
    }

    #[test]
    fn result_of_a_frontend_tool_is_text_or_parts() {
        let text = |text: &str| NewPart::Text { text: text.to_owned() };
        let file = format!("file_{:032x}", 1);
        let picture = json!({ "type": "image", "source": { "type": "file", "value": file } });
        let parts = json!([{ "type": "text", "text": "a door" }, picture]);
        let image = NewPart::Image { media_type: None, url: None, file_id: file.parse().ok(), name: None };
        for (message, content, is_error) in [
            (json!({ "content": "a door" }), Content::Text("a door".to_owned()), false),
            (json!({ "content": parts }), Content::Parts(vec![text("a door"), image.clone()]), false),
            (json!({ "content": "", "error": "locked" }), Content::Text("locked".to_owned()), true),
            (json!({ "content": "locked", "error": "locked" }), Content::Text("locked".to_owned()), true),
            (json!({ "content": "a door", "error": "locked" }), Content::Text("locked\na door".to_owned()), true),
            (json!({ "content": parts, "error": "locked" }), Content::Parts(vec![text("locked"), text("a door"), image]), true),
        ] {
            let result = result(message).unwrap();
            assert_eq!((&result.content, result.is_error), (&content, is_error));
        }
        let unknown = json!({ "content": [{ "type": "image", "source": { "type": "file", "value": "other" } }] });
        assert!(result(unknown).is_err(), "nothing is lost in silence");
    }

    #[test]
    fn answers_are_read_beside_a_message() {
        let user = |id: &str| json!({ "id": id, "role": "user", "content": "hi" });
        let call = format!("call_{:032x}", 1);
        let results = ["foreign", &call].map(|call| json!({ "role": "tool", "toolCallId": call, "content": "x" }));
        let found = |messages: Value| {
            let input = input(messages);
            let RunIntent { results, message, ends_with_message, .. } = input.intent().unwrap();
            (results.len(), message.and_then(|message| message.name().map(str::to_owned)), ends_with_message)
        };
        let (m1, assistant) = (Some("m1".to_owned()), json!({ "role": "assistant" }));
        assert_eq!(found(json!([user("m1"), results[0], results[1]])), (1, m1.clone(), false));
        assert_eq!(found(json!([user("m0"), assistant, results[1]])), (1, None, false));
        assert_eq!(found(json!([user("m0"), assistant, results[1], user("m1")])), (1, m1.clone(), true));
        assert_eq!(found(json!([results[1], assistant, user("m1")])), (0, m1, true));
        let body = |messages: Value| {
            let resume = json!([{ "interruptId": "input_1", "status": "resolved" }]);
            let body = json!({ "threadId": "t", "runId": "r", "messages": messages, "resume": resume });
            serde_json::from_value::<RunInput>(body).unwrap()
        };
        for messages in [json!([]), json!([user("m0"), assistant]), json!([user("m0"), assistant, results[1], user("m1")])] {
            assert_eq!(body(messages).intent().unwrap().interrupt_answers.len(), 1);
        }
        assert!(input(json!([user("m0"), assistant])).intent().is_err());
    }

    #[test]
    fn system_messages_are_instructions() {
        let parts = json!([{ "type": "text", "text": "Rhyme." }]);
        let body = json!({
            "threadId": "t", "runId": "r", "context": [{ "description": "page", "value": "home" }],
            "messages": [
                { "role": "system", "content": "Be a pirate." },
                { "role": "developer", "content": parts },
                { "role": "user", "content": "hi" },
            ],
        });
        let input: RunInput = serde_json::from_value(body).unwrap();
        assert_eq!(input.instructions(), "Be a pirate.\n\nRhyme.\n\nThe user's application says:\n- page: home");
    }

    #[test]
    fn null_is_the_same_as_an_absent_field() {
        let nulls = json!({
            "threadId": "t", "runId": "r", "messages": null, "tools": null, "context": null, "state": null, "forwardedProps": null,
            "resume": null, "protocolVersion": null,
        });
        let input: RunInput = serde_json::from_value(nulls).unwrap();
        assert!(input.messages.is_empty() && input.tools().is_empty() && input.instructions().is_empty());
        let tool = json!([{ "name": "look", "description": null, "parameters": null }]);
        let fact = json!([{ "description": null, "value": null }]);
        let body = json!({ "threadId": "t", "runId": "r", "tools": tool, "context": fact });
        assert_eq!(serde_json::from_value::<RunInput>(body).unwrap().tools()[0].name, "look");
    }

    #[test]
    fn large_histories_are_not_kept_while_a_run_streams() {
        let input = |bytes: usize| input(json!([{ "id": "m1", "role": "user", "content": "x".repeat(bytes) }]));
        let kept = kept_messages(&input(1_000).messages).unwrap();
        assert_eq!(serde_json::from_str::<Vec<Value>>(&kept).unwrap()[0]["id"], "m1");
        assert_eq!(kept_messages(&input(MAX_KEPT_BYTES).messages), None);
    }
}
