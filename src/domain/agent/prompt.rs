//! The layers of the system prompt.

use serde::{Deserialize, Serialize};

/// How the system prompt of a conversation combines with the agent's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OwnPrompt {
    /// It follows the agent's.
    #[default]
    Join,
    /// It replaces the agent's.
    Replace,
    Ignore,
}

/// The notes to a model about the servers of its tools.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToolNotes {
    Off,
    /// Lists the unavailable servers with the reasons.
    #[default]
    Unavailable,
    /// Also lists the prefix of each server's tools.
    All,
}

/// An agent's layers of the system prompt, beside `system_prompt`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PromptPolicy {
    /// The operator's layer. It comes first, and nothing replaces it.
    pub server: String,
    pub conversation: OwnPrompt,
    pub tool_notes: ToolNotes,
}

/// The layers of the system prompt that belong to a conversation.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct OwnLayers {
    pub system_prompt: String,
    /// The user's wishes for every answer, as the user wrote them.
    pub instructions: String,
}

/// The description of an MCP server for a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerNote {
    /// The prefix of its tools' names.
    pub prefix: String,
    pub name: String,
    /// Why the server's tools are not offered, without confidential details. `None` if they are offered, or were never requested.
    pub unavailable_reason: Option<&'static str>,
    /// Whether the server lists tools that are not accepted, because there are too many, or they are too large or malformed.
    pub left_out: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProvidedContext {
    pub name: String,
    pub text: String,
}
