//! Tool calls: reading them, permission for them, questions about them, and their outcomes.

pub mod approval;
pub mod arguments;
pub mod ask_user;
pub mod duplicates;
pub mod json_repair;
pub mod outcome;
pub mod read_calls;
pub mod server_questions;
pub mod tool_message;
pub mod tool_names;
pub mod unknown_outcome;
