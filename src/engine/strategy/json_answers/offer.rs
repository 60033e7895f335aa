//! The kinds of JSON answers that a model step accepts.

use crate::domain::model::ToolChoice;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Offer {
    Either,
    /// No tools are on offer.
    Answer,
    /// The first answer of a run that must call a tool.
    Call,
}

impl Offer {
    /// Returns which kinds the current model step accepts.
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
