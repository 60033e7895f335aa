//! The machine: the state of a run, the decision that is being made, and the loop that dispatches the rules.

pub(in crate::engine) mod builder;
pub(in crate::engine) mod decide;
pub(in crate::engine) mod decision;
mod durability;
pub(in crate::engine) mod facts;
pub(in crate::engine) mod next;
mod progress;
pub(in crate::engine) mod state;

pub(in crate::engine) use builder::DecisionBuilder;
pub(in crate::engine) use decision::{Command, PartialAnswer};
pub(in crate::engine) use facts::RunFacts;
pub(in crate::engine) use next::{End, ModelCall, Next};
pub(in crate::engine) use state::RunState;
