//! The strategy `plan_execute`: its plan, its requests and its hooks. Must not know how a model or a tool is called.

pub mod execute_plan;
mod parse;
pub mod progress;
pub mod request;
mod step_references;
