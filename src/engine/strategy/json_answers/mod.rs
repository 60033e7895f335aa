//! Structured output instead of tool calls: each answer is one JSON object, either the final answer or one call.
//!
//! `project` describes tools and history as text, and `Reader` converts answers back, so that all other code sees ordinary text and calls.
//! Must not know when a malformed answer is requested again: the loop counts those.

pub mod offer;
mod project;
pub mod read;

pub use project::{Reasons, project};
