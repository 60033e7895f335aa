//! The strategy `plan_execute`.

pub(in crate::engine) mod hooks;
mod named;
mod parse;
pub(in crate::engine) mod progress;
pub(in crate::engine) mod request;
