//! Whether a call may be carried out at all.

use crate::domain::tool::{ToolCall, ToolDefinition};

/// What a policy says about one call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// The call may go on.
    Allow,
    /// The call is refused.
    Deny {
        /// Why, for the model.
        reason: String,
    },
}

/// Decides about each call before it is carried out.
pub trait Policy: Send + Sync {
    /// Whether `call` of the tool `definition` may go on.
    fn check(&self, definition: &ToolDefinition, call: &ToolCall) -> Verdict;
}

/// Lets every call pass.
#[derive(Debug, Clone, Copy, Default)]
pub struct AllowAll;

impl Policy for AllowAll {
    fn check(&self, _definition: &ToolDefinition, _call: &ToolCall) -> Verdict {
        Verdict::Allow
    }
}
