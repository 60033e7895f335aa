//! Runs: one turn of the agent loop each.

pub mod admission;
pub mod budget;
pub mod change;
pub mod context;
pub mod handle;
pub mod input;
pub mod plan;
pub mod record;
pub mod undo;
pub mod usage;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::domain::ids::{ConversationId, RunId};
use crate::domain::model::cost::Usage;
use crate::domain::problem::ProblemBody;
use crate::domain::trace::TraceId;
use crate::domain::words::words;

/// Where a run stands. Terminal statuses never change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum RunStatus {
    /// Accepted, not started.
    Queued,
    /// A model call is under way, or the next one is about to begin.
    Processing,
    /// Tool calls are under way.
    ToolLoop,
    /// Waits for something outside; holds no slot and no lease.
    Waiting,
    /// Ended with an answer.
    Completed,
    /// Ended with an error.
    Failed,
    /// Ended by request.
    Cancelled,
}

words!(RunStatus {
    Queued = "queued",
    Processing = "processing",
    ToolLoop = "tool_loop",
    Waiting = "waiting",
    Completed = "completed",
    Failed = "failed",
    Cancelled = "cancelled",
});

impl RunStatus {
    pub fn is_terminal(self) -> bool {
        matches!(self, Self::Completed | Self::Failed | Self::Cancelled)
    }
}

/// What a waiting run waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum WaitReason {
    /// A human's decision about a tool call.
    Approval,
    /// A human's answer.
    Input,
    /// The time until a retry.
    Backoff,
    /// Money or tokens.
    Budget,
}

words!(WaitReason { Approval = "approval", Input = "input", Backoff = "backoff", Budget = "budget" });

impl WaitReason {
    /// Returns whether only a human ends the wait. A run with any other reason goes on by itself.
    pub fn needs_human(self) -> bool {
        matches!(self, Self::Approval | Self::Input)
    }
}

/// Why a finished run, or an assistant message, ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum FinishReason {
    /// The model had nothing more to say.
    Stop,
    /// The model ran into its limit of output tokens.
    Length,
    /// The model refused.
    Refused,
    /// The rounds were used up.
    MaxRounds,
    /// A budget was used up.
    Budget,
    /// Somebody cancelled the run.
    Cancelled,
}

words!(FinishReason {
    Stop = "stop",
    Length = "length",
    Refused = "refused",
    MaxRounds = "max_rounds",
    Budget = "budget",
    Cancelled = "cancelled",
});

/// What a client should tell about a run that has completed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Notice {
    /// The answer claims a change, and no call that changes anything has succeeded in the run.
    NothingWritten,
}

/// A run as clients see it.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Run {
    /// Its id.
    pub id: RunId,
    /// The conversation it belongs to.
    pub conversation_id: ConversationId,
    /// Where it stands.
    pub status: RunStatus,
    /// What a waiting run waits for.
    pub reason: Option<WaitReason>,
    /// The agent's name.
    pub agent: String,
    /// The agent's version, frozen when the run was accepted.
    pub agent_version: u32,
    /// The model, as `provider/name`.
    pub model: String,
    /// How often the run was taken up by a worker.
    pub attempt: u32,
    /// Why it ended.
    pub finish_reason: Option<FinishReason>,
    /// Tokens used so far.
    pub usage: Option<Usage>,
    /// Why it failed.
    pub error: Option<ProblemBody>,
    /// The trace of the request that started it, 32 hexadecimal digits: the log's lines about the run have it. None for runs that were
    /// imported or copied.
    #[schema(value_type = Option<String>)]
    pub trace_id: Option<TraceId>,
    /// When it was accepted, RFC 3339.
    pub created_at: String,
    /// When a worker first took it up.
    pub started_at: Option<String>,
    /// When it ended.
    pub finished_at: Option<String>,
}

/// What to do with a message for a conversation whose run is still active.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnBusy {
    /// A new run, which starts when the active one has ended.
    #[default]
    Queue,
    /// Refuse with 409.
    Reject,
    /// Cancel the active run, then start the new one.
    Interrupt,
    /// Join the active run before its next model call; no new run. The run does not complete without having answered it.
    Steer,
}
