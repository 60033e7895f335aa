//! The strategy `plan_execute`.

pub mod hooks;
mod named;
mod parse;
pub mod progress;
pub mod request;
