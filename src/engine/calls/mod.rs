//! Tool calls: reading them, permission for them, questions about them, and their outcomes.

pub(in crate::engine) mod approval;
pub(in crate::engine) mod arguments;
pub(in crate::engine) mod ask_user;
pub(in crate::engine) mod breaker;
pub(in crate::engine) mod duplicates;
pub(in crate::engine) mod json_repair;
pub(in crate::engine) mod outcome;
pub(in crate::engine) mod read_calls;
pub(in crate::engine) mod server_questions;
pub(in crate::engine) mod tool_message;
pub(in crate::engine) mod tool_names;
pub(in crate::engine) mod unknown_outcome;
