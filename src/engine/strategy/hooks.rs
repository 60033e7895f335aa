//! The hooks of a strategy. Their defaults are the strategy `loop`.

use std::ops::ControlFlow;

use crate::domain::conversation::Message;
use crate::domain::event::EventBody;
use crate::domain::model::ModelTurn;
use crate::domain::tool::RankedTools;
use crate::engine::machine::{DecisionBuilder, Next};

/// An answer of a model, not yet stored.
pub struct Answer {
    pub step: u32,
    pub message: Message,
    pub turn: ModelTurn,
    pub closing: Vec<EventBody>,
}

pub trait Hooks {
    /// Begins the next model call; `None` if the loop begins it.
    fn begin_model_call(&self, _: &mut DecisionBuilder<'_>) -> Option<Next> {
        None
    }

    /// Uses a ranking of tools; `None` if the loop asked for it.
    fn tools_ranked(&self, _: &mut DecisionBuilder<'_>, _: &RankedTools) -> Option<Next> {
        None
    }

    /// Handles an answer, or returns it to the loop.
    fn model_answered(&self, _: &mut DecisionBuilder<'_>, answer: Answer) -> ControlFlow<Next, Answer> {
        ControlFlow::Continue(answer)
    }

    /// Runs when all calls of a tool step have their outcomes.
    fn calls_done(&self, _: &mut DecisionBuilder<'_>) {}

    /// Runs when a message has joined that no model has read.
    fn message_joined(&self, _: &mut DecisionBuilder<'_>) {}

    /// Continues after the strategy's own model call has finally failed.
    fn model_failed(&self, _: &mut DecisionBuilder<'_>, _: u32) -> Next {
        Next::ModelStep
    }

    /// Closes the plan of a run that ends, if there is one.
    fn close_plan(&self, _: &mut DecisionBuilder<'_>) {}
}

/// The hooks of a run without a plan.
pub struct Loop;

impl Hooks for Loop {}
