//! The chat page: the files that `web/` builds, embedded by `build.rs` or read from a folder during development.
//!
//! Owns how the files are served. Must not know what they show.
//!
//! The page needs no authentication: its content comes from the API, with the key of its user. It loads nothing from other servers,
//! and its content security policy enforces that.

use std::borrow::Cow;
use std::path::Path;

use axum::Router;
use axum::extract::{Path as UrlPath, State};
use axum::http::header::{
    ACCEPT_ENCODING, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY, VARY,
    X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;

use crate::http::options::App;
use crate::http::wire::etag;
use crate::http::wire::problem::HttpResult;
use crate::service::Error;

/// Browsers that support Trusted Types parse markup only if the sanitizer's policy, `dompurify`, created it.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data: blob:; \
                      manifest-src 'self'; worker-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; \
                      require-trusted-types-for 'script'; trusted-types dompurify";

/// Shown at `/` if `index.html` is neither embedded nor in `page_dir`.
const MISSING: &str = "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>Capstan</title>\
    <p>The chat page is missing. To have it, install Node 20.19 or newer and run <code>make build</code> in the \
    source folder, or set <code>server.page_dir</code> to a built <code>web/dist</code>. The API works without the page: see its \
    <a href=\"docs\">documentation</a>.</p></html>";

/// A file of the page, and its gzip form if the build made one.
struct Embedded {
    name: &'static str,
    body: &'static [u8],
    packed: Option<&'static [u8]>,
}

const EMBEDDED: &[Embedded] = &include!(concat!(env!("OUT_DIR"), "/page.rs"));

/// Returns the routes of the page and its files. They are not part of the documented API.
pub(in crate::http) fn routes() -> Router<App> {
    Router::new().route("/", get(index)).route("/ui/{file}", get(asset))
}

async fn index(State(app): State<App>, request: HeaderMap) -> Response {
    match serve(&app, "index.html", &request).await {
        Some(answer) => answer,
        None => File { name: "index.html", body: Cow::Borrowed(MISSING.as_bytes()), packed: None }.answer(&request),
    }
}

async fn asset(State(app): State<App>, UrlPath(file): UrlPath<String>, request: HeaderMap) -> HttpResult<Response> {
    let found = serve(&app, &format!("ui/{file}"), &request).await;
    Ok(found.ok_or(Error::NotFound("file of the page"))?)
}

async fn serve(app: &App, name: &str, request: &HeaderMap) -> Option<Response> {
    if let Some(folder) = &app.options.page_dir {
        let body = read(folder, name).await?;
        return Some(File { name, body: Cow::Owned(body), packed: None }.answer(request));
    }
    let file = EMBEDDED.iter().find(|file| file.name == name)?;
    Some(File { name, body: Cow::Borrowed(file.body), packed: file.packed }.answer(request))
}

/// Reads a file of a folder. Names that lead out of it are refused.
async fn read(folder: &Path, name: &str) -> Option<Vec<u8>> {
    let is_plain =
        |part: &str| !part.starts_with('.') && part.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_'));
    if !name.split('/').all(is_plain) {
        return None;
    }
    tokio::fs::read(folder.join(name)).await.ok()
}

struct File<'a> {
    name: &'a str,
    body: Cow<'static, [u8]>,
    packed: Option<&'static [u8]>,
}

impl File<'_> {
    /// Responds with the file. Browsers store an embedded file with a hash in its name for a year. For other files they ask each
    /// time, and get 304 if the file is unchanged.
    fn answer(self, request: &HeaderMap) -> Response {
        let is_hashed = matches!(self.body, Cow::Borrowed(_)) && is_hashed(self.name);
        let tag = etag::entity_tag(&self.body);
        let mut headers = etag::tag_header(&tag);
        for (name, value) in [
            (CONTENT_SECURITY_POLICY, POLICY),
            (X_CONTENT_TYPE_OPTIONS, "nosniff"),
            (REFERRER_POLICY, "no-referrer"),
            (CACHE_CONTROL, if is_hashed { "public, max-age=31536000, immutable" } else { "no-cache" }),
            (VARY, "accept-encoding"),
        ] {
            headers.insert(name, HeaderValue::from_static(value));
        }
        if etag::is_known(request, &tag) {
            return (StatusCode::NOT_MODIFIED, headers).into_response();
        }
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type(self.name)));
        match self.packed {
            Some(packed) if accepts_gzip(request) => {
                headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
                (headers, packed).into_response()
            }
            Some(_) | None => (headers, self.body).into_response(),
        }
    }
}

/// Returns whether the build has put a hash of the content into the name, as in `index-DcsOnFfH.js`.
fn is_hashed(name: &str) -> bool {
    let stem = name.split_once('.').map_or(name, |(stem, _)| stem);
    stem.rsplit_once('-').is_some() && name.rsplit_once('.').is_some_and(|(_, ending)| matches!(ending, "js" | "css"))
}

fn content_type(name: &str) -> &'static str {
    match name.rsplit_once('.').map(|(_, ending)| ending) {
        Some("html") => "text/html; charset=utf-8",
        Some("js") => "text/javascript; charset=utf-8",
        Some("css") => "text/css; charset=utf-8",
        Some("svg") => "image/svg+xml",
        Some("webmanifest") => "application/manifest+json",
        Some(_) | None => "application/octet-stream",
    }
}

fn accepts_gzip(request: &HeaderMap) -> bool {
    let accepted = request.get_all(ACCEPT_ENCODING).iter().filter_map(|value| value.to_str().ok());
    accepted.flat_map(|value| value.split(',')).any(|coding| coding.trim().eq_ignore_ascii_case("gzip"))
}
