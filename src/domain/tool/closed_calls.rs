//! Calls that the end of their run has closed. If the run is resumed, they are found by the text of their outcome.

use crate::domain::tool::{ToolCall, ToolCallState, ToolOutcome};

/// The progress of a call when its run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProgressAtEnd {
    NotBegun,
    /// Under way, of a tool whose calls may be repeated.
    Stopped,
    /// Under way, of another tool.
    Unknown,
}

impl ProgressAtEnd {
    const ALL: [Self; 3] = [Self::NotBegun, Self::Stopped, Self::Unknown];

    /// Returns the progress of a call without an outcome.
    pub fn of(call: &ToolCall) -> Self {
        match () {
            () if call.has_not_begun() => Self::NotBegun,
            () if call.replay.may_repeat() => Self::Stopped,
            () => Self::Unknown,
        }
    }

    /// Returns the progress of a call that the end of its run has closed. `None` if the call has another outcome, or none.
    pub fn of_closed(call: &ToolCall) -> Option<Self> {
        let outcome = call.outcome.as_ref()?;
        Self::ALL.into_iter().find(|at_end| outcome.state == at_end.state() && outcome.content == at_end.outcome().content)
    }

    fn state(self) -> ToolCallState {
        match self {
            Self::NotBegun | Self::Stopped => ToolCallState::Cancelled,
            Self::Unknown => ToolCallState::Unknown,
        }
    }

    /// Returns the outcome of a call that the end of its run closes.
    pub fn outcome(self) -> ToolOutcome {
        let text = match self {
            Self::NotBegun => "this call was not carried out because the run ended",
            Self::Stopped => "this call was stopped because the run ended",
            Self::Unknown => {
                "this call was under way when the run ended and may or may not have taken effect; check before repeating"
            }
        };
        ToolOutcome { state: self.state(), ..ToolOutcome::failed(text, 0) }
    }
}
