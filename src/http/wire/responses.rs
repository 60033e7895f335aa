//! Responses with a `Location` header.

use axum::Json;
use axum::http::header::LOCATION;
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse as _, Response};
use serde::Serialize;

use crate::domain::run::Run;
use crate::http::wire::etag::version_tag;
use crate::http::wire::idempotency_header::replayed;
use crate::service::Replay;

/// Responds with a created resource at the path `location`. The entity tag is the resource's version, if it has one.
pub(crate) fn created<T: Serialize>(replay: Replay, version: Option<i64>, location: &str, body: T) -> Response {
    let mut headers = located(replay, location);
    headers.extend(version_tag(version));
    (StatusCode::CREATED, headers, Json(body)).into_response()
}

pub(crate) fn accepted(replay: Replay, run: Run) -> Response {
    let headers = located(replay, &format!("/api/v1/runs/{}", run.id));
    (StatusCode::ACCEPTED, headers, Json(run)).into_response()
}

fn located(replay: Replay, location: &str) -> HeaderMap {
    let mut headers = replayed(replay);
    if let Ok(location) = HeaderValue::from_str(location) {
        headers.insert(LOCATION, location);
    }
    headers
}
