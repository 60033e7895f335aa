//! Runs. Each run is one pass of the agent loop over a message.
//!
//! Owns the values of runs and their records. Must not know how a run is decided or stored.

pub mod admission;
pub mod budget;
pub mod call_handle;
pub mod change;
pub mod context;
mod finish_reason;
pub mod output;
pub mod plan;
pub mod question;
pub mod record;
pub mod request_record;
pub mod step_request;
pub mod undo;
pub mod usage;

pub use admission::Admission;
pub use budget::{
    Allowance, Amount, Budget, BudgetScope, BudgetUse, LostReservation, OnDaySpent, ReservationOutcome, ReservationRequest,
};
pub use call_handle::{Handle, InputRequired, Round};
pub use change::{Change, ReleaseCause, RunCounters, StepKind, StepRow, StepStatus};
pub use context::{Capacity, ContextPolicy, ContextStrategy, ContextSummary, ContextUnit};
pub use finish_reason::FinishReason;
pub use output::RunOutput;
pub use plan::{Plan, PlanPhase, PlanPolicy, PlanStep, PlanStepState, PlannedStep, RankingFallback, Strategy};
pub use question::{Elicitation, InputAnswer, InputChoice, InputKind, InputRecord, InputRequest, InputState, Question};
pub use record::{ClaimCause, Fence, FirstClaim, RunRecord, RunWrite};
pub use request_record::{
    NewRequestRecord, RecordSources, RecordedMessages, RequestBudget, RequestDigest, RequestRecord, SentMessage, SentTool,
};
pub use step_request::{MissingStepRequest, RecordedSteps, StepRequest};
pub use undo::UndoRule;
pub use usage::{PeriodUsage, UsageGroup, UsagePeriod};

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::domain::enum_names::named_enum;
use crate::domain::ids::{ConversationId, RunId};
use crate::domain::model::Usage;
use crate::domain::problem::ProblemBody;
use crate::domain::trace::TraceId;

named_enum! {
    /// The status of a run. Terminal statuses never change.
    #[derive(Hash)]
    pub enum RunStatus {
        /// The run is accepted and has not started.
        Queued = "queued",
        /// A model call is running, or the next one is about to begin.
        Processing = "processing",
        /// Tool calls are running.
        ToolLoop = "tool_loop",
        /// The run waits for an external event. It holds no slot and no lease.
        Waiting = "waiting",
        /// The run ended with an answer.
        Completed = "completed",
        /// The run ended with an error.
        Failed = "failed",
        /// The run was cancelled.
        Cancelled = "cancelled",
    }
}

impl RunStatus {
    pub fn is_terminal(self) -> bool {
        matches!(self, Self::Completed | Self::Failed | Self::Cancelled)
    }
}

named_enum! {
    /// The reason why a run waits.
    pub enum WaitReason {
        /// A human's decision about a tool call.
        Approval = "approval",
        /// A human's answer to a question.
        Input = "input",
        /// The client's result of a call of a client tool.
        ClientTool = "client_tool",
        /// The backoff before a retry.
        Backoff = "backoff",
        /// A budget of money or tokens.
        Budget = "budget",
    }
}

impl WaitReason {
    /// Returns whether only a human or the client ends the wait. A run with any other reason continues without help.
    pub fn needs_answer(self) -> bool {
        matches!(self, Self::Approval | Self::Input | Self::ClientTool)
    }
}

/// A warning about a completed run, which a client should show.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Notice {
    /// The answer claims a change, but no call of the run that changes something has succeeded.
    NothingWritten,
}

/// A run as clients see it.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Run {
    /// The id of the run.
    pub id: RunId,
    /// The conversation of the run.
    pub conversation_id: ConversationId,
    /// The status of the run.
    pub status: RunStatus,
    /// The reason why the run waits. Absent if it does not wait.
    pub reason: Option<WaitReason>,
    /// The name of the agent.
    pub agent: String,
    /// The version of the agent, frozen when the run was accepted.
    pub agent_version: u32,
    /// The model, as `provider/name`.
    pub model: String,
    /// How often a worker has claimed the run.
    pub attempt: u32,
    /// The reason why the run ended.
    pub finish_reason: Option<FinishReason>,
    /// Tokens used so far.
    pub usage: Option<Usage>,
    /// The error of a failed run.
    pub error: Option<ProblemBody>,
    /// The answer, once the run has ended with one. Lists of runs do not contain it.
    pub output: Option<RunOutput>,
    /// The trace id of the request that started the run: 32 hexadecimal digits. Log lines about the run contain it. Absent for
    /// imported and copied runs.
    #[schema(value_type = Option<String>)]
    pub trace_id: Option<TraceId>,
    /// When the run was accepted, RFC 3339.
    pub created_at: String,
    /// When a worker first claimed the run, RFC 3339.
    pub started_at: Option<String>,
    /// When the run ended, RFC 3339.
    pub finished_at: Option<String>,
}

/// How the server handles a message for a conversation with an active run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnBusy {
    /// Queues a new run, which starts when the active run has ended.
    #[default]
    Queue,
    /// Rejects the message with status 409.
    Reject,
    /// Cancels the active run and all queued runs, then starts a new run.
    Interrupt,
    /// Adds the message to the active run before its next model call, without a new run. The run completes only after it has
    /// answered the message.
    Steer,
}
