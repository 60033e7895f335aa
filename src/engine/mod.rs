//! The agent loop as a pure state machine: `decide(state, input) -> events + changes + commands`.
//!
//! The state is rebuilt from stored rows; first start, retry and recovery are the same path: *load state, never replay code*. Must
//! not know any runtime, database, network or clock.
//!
//! A run does not complete before the model has been asked with every message that joined it. Such a message is new input: limits
//! that count the run's work restart with it, and a last call that one of them forced is not the last. Limits of the whole run, in
//! tokens and time, stay, so that a late message may get no more than one answer without tools. A run that fails answers no
//! message; the next one sees it in its history.

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
pub use machine::decision::{Command, Decision, Durability, Input, PartialAnswer, Surroundings};
pub use machine::state::{RunFacts, RunState};
pub use offer::query::tool_query;
pub use request::build::{count_ahead, counts_tokens, model_request};
pub use request::transcript_rules::{Unsendable, check_sendable};
pub use title::{cleaned_title, title_request};
