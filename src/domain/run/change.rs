//! Changes to the rows of a run: what the loop decides and the store carries out, in one transaction with the events.
//!
//! The loop's state in memory is changed by the same values, so that memory and rows cannot drift apart.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use serde_json::Value;

use crate::domain::agent::prompt::ProvidedContext;
use crate::domain::conversation::message::Message;
use crate::domain::ids::{CallId, GrantId, InputId, RunId};
use crate::domain::model::Usage;
use crate::domain::problem::ProblemBody;
use crate::domain::run::budget::Amount;
use crate::domain::run::context::ContextSummary;
use crate::domain::run::handle::Handle;
use crate::domain::run::input::{InputRequest, InputState};
use crate::domain::run::plan::Plan;
use crate::domain::run::{FinishReason, RunStatus, WaitReason};
use crate::domain::tool::tool_filter::ChosenTools;
use crate::domain::tool::{ToolCall, ToolDefinition, ToolOutcome};
use crate::domain::words::words;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StepKind {
    Model,
    Tools,
}

words!(StepKind { Model = "model", Tools = "tools" });

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StepStatus {
    /// Begun. A step found like this after a crash is done again.
    Started,
    Completed,
    /// Without a result: its output is void.
    Abandoned,
}

words!(StepStatus { Started = "started", Completed = "completed", Abandoned = "abandoned" });

/// The counters that decide how a run continues. Stored with it, so that no crash resets a limit.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(default)]
pub struct RunCounters {
    /// Model calls with tools that have finished.
    pub rounds: u32,
    /// Consecutive empty replies.
    pub empty_replies: u32,
    /// Consecutive rounds of nothing but repeated calls.
    pub duplicate_rounds: u32,
    /// Consecutive rounds of nothing but errors.
    pub error_rounds: u32,
    /// Failed tries of the current model step.
    pub model_failures: u32,
    /// Consecutive answers that ran into the output limit inside a tool call.
    pub cut_answers: u32,
    /// Consecutive answers that were not of the form that the agent wants.
    pub malformed_answers: u32,
    /// Consecutive answers after which the model was told to continue; a call that succeeds resets it.
    pub continuations: u32,
    /// Answers of the turn after which the model was told to continue without questions.
    pub deflections: u32,
    /// Whether the next model call is the last one, without tools.
    pub force_final: bool,
    pub dropped_tools: Vec<String>,
    /// Messages that had joined runs of the conversation when a model step of this run last began: the model has read those.
    pub heard: i64,
    /// The newest step at that time. Earlier work answered earlier messages: it counts against no limit, and may be requested
    /// again.
    pub heard_step: u32,
    /// How many of the profile's models have been given up: 0 for the first, n for the n-th fallback.
    pub fallback: u32,
    /// Whether a request was too large for the model: the run's later requests to it are halved.
    pub halved: bool,
    /// Tools whose definitions the model's provider refuses.
    pub quarantined_tools: Vec<String>,
    /// Milliseconds that the current model step has waited for the provider's circuit breaker.
    pub left_alone_ms: u64,
    /// Whether the provider refused signed content: the run's later requests to the model omit it.
    pub unsigned: bool,
    /// The tools on offer, if they were narrowed down.
    pub chosen_tools: Option<ChosenTools>,
    /// Whether the model was asked for categories and named none.
    pub named_no_category: bool,
    /// The plan, where the agent has one made.
    pub plan: Option<Plan>,
    /// Whether the last call was forced because the context window was nearly full.
    pub no_room: bool,
    /// Failures of tools in earlier runs of the conversation, if the breaker counts them. Stored with the first counters, so that
    /// it does not change during the run.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub failed_before: BTreeMap<String, u32>,
}

impl RunCounters {
    /// Calls of earlier runs that are read, the newest ones.
    pub const CALLS_BEFORE: i64 = 200;

    /// Counts the calls of earlier runs, newest first: each tool, and whether it failed. A success clears earlier failures.
    pub fn count_before(&mut self, calls: impl IntoIterator<Item = (String, bool)>) {
        let mut has_worked = HashSet::new();
        for (name, has_failed) in calls {
            if !has_failed {
                has_worked.insert(name);
            } else if !has_worked.contains(&name) {
                *self.failed_before.entry(name).or_default() += 1;
            }
        }
    }
}

/// One change to the rows of a run.
#[derive(Debug, Clone, PartialEq)]
#[expect(clippy::large_enum_variant, reason = "a commit holds few changes, and each is moved once")]
pub enum Change {
    /// Sets a status that is not terminal. The conversation's status follows.
    Status(RunStatus, Option<WaitReason>),
    /// The run continues under this claim. Sets the start time if there is none. A lease given up from here on counts as handed
    /// back.
    Started,
    FreezeTools(Vec<Arc<ToolDefinition>>),
    /// Stores what context providers returned for the turn; deleted when the run ends.
    KeepContexts(Vec<ProvidedContext>),
    Counters(RunCounters),
    Summarize(ContextSummary),
    Usage(Usage),
    Settle {
        day: i64,
        amount: Amount,
    },
    /// A step begins, or begins again with a higher attempt.
    StepStarted {
        step: u32,
        kind: StepKind,
    },
    StepEnded {
        step: u32,
        status: StepStatus,
        usage: Option<Usage>,
    },
    AddMessage(Message),
    /// New calls, in the transaction of their message.
    AddToolCalls(Vec<ToolCall>),
    /// A human is asked before the call is handed to its tool. Legal only from `planned`.
    ToolAsked(CallId),
    /// A human changed the arguments. Legal only before the call is handed to its tool.
    ToolEdited {
        id: CallId,
        arguments: Value,
        hash: String,
    },
    /// A grant lets the call through, for the audit. Legal only before the call is handed to its tool.
    ToolGranted {
        id: CallId,
        grant: GrantId,
    },
    /// A call is handed to its tool. Legal only from `planned` and `awaiting_approval`.
    ToolStarted(CallId),
    /// Stores how to continue the call; `None` clears it. Legal only while `started`.
    ToolHandle(CallId, Option<Handle>),
    ToolFinished(CallId, ToolOutcome),
    AskInput(InputRequest),
    InputClosed {
        id: InputId,
        /// `applied` or `cancelled`.
        state: InputState,
    },
    Finish {
        /// `completed`, `failed` or `cancelled`.
        status: RunStatus,
        finish_reason: Option<FinishReason>,
        error: Option<ProblemBody>,
        /// The number of messages that had joined runs of the conversation at the decision. If another has joined since, the
        /// whole write is refused as unheard. `None` for an end that answers no message.
        joined: Option<i64>,
    },
    /// The lease is given up. The run can be claimed again after a wait by the database's clock.
    Release {
        /// `None`: until an event outside wakes the run.
        after_ms: Option<u64>,
        /// A wait and a drain count as a claim that ended well; nothing else releases.
        cause: ReleaseCause,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReleaseCause {
    Waiting,
    Drain,
}

// The next claim reads the word as the cause of `run.resumed`.
words!(ReleaseCause { Waiting = "timer", Drain = "handed_back" });

#[derive(Debug, Clone, PartialEq)]
pub struct StepRow {
    pub run_id: RunId,
    pub step: u32,
    pub kind: StepKind,
    pub status: StepStatus,
}
