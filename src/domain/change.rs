//! Changes to the rows of a run: what the loop decides and the store carries out, in one transaction with the events.
//!
//! The loop's state in memory is changed by the same values, so that memory and rows cannot drift apart.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use serde_json::Value;

use super::budget::Amount;
use super::context::ContextSummary;
use super::handle::Handle;
use super::ids::{CallId, GrantId, InputId, RunId};
use super::input::{InputRequest, InputState};
use super::message::Message;
use super::model::Usage;
use super::plan::Plan;
use super::problem::ProblemBody;
use super::prompt::ProvidedContext;
use super::run::{FinishReason, RunStatus, WaitReason};
use super::tool::{ToolCall, ToolDefinition, ToolOutcome};
use super::tool_filter::ChosenTools;
use super::words::words;

/// What kind of work a step is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StepKind {
    /// One model call.
    Model,
    /// One batch of tool calls.
    Tools,
}

words!(StepKind { Model = "model", Tools = "tools" });

/// Where a step stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StepStatus {
    /// Begun. A step found like this after a crash is done again.
    Started,
    /// Finished.
    Completed,
    /// Ended without a result: its output is void.
    Abandoned,
}

words!(StepStatus { Started = "started", Completed = "completed", Abandoned = "abandoned" });

/// The counters of a run that decide how it goes on. Stored with it, so that no crash resets a limit. One that a newer version
/// has added means nothing to this one, and is left out.
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
    /// Consecutive answers after which the model was told to go on, because something was left; a call that succeeds ends the row.
    pub continuations: u32,
    /// Answers of the turn after which the model was told to go on without questions.
    pub deflections: u32,
    /// Whether the next model call is the last one, without tools.
    pub force_final: bool,
    /// Tools that are no longer offered.
    pub dropped_tools: Vec<String>,
    /// How many messages had joined runs of the conversation when a model step of this run last began: the model hears those.
    pub heard: i64,
    /// The newest step that had begun then. What the run did up to it was for earlier messages: it uses up no limit of the newest one,
    /// and may be asked for once more.
    pub heard_step: u32,
    /// How many of the profile's models have been given up: 0 for the first, n for the n-th fallback.
    pub fallback: u32,
    /// Whether a request was too large for the model: from then on the run's requests to it are halved.
    pub halved: bool,
    /// Tools whose definitions the model's provider refuses.
    pub quarantined_tools: Vec<String>,
    /// Milliseconds that the current model step has waited because its provider is left alone.
    pub left_alone_ms: u64,
    /// Whether the provider refused what was signed: from then on the run's requests to the model hold nothing of the kind.
    pub unsigned: bool,
    /// The tools on offer, if they were narrowed down.
    pub chosen_tools: Option<ChosenTools>,
    /// Whether the model was asked for categories and has named none.
    pub named_no_category: bool,
    /// The plan, where the agent has one made.
    pub plan: Option<Plan>,
    /// Whether the last call was forced because too little of the budget of a request remained.
    pub no_room: bool,
    /// How often tools have failed in earlier runs of the conversation, where that counts. The store fills it in until it is stored with
    /// the rest, so that it stays as it was when the run began.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub failed_before: BTreeMap<String, u32>,
}

impl RunCounters {
    /// So many calls of earlier runs are looked at, the newest ones.
    pub const CALLS_BEFORE: i64 = 200;

    /// Takes in the calls of earlier runs, the newest first: the tool of each, and whether it has failed. A tool that has worked since is
    /// forgiven.
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
    /// A new status that is not terminal. The conversation's status follows.
    Status(RunStatus, Option<WaitReason>),
    /// The run goes on under this claim. Its start time is now, if it has none. What its claim was for is done with: a lease that is given
    /// up from here on hands it back.
    Started,
    /// The frozen set of tools.
    FreezeTools(Vec<Arc<ToolDefinition>>),
    /// What context providers have said of the turn: they are asked once. Forgotten when the run ends.
    KeepContexts(Vec<ProvidedContext>),
    /// New counters.
    Counters(RunCounters),
    /// What stands from now on for the messages that requests leave out, in this run and in later ones.
    Summarize(ContextSummary),
    /// Total usage of the run.
    Usage(Usage),
    /// What a reserved call has come to, and that it is no longer under way.
    Settle {
        /// The day that it was reserved on.
        day: i64,
        /// What it has come to.
        amount: Amount,
    },
    /// A step begins, or begins again with a higher attempt.
    StepStarted {
        /// Its number.
        step: u32,
        /// Model or tools.
        kind: StepKind,
    },
    /// A step ends.
    StepEnded {
        /// Its number.
        step: u32,
        /// Completed or abandoned.
        status: StepStatus,
        /// Tokens, for model steps.
        usage: Option<Usage>,
    },
    /// A new message.
    AddMessage(Message),
    /// New calls, in the transaction of their message.
    AddToolCalls(Vec<ToolCall>),
    /// A human is asked before a call is handed to its tool. Legal only from `planned`.
    ToolAsked(CallId),
    /// A human has changed what a call is made with. Legal only before it is handed to its tool.
    ToolEdited {
        /// Which.
        id: CallId,
        /// The arguments from now on.
        arguments: Value,
        /// SHA-256 of the canonical arguments.
        hash: String,
    },
    /// A standing answer lets a call through that somebody would be asked about otherwise: for the audit. Legal only before it is handed to
    /// its tool.
    ToolGranted {
        /// Which.
        id: CallId,
        /// The answer.
        grant: GrantId,
    },
    /// A call is handed to its tool. Legal only from `planned` and `awaiting_approval`.
    ToolStarted(CallId),
    /// How the server of a call goes on with it; `None`: that is good for nothing any more. Legal only while `started`.
    ToolHandle(CallId, Option<Handle>),
    /// A call gets its one outcome.
    ToolFinished(CallId, ToolOutcome),
    /// A question to a human.
    AskInput(InputRequest),
    /// A question needs no answer any more.
    InputClosed {
        /// Which.
        id: InputId,
        /// `applied` or `cancelled`.
        state: InputState,
    },
    /// The run ends: status, lease, and the next run of the conversation become right in the same transaction.
    Finish {
        /// `completed`, `failed` or `cancelled`.
        status: RunStatus,
        /// Why it ended, unless it failed.
        finish_reason: Option<FinishReason>,
        /// Why it failed.
        error: Option<ProblemBody>,
        /// How many messages had joined runs of the conversation when this was decided. If another has joined since, the
        /// whole write is refused as unheard. `None` for an end that answers nobody.
        joined: Option<i64>,
    },
    /// The lease is given up and the run can be claimed again after a wait by the database's clock.
    Release {
        /// Milliseconds from now; `None` for until something outside wakes the run.
        after_ms: Option<u64>,
        /// Whether the claim counts as one that ended well. A wait and a drain do; nothing else releases.
        cause: ReleaseCause,
    },
}

/// Why a worker gave up a run that has not ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReleaseCause {
    /// The run waits.
    Waiting,
    /// The worker is shutting down.
    Drain,
}

impl ReleaseCause {
    /// The word in the database, read by the next claim as the cause of `run.resumed`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Waiting => "timer",
            Self::Drain => "handed_back",
        }
    }
}

/// A step as stored.
#[derive(Debug, Clone, PartialEq)]
pub struct StepRow {
    /// The run.
    pub run_id: RunId,
    /// Its number.
    pub step: u32,
    /// Model or tools.
    pub kind: StepKind,
    /// Where it stands.
    pub status: StepStatus,
}
