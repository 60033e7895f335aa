//! The input of an AG-UI run. The client sends its whole history; only what is new counts, because the server has the rest.

use serde::Deserialize;
use serde_json::Value;
use utoipa::ToSchema;

use crate::domain::tool::client_tool::ClientTool;
use crate::http::clients::body::null_is_absent;
use crate::http::wire::problem::Answer;
use crate::service::{Content, Error, NewPart, NewToolResult};

/// The input of a run. Unknown fields are ignored.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct RunInput {
    pub thread_id: String,
    pub run_id: String,
    /// Sent by release 1.0 and later.
    pub protocol_version: Option<String>,
    #[serde(default, deserialize_with = "null_is_absent")]
    pub messages: Vec<Value>,
    #[serde(default, deserialize_with = "null_is_absent")]
    tools: Vec<FrontendTool>,
    #[serde(default, deserialize_with = "null_is_absent")]
    context: Vec<ContextItem>,
    forwarded_props: Option<Value>,
    resume: Option<Vec<ResumeEntry>>,
}

#[derive(Debug, Deserialize, ToSchema)]
struct FrontendTool {
    name: String,
    #[serde(default, deserialize_with = "null_is_absent")]
    description: String,
    parameters: Option<Value>,
}

/// A fact about the client's surroundings.
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

/// The request of a client about a run.
#[derive(Debug)]
pub(super) enum RunIntent {
    /// Answers to the interrupts of a run.
    Resume(Vec<ResumeEntry>),
    /// Results of frontend tools.
    Results(Vec<NewToolResult>),
    /// An answer to a new message, with the client's name of it.
    Message(Content, Option<String>),
}

/// Limit of the messages that a stream keeps for a snapshot, in bytes of JSON.
pub(super) const MAX_KEPT_BYTES: usize = 256 * 1024;

/// Returns messages as JSON, for a snapshot; `None` above the limit, because a stream holds them until it ends.
pub(super) fn kept_messages(messages: &[Value]) -> Option<Box<str>> {
    let json = serde_json::to_string(messages).ok()?;
    (json.len() <= MAX_KEPT_BYTES).then(|| json.into())
}

impl RunInput {
    pub fn is_one(&self) -> bool {
        self.protocol_version.is_some()
    }

    pub fn tools(&self) -> Vec<ClientTool> {
        let tool = |tool: &FrontendTool| ClientTool {
            name: tool.name.clone(),
            description: tool.description.clone(),
            // An empty schema of a tool without arguments.
            parameters: tool.parameters.clone().filter(|schema| schema.as_object().is_some_and(|schema| !schema.is_empty())),
        };
        self.tools.iter().map(tool).collect()
    }

    /// Returns the model that the application of the client names.
    pub fn model(&self) -> Option<String> {
        self.forwarded_props.as_ref()?.get("model")?.as_str().filter(|model| model.contains('/')).map(str::to_owned)
    }

    /// Returns the context of the client as instructions.
    pub fn instructions(&self) -> String {
        if self.context.is_empty() {
            return String::new();
        }
        let line = |item: &ContextItem| {
            let value = item.value.as_str().map_or_else(|| item.value.to_string(), str::to_owned);
            format!("- {}: {value}", item.description)
        };
        let lines: Vec<String> = self.context.iter().map(line).collect();
        format!("The user's application says:\n{}", lines.join("\n"))
    }

    pub fn intent(&self) -> Answer<RunIntent> {
        if let Some(resume) = self.resume.as_ref().filter(|resume| !resume.is_empty()) {
            return Ok(RunIntent::Resume(resume.clone()));
        }
        let role = |message: &Value| message["role"].as_str().unwrap_or_default().to_owned();
        let newest = self.messages.last().filter(|message| role(message) == "user");
        if let Some(message) = newest {
            let name = message["id"].as_str().filter(|name| !name.is_empty()).map(str::to_owned);
            return Ok(RunIntent::Message(content(message)?, name));
        }
        let results = self.messages.iter().rev().take_while(|message| role(message) == "tool").filter_map(result);
        let mut results: Vec<NewToolResult> = results.collect::<Answer<_>>()?;
        results.reverse();
        match results.is_empty() {
            false => Ok(RunIntent::Results(results)),
            true => Err(Error::field("/messages", "must end with a message of the user, or with results of tools").into()),
        }
    }
}

/// Returns the result in a tool's message; `None` if it is of no call of this server. An error stands before what the tool returned.
fn result(message: &Value) -> Option<Answer<NewToolResult>> {
    let call_id = message["toolCallId"].as_str()?.parse().ok()?;
    let error = message["error"].as_str();
    let returned = if message["content"].is_null() { Ok(Content::Text(String::new())) } else { content(message) };
    let content = returned.map(|content| match (error, content) {
        (None, content) => content,
        (Some(error), Content::Text(text)) if text.is_empty() || text == error => Content::Text(error.to_owned()),
        (Some(error), Content::Text(text)) => Content::Text(format!("{error}\n{text}")),
        (Some(error), Content::Parts(mut parts)) => {
            parts.insert(0, NewPart::Text { text: error.to_owned() });
            Content::Parts(parts)
        }
    });
    Some(content.map(|content| NewToolResult { call_id, content, is_error: error.is_some() }))
}

fn content(message: &Value) -> Answer<Content> {
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
    // A stored file has its type already.
    let media_type = media_type.or_else(|| file_id.is_none().then(|| "image/png".to_owned()));
    Some(NewPart::Image { media_type, url, file_id, name })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn results(mut message: Value) -> Answer<RunIntent> {
        let call = json!({ "id": "m1", "role": "tool", "toolCallId": format!("call_{:032x}", 1) });
        message.as_object_mut().unwrap().extend(call.as_object().unwrap().clone());
        serde_json::from_value::<RunInput>(json!({ "threadId": "t", "runId": "r", "messages": [message] })).unwrap().intent()
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
            let RunIntent::Results(results) = results(message).unwrap() else { panic!("results") };
            assert_eq!((&results[0].content, results[0].is_error), (&content, is_error));
        }
        let unknown = json!({ "content": [{ "type": "image", "source": { "type": "file", "value": "other" } }] });
        assert!(results(unknown).is_err(), "nothing is lost in silence");
    }

    #[test]
    fn large_histories_are_not_kept_while_a_run_streams() {
        let input = |bytes: usize| -> RunInput {
            let said = json!({ "id": "m1", "role": "user", "content": "x".repeat(bytes) });
            serde_json::from_value(json!({ "threadId": "t", "runId": "r", "messages": [said] })).unwrap()
        };
        let kept = kept_messages(&input(1_000).messages).unwrap();
        assert_eq!(serde_json::from_str::<Vec<Value>>(&kept).unwrap()[0]["id"], "m1");
        assert_eq!(kept_messages(&input(MAX_KEPT_BYTES).messages), None);
    }
}
