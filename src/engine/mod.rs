//! The agent loop as a pure state machine: `decide(state, input) -> events + changes + commands`.
//!
//! The state is rebuilt from stored rows; first start, retry and recovery are the same path: *load state, never replay code*. Must not know
//! any runtime, database, network or clock.
//!
//! A run completes only after a model call with every message that joined it. Such a message is new input: limits of the run's work
//! restart, and a forced answer is not the last call. Limits of the whole run, in tokens and time, do not restart, so a late message may
//! get only one answer without tools. A failed run answers no message; the next run has it in its history.

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
