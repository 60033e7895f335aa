//! Executes the engine's commands: model calls, tool calls, questions, reservations and titles.

pub(super) mod asker;
pub(super) mod attachments;
pub(super) mod content_keeper;
pub(super) mod model_call;
pub(super) mod one_answer;
pub(super) mod pins;
pub(super) mod progress;
pub(super) mod reservation;
pub(super) mod sampler;
pub(super) mod titles;
pub(super) mod tool_calls;
