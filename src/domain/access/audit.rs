//! The audit of tool calls. An audit record outlives its conversation and never changes.

use serde::Serialize;
use utoipa::ToSchema;

use crate::domain::enum_names::named_enum;
use crate::domain::ids::{CallId, ConversationId, GrantId, RunId, UserId};
use crate::domain::tool::ToolCallState;

named_enum! {
    /// How a call ended.
    pub enum AuditOutcome {
        /// The tool answered.
        Success = "success",
        /// The tool failed, or the call could not be executed.
        Error = "error",
        /// The call was denied and not executed.
        Denied = "denied",
        /// The call was skipped or stopped.
        Skipped = "skipped",
        /// The outcome is unknown: the call may or may not have taken effect.
        Unknown = "unknown",
    }
}

impl AuditOutcome {
    /// Returns `None` while a call is open.
    pub fn of(state: ToolCallState) -> Option<Self> {
        match state {
            ToolCallState::Done => Some(Self::Success),
            ToolCallState::Failed => Some(Self::Error),
            ToolCallState::Denied => Some(Self::Denied),
            ToolCallState::Cancelled => Some(Self::Skipped),
            ToolCallState::Unknown => Some(Self::Unknown),
            ToolCallState::Planned | ToolCallState::AwaitingApproval | ToolCallState::Started => None,
        }
    }
}

/// The audit record of one tool call that has ended.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct AuditRecord {
    /// The id of the call.
    pub call_id: CallId,
    /// The owner of the run that made the call.
    pub owner_id: UserId,
    /// The run that made the call. The run and its conversation may have been deleted since.
    pub run_id: RunId,
    /// The conversation of the run.
    pub conversation_id: ConversationId,
    /// The agent of the run.
    pub agent: String,
    /// The tool's name. If no such tool exists, the name that the model used.
    pub name: String,
    /// The MCP server of the tool. Absent for built-in tools.
    pub server: Option<String>,
    /// SHA-256 of the call's canonical arguments.
    pub arguments_hash: String,
    /// How the call ended.
    pub outcome: AuditOutcome,
    /// The last user who decided about this call. The decision is an approval, a grant, or the answer about an unknown outcome.
    /// Absent if no user decided.
    pub decided_by: Option<UserId>,
    /// The grant that allowed the call without a new approval. The grant may have been revoked since.
    pub grant_id: Option<GrantId>,
    /// Duration of the call in milliseconds, from its start to its answer. If it was not measured, or is below 1 ms, it ends when
    /// the outcome was stored. 0 for calls that never ran.
    pub duration_ms: u64,
    /// When the call ended, RFC 3339.
    pub at: String,
}
