//! The system prompt in layers: what an agent says of them, and what stands in those that are not its own.

use serde::{Deserialize, Serialize};

/// What becomes of the prompt that a conversation has of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OwnPrompt {
    /// It follows the agent's.
    #[default]
    Join,
    /// It takes the place of the agent's.
    Replace,
    /// Nothing: the agent does not listen to it.
    Ignore,
}

/// What a model is told of the servers that its tools come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToolNotes {
    /// Nothing.
    Off,
    /// Which of them cannot be used now, and why.
    #[default]
    Unavailable,
    /// That, and which beginning of a tool's name stands for which server.
    All,
}

/// What an agent says of the layers of its system prompt, beside its own one.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PromptPolicy {
    /// The first layer: the operator's, which nothing replaces.
    pub server: String,
    /// What becomes of a conversation's own prompt.
    pub conversation: OwnPrompt,
    /// What the model is told of servers.
    pub tool_notes: ToolNotes,
}

impl PromptPolicy {
    /// Whether it says nothing of its own.
    #[must_use]
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// The layers that belong to a conversation.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct OwnLayers {
    /// Its prompt; empty for none.
    pub system_prompt: String,
    /// What its user wants of every answer, in their own words; empty for nothing.
    pub instructions: String,
}

/// A server of tools, as a model may be told of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerNote {
    /// What the names of its tools begin with.
    pub prefix: String,
    /// Its name.
    pub name: String,
    /// Why its tools are not on offer, in words that give nothing away; `None` if they are, or nobody has tried.
    pub problem: Option<&'static str>,
    /// Whether it lists more tools than are taken: beyond what a server may offer, too large, or malformed.
    pub left_out: bool,
}

/// What a context provider has said.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProvidedContext {
    /// The provider.
    pub name: String,
    /// What it said.
    pub text: String,
}
