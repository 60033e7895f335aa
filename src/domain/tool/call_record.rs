//! One tool call as its owner reads it, with the complete answer of the tool.

use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use crate::domain::conversation::ToolContent;
use crate::domain::ids::{CallId, MessageId, RunId};
use crate::domain::tool::{Repair, ToolCallState};

/// One tool call.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct ToolCallRecord {
    /// The id of the call.
    pub id: CallId,
    /// The run that made the call.
    pub run_id: RunId,
    /// The message that contains the call.
    pub message_id: MessageId,
    /// The tool's name as models see it. If no such tool exists, the name that the model used.
    pub name: String,
    /// The MCP server of the tool. Absent for built-in tools.
    pub server: Option<String>,
    /// The tool's name at the server. Absent if the tool is not one of the run's tools.
    pub tool: Option<String>,
    /// The arguments of the call.
    #[schema(value_type = Object)]
    pub arguments: Value,
    /// Whether a human has changed the arguments. `false` if the arguments were repaired, because the difference is unknown then.
    pub edited: bool,
    /// The repairs of the call.
    pub repair: Option<Repair>,
    /// The id of the call that this call undoes.
    pub undoes: Option<CallId>,
    /// The state of the call.
    pub state: ToolCallState,
    /// Whether the answer is an error.
    pub is_error: bool,
    /// The complete answer. Empty until the call has one. Models and events receive shortened texts.
    pub content: Vec<ToolContent>,
    /// Duration from the start of the call to its answer, in milliseconds. 0 for calls that never ran. Absent until the call has
    /// ended.
    pub duration_ms: Option<u64>,
    /// When the call was sent to its tool, RFC 3339.
    pub started_at: Option<String>,
    /// When the call ended, RFC 3339.
    pub finished_at: Option<String>,
}
