//! The input and the result of one decision.

use std::sync::Arc;

use crate::domain::agent::ProvidedContext;
use crate::domain::conversation::Message;
use crate::domain::event::EventBody;
use crate::domain::ids::CallId;
use crate::domain::model::{ModelError, ModelRequest, ModelTurn, Usage};
use crate::domain::run::{Change, InputRequired, ReservationOutcome, ReservationRequest};
use crate::domain::tool::{RankedTools, Reconciled, ToolCall, ToolDefinition, ToolOutcome};
use crate::support::clock::UnixMillis;
use crate::support::ids::IdSource;

/// The environment of a decision.
pub struct DecisionEnvironment<'a> {
    /// The time for timestamps.
    pub now: UnixMillis,
    pub ids: &'a dyn IdSource,
    /// Milliseconds since the run's first start, by the database's clock at loading plus monotonic time since.
    pub elapsed_ms: u64,
    /// Usage of model calls without a result, which is charged too.
    pub spent: Usage,
}

/// An input of the machine.
#[derive(Debug, Clone, PartialEq)]
pub enum Input {
    /// The run was claimed and loaded. The machine derives the remaining work from the state.
    Claimed {
        /// Used only if the run has no frozen tools yet.
        tools: Vec<Arc<ToolDefinition>>,
        /// Used only if the run has not stored them yet.
        contexts: Option<Vec<ProvidedContext>>,
        /// Outcomes that could not be stored, of calls that the rows may still show as `started`.
        finished: Vec<(CallId, ToolOutcome)>,
    },
    /// The reply to [`Command::RankTools`].
    ToolsRanked(RankedTools),
    /// The reply to [`Command::Reserve`].
    Reserved(ReservationRequest, ReservationOutcome),
    /// The model answered. Clients have seen the parts under the ids of this message.
    ModelFinished {
        /// Not stored yet.
        message: Message,
        turn: ModelTurn,
        /// `part.completed` of parts that are still open.
        closing: Vec<EventBody>,
    },
    /// The model call failed, and all its shown parts are void.
    ModelFailed(ModelError),
    /// The total timeout of the model call ended an answer in progress. The text is kept, unless another model takes over.
    ModelCut { error: ModelError, partial: Option<PartialAnswer> },
    /// A started call has its outcome.
    ToolFinished(CallId, ToolOutcome),
    /// The server of a started call needs input before it continues.
    ToolPauses(CallId, InputRequired),
    /// The server's answer about a started call whose worker crashed.
    Reconciled(CallId, Reconciled),
    /// A user message joined the run. It is already stored.
    Joined(Message),
    /// The run must end.
    CancelRequested {
        /// `user`, `interrupt` or `shutdown`.
        by: String,
        /// The shown part of an unfinished answer. Its text is kept, its calls are not.
        partial: Option<PartialAnswer>,
        /// Outcomes of calls under way, which the driver has stopped.
        stopped: Vec<(CallId, ToolOutcome)>,
    },
    /// The worker drains: no step and no call begins any more, and a decision that would begin one hands the run back. Results of calls
    /// under way are stored.
    Draining,
    /// The process shuts down, and the run is between steps, or its step was aborted.
    Drain {
        /// Outcomes of calls that have ended. Calls without one stay `started`.
        stopped: Vec<(CallId, ToolOutcome)>,
        /// Calls whose servers need input before they continue.
        paused: Vec<(CallId, InputRequired)>,
    },
    /// The run's own time limit was reached.
    TimedOut {
        /// As in [`Input::CancelRequested`].
        partial: Option<PartialAnswer>,
        /// As in [`Input::CancelRequested`].
        stopped: Vec<(CallId, ToolOutcome)>,
    },
    /// Neither this worker nor another one can continue the run.
    GivenUp {
        why: String,
        /// Outcomes that could not be stored before.
        stopped: Vec<(CallId, ToolOutcome)>,
    },
}

impl Input {
    /// Returns the tool outcomes in the input.
    pub fn into_outcomes(self) -> Vec<(CallId, ToolOutcome)> {
        match self {
            Self::ToolFinished(id, outcome) => vec![(id, outcome)],
            Self::CancelRequested { stopped, .. }
            | Self::Drain { stopped, .. }
            | Self::TimedOut { stopped, .. }
            | Self::GivenUp { stopped, .. } => stopped,
            Self::Reconciled(id, Reconciled::Happened(outcome)) => vec![(id, outcome)],
            _ => Vec::new(),
        }
    }
}

/// The shown part of a stopped answer.
#[derive(Debug, Clone, PartialEq)]
pub struct PartialAnswer {
    pub message: Message,
    /// `part.completed` of its open parts.
    pub closing: Vec<EventBody>,
}

/// The reaction to an input.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Decision {
    pub events: Vec<EventBody>,
    pub changes: Vec<Change>,
    /// The driver executes them according to `durability`.
    pub commands: Vec<Command>,
    pub durability: Durability,
}

/// When a decision is committed. Model calls start at once in any case, since they change nothing outside; a failed commit aborts them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Durability {
    /// Before its commands start.
    #[default]
    Before,
    /// With the next group commit, because the decision can be made again.
    Behind,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Command {
    /// Makes the model call of the current step with this request, whose size was checked.
    CallModel(Box<ModelRequest>),
    /// Ranks the usable tools by [`tool_query`](crate::engine::tool_query). Repeated after a crash.
    RankTools,
    /// Reserves budget for the next model call. Repeated after a crash, because the fence voids the reservation of a crashed
    /// worker.
    Reserve(ReservationRequest),
    /// Executes a call, whose row is `started`.
    RunTool(Arc<ToolCall>),
    /// Asks the server of a `reconcile` call whether it took effect. Its row is `started`. Repeated after a crash.
    Reconcile(Arc<ToolCall>),
    /// Drops the run, which ended or was released.
    Stop,
}
