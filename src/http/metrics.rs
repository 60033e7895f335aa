//! Metrics of the HTTP layer.

use std::time::Duration;

use axum::http::Method;

/// Counts an answered request. For a stream, measures the time until it began.
pub(crate) fn request(method: &Method, route: &str, status: u16, took: Duration) {
    let labels = [("method", method_label(method).to_owned()), ("route", route.to_owned()), ("status", status.to_string())];
    ::metrics::counter!("capstan_http_requests_total", &labels).increment(1);
    ::metrics::histogram!("capstan_http_request_seconds", "route" => route.to_owned()).record(took.as_secs_f64());
}

/// Returns the method as a label. A client may send any text as a method, and each new label uses memory forever.
fn method_label(method: &Method) -> &str {
    let standard = [
        Method::GET,
        Method::HEAD,
        Method::POST,
        Method::PUT,
        Method::PATCH,
        Method::DELETE,
        Method::OPTIONS,
        Method::TRACE,
        Method::CONNECT,
    ];
    if standard.contains(method) { method.as_str() } else { "other" }
}

/// Counts an open stream for as long as it lives.
pub(crate) struct OpenStream(&'static str);

impl OpenStream {
    /// `transport` is `sse`, `ndjson` or `websocket`.
    pub(crate) fn new(transport: &'static str) -> Self {
        ::metrics::gauge!("capstan_open_streams", "transport" => transport).increment(1.0);
        Self(transport)
    }
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        ::metrics::gauge!("capstan_open_streams", "transport" => self.0).decrement(1.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invented_methods_share_one_label() {
        assert_eq!(method_label(&Method::PATCH), "PATCH");
        for invented in ["BREW", "get", "X1"] {
            assert_eq!(method_label(&Method::from_bytes(invented.as_bytes()).unwrap()), "other");
        }
    }
}
