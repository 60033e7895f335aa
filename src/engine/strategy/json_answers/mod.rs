//! Structured output in place of tool calls: one JSON object per answer, which is the final answer or one call.
//!
//! `project` puts tools and history into that form, and `Reader` converts answers back, so that all other code sees ordinary words
//! and calls. Must not know why a malformed answer is requested again: the loop counts those.

pub mod offer;
mod project;
pub mod read;

pub use project::project;
