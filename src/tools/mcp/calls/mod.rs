//! Tool calls: requests, answers, and questions of the server during a call. Must not know how a connection is opened.
pub(super) mod content;
pub(super) mod input_required;
pub(super) mod questions;
pub(super) mod reply;
pub(super) mod request_effect;
pub(super) mod sampling;
pub(super) mod tasks;
