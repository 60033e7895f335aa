//! HTTP to providers: connections, timeouts, frames of answers, and the wire log. Must not know a dialect.

pub(super) mod connection;
pub(super) mod endpoint;
pub(super) mod json_body;
pub(super) mod ndjson;
pub(super) mod retry_after;
pub(super) mod sse;
pub mod timeouts;
pub(super) mod transport;
pub(super) mod unframed_errors;
pub(super) mod wire_log;
