//! The layers of the system prompt.

use serde::{Deserialize, Serialize};

/// How a conversation's own prompt is used.
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
    /// Which of them are unavailable, and why.
    #[default]
    Unavailable,
    /// Also lists the prefix of each server's tools.
    All,
}

/// An agent's layers of the system prompt, beside `system_prompt`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PromptPolicy {
    /// The first layer: the operator's, which nothing replaces.
    pub server: String,
    pub conversation: OwnPrompt,
    pub tool_notes: ToolNotes,
}

/// The layers that belong to a conversation.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct OwnLayers {
    pub system_prompt: String,
    /// The user's wishes for every answer, in their own words.
    pub instructions: String,
}

/// The description of an MCP server for a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerNote {
    /// The prefix of its tools' names.
    pub prefix: String,
    pub name: String,
    /// Why its tools are not on offer, without confidential details; `None` if they are, or were never tried.
    pub problem: Option<&'static str>,
    /// Whether it lists more tools than are accepted: more than the limit, too large, or malformed.
    pub left_out: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProvidedContext {
    pub name: String,
    pub text: String,
}
