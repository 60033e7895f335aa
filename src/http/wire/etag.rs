//! Entity tags of versions and responses, and the conditions of requests.

use std::convert::Infallible;

use axum::Json;
use axum::extract::FromRequestParts;
use axum::http::header::{CONTENT_TYPE, ETAG, IF_MATCH, IF_NONE_MATCH};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse as _, Response};
use serde::Serialize;
use utoipa::IntoParams;
use utoipa::openapi::path::{Parameter, ParameterIn};

use crate::http::options::App;
use crate::http::wire::extract::header;
use crate::support::json;

pub(crate) fn tag_header(tag: &str) -> HeaderMap {
    HeaderValue::from_str(tag).map(|value| HeaderMap::from_iter([(ETAG, value)])).unwrap_or_default()
}

/// Responds with a value. The entity tag is its version, if it has one.
pub(crate) fn versioned<T: Serialize>(version: Option<i64>, value: T) -> Response {
    (version_tag(version), Json(value)).into_response()
}

pub(crate) fn version_tag(version: Option<i64>) -> HeaderMap {
    version.map(|version| tag_header(&format!("\"{version}\""))).unwrap_or_default()
}

/// The versions in `If-Match` (RFC 9110, 13.1.1): any of its tags may match, and a weak tag never does. `None` for all.
pub(crate) struct IfMatch(pub Option<Vec<i64>>);

impl FromRequestParts<App> for IfMatch {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _app: &App) -> Result<Self, Infallible> {
        Ok(Self(wanted_versions(&parts.headers)))
    }
}

impl IntoParams for IfMatch {
    fn into_params(_: impl Fn() -> Option<ParameterIn>) -> Vec<Parameter> {
        vec![header("If-Match", "ETags of the client's copies. The request acts on these versions only")]
    }
}

fn wanted_versions(headers: &HeaderMap) -> Option<Vec<i64>> {
    if !headers.contains_key(IF_MATCH) {
        return None;
    }
    // Tags of this server contain no comma. Pieces of a foreign tag with a comma match nothing.
    let values = headers.get_all(IF_MATCH).iter().filter_map(|value| value.to_str().ok());
    let tags: Vec<&str> = values.flat_map(|value| value.split(',')).map(str::trim).collect();
    if tags == ["*"] {
        return None;
    }
    let version = |tag: &&str| tag.strip_prefix('"')?.strip_suffix('"')?.parse().ok();
    Some(tags.iter().filter_map(version).collect())
}

pub(crate) fn entity_tag(bytes: &[u8]) -> String {
    let hash = json::hash_bytes(bytes);
    format!("\"{}\"", hash.get(..32).unwrap_or(&hash))
}

/// Returns whether the client has the representation with this entity tag.
pub(crate) fn is_known(request: &HeaderMap, tag: &str) -> bool {
    let known = request.get_all(IF_NONE_MATCH).iter().filter_map(|value| value.to_str().ok());
    let mut known = known.flat_map(|value| value.split(',')).map(|known| known.trim().trim_start_matches("W/"));
    known.any(|known| known == tag || known == "*")
}

/// Responds with a value and its entity tag, or with 304 if the client has it.
pub(crate) fn tagged<T: Serialize>(request: &HeaderMap, status: StatusCode, value: &T) -> Response {
    let bytes = serde_json::to_vec(value).unwrap_or_default();
    let tag = entity_tag(&bytes);
    let mut headers = tag_header(&tag);
    if status == StatusCode::OK && is_known(request, &tag) {
        return (StatusCode::NOT_MODIFIED, headers).into_response();
    }
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    (status, headers, bytes).into_response()
}
