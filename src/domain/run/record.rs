//! The values between the driver and the store: a run as loaded, and a write as committed.

use std::sync::Arc;
use std::time::Instant;

use serde::{Deserialize, Serialize};

use crate::domain::agent::AgentProfile;
use crate::domain::agent::prompt::{OwnLayers, ProvidedContext};
use crate::domain::conversation::message::Message;
use crate::domain::event::NewEvent;
use crate::domain::ids::{CallId, ConversationId, RunId, UserId};
use crate::domain::model::Usage;
use crate::domain::run::budget::Lost;
use crate::domain::run::change::{Change, RunCounters, StepRow, StepStatus};
use crate::domain::run::context::ContextSummary;
use crate::domain::run::input::{InputKind, InputRequest};
use crate::domain::run::plan::PlanPhase;
use crate::domain::run::{RunStatus, WaitReason};
use crate::domain::tool::{ToolCall, ToolDefinition};
use crate::domain::words::words;

/// The right to write for a run. Every claim makes a new one, which ends the one before it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Fence {
    pub run_id: RunId,
    /// The conversation whose log the run writes to.
    pub conversation_id: ConversationId,
    /// Raised by one at each claim.
    pub epoch: i64,
}

impl Fence {
    pub fn ids(&self) -> (RunId, ConversationId) {
        (self.run_id.clone(), self.conversation_id.clone())
    }
}

/// One write for a run: events and the rows they cover, all or nothing.
#[derive(Debug, Clone, PartialEq)]
pub struct RunWrite {
    pub fence: Fence,
    /// Appended to the conversation's log, in order. To a `conversation.updated` the store adds the title; the last one in a
    /// write that ends the run gets the status of the conversation, which such a write also changes.
    pub events: Vec<NewEvent>,
    pub changes: Vec<Change>,
    /// The newest sequence number that the writer knows to be stored; 0 for none. A log that ends before it has lost confirmed
    /// commits, and the write is refused as fenced.
    pub after: i64,
}

/// A run that was claimed in the transaction that accepted it.
#[derive(Debug, Clone, PartialEq)]
pub struct FirstClaim {
    pub fence: Fence,
    /// A time before the lease began.
    pub claimed_at: Instant,
    /// The run as loaded; `None` if it cannot be read, which the driver reports.
    pub record: Option<Box<RunRecord>>,
}

/// Why a run was claimed, or is loaded again by the worker that holds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ClaimCause {
    First,
    /// The last claim's worker died or lost its lease.
    Crash,
    /// The last claim's worker was shutting down, or gave the run up and lives.
    HandedBack,
    Timer,
    Request,
    /// The worker holds the lease still, but could not write or read the rows. Never stored, since it is no claim.
    Reload,
}

words!(ClaimCause {
    First = "first",
    Crash = "crash",
    HandedBack = "handed_back",
    Timer = "timer",
    Request = "request",
    Reload = "reload",
});

/// A claimed run, loaded from its rows: everything that the loop needs to continue it.
#[derive(Debug, Clone, PartialEq)]
pub struct RunRecord {
    pub fence: Fence,
    pub owner: UserId,
    /// Claims of the run, this one included.
    pub attempt: u32,
    /// Claims that ended in a crash, without those that were cleared because the run then made progress.
    pub crashes: u32,
    pub cause: ClaimCause,
    /// Never terminal.
    pub status: RunStatus,
    pub reason: Option<WaitReason>,
    /// Frozen. Shared, because runs of one agent have the same, and each decision begins with a copy of the record.
    pub profile: Arc<AgentProfile>,
    /// The conversation's own layers of the system prompt, as of the load.
    pub own_layers: OwnLayers,
    /// Frozen; `None` before the first start.
    pub tools: Option<Vec<Arc<ToolDefinition>>>,
    /// `None` before context providers were asked.
    pub contexts: Option<Vec<ProvidedContext>>,
    pub counters: RunCounters,
    pub usage: Usage,
    /// The reserved call that an earlier worker left unsettled.
    pub lost: Option<Lost>,
    /// Milliseconds since the first start, by the database's clock; 0 before it.
    pub elapsed_ms: u64,
    /// Messages of the conversation's earlier runs and of this one, run by run, oldest first, without those that wait for a later
    /// run. Of the messages that the summary covers, only the user's open questions are loaded.
    pub history: Vec<Message>,
    /// The summary that replaces older messages in requests.
    pub summary: Option<ContextSummary>,
    /// The number of messages at the beginning of `history` that the summary covered at the load.
    pub covered: usize,
    pub steps: Vec<StepRow>,
    pub calls: Vec<Arc<ToolCall>>,
    /// Questions of this run that it has not acted on, oldest first.
    pub inputs: Vec<InputRequest>,
    /// The principal that requested the cancellation.
    pub cancel_requested_by: Option<String>,
    /// Messages that ever joined a run of this conversation, as far as the loop knows.
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
    pub fn has_its_last_chance(&self) -> bool {
        self.profile.max_crashes > 0 && self.crashes.saturating_add(1) >= self.profile.max_crashes
    }

    pub fn call(&self, id: &CallId) -> Option<&Arc<ToolCall>> {
        self.calls.iter().find(|call| call.id == *id)
    }

    /// Returns whether a user message has joined that no model request included. Read from the rows, so that a crash cannot lose
    /// it.
    pub fn has_unseen_messages(&self) -> bool {
        self.joined > self.counters.heard
    }

    /// The newest step, if it has begun and not ended.
    pub fn open_step(&self) -> Option<&StepRow> {
        self.steps.last().filter(|row| row.status == StepStatus::Started)
    }

    pub fn batch(&self, step: u32) -> impl Iterator<Item = &ToolCall> {
        self.calls.iter().map(Arc::as_ref).filter(move |call| call.step == step)
    }

    pub fn question_about(&self, call: &CallId) -> Option<&InputRequest> {
        self.inputs.iter().find(|request| request.call_id.as_ref() == Some(call))
    }

    /// Returns whether the call itself is an unanswered question to the user.
    pub fn asks_user(&self, call: &CallId) -> bool {
        self.question_about(call).is_some_and(|question| question.kind == InputKind::Question)
    }

    pub fn questions_of_servers(&self, call: &CallId) -> impl Iterator<Item = &InputRequest> {
        let of_call = self.inputs.iter().filter(move |request| request.call_id.as_ref() == Some(call));
        of_call.filter(|request| request.kind == InputKind::Elicitation)
    }

    /// Returns the current model, as `provider/name`: the plan's, the profile's, or the fallback that took over.
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
