//! The values that go into and come out of one decision.

use std::sync::Arc;

use crate::domain::agent::prompt::ProvidedContext;
use crate::domain::conversation::message::Message;
use crate::domain::event::EventBody;
use crate::domain::ids::CallId;
use crate::domain::model::{ModelError, ModelRequest, ModelTurn, Usage};
use crate::domain::run::budget::{Reserve, Reserved};
use crate::domain::run::change::Change;
use crate::domain::run::handle::Pause;
use crate::domain::tool::tool_filter::RankedTools;
use crate::domain::tool::{Reconciled, ToolCall, ToolDefinition, ToolOutcome};
use crate::support::clock::UnixMillis;
use crate::support::ids::IdSource;

/// The environment of a decision.
pub struct Surroundings<'a> {
    /// The time for timestamps.
    pub now: UnixMillis,
    pub ids: &'a dyn IdSource,
    /// Milliseconds since the run's first start, by the database's clock at loading plus monotonic time since.
    pub elapsed_ms: u64,
    /// Usage of model calls without a result, which is charged all the same.
    pub spent: Usage,
}

/// An input of the machine.
#[derive(Debug, Clone, PartialEq)]
pub enum Input {
    /// The run was claimed and loaded. The machine finds out from the state what is left to do.
    Claimed {
        /// Used only if the run has no frozen tools yet.
        tools: Vec<Arc<ToolDefinition>>,
        /// Used only if the run has not stored them yet.
        contexts: Option<Vec<ProvidedContext>>,
        /// Outcomes that could not be stored, of calls that the rows may still call `started`.
        finished: Vec<(CallId, ToolOutcome)>,
    },
    /// The reply to [`Command::RankTools`].
    ToolsRanked(RankedTools),
    /// The reply to [`Command::Reserve`].
    Reserved(Reserve, Reserved),
    /// The model answered. The parts have been shown under the ids of the message.
    ModelFinished {
        /// Not stored yet.
        message: Message,
        turn: ModelTurn,
        /// `part.completed` of parts that are still open.
        closing: Vec<EventBody>,
    },
    /// The model call failed, and all that was shown of it is void.
    ModelFailed(ModelError),
    /// The time limit ended an answer that made progress. If no other model takes over, its words are kept.
    ModelCut { error: ModelError, partial: Option<PartialAnswer> },
    /// A started call has its outcome.
    ToolFinished(CallId, ToolOutcome),
    /// The server of a started call needs input before it continues.
    ToolPauses(CallId, Pause),
    /// The server's answer about a started call whose worker died.
    Reconciled(CallId, Reconciled),
    /// A user message joined the run, and is stored already.
    Joined(Message),
    /// The run shall end.
    CancelRequested {
        /// `user`, `interrupt` or `shutdown`.
        by: String,
        /// The shown part of an unfinished answer. Its words are kept, its calls are not.
        partial: Option<PartialAnswer>,
        /// Outcomes of calls that were under way, which the driver has stopped.
        stopped: Vec<(CallId, ToolOutcome)>,
    },
    /// No step and no call begins any more: a decision that would begin one hands the run back. Results of calls under way are
    /// kept.
    Draining,
    /// The process shuts down, and the run is between steps, or its step was abandoned.
    Drain {
        /// Outcomes of calls that ended meanwhile. Calls without one stay `started`.
        stopped: Vec<(CallId, ToolOutcome)>,
        /// Calls whose servers need input before they continue.
        paused: Vec<(CallId, Pause)>,
    },
    /// The run's own time limit was reached.
    TimedOut {
        /// As in [`Input::CancelRequested`].
        partial: Option<PartialAnswer>,
        /// As in [`Input::CancelRequested`].
        stopped: Vec<(CallId, ToolOutcome)>,
    },
    /// The worker cannot carry the run on, and no other one could.
    GivenUp {
        why: String,
        /// Outcomes that could not be stored before.
        stopped: Vec<(CallId, ToolOutcome)>,
    },
}

impl Input {
    /// Returns the outcomes that it brings.
    pub fn into_outcomes(self) -> Vec<(CallId, ToolOutcome)> {
        match self {
            Self::ToolFinished(id, outcome) => vec![(id, outcome)],
            Self::CancelRequested { stopped, .. }
            | Self::Drain { stopped, .. }
            | Self::TimedOut { stopped, .. }
            | Self::GivenUp { stopped, .. } => stopped,
            Self::Reconciled(id, Reconciled::Happened(outcome)) => vec![(id, outcome)],
            Self::Claimed { .. }
            | Self::ToolsRanked(_)
            | Self::Reserved(..)
            | Self::Draining
            | Self::ModelFinished { .. }
            | Self::ModelFailed(_)
            | Self::ModelCut { .. }
            | Self::ToolPauses(..)
            | Self::Reconciled(..)
            | Self::Joined(_) => Vec::new(),
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
    /// Executed according to `durability`.
    pub commands: Vec<Command>,
    pub durability: Durability,
}

/// When a decision is committed. Model calls start at once in any case, since they change nothing outside: a decision that cannot
/// be stored ends them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Durability {
    /// Before its commands start.
    #[default]
    Before,
    /// With the next commit: the decision can be made again.
    Behind,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Command {
    /// Make the model call of the current step with this request, which was measured.
    CallModel(Box<ModelRequest>),
    /// Rank the usable tools by [`tool_query`](crate::engine::tool_query). Repeated after a crash.
    RankTools,
    /// Reserve the next model call. Repeated after a crash; what a dead worker was granted is void with its fence.
    Reserve(Reserve),
    /// Execute a call, whose row says `started`.
    RunTool(Arc<ToolCall>),
    /// Ask the server of a `reconcile` call whether it took effect. Its row says `started`. Repeated after a crash.
    Reconcile(Arc<ToolCall>),
    /// Drop the run, which ended or was released.
    Stop,
}
