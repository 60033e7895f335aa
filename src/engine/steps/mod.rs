//! The rules of model steps and tool steps. A rule calls no other rule: it returns what comes next.

pub(in crate::engine) mod backoff;
pub(in crate::engine) mod budget;
pub(in crate::engine) mod claim;
pub(in crate::engine) mod context_window;
pub(in crate::engine) mod ending;
pub(in crate::engine) mod limits;
pub(in crate::engine) mod model_failure;
pub(in crate::engine) mod model_step;
pub(in crate::engine) mod renew;
pub(in crate::engine) mod schedule;
pub(in crate::engine) mod store_answer;
pub(in crate::engine) mod tool_step;
