//! The wire monitor: logs requests and answers at `log.level` `wire=trace`.
//!
//! Its lines hold texts of users and models, so no plain level shows them. Headers and secrets of URLs are left out.

use reqwest::{RequestBuilder, StatusCode};
use tracing::Level;

use crate::support::redact::error_text;
use crate::support::text;

/// The most bytes of a body in one line: requests hold whole files.
const MAX_SHOWN_BYTES: usize = 128 * 1024;

/// Returns whether the monitor is on. A line costs a copy of its body.
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
    tracing::trace!(target: "wire", method = %request.method(), url, bytes = body.len(), body = shown(body), "to the provider");
}

pub(in crate::provider) fn began(status: StatusCode) {
    tracing::trace!(target: "wire", status = status.as_u16(), "the provider answers");
}

pub(in crate::provider) fn came(piece: &[u8]) {
    if listens() {
        tracing::trace!(target: "wire", bytes = piece.len(), body = shown(piece), "from the provider");
    }
}

fn shown(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(body);
    let kept = text::prefix(&text, MAX_SHOWN_BYTES);
    if kept.len() < text.len() { format!("{kept}[...]") } else { kept.to_owned() }
}
