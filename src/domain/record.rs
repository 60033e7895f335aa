//! What travels between the loop's driver and the store: a run as loaded, and a write as committed.

use std::sync::Arc;
use std::time::Instant;

use serde::{Deserialize, Serialize};

use super::agent::AgentProfile;
use super::budget::Lost;
use super::change::{Change, RunCounters, StepRow};
use super::context::ContextSummary;
use super::event::NewEvent;
use super::ids::{CallId, ConversationId, RunId, UserId};
use super::input::InputRequest;
use super::message::Message;
use super::model::Usage;
use super::plan::PlanPhase;
use super::prompt::{OwnLayers, ProvidedContext};
use super::run::{RunStatus, WaitReason};
use super::tool::{ToolCall, ToolDefinition};

/// The right to write for a run. Every claim makes a new one and thereby ends the one before it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Fence {
    /// The run.
    pub run_id: RunId,
    /// Its conversation, whose log the run writes to.
    pub conversation_id: ConversationId,
    /// Raised by one at each claim.
    pub epoch: i64,
}

/// One write for a run: events and the rows they cover, all or nothing.
#[derive(Debug, Clone, PartialEq)]
pub struct RunWrite {
    /// The right to do it.
    pub fence: Fence,
    /// Appended to the conversation's log, in order. To a `conversation.updated` the store adds the title; the last one in a
    /// write that ends the run gets the status that the conversation then has. Such a write also changes the status.
    pub events: Vec<NewEvent>,
    /// Carried out in order, in the same transaction.
    pub changes: Vec<Change>,
    /// The newest number of the log that its writer knows to be stored; 0 for none. A log that ends before it has lost what was
    /// confirmed, and the write is refused as fenced.
    pub after: i64,
}

/// A run that was claimed in the moment in which it was accepted.
#[derive(Debug, Clone, PartialEq)]
pub struct FirstClaim {
    /// The right to write.
    pub fence: Fence,
    /// Before the lease began.
    pub claimed_at: Instant,
    /// What would be loaded; `None` if it cannot be read, of which the run's driver is to tell.
    pub record: Option<Box<RunRecord>>,
}

/// Why a run was claimed again, or taken up again by the worker that has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ClaimCause {
    /// For the first time.
    First,
    /// The last claim's worker died or lost its lease.
    Crash,
    /// The last claim's worker was shutting down, or has given the run up and lives.
    HandedBack,
    /// A wait is over.
    Timer,
    /// Somebody asked for it.
    Request,
    /// Its worker lives and has it still, but could not write or read its rows. Never stored: no claim comes of it.
    Reload,
}

impl ClaimCause {
    /// The word in `run.resumed` and in the database.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::First => "first",
            Self::Crash => "crash",
            Self::HandedBack => "handed_back",
            Self::Timer => "timer",
            Self::Request => "request",
            Self::Reload => "reload",
        }
    }

    /// Reads the word.
    #[must_use]
    pub fn from_word(word: &str) -> Option<Self> {
        [Self::First, Self::Crash, Self::HandedBack, Self::Timer, Self::Request].into_iter().find(|cause| cause.as_str() == word)
    }
}

/// A claimed run, loaded from its rows: all that the loop needs to go on.
#[derive(Debug, Clone, PartialEq)]
pub struct RunRecord {
    /// The right to write.
    pub fence: Fence,
    /// Whose run it is.
    pub owner: UserId,
    /// How often the run was claimed, this claim included.
    pub attempt: u32,
    /// How many workers have died over it; but for those of which it was cleared, because it had gone on well.
    pub crashes: u32,
    /// Why it was claimed.
    pub cause: ClaimCause,
    /// Where it stands. Never terminal.
    pub status: RunStatus,
    /// What it waited for.
    pub reason: Option<WaitReason>,
    /// The frozen profile. Shared, because runs of one agent have the same, and each decision begins with a copy of the record.
    pub profile: Arc<AgentProfile>,
    /// What its conversation adds to the system prompt, as it was when the run was loaded.
    pub own_layers: OwnLayers,
    /// The frozen tools; `None` before the first start.
    pub tools: Option<Vec<Arc<ToolDefinition>>>,
    /// What context providers have said of the turn; `None` before they were asked.
    pub contexts: Option<Vec<ProvidedContext>>,
    /// The stored counters.
    pub counters: RunCounters,
    /// Tokens used so far.
    pub usage: Usage,
    /// The call that a worker before this one had under way under a budget.
    pub lost: Option<Lost>,
    /// Milliseconds since the first start, by the database's clock; 0 before it.
    pub elapsed_ms: u64,
    /// Messages of the conversation's earlier runs and of this one, run by run, oldest first. Messages that wait for a later
    /// run are not among them.
    /// Of those that the summary stands for, only what the user asks was loaded.
    pub history: Vec<Message>,
    /// What stands for the messages that requests leave out.
    pub summary: Option<ContextSummary>,
    /// How many messages at the beginning of what was loaded the summary stood for then.
    pub covered: usize,
    /// This run's steps, oldest first.
    pub steps: Vec<StepRow>,
    /// This run's tool calls, by step and position.
    pub calls: Vec<Arc<ToolCall>>,
    /// This run's questions that it has not acted on, oldest first.
    pub inputs: Vec<InputRequest>,
    /// Who asked for the run to be cancelled, if anybody did.
    pub cancel_requested_by: Option<String>,
    /// How many messages have ever joined a run of this conversation, as far as the loop has heard.
    pub joined: i64,
}

impl RunRecord {
    /// Whether so many workers have died over the run that it is given up.
    #[must_use]
    pub fn is_poison(&self) -> bool {
        self.profile.max_crashes > 0 && self.crashes >= self.profile.max_crashes
    }

    /// Whether it is given up when one more worker dies over it.
    #[must_use]
    pub fn has_its_last_chance(&self) -> bool {
        self.profile.max_crashes > 0 && self.crashes.saturating_add(1) >= self.profile.max_crashes
    }

    /// The call with an id.
    #[must_use]
    pub fn call(&self, id: &CallId) -> Option<&Arc<ToolCall>> {
        self.calls.iter().find(|call| call.id == *id)
    }

    /// The model that is asked now, as `provider/name`: the one that its plan wants, the profile's own, or the fallback that has
    /// taken over.
    #[must_use]
    pub fn model(&self) -> &str {
        let policy = &self.profile.plan;
        let planned = self.counters.plan.as_ref().and_then(|plan| match plan.phase {
            PlanPhase::Planning | PlanPhase::Telling => policy.planner.as_deref(),
            PlanPhase::Executing => policy.router.as_deref(),
            PlanPhase::Over => None,
        });
        if let Some(planned) = planned {
            return planned;
        }
        let fallbacks = &self.profile.fallbacks;
        let at = (self.counters.fallback as usize).min(fallbacks.len());
        at.checked_sub(1).and_then(|at| fallbacks.get(at)).unwrap_or(&self.profile.model)
    }

    /// The model that would take over from it.
    #[must_use]
    pub fn next_model(&self) -> Option<&str> {
        self.profile.fallbacks.get(self.counters.fallback as usize).map(String::as_str)
    }
}
