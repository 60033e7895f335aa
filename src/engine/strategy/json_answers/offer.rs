//! What one JSON object of a model may be.

use crate::domain::model::ToolChoice;

/// What an object may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Offer {
    /// The final answer or a call.
    Either,
    /// The final answer: no tools are on offer.
    Answer,
    /// A call: the first answer of a run that must call a tool.
    Call,
}

impl Offer {
    /// What the model step that is under way may be answered with.
    pub fn of(choice: Option<&ToolChoice>, has_tools: bool) -> Self {
        if !has_tools {
            return Self::Answer;
        }
        match choice {
            None | Some(ToolChoice::Auto) => Self::Either,
            Some(ToolChoice::None) => Self::Answer,
            Some(ToolChoice::Required | ToolChoice::Tool(_)) => Self::Call,
        }
    }
}
