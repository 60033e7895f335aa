//! Tools for models that cannot call any: one JSON object per answer, which is the final answer or one call.
//!
//! Owns both directions of that form: [`project`] tells a model about it and shows it its history in it, [`Reader`] turns what
//! the model writes back into what other models say. Everything between and behind them, and every client, sees words and
//! calls as of any model. Must not know why an answer that is none is asked for again: the loop counts those.

mod project;
mod read;

pub(super) use project::project;
pub(super) use read::Reader;

use super::{RunState, offer, plan};
use crate::domain::agent::OutputMode;
use crate::domain::model::ToolChoice;
use crate::domain::plan::PlanPhase;

/// What an object may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Offer {
    /// The final answer or a call.
    Either,
    /// The final answer: no tools are on offer.
    Answer,
    /// A call: the first answer of a run that must call a tool.
    Call,
}

impl Offer {
    /// What the model step that is under way may be answered with.
    fn of(choice: Option<&ToolChoice>, has_tools: bool) -> Self {
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

/// Reads the answer of the model step that is under way, if its agent wants objects.
pub(super) fn reader(state: &RunState) -> Option<Reader> {
    match state.record.profile.output {
        OutputMode::Tools => None,
        // A planner writes its plan, and its words, as they are.
        OutputMode::Structured if plan::phase(&state.record).is_some_and(|phase| phase != PlanPhase::Executing) => None,
        OutputMode::Structured => {
            let is_choosing = offer::missing_in(state) == offer::Missing::Categories;
            let choice = super::history::tool_choice(state).filter(|_| !is_choosing);
            let has_tools = !state.offered_tools().is_empty();
            let shape = if state.record.profile.options.output_schema.is_some() && !is_choosing {
                read::Shape::Any
            } else {
                read::Shape::Text
            };
            Some(Reader::new(Offer::of(choice.as_ref(), has_tools), shape))
        }
    }
}
