//! The input of an AG-UI run. The client sends its whole history; only what is new counts, because the server has the rest.

use serde::Deserialize;
use serde_json::Value;
use utoipa::ToSchema;

use crate::domain::tool::client_tool::ClientTool;
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
    #[serde(default)]
    pub messages: Vec<Value>,
    #[serde(default)]
    tools: Vec<FrontendTool>,
    #[serde(default)]
    context: Vec<ContextItem>,
    forwarded_props: Option<Value>,
    resume: Option<Vec<ResumeEntry>>,
}

#[derive(Debug, Deserialize, ToSchema)]
struct FrontendTool {
    name: String,
    #[serde(default)]
    description: String,
    parameters: Option<Value>,
}

/// A fact about the client's surroundings.
#[derive(Debug, Deserialize, ToSchema)]
struct ContextItem {
    #[serde(default)]
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

/// Limit of the client's messages that a stream keeps for a snapshot, in bytes of JSON.
const MAX_KEPT_BYTES: usize = 256 * 1024;

impl RunInput {
    /// Returns the client's messages as JSON, for a snapshot; `None` above the limit, because a stream holds them until it ends.
    pub fn kept_messages(&self) -> Option<Box<str>> {
        let json = serde_json::to_string(&self.messages).ok()?;
        (json.len() <= MAX_KEPT_BYTES).then(|| json.into())
    }

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
        let mut results: Vec<NewToolResult> = results.collect();
        results.reverse();
        match results.is_empty() {
            false => Ok(RunIntent::Results(results)),
            true => Err(Error::field("/messages", "must end with a message of the user, or with results of tools").into()),
        }
    }
}

fn result(message: &Value) -> Option<NewToolResult> {
    let call_id = message["toolCallId"].as_str()?.parse().ok()?;
    let error = message["error"].as_str();
    let content = error.or_else(|| message["content"].as_str()).unwrap_or_default();
    Some(NewToolResult { call_id, content: Content::Text(content.to_owned()), is_error: error.is_some() })
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
    let media_type = text(&source["mimeType"]).or_else(|| text(&part["mimeType"]));
    let data = (source["type"] == "data").then(|| text(&source["value"])).flatten().or_else(|| text(&part["data"]));
    let url = match data {
        Some(data) => Some(format!("data:{};base64,{data}", media_type.as_deref().unwrap_or("application/octet-stream"))),
        None => text(&source["value"]).or_else(|| text(&part["url"])),
    };
    let is_picture = kind == "image" || media_type.as_deref().is_some_and(|kind| kind.starts_with("image/"));
    match is_picture {
        true => Some(NewPart::Image { media_type: media_type.or_else(|| Some("image/png".to_owned())), url, file_id: None, name }),
        false => Some(NewPart::File { media_type, url, file_id: None, name }),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn large_histories_are_not_kept_while_a_run_streams() {
        let input = |bytes: usize| -> RunInput {
            let said = json!({ "id": "m1", "role": "user", "content": "x".repeat(bytes) });
            serde_json::from_value(json!({ "threadId": "t", "runId": "r", "messages": [said] })).unwrap()
        };
        let kept = input(1_000).kept_messages().unwrap();
        assert_eq!(serde_json::from_str::<Vec<Value>>(&kept).unwrap()[0]["id"], "m1");
        assert_eq!(input(MAX_KEPT_BYTES).kept_messages(), None);
    }
}
