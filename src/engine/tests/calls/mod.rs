//! Tests of approvals, questions to users and servers, and undone calls.

mod approvals;
mod client_calls;
mod server_questions;
mod undoing;
mod user_questions;
