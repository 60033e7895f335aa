//! What the HTTP layer counts.

use std::time::Duration;

use axum::http::Method;

/// Counts an answered request. For a stream the time is that until it began.
pub(crate) fn request(method: &Method, route: &str, status: u16, took: Duration) {
    let labels = [("method", method.to_string()), ("route", route.to_owned()), ("status", status.to_string())];
    ::metrics::counter!("capstan_http_requests_total", &labels).increment(1);
    ::metrics::histogram!("capstan_http_request_seconds", "route" => route.to_owned()).record(took.as_secs_f64());
}

/// Counts an open stream for as long as it lives.
pub(crate) struct OpenStream(&'static str);

impl OpenStream {
    /// A stream over `wire`: `sse` or `websocket`.
    pub(crate) fn new(wire: &'static str) -> Self {
        ::metrics::gauge!("capstan_open_streams", "wire" => wire).increment(1.0);
        Self(wire)
    }
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        ::metrics::gauge!("capstan_open_streams", "wire" => self.0).decrement(1.0);
    }
}
