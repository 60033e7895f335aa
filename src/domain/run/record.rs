//! Values between the driver and the store: a loaded run, and a committed write.

use std::sync::Arc;
use std::time::Instant;

use crate::domain::agent::{AgentProfile, OwnLayers, ProvidedContext};
use crate::domain::conversation::Message;
use crate::domain::enum_names::named_enum;
use crate::domain::event::NewEvent;
use crate::domain::ids::{CallId, ConversationId, RunId, UserId};
use crate::domain::model::Usage;
use crate::domain::run::{
    Change, ContextSummary, InputKind, InputRequest, LostReservation, PlanPhase, RunCounters, RunStatus, StepRow, StepStatus,
    WaitReason,
};
use crate::domain::tool::{ToolCall, ToolDefinition};

/// The right to write for a run. Every claim creates a new fence, which ends the previous one.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Fence {
    pub run_id: RunId,
    /// The conversation whose log the run writes to.
    pub conversation_id: ConversationId,
    /// Increases with each claim, and when the worker raises the fence.
    pub epoch: i64,
}

impl Fence {
    pub fn ids(&self) -> (RunId, ConversationId) {
        (self.run_id.clone(), self.conversation_id.clone())
    }
}

/// One atomic write for a run: events and the changes of its rows.
#[derive(Debug, Clone, PartialEq)]
pub struct RunWrite {
    pub fence: Fence,
    /// Appended to the conversation's log, in order. The store adds the title to a `conversation.updated`. A write that ends the
    /// run also changes the conversation's status, which its last `conversation.updated` contains.
    pub events: Vec<NewEvent>,
    pub changes: Vec<Change>,
    /// The newest sequence number that the writer knows as stored; 0 for none. If the log ends before it, the database has lost
    /// confirmed commits, and the write is refused as fenced.
    pub after: i64,
}

/// A run that was claimed in the transaction that accepted it.
#[derive(Debug, Clone, PartialEq)]
pub struct FirstClaim {
    pub fence: Fence,
    /// A time before the start of the lease.
    pub claimed_at: Instant,
    /// The loaded run. `None` if it cannot be read: the driver then loads the run again, and reports the error.
    pub record: Option<Box<RunRecord>>,
}

named_enum! {
    /// The reason why a run was claimed, or loaded again by its worker.
    pub enum ClaimCause {
        First = "first",
        /// The worker of the last claim crashed or lost its lease.
        Crash = "crash",
        /// The worker of the last claim shut down, or released the run.
        HandedBack = "handed_back",
        Timer = "timer",
        Request = "request",
        /// The worker still holds the lease, but could not write or read the rows. Never stored, since it is no claim.
        Reload = "reload",
    }
}

/// A claimed run, loaded from its rows: everything that the engine needs to continue.
#[derive(Debug, Clone, PartialEq)]
pub struct RunRecord {
    pub fence: Fence,
    pub owner: UserId,
    /// Number of claims of the run, including this one.
    pub attempt: u32,
    /// Number of crashed claims since the run last made progress.
    pub crashes: u32,
    pub cause: ClaimCause,
    /// Never terminal.
    pub status: RunStatus,
    pub reason: Option<WaitReason>,
    /// Frozen at acceptance. Shared, because runs of one agent have equal profiles, and each decision copies the record.
    pub profile: Arc<AgentProfile>,
    /// The conversation's layers of the system prompt, at the time of the load.
    pub own_layers: OwnLayers,
    /// Frozen at the first start; `None` before it.
    pub tools: Option<Vec<Arc<ToolDefinition>>>,
    /// `None` before context providers were called.
    pub contexts: Option<Vec<ProvidedContext>>,
    pub counters: RunCounters,
    pub usage: Usage,
    /// The reserved call of an earlier worker that was never charged.
    pub lost: Option<LostReservation>,
    /// Milliseconds since the first start, by the database's clock; 0 before the start.
    pub elapsed_ms: u64,
    /// Messages of earlier runs and of this one, ordered by run, oldest first, without those that wait for a later run. Of the
    /// messages that the summary covers, only the user's open questions are loaded.
    pub history: Vec<Message>,
    /// The summary that replaces older messages in requests.
    pub summary: Option<ContextSummary>,
    /// Number of messages at the start of `history` that the summary covered at the load.
    pub covered: usize,
    pub steps: Vec<StepRow>,
    pub calls: Vec<Arc<ToolCall>>,
    /// Questions of this run that it has not applied, oldest first.
    pub inputs: Vec<InputRequest>,
    /// The principal that requested the cancellation.
    pub cancel_requested_by: Option<String>,
    /// Number of messages that ever joined a run of this conversation, as far as the worker knows.
    pub joined: i64,
}

impl RunRecord {
    /// Returns the record of a queued run at its first claim, with an empty history.
    pub fn first(fence: Fence, owner: UserId, profile: AgentProfile) -> Self {
        Self {
            fence,
            owner,
            attempt: 1,
            crashes: 0,
            cause: ClaimCause::First,
            status: RunStatus::Queued,
            reason: None,
            profile: Arc::new(profile),
            own_layers: OwnLayers::default(),
            tools: None,
            contexts: None,
            counters: RunCounters::default(),
            usage: Usage::default(),
            lost: None,
            elapsed_ms: 0,
            history: Vec::new(),
            summary: None,
            covered: 0,
            steps: Vec::new(),
            calls: Vec::new(),
            inputs: Vec::new(),
            cancel_requested_by: None,
            joined: 0,
        }
    }

    pub fn is_poison(&self) -> bool {
        self.profile.max_crashes > 0 && self.crashes >= self.profile.max_crashes
    }

    /// Returns whether one more crash reaches the limit.
    pub fn is_one_crash_before_poison(&self) -> bool {
        self.profile.max_crashes > 0 && self.crashes.saturating_add(1) >= self.profile.max_crashes
    }

    pub fn call(&self, id: &CallId) -> Option<&Arc<ToolCall>> {
        self.calls.iter().find(|call| call.id == *id)
    }

    /// Returns whether a user message has joined that no model request contained. Derived from the rows, so that a crash cannot
    /// lose it.
    pub fn has_unseen_messages(&self) -> bool {
        self.joined > self.counters.joined_at_restart
    }

    /// Returns the newest step, if it has begun and not ended.
    pub fn open_step(&self) -> Option<&StepRow> {
        self.steps.last().filter(|row| row.status == StepStatus::Started)
    }

    pub fn batch(&self, step: u32) -> impl Iterator<Item = &ToolCall> {
        self.calls.iter().map(Arc::as_ref).filter(move |call| call.step == step)
    }

    pub fn question_about(&self, call: &CallId) -> Option<&InputRequest> {
        self.inputs.iter().find(|request| request.call_id.as_ref() == Some(call))
    }

    /// Returns whether the call itself is a question to the user, or waits for the result of the client.
    pub fn waits_for_answer(&self, call: &CallId) -> bool {
        let is_the_call = |question: &InputRequest| matches!(question.kind, InputKind::Question | InputKind::ClientTool);
        self.question_about(call).is_some_and(is_the_call)
    }

    pub fn questions_of_servers(&self, call: &CallId) -> impl Iterator<Item = &InputRequest> {
        let of_call = self.inputs.iter().filter(move |request| request.call_id.as_ref() == Some(call));
        of_call.filter(|request| request.kind == InputKind::Elicitation)
    }

    /// Returns the current model, as `provider/name`: the plan's, the profile's, or the current fallback.
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

    pub fn next_model(&self) -> Option<&str> {
        self.profile.fallbacks.get(self.counters.fallback as usize).map(String::as_str)
    }
}
