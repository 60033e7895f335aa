//! One call of a tool as its owner reads it: with the whole of what the tool answered.

use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use crate::domain::conversation::message::ToolContent;
use crate::domain::ids::{CallId, MessageId, RunId};
use crate::domain::tool::{Repair, ToolCallState};

/// One call of a tool.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct ToolCallRecord {
    /// Its id.
    pub id: CallId,
    /// The run that made it.
    pub run_id: RunId,
    /// The message that asked for it.
    pub message_id: MessageId,
    /// The tool's name as models see it; of a call that no tool answers, the name that the model used.
    pub name: String,
    /// The MCP server, for tools that come from one.
    pub server: Option<String>,
    /// Its name at the server, if it is one of the run's tools.
    pub tool: Option<String>,
    /// The arguments that it is made with.
    #[schema(value_type = Object)]
    pub arguments: Value,
    /// Whether a human has changed them. Not known, and `false`, of a call whose arguments were mended.
    pub edited: bool,
    /// What was mended in it.
    pub repair: Option<Repair>,
    /// The call that it takes back.
    pub undoes: Option<CallId>,
    /// Where it stands, or how it ended.
    pub state: ToolCallState,
    /// Whether the answer is an error.
    pub is_error: bool,
    /// The whole answer; empty until there is one. Models and events get its texts cut.
    pub content: Vec<ToolContent>,
    /// From its start to its answer, in milliseconds; 0 for calls that never ran, absent until it has ended.
    pub duration_ms: Option<u64>,
    /// When it was handed to its tool, RFC 3339.
    pub started_at: Option<String>,
    /// When it ended, RFC 3339.
    pub finished_at: Option<String>,
}
