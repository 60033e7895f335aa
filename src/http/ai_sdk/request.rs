//! The body of a chat request. The client sends its whole history. The server uses only the newest message, and the answers in
//! the assistant's message before it, because it stores the rest.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;
use utoipa::ToSchema;

use crate::domain::conversation::file::content_url;
use crate::domain::ids::FileId;
use crate::domain::model::ModelOptions;
use crate::domain::tool::client_tool::ClientTool;
use crate::http::clients::body::null_is_absent;
use crate::http::clients::thread::ApprovalDecision;
use crate::http::wire::problem::HttpResult;
use crate::service::{Content, Error, NewPart, NewToolResult};

/// A chat request. Other fields are ignored: the client's application may add them.
#[derive(Debug, Deserialize, ToSchema)]
pub(super) struct ChatBody {
    pub id: String,
    #[serde(default, deserialize_with = "null_is_absent")]
    messages: Vec<UiMessage>,
    /// The newest message, instead of the whole history.
    message: Option<UiMessage>,
    #[serde(default, deserialize_with = "null_is_absent")]
    pub trigger: Trigger,
    #[serde(rename = "messageId")]
    pub message_id: Option<String>,
    /// The agent by name or id.
    pub agent: Option<String>,
    /// The model as `provider/name`.
    pub model: Option<String>,
    pub options: Option<ModelOptions>,
    /// The tools that the client executes: a list, or an object by name.
    tools: Option<ClientTools>,
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(untagged)]
enum ClientTools {
    List(Vec<NewTool>),
    ByName(BTreeMap<String, NewTool>),
}

#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct NewTool {
    #[serde(default, deserialize_with = "null_is_absent")]
    name: String,
    #[serde(default, deserialize_with = "null_is_absent")]
    description: String,
    #[serde(alias = "inputSchema")]
    parameters: Option<Value>,
}

impl NewTool {
    fn named(self, name: String) -> ClientTool {
        ClientTool { name, description: self.description, parameters: self.parameters }
    }
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Trigger {
    #[default]
    SubmitMessage,
    RegenerateMessage,
}

#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
pub(super) struct UiMessage {
    pub id: Option<String>,
    pub role: String,
    #[serde(default, deserialize_with = "null_is_absent")]
    parts: Vec<UiPart>,
}

/// The fields of all kinds of parts that the server reads.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct UiPart {
    #[serde(rename = "type")]
    kind: String,
    text: Option<String>,
    media_type: Option<String>,
    url: Option<String>,
    filename: Option<String>,
    tool_call_id: Option<String>,
    #[serde(default, deserialize_with = "null_is_absent")]
    provider_executed: bool,
    output: Option<Value>,
    error_text: Option<String>,
    state: Option<String>,
    approval: Option<UiApproval>,
}

#[derive(Debug, Clone, Deserialize, ToSchema)]
struct UiApproval {
    id: String,
    approved: Option<bool>,
    reason: Option<String>,
}

impl ChatBody {
    pub fn tools(&self) -> Vec<ClientTool> {
        match &self.tools {
            None => Vec::new(),
            Some(ClientTools::List(tools)) => tools.iter().cloned().map(|tool| tool.clone().named(tool.name)).collect(),
            Some(ClientTools::ByName(tools)) => tools.iter().map(|(name, tool)| tool.clone().named(name.clone())).collect(),
        }
    }

    pub fn newest_message(&self) -> Option<&UiMessage> {
        self.message.as_ref().or_else(|| self.messages.last())
    }

    /// Returns the assistant's message directly before the newest message.
    pub fn assistant_message_before(&self) -> Option<&UiMessage> {
        match self.messages.as_slice() {
            [.., before, _] if self.message.is_none() && before.role == "assistant" => Some(before),
            _ => None,
        }
    }
}

impl UiMessage {
    pub fn content(&self) -> HttpResult<Content> {
        let mut parts = Vec::new();
        for (place, part) in self.parts.iter().enumerate() {
            let pointer = |field: &str| format!("/message/parts/{place}/{field}");
            match part.kind.as_str() {
                "text" => parts.push(NewPart::Text { text: part.text.clone().unwrap_or_default() }),
                "file" => {
                    let url = part.url.clone().ok_or_else(|| Error::field(&pointer("url"), "must be present"))?;
                    parts.push(new_file(part, url));
                }
                // Parts of the application and parts that only assistants write are ignored.
                _ => {}
            }
        }
        Ok(Content::Parts(parts))
    }

    /// Returns the decisions about approvals whose calls have no result yet, by the ids of the approvals.
    pub fn decisions(&self) -> Vec<(String, ApprovalDecision)> {
        let open = self.parts.iter().filter(|part| part.state.as_deref() == Some("approval-responded"));
        let approvals = open.filter_map(|part| part.approval.as_ref());
        let decided = |approval: &UiApproval| {
            let decision = ApprovalDecision { approved: approval.approved?, reason: approval.reason.clone(), arguments: None };
            Some((approval.id.clone(), decision))
        };
        approvals.filter_map(decided).collect()
    }

    /// Returns the results of calls that the client has executed.
    pub fn results(&self) -> Vec<NewToolResult> {
        let result = |part: &UiPart| {
            let (content, is_error) = match part.state.as_deref()? {
                "output-available" => (part.output.as_ref().map(output_text).unwrap_or_default(), false),
                "output-error" => (part.error_text.clone().unwrap_or_default(), true),
                _ => return None,
            };
            let call_id = part.tool_call_id.as_deref()?.parse().ok()?;
            Some(NewToolResult { call_id, content: Content::Text(content), is_error })
        };
        self.parts.iter().filter(|part| !part.provider_executed).filter_map(result).collect()
    }
}

fn output_text(output: &Value) -> String {
    output.as_str().map_or_else(|| output.to_string(), str::to_owned)
}

fn new_file(part: &UiPart, url: String) -> NewPart {
    let (media_type, name) = (part.media_type.clone(), part.filename.clone());
    let is_picture = media_type.as_deref().is_some_and(|kind| kind.starts_with("image/"));
    let (url, file_id) = match stored_file(&url) {
        Some(file) => (None, Some(file)),
        None => (Some(url), None),
    };
    match is_picture {
        true => NewPart::Image { media_type, url, file_id, name },
        false => NewPart::File { media_type, url, file_id, name },
    }
}

/// Returns the uploaded file whose content URL this is, on any host.
fn stored_file(url: &str) -> Option<FileId> {
    let id: FileId = url.split("/api/v1/files/").nth(1)?.split('/').next()?.parse().ok()?;
    url.ends_with(&content_url(&id)).then_some(id)
}
