//! The audit of tool calls: kept longer than their conversation, and never changed.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::domain::ids::{CallId, ConversationId, GrantId, RunId, UserId};
use crate::domain::tool::ToolCallState;
use crate::domain::words::words;

/// How a call ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum AuditOutcome {
    /// The tool answered.
    Success,
    /// The tool failed, or the call could not be made.
    Error,
    /// It was not allowed, and not made.
    Denied,
    /// It was not made, or was stopped.
    Skipped,
    /// Nobody knows whether it took effect.
    Unknown,
}

words!(AuditOutcome { Success = "success", Error = "error", Denied = "denied", Skipped = "skipped", Unknown = "unknown" });

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

/// The end of one call.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct AuditRecord {
    /// The call.
    pub call_id: CallId,
    /// Whose run made it.
    pub owner_id: UserId,
    /// The run. It may have been deleted since, and so may its conversation.
    pub run_id: RunId,
    /// The conversation.
    pub conversation_id: ConversationId,
    /// The agent.
    pub agent: String,
    /// The tool's name; of a call that no tool answers, the name that the model used.
    pub name: String,
    /// The MCP server, for tools that come from one.
    pub server: Option<String>,
    /// SHA-256 of the canonical arguments.
    pub arguments_hash: String,
    /// How it ended.
    pub outcome: AuditOutcome,
    /// Who decided about this call: the user who allowed or denied it, whose standing answer let it through, or who was asked what became of
    /// it when nobody knew, and answered; the last of them. Absent if nobody decided.
    pub decided_by: Option<UserId>,
    /// The standing answer that let it through, if nobody was asked about this very call. It may have been taken back since.
    pub grant_id: Option<GrantId>,
    /// From its start to its answer. Where nobody measured that, or it was less than a millisecond, to when its end was stored. 0 for calls
    /// that never ran.
    pub duration_ms: u64,
    /// When it ended, RFC 3339.
    pub at: String,
}
