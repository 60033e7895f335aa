//! The machine: the state of a run, the decision under construction, and the loop that dispatches the rules. Must not know stores, models
//! or tools; `steps` contains the rules.

pub mod builder;
pub mod decide;
pub mod decision;
pub mod next;
pub mod state;

pub use builder::DecisionBuilder;
pub use decision::{Command, PartialAnswer};
pub use next::{ModelCall, Next, RunEnd};
pub use state::{RunFacts, RunState};
