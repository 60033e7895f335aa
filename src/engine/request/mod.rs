//! The request of a model call: its source, transcript, system prompt and context window. Must not know what a decision does with it.

pub mod build;
pub mod eviction;
pub mod request_source;
pub mod size;
pub mod system_prompt;
pub mod tool_results;
pub mod transcript;
pub mod transcript_rules;
pub mod window;
