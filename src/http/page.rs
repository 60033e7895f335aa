//! Lists: limits, opaque cursors, links; and entity tags.

use std::str::FromStr;

use axum::Json;
use axum::http::header::{ETAG, IF_NONE_MATCH, LINK, LOCATION};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};
use utoipa::IntoParams;

use super::problem::Answer;
use super::providers::tag;
use super::runs::replayed;
use super::types::ListBody;
use crate::service::{Error, InvalidCursor, Page, PageRequest, Replay};
use crate::support::json;

/// Rows of a page if the client does not say.
const DEFAULT_LIMIT: u32 = 50;
const MAX_LIMIT: u32 = 100;

/// Which page of a list.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct PageParams {
    /// How many rows.
    #[param(minimum = 1, maximum = 100, default = 50)]
    pub(crate) limit: Option<u32>,
    /// `next_cursor` of the page before.
    pub(crate) cursor: Option<String>,
}

/// Checks a limit.
pub(crate) fn limit(limit: Option<u32>) -> Answer<u32> {
    match limit.unwrap_or(DEFAULT_LIMIT) {
        limit @ 1..=MAX_LIMIT => Ok(limit),
        other => Err(Error::invalid(format!("the query's limit is {other}; it must be 1 to {MAX_LIMIT}")).into()),
    }
}

impl PageParams {
    /// The page in the store's words.
    pub(crate) fn request<C: FromStr<Err = InvalidCursor>>(&self) -> Answer<PageRequest<C>> {
        let after = self.cursor.as_deref().map(decode).transpose();
        let invalid = |InvalidCursor| Error::InvalidCursor("give the next_cursor of the page before, or none".to_owned());
        Ok(PageRequest { limit: limit(self.limit)?, after: after.map_err(invalid)? })
    }
}

/// Encodes a cursor for clients.
pub(crate) fn encode(cursor: &str) -> String {
    URL_SAFE_NO_PAD.encode(cursor)
}

/// Reads a cursor that [`encode`] wrote.
pub(crate) fn decode<C: FromStr<Err = InvalidCursor>>(cursor: &str) -> Result<C, InvalidCursor> {
    let bytes = URL_SAFE_NO_PAD.decode(cursor).map_err(|_| InvalidCursor)?;
    std::str::from_utf8(&bytes).map_err(|_| InvalidCursor)?.parse()
}

/// Answers with a page. `path` and `rest` (an encoded query without limit and cursor, possibly empty) name the list.
pub(crate) fn answer<T: Serialize>(page: Page<T>, limit: u32, path: &str, rest: &str) -> Response {
    answer_as("cursor", page, limit, path, rest)
}

/// Answers with a page whose cursor is given as the parameter `name`.
pub(crate) fn answer_as<T: Serialize>(name: &str, page: Page<T>, limit: u32, path: &str, rest: &str) -> Response {
    let next_cursor = page.next.map(|next| encode(&next));
    let link = next_cursor.as_ref().map(|cursor| format!("{path}?limit={limit}&{name}={cursor}{rest}"));
    let body = Json(ListBody { data: page.items, next_cursor });
    (next_link(link), body).into_response()
}

/// A text as it may stand in a query.
pub(crate) fn encoded(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

/// The header that names the next page.
pub(crate) fn next_link(target: Option<String>) -> HeaderMap {
    let mut headers = HeaderMap::new();
    if let Some(value) = target.and_then(|target| HeaderValue::from_str(&format!("<{target}>; rel=\"next\"")).ok()) {
        headers.insert(LINK, value);
    }
    headers
}

/// Answers that something was made, at `place`, with its version as its entity tag if it has one.
pub(crate) fn made<T: Serialize>(replay: Replay, version: Option<i64>, place: &str, body: T) -> Response {
    let mut headers = replayed(replay);
    headers.extend(version.map(tag).unwrap_or_default());
    if let Ok(value) = HeaderValue::from_str(place) {
        headers.insert(LOCATION, value);
    }
    (StatusCode::CREATED, headers, Json(body)).into_response()
}

/// The entity tag of these bytes.
pub(crate) fn entity_tag(bytes: &[u8]) -> String {
    let hash = json::hash_bytes(bytes);
    format!("\"{}\"", hash.get(..32).unwrap_or(&hash))
}

/// Whether the client has what this is the entity tag of.
pub(crate) fn is_known(request: &HeaderMap, tag: &str) -> bool {
    let known = request.get_all(IF_NONE_MATCH).iter().filter_map(|value| value.to_str().ok());
    let mut known = known.flat_map(|value| value.split(',')).map(|known| known.trim().trim_start_matches("W/"));
    known.any(|known| known == tag || known == "*")
}

/// Answers with a value and its entity tag, or with 304 if the client has it.
pub(crate) fn tagged<T: Serialize>(request: &HeaderMap, status: StatusCode, value: &T) -> Response {
    let bytes = serde_json::to_vec(value).unwrap_or_default();
    let tag = entity_tag(&bytes);
    let mut headers = HeaderMap::new();
    if let Ok(value) = HeaderValue::from_str(&tag) {
        headers.insert(ETAG, value);
    }
    if status == StatusCode::OK && is_known(request, &tag) {
        return (StatusCode::NOT_MODIFIED, headers).into_response();
    }
    headers.insert(axum::http::header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    (status, headers, bytes).into_response()
}
