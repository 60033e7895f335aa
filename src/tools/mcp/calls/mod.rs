//! Calls of tools: requests, answers, and questions of the server in the middle of a call.

pub(super) mod answers;
pub(super) mod content;
pub(super) mod fates;
pub(super) mod outputs;
pub(super) mod questions;
pub(super) mod reply;
pub(super) mod rounds;
pub(super) mod sampling;
pub(super) mod tasks;
