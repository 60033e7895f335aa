//! The cursor from which a client reads events: the `Last-Event-ID` header or `?after=`.

use axum::http::{HeaderMap, HeaderName};

use crate::http::wire::problem::HttpResult;
use crate::service::Cursor;

const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");

/// Returns the cursor of a stream or a page of events: `Last-Event-ID` or the equivalent `?after=`. The header has priority,
/// because a browser that reconnects repeats the URL and adds the newer header.
pub(crate) fn read_cursor(headers: &HeaderMap, after: Option<&str>) -> HttpResult<Option<Cursor>> {
    let header = match headers.get(LAST_EVENT_ID) {
        // An EventSource that has received no id sends no header; an empty one means the same.
        Some(value) if value.is_empty() => None,
        Some(value) => Some(value.to_str().unwrap_or("?")),
        None => None,
    };
    Ok(header.or(after).map(Cursor::parse).transpose()?)
}
