//! The rules for tool calls: how calls are planned and approved, which questions they ask, and how their outcomes are stored. Must
//! not know when a call starts.

pub mod approval;
pub mod arguments;
pub mod ask_user;
pub mod call_as_text;
pub mod client_call;
pub mod duplicates;
pub mod failing_tools;
pub mod json_repair;
pub mod name_repair;
pub mod outcome;
pub mod planned_calls;
pub mod server_questions;
pub mod unknown_outcome;
