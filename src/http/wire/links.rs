//! Links of a server that runs under a path of its host: a proxy removes the path from requests, so responses add it to each link.

use std::borrow::Cow;

use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::header::{CONTENT_LENGTH, CONTENT_LOCATION, CONTENT_TYPE, LINK, LOCATION};
use axum::http::{HeaderMap, HeaderValue};
use axum::middleware::Next;
use axum::response::Response;
use futures_util::TryStreamExt as _;

use crate::http::options::App;

/// The members of JSON that hold links, and how the links begin. JSON escapes quotes inside texts, so no text of a user matches.
const MEMBERS: [(&str, &str); 3] =
    [("\"url\":\"", "/api/v1/files/file_"), ("\"url\":\"", "/api/v1/conversations/conv_"), ("\"type\":\"", "/docs/errors/")];

const CONTENT_TYPES: [&str; 4] = ["application/json", "application/problem+json", "text/event-stream", "application/x-ndjson"];

/// Adds the path prefix of the server to links in headers and in JSON. No chunk of the body ends inside an event of a stream.
pub(crate) async fn add_prefix(State(app): State<App>, request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    if app.options.path_prefix().is_empty() {
        return response;
    }
    add_to_headers(response.headers_mut(), app.options.path_prefix());
    let kind = response.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    if !CONTENT_TYPES.iter().any(|text| kind.starts_with(text)) {
        return response;
    }
    response.headers_mut().remove(CONTENT_LENGTH);
    response.map(|body| {
        let add = move |chunk: Bytes| match std::str::from_utf8(&chunk).map(|text| with_prefix(text, app.options.path_prefix())) {
            Ok(Cow::Owned(text)) => Bytes::from(text),
            Ok(Cow::Borrowed(_)) | Err(_) => chunk,
        };
        Body::from_stream(body.into_data_stream().map_ok(add))
    })
}

fn add_to_headers(headers: &mut HeaderMap, prefix: &str) {
    for (name, before) in [(LOCATION, ""), (CONTENT_LOCATION, ""), (LINK, "<")] {
        let path =
            headers.get(&name).and_then(|value| value.to_str().ok()?.strip_prefix(before)).filter(|path| path.starts_with('/'));
        if let Some(Ok(value)) = path.map(|path| HeaderValue::try_from(format!("{before}{prefix}{path}"))) {
            headers.insert(name, value);
        }
    }
}

/// Returns JSON with the prefix before its links.
pub(in crate::http) fn with_prefix<'j>(json: &'j str, prefix: &str) -> Cow<'j, str> {
    let mut json = Cow::Borrowed(json);
    for (member, link) in MEMBERS.iter().filter(|_| !prefix.is_empty()) {
        let found = format!("{member}{link}");
        if json.contains(&found) {
            json = json.replace(&found, &format!("{member}{prefix}{link}")).into();
        }
    }
    json
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefix_stands_before_links_alone() {
        let json = r#"{"url":"/api/v1/files/file_1/content","text":"\"url\":\"/api/v1/files/file_1\"","name":"/docs/errors/x"}"#;
        let expected = json.replacen("/api/v1", "/capstan/api/v1", 1);
        assert_eq!(with_prefix(json, "/capstan"), expected);
        assert!(matches!(with_prefix(json, ""), Cow::Borrowed(_)));
    }
}
