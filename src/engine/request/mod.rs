//! The request of a model call: its source, its transcript, its system prompt, and its context window.

pub(in crate::engine) mod build;
pub(in crate::engine) mod compaction;
pub(in crate::engine) mod size;
pub(in crate::engine) mod source;
pub(in crate::engine) mod system_prompt;
pub(in crate::engine) mod tool_results;
pub(in crate::engine) mod transcript;
pub(in crate::engine) mod transcript_rules;
pub(in crate::engine) mod window;
