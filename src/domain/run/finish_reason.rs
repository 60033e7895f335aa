//! The reason why a run or an answer of a model ended. It is a separate module, because messages have a finish reason too.

use crate::domain::enum_names::named_enum;

named_enum! {
    /// The reason why a completed run or an assistant message ended.
    pub enum FinishReason {
        /// The model completed its answer.
        Stop = "stop",
        /// The model called tools. Only messages have this reason, never runs.
        ToolCalls = "tool_calls",
        /// The model reached its limit of output tokens.
        Length = "length",
        /// The model refused.
        Refused = "refused",
        /// The run reached its limit of rounds.
        MaxRounds = "max_rounds",
        /// The run reached a budget.
        Budget = "budget",
        /// The run was cancelled.
        Cancelled = "cancelled",
    }
}
