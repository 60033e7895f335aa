//! Changes to the rows of a run. The engine decides them, and the store applies them in one transaction with the events.
//!
//! The engine applies the same values to its state in memory, so that memory and rows stay equal.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use serde_json::Value;

use crate::domain::agent::ProvidedContext;
use crate::domain::conversation::Message;
use crate::domain::enum_names::named_enum;
use crate::domain::ids::{CallId, GrantId, InputId, RunId};
use crate::domain::model::Usage;
use crate::domain::problem::ProblemBody;
use crate::domain::run::{
    Amount, ContextSummary, FinishReason, Handle, InputRequest, InputState, NewRequestRecord, Plan, RunStatus, WaitReason,
};
use crate::domain::tool::{ToolCall, ToolDefinition, ToolOutcome, ToolSelection};

named_enum! {
    pub enum StepKind {
        Model = "model",
        Tools = "tools",
    }
}

named_enum! {
    pub enum StepStatus {
        /// Begun. A crash in this status repeats the step.
        Started = "started",
        Completed = "completed",
        /// Ended without a result: its output is void.
        Abandoned = "abandoned",
    }
}

/// The counters that decide how a run continues. Stored with the run, so that a crash resets no limit.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(default)]
pub struct RunCounters {
    /// Well-formed answers of the model, without forced answers.
    pub rounds: u32,
    /// Consecutive empty replies.
    pub empty_replies: u32,
    /// Consecutive rounds with only duplicate calls.
    pub duplicate_rounds: u32,
    /// Consecutive rounds with only errors.
    pub error_rounds: u32,
    /// Failed attempts of the current model step.
    pub model_failures: u32,
    /// Consecutive answers that reached the output limit inside a tool call.
    pub cut_answers: u32,
    /// Consecutive answers that do not have the requested format.
    pub malformed_answers: u32,
    /// Consecutive nudges to continue. A successful call resets the counter.
    pub continuations: u32,
    /// Nudges after deflecting answers since the last user message.
    pub deflections: u32,
    /// Whether the next model call is the forced answer, without tools.
    pub force_final: bool,
    pub dropped_tools: Vec<String>,
    /// Number of messages that had joined runs of the conversation at the last restart of the counters. A later message restarts
    /// them again.
    pub joined_at_restart: i64,
    /// The newest step at the last restart of the counters. Calls up to this step answered earlier messages: they are no
    /// duplicates, their unknown tool names do not count, and they do not end the round of `one_round_then_text`.
    pub step_at_restart: u32,
    /// Index of the current model: 0 for the profile's model, n for the n-th fallback.
    pub fallback: u32,
    /// Whether a request was too large for the model. Later requests of the run to the model are halved.
    pub halved: bool,
    /// Milliseconds for which the current model step has waited for the provider's circuit breaker.
    pub breaker_wait_ms: u64,
    /// Whether the provider refused signed content. Later requests of the run to the model omit it.
    pub unsigned: bool,
    /// The selected tools, if the agent selects among its tools.
    pub chosen_tools: Option<ToolSelection>,
    /// Whether the model was asked for categories and named none.
    pub named_no_category: bool,
    /// The plan of the `plan_execute` strategy.
    pub plan: Option<Plan>,
    /// Whether the model must give a forced answer because the context window was nearly full.
    pub forced_by_window: bool,
    /// Earlier failures per tool, if `breaker_scope` is `conversation`. The first stored counters fix them for the whole run.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub earlier_failures: BTreeMap<String, u32>,
}

impl RunCounters {
    /// The maximum number of earlier calls that are counted. The newest count.
    pub const MAX_EARLIER_CALLS: i64 = 200;

    /// Counts the calls of earlier runs, newest first, each with its tool and whether it failed. A success clears earlier failures.
    pub fn count_earlier_calls(&mut self, calls: impl IntoIterator<Item = (String, bool)>) {
        let mut has_worked = HashSet::new();
        for (name, has_failed) in calls {
            if !has_failed {
                has_worked.insert(name);
            } else if !has_worked.contains(&name) {
                *self.earlier_failures.entry(name).or_default() += 1;
            }
        }
    }
}

/// One change to the rows of a run.
#[derive(Debug, Clone, PartialEq)]
#[expect(clippy::large_enum_variant, reason = "a commit holds few changes, and each is moved once")]
pub enum Change {
    /// Sets a non-terminal status. The conversation's status follows.
    SetStatus(RunStatus, Option<WaitReason>),
    /// The run continues after this claim. Sets the start time if there is none. A lease that is later released without a cause
    /// counts as handed back.
    Start,
    FreezeTools(Vec<Arc<ToolDefinition>>),
    /// Stores the results of context providers for this run. They are deleted when the run ends.
    StoreContexts(Vec<ProvidedContext>),
    SetCounters(RunCounters),
    SetSummary(ContextSummary),
    SetUsage(Usage),
    /// Charges a reserved model call to the budgets of its owner. Ends the reservation.
    ChargeBudget {
        /// The day of the reservation, counted from 1970.
        day: i64,
        amount: Amount,
    },
    /// A step begins, or begins again with a higher attempt.
    StartStep {
        step: u32,
        kind: StepKind,
        /// The request of a model step.
        request: Option<Box<NewRequestRecord>>,
    },
    EndStep {
        step: u32,
        status: StepStatus,
        usage: Option<Usage>,
    },
    AddMessage(Message),
    /// Adds calls, in the transaction of their message.
    AddToolCalls(Vec<ToolCall>),
    /// A call waits for an approval. Legal only from `planned`.
    RequestApproval(CallId),
    /// A human changed the arguments. Legal only before the call has started.
    EditCall {
        id: CallId,
        arguments: Value,
        hash: String,
    },
    /// A grant allows the call; recorded for the audit. Legal only before the call has started.
    GrantCall {
        id: CallId,
        grant: GrantId,
    },
    /// A call is sent to its tool. Legal only from `planned` and `awaiting_approval`.
    StartCall(CallId),
    /// Stores the server's task, or its request for input, from which the call continues. `None` clears it. Legal only while
    /// `started`.
    SetHandle(CallId, Option<Handle>),
    FinishCall(CallId, ToolOutcome),
    RequestInput(InputRequest),
    CloseInput {
        id: InputId,
        /// `applied` or `cancelled`.
        state: InputState,
    },
    Finish {
        /// `completed`, `failed` or `cancelled`.
        status: RunStatus,
        finish_reason: Option<FinishReason>,
        error: Option<ProblemBody>,
        /// The number of messages that had joined runs of the conversation at the decision. If another message has joined since,
        /// the store refuses the write. `None` for an end that answers no message.
        joined: Option<i64>,
    },
    /// Releases the lease. The run can be claimed again after a wait, by the database's clock.
    Release {
        /// `None`: until an external event wakes the run.
        after_ms: Option<u64>,
        /// The reason for the release. Neither reason counts as a crash.
        cause: ReleaseCause,
    },
}

named_enum! {
    /// The reason why a worker releases a run. The next claim uses this value as the cause of `run.resumed`, unless another cause
    /// replaces it.
    pub enum ReleaseCause {
        Waiting = "timer",
        Drain = "handed_back",
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct StepRow {
    pub run_id: RunId,
    pub step: u32,
    pub kind: StepKind,
    pub status: StepStatus,
}
