//! HTTP to providers: connections, timeouts, framing of answers, and the wire log. Must not know a dialect.

pub(super) mod connection;
pub(super) mod endpoint;
pub(super) mod frames;
pub(super) mod json_body;
pub(super) mod ndjson;
pub(super) mod retry_after;
pub(super) mod sse;
pub(super) mod strays;
pub mod timeouts;
pub(super) mod transport;
pub(super) mod wire_log;
