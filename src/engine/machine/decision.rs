//! The values that go into and come out of one decision.
//!
//! Owns inputs, commands and surroundings. Must not know any rule.

use std::sync::Arc;

use crate::domain::budget::{Reserve, Reserved};
use crate::domain::change::Change;
use crate::domain::event::EventBody;
use crate::domain::handle::Pause;
use crate::domain::ids::CallId;
use crate::domain::message::Message;
use crate::domain::model::{ModelError, ModelRequest, ModelTurn, Usage};
use crate::domain::prompt::ProvidedContext;
use crate::domain::tool::{Reconciled, ToolCall, ToolDefinition, ToolOutcome};
use crate::domain::tool_filter::RankedTools;
use crate::support::clock::UnixMillis;
use crate::support::ids::IdSource;

/// What the machine may ask of its surroundings.
pub struct Surroundings<'a> {
    /// The present, for timestamps that people read.
    pub now: UnixMillis,
    /// New ids.
    pub ids: &'a dyn IdSource,
    /// Milliseconds since the run's first start, by the database's clock at loading plus monotonic time since.
    pub elapsed_ms: u64,
    /// What a model call has used that came to nothing, as far as is known: it is paid for all the same.
    pub spent: Usage,
}

/// What happened.
#[derive(Debug, Clone, PartialEq)]
pub enum Input {
    /// The run was claimed and loaded: for the first time, or again after a crash, a hand-back or a wait. The machine finds
    /// out from the state what is left to do.
    Claimed {
        /// The tools on offer, used only if the run has no frozen set yet.
        tools: Vec<Arc<ToolDefinition>>,
        /// What context providers have said, if the run has not kept that yet and its agent asks some.
        contexts: Option<Vec<ProvidedContext>>,
        /// Outcomes that the process has and could not store: of calls that the rows may still call `started`.
        finished: Vec<(CallId, ToolOutcome)>,
    },
    /// The tools are in order: what [`Command::RankTools`] has asked for.
    ToolsRanked(RankedTools),
    /// What [`Command::Reserve`] has asked for is answered.
    Reserved(Reserve, Reserved),
    /// The model answered. The message's streamed parts have been shown under the ids that the assembler gave them.
    ModelFinished {
        /// The assembled message, with ids, not yet stored.
        message: Message,
        /// Raw finish and usage.
        turn: ModelTurn,
        /// Events that close what was shown: `part.completed` of parts still open.
        closing: Vec<EventBody>,
    },
    /// The model call failed. Whatever was shown is void.
    ModelFailed(ModelError),
    /// A limit of the operator ended an answer that was still coming. If no other model takes over, its words are kept.
    ModelCut {
        /// The failure.
        error: ModelError,
        /// The shown part of the answer.
        partial: Option<PartialAnswer>,
    },
    /// A started call has its outcome.
    ToolFinished(CallId, ToolOutcome),
    /// The server of a started call wants to know something first, and is called again then.
    ToolPauses(CallId, Pause),
    /// The server has been asked about a started call whose worker died: what it says.
    Reconciled(CallId, Reconciled),
    /// A user message joined the run. It is stored already.
    Joined(Message),
    /// Somebody asked for the run to end. The partial message, if one was being streamed, comes with it.
    CancelRequested {
        /// Who: `user`, `interrupt` or `shutdown`.
        by: String,
        /// What was shown of an unfinished answer. Its words are kept, its calls are not.
        partial: Option<PartialAnswer>,
        /// Outcomes of calls that were under way: the driver has stopped them and says what became of each.
        stopped: Vec<(CallId, ToolOutcome)>,
    },
    /// From now on no step and no call begins: a decision that would begin one hands the run back instead. What is under way may
    /// end, and its result is kept.
    Draining,
    /// The server shuts down and the run stands between steps, or its step was abandoned.
    Drain {
        /// Outcomes of calls that ended while their step was being abandoned. Calls without one stay `started`.
        stopped: Vec<(CallId, ToolOutcome)>,
        /// Calls whose servers let go of them meanwhile, until they know more.
        paused: Vec<(CallId, Pause)>,
    },
    /// The run's own time limit was reached.
    TimedOut {
        /// The shown part of an unfinished answer, as in [`Input::CancelRequested`].
        partial: Option<PartialAnswer>,
        /// Outcomes of calls that were under way, as in [`Input::CancelRequested`].
        stopped: Vec<(CallId, ToolOutcome)>,
    },
    /// The run's worker cannot carry it on, and no other one could.
    GivenUp {
        /// In words.
        why: String,
        /// Outcomes of calls that could not be stored before.
        stopped: Vec<(CallId, ToolOutcome)>,
    },
}

impl Input {
    /// The outcomes of calls that it brings.
    #[must_use]
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

/// What was shown of an answer that somebody stopped.
#[derive(Debug, Clone, PartialEq)]
pub struct PartialAnswer {
    /// The message, with its parts so far.
    pub message: Message,
    /// `part.completed` of its parts that are still open.
    pub closing: Vec<EventBody>,
}

/// What follows.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Decision {
    /// Appended to the log, in order.
    pub events: Vec<EventBody>,
    /// Changes to rows, in the same transaction.
    pub changes: Vec<Change>,
    /// To be done once the rest is stored, as far as `durability` wants that.
    pub commands: Vec<Command>,
    /// Whether the rest is committed before the commands start.
    pub durability: Durability,
}

/// When a decision is committed. A model call may start at once all the same, since it changes nothing outside: a decision that
/// cannot be stored ends it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Durability {
    /// Before its commands start.
    #[default]
    Before,
    /// With the next commit: all that it knows can be found out again.
    Behind,
}

/// Something to do.
#[derive(Debug, Clone, PartialEq)]
pub enum Command {
    /// Make the model call of the current model step, with this request: the one that was measured.
    CallModel(Box<ModelRequest>),
    /// Put the usable tools in order, the fittest for [`tool_query`](crate::engine::tool_query) first. Changes nothing outside, and whoever takes the run up
    /// does it again.
    RankTools,
    /// Ask the store for leave to make the next model call. Whoever takes the run up asks again; what a dead worker was granted is
    /// void with its fence.
    Reserve(Reserve),
    /// Execute a call. Its row says `started`.
    RunTool(Arc<ToolCall>),
    /// Ask the server of a call of the class `reconcile` whether it took effect. Its row says `started`. Changes nothing
    /// outside, and whoever takes the run up asks again.
    Reconcile(Arc<ToolCall>),
    /// The run ended or was released: drop it.
    Stop,
}
