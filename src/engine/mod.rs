//! The agent loop as a pure state machine: `decide(state, input) -> events + changes + commands`.
//!
//! Owns the rules of the loop and nothing else. The state is rebuilt from stored rows; first start, retry and recovery are the
//! same path: *load state, never replay code*. Must not know any runtime, database, network or clock.
//!
//! A run does not complete before the model has been asked with every message that joined it. Such a message is new input, as one
//! with a run of its own would be: the limits that count what the run has done begin anew with it, and a last call that was
//! forced by one is not the last. What the whole run may cost, in tokens and time, stays as it is, so that a message that joins
//! late may get no more than one answer without tools. A run that fails answers nobody; the message stands in the history of
//! the next one.

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
