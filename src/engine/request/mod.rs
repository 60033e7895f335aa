//! The request of a model call: its source, its transcript, its system prompt, and its context window.

pub mod build;
pub mod compaction;
pub mod size;
pub mod source;
pub mod system_prompt;
pub mod tool_results;
pub mod transcript;
pub mod transcript_rules;
pub mod window;
