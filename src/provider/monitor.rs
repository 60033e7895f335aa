//! The wire monitor: what goes to a provider and what comes back, for whoever names it in `log.level` as `wire=trace`.
//!
//! Its lines hold what users and models say, so that no plain level shows them. They hold neither headers nor what is secret in a
//! URL: the key is there.

use reqwest::{RequestBuilder, StatusCode};
use tracing::Level;

use crate::support::redact::error_text;
use crate::support::text;

/// The most bytes of a body that one line holds: files stand in requests in full.
const MAX_SHOWN_BYTES: usize = 128 * 1024;

/// Whether anybody listens. A line costs a copy of what it holds.
pub(super) fn listens() -> bool {
    tracing::enabled!(target: "wire", Level::TRACE)
}

/// A request as it is sent.
pub(super) fn sent(request: &RequestBuilder) {
    if !listens() {
        return;
    }
    let Some(request) = request.try_clone().and_then(|request| request.build().ok()) else { return };
    let body = request.body().and_then(reqwest::Body::as_bytes).unwrap_or_default();
    let url = error_text(request.url().as_str());
    tracing::trace!(target: "wire", method = %request.method(), url, bytes = body.len(), body = shown(body), "to the provider");
}

/// The beginning of an answer.
pub(super) fn began(status: StatusCode) {
    tracing::trace!(target: "wire", status = status.as_u16(), "the provider answers");
}

/// A piece of an answer, as it came.
pub(super) fn came(piece: &[u8]) {
    if listens() {
        tracing::trace!(target: "wire", bytes = piece.len(), body = shown(piece), "from the provider");
    }
}

fn shown(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(body);
    let kept = text::prefix(&text, MAX_SHOWN_BYTES);
    if kept.len() < text.len() { format!("{kept}[...]") } else { kept.to_owned() }
}
