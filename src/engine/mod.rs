//! The agent loop as a pure state machine: `decide(state, input) -> events + changes + commands`.
//!
//! The state is rebuilt from stored rows; first start, retry and recovery are the same path: *load state, never replay code*. Must not know
//! any runtime, database, network or clock.
//!
//! A run completes only after a model call with every message that joined it. Such a message is new input: limits such as
//! `max_rounds` start again, and the run continues after a forced answer. The run's token and time limits do not start again, so a
//! late message may get only one answer without tools. A failed run does not answer joined messages; the next run has them in its
//! history.

mod answer;
mod calls;
mod machine;
mod offer;
mod prompts;
mod request;
mod steps;
mod strategy;
#[cfg(test)]
mod tests;
mod title;

pub use answer::{Assembler, MAX_ANSWER_BYTES, StreamItem};
pub use machine::decide::decide;
pub use machine::decision::{Command, Decision, DecisionEnvironment, Durability, Input, PartialAnswer};
pub use machine::state::{RunFacts, RunState};
pub use offer::query::tool_query;
pub use request::build::{count_ahead, counts_tokens, model_request};
pub use request::transcript_rules::{Unsendable, check_sendable};
pub use title::{cleaned_title, title_request};
