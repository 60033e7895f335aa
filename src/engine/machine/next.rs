//! Continuations in a decision. A rule returns a `Next` instead of calling the next rule; `decide` dispatches it.

use crate::domain::problem::{ProblemBody, ProblemCode};
use crate::domain::run::{FinishReason, ReleaseCause};
use crate::engine::calls::planned_calls::PlannedCall;
use crate::engine::request::build::PreparedRequest;
use crate::engine::request::window::remaining::TokenBudget;

/// The continuation of a decision.
#[must_use]
pub enum Next {
    /// The decision is complete.
    Wait,
    /// The next model call, unless a limit ends the run.
    ModelStep,
    /// A context window for the next model call.
    Window,
    /// This model call, unless a budget forbids it.
    CallModel(Box<ModelCall>),
    /// These calls of a stored answer.
    ToolStep(Vec<PlannedCall>),
    /// Resumes the open tool step after a new claim or load.
    ResumeCalls,
    /// Starts the calls of the open tool step that may start now, or ends the step.
    Advance,
    /// The end of a tool step, all of whose calls have their outcomes.
    CallsDone(u32),
    /// The end of the run with the stored answer, unless a message has joined that the model has not read.
    EndTurn(FinishReason),
    /// The end of the run.
    End(RunEnd),
    /// A release of the lease, to be claimed again after this many milliseconds.
    Release(Option<u64>, ReleaseCause),
}

pub struct ModelCall {
    /// The request that was measured.
    pub prepared: PreparedRequest,
    /// `None` without a budget.
    pub room: Option<TokenBudget>,
}

pub enum RunEnd {
    /// With a stored answer.
    Completed(FinishReason),
    /// With the profile's `final_text`, because no model answered.
    FinalText(String, ProblemBody),
    /// With an error.
    Failed(ProblemBody),
    /// On request.
    Cancelled(String),
}

impl Next {
    pub fn complete(reason: FinishReason) -> Self {
        Self::End(RunEnd::Completed(reason))
    }

    pub fn fail(code: ProblemCode, detail: impl Into<String>) -> Self {
        Self::End(RunEnd::Failed(code.body(detail)))
    }

    /// Fails the run with an error that would recur, although its code may be retryable in other cases.
    pub fn fail_for_good(code: ProblemCode, detail: impl Into<String>) -> Self {
        Self::End(RunEnd::Failed(ProblemBody { retryable: false, ..code.body(detail) }))
    }
}
