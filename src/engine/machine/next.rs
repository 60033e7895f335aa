//! What comes next in a decision.
//!
//! Owns `Next`, `ModelCall` and `End`, with which one rule hands on to another. Must not know which rule answers which of them:
//! `decide` dispatches.

use crate::domain::change::ReleaseCause;
use crate::domain::problem::{ProblemBody, ProblemCode};
use crate::domain::run::FinishReason;
use crate::engine::calls::read_calls::PlannedCall;
use crate::engine::request::build::Prepared;
use crate::engine::request::window::room::Room;

/// What comes next in the same decision.
#[must_use]
pub enum Next {
    /// Nothing: the decision is complete.
    Wait,
    /// The next model call, unless a limit says that the run ends.
    ModelStep,
    /// A context window for the next model call.
    Window,
    /// This model call, unless a budget forbids it.
    CallModel(Box<ModelCall>),
    /// These calls of a stored answer.
    ToolStep(Vec<PlannedCall>),
    /// The open tool step, whose worker is gone or has loaded the run again.
    ResumeCalls,
    /// The calls of the open tool step that may start now, or its end.
    Advance,
    /// The end of a tool step, all of whose calls have their outcomes.
    CallsDone(u32),
    /// The end of the turn with the stored answer, unless a message has joined.
    EndTurn(FinishReason),
    /// The end of the run.
    End(End),
    /// The run without a lease, to be claimed again after so many milliseconds.
    Release(Option<u64>, ReleaseCause),
}

/// A model call that is about to begin.
pub struct ModelCall {
    /// Its request, as it was measured.
    pub prepared: Prepared,
    /// Its room, if it has a budget.
    pub room: Option<Room>,
}

/// How a run ends.
pub enum End {
    /// With an answer that is stored.
    Completed(FinishReason),
    /// With the profile's text, because no model answered.
    LastWords(String, ProblemBody),
    /// With an error.
    Failed(ProblemBody),
    /// On request.
    Cancelled(String),
}

impl Next {
    pub fn complete(reason: FinishReason) -> Self {
        Self::End(End::Completed(reason))
    }

    pub fn fail(code: ProblemCode, detail: impl Into<String>) -> Self {
        Self::End(End::Failed(code.body(detail)))
    }

    /// Fails the run with an error that would come again, although others with its code may not.
    pub fn fail_for_good(code: ProblemCode, detail: impl Into<String>) -> Self {
        Self::End(End::Failed(ProblemBody { retryable: false, ..code.body(detail) }))
    }
}
