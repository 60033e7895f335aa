//! The page for people, in files that are part of the program.
//!
//! It needs no authentication: its content comes from the API, with the key of its user. It loads nothing from elsewhere, and its policy has
//! browsers enforce that.

use axum::Router;
use axum::extract::Path;
use axum::http::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;

use crate::http::options::App;
use crate::http::wire::etag;
use crate::http::wire::problem::Answer;
use crate::service::Error;

const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data: blob:; \
                      base-uri 'none'; form-action 'self'; frame-ancestors 'none'";

const SCRIPT: &str = "text/javascript; charset=utf-8";

struct Asset {
    name: &'static str,
    content_type: &'static str,
    body: &'static str,
}

const INDEX: Asset = Asset { name: "index.html", content_type: "text/html; charset=utf-8", body: include_str!("index.html") };

const ASSETS: &[Asset] = &[
    Asset { name: "style.css", content_type: "text/css; charset=utf-8", body: include_str!("style.css") },
    Asset { name: "icon.svg", content_type: "image/svg+xml", body: include_str!("icon.svg") },
    Asset { name: "main.js", content_type: SCRIPT, body: include_str!("main.js") },
    Asset { name: "api.js", content_type: SCRIPT, body: include_str!("api.js") },
    Asset { name: "asking.js", content_type: SCRIPT, body: include_str!("asking.js") },
    Asset { name: "calls.js", content_type: SCRIPT, body: include_str!("calls.js") },
    Asset { name: "composer.js", content_type: SCRIPT, body: include_str!("composer.js") },
    Asset { name: "dom.js", content_type: SCRIPT, body: include_str!("dom.js") },
    Asset { name: "files.js", content_type: SCRIPT, body: include_str!("files.js") },
    Asset { name: "form.js", content_type: SCRIPT, body: include_str!("form.js") },
    Asset { name: "markdown.js", content_type: SCRIPT, body: include_str!("markdown.js") },
    Asset { name: "sidebar.js", content_type: SCRIPT, body: include_str!("sidebar.js") },
    Asset { name: "state.js", content_type: SCRIPT, body: include_str!("state.js") },
    Asset { name: "stream.js", content_type: SCRIPT, body: include_str!("stream.js") },
    Asset { name: "transcript.js", content_type: SCRIPT, body: include_str!("transcript.js") },
];

/// The page and its files. They are no part of the described API.
pub(in crate::http) fn routes() -> Router<App> {
    Router::new().route("/", get(index)).route("/ui/{file}", get(asset))
}

async fn index(request: HeaderMap) -> Response {
    INDEX.answer(&request)
}

async fn asset(Path(file): Path<String>, request: HeaderMap) -> Answer<Response> {
    let asset = ASSETS.iter().find(|asset| asset.name == file).ok_or(Error::NotFound("file of the page"))?;
    Ok(asset.answer(&request))
}

impl Asset {
    /// Answers with the file, or 304 if the browser has it. It asks each time, so that after an update no file is older than another.
    fn answer(&self, request: &HeaderMap) -> Response {
        let tag = etag::entity_tag(self.body.as_bytes());
        let mut headers = etag::tag_header(&tag);
        for (name, value) in [
            (CONTENT_SECURITY_POLICY, POLICY),
            (X_CONTENT_TYPE_OPTIONS, "nosniff"),
            (REFERRER_POLICY, "no-referrer"),
            (CACHE_CONTROL, "no-cache"),
        ] {
            headers.insert(name, HeaderValue::from_static(value));
        }
        if etag::is_known(request, &tag) {
            return (StatusCode::NOT_MODIFIED, headers).into_response();
        }
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(self.content_type));
        (headers, self.body).into_response()
    }
}
