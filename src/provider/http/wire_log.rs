//! The wire log: logs requests and answers if `log.level` contains `wire=trace`.
//!
//! Its lines contain texts of users and models, so no ordinary level shows them. Headers and secrets in URLs are omitted.

use reqwest::{RequestBuilder, StatusCode};
use tracing::Level;

use crate::support::redact::error_text;
use crate::support::text;

/// The most bytes of a body in one line: requests contain complete files.
const MAX_SHOWN_BYTES: usize = 128 * 1024;

/// Returns whether the wire log is on. A line costs a copy of its body.
fn listens() -> bool {
    tracing::enabled!(target: "wire", Level::TRACE)
}

pub(in crate::provider) fn sent(request: &RequestBuilder) {
    if !listens() {
        return;
    }
    let Some(request) = request.try_clone().and_then(|request| request.build().ok()) else { return };
    let body = request.body().and_then(reqwest::Body::as_bytes).unwrap_or_default();
    let url = error_text(request.url().as_str());
    tracing::trace!(target: "wire", method = %request.method(), url, bytes = body.len(), body = printable_body(body), "request to the provider");
}

pub(in crate::provider) fn began(status: StatusCode) {
    tracing::trace!(target: "wire", status = status.as_u16(), "answer of the provider");
}

pub(in crate::provider) fn log_received(piece: &[u8]) {
    if listens() {
        tracing::trace!(target: "wire", bytes = piece.len(), body = printable_body(piece), "bytes from the provider");
    }
}

fn printable_body(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(body);
    let prefix = text::prefix(&text, MAX_SHOWN_BYTES);
    if prefix.len() < text.len() { format!("{prefix}[...]") } else { prefix.to_owned() }
}
