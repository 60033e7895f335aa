//! Executes the engine's commands: model calls, tool calls, questions, reservations and titles. Must not know when a command follows.

pub(super) mod attachments;
pub(super) mod elicitation;
pub(super) mod model_call;
pub(super) mod progress;
pub(super) mod reservation;
pub(super) mod sampling;
pub(super) mod single_answer;
pub(super) mod titles;
pub(super) mod tool_calls;
pub(super) mod tool_result_files;
pub(super) mod withhold_changed_tools;
