//! The rules of model steps and tool steps. A rule calls no other rule: it returns a continuation. Must not know
//! stores, models or tools.

pub mod budget;
pub mod claim;
pub mod context_window;
pub mod ending;
pub mod json_answer;
pub mod model_failure;
pub mod model_step;
pub mod parallel_calls;
pub mod restart_counters;
pub mod store_answer;
pub mod time_limits;
pub mod tool_step;
