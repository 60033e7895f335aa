//! Idempotency keys: the header of a request, the identity of a request, and the header of a replayed response.

use axum::http::header::HeaderName;
use axum::http::{HeaderMap, HeaderValue, Method};
use serde_json::Value;

use crate::http::wire::problem::HttpResult;
use crate::service::{Error, Replay, RequestKey};
use crate::support::json;

const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
const IDEMPOTENT_REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");

pub(crate) fn idempotency_key(headers: &HeaderMap) -> HttpResult<Option<String>> {
    let Some(value) = headers.get(IDEMPOTENCY_KEY) else { return Ok(None) };
    let key = value.to_str().ok().filter(|key| (1..=255).contains(&key.len()));
    let invalid = || Error::invalid("the Idempotency-Key header must be 1 to 255 visible ASCII characters");
    key.map(|key| Some(key.to_owned())).ok_or_else(|| invalid().into())
}

/// Returns the key with the fingerprint of its request. A WebSocket request has the fingerprint of the equivalent HTTP request.
pub(crate) fn request_key(key: String, method: &Method, path: &str, body: &Value) -> RequestKey {
    let identity = format!("{method}\n{path}\n{}", json::canonical(body));
    RequestKey { key, fingerprint: json::hash_bytes(identity.as_bytes()) }
}

pub(crate) fn replayed(replay: Replay) -> HeaderMap {
    let header = (replay == Replay::Replayed).then_some((IDEMPOTENT_REPLAYED, HeaderValue::from_static("true")));
    header.into_iter().collect()
}
