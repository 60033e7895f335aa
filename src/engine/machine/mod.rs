//! The machine: the state of a run, the decision that is being made, and the loop that dispatches the rules. Must not know stores,
//! models or tools; the rules are in `steps`.

pub mod builder;
pub mod decide;
pub mod decision;
pub mod durability;
pub mod next;
pub mod state;

pub use builder::DecisionBuilder;
pub use decision::{Command, PartialAnswer};
pub use next::{End, ModelCall, Next};
pub use state::{RunFacts, RunState};
