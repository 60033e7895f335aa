//! The layers around every request: its id, its span, its metrics, and the rendering of errors.

use std::convert::Infallible;
use std::time::Instant;

use async_compression::tokio::bufread::GzipDecoder;
use axum::body::Body;
use axum::extract::{FromRequestParts, MatchedPath, Request, State};
use axum::http::header::{ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_LENGTH, HOST, HeaderName};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, Uri};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use futures_util::TryStreamExt as _;
use tokio_util::io::{ReaderStream, StreamReader};
use tracing::Instrument as _;

use crate::domain::problem::ProblemCode;
use crate::domain::trace::TraceId;
use crate::http::metrics;
use crate::http::options::App;
use crate::http::wire::problem::{self, Problem};
use crate::support::text;

const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

pub(crate) async fn finish(State(app): State<App>, mut request: Request, next: Next) -> Response {
    let started_at = Instant::now();
    let id = request_id(request.headers()).unwrap_or_else(|| format!("req_{}", app.service.ids().next()));
    let method = request.method().clone();
    let form = app.error_form(request.uri().path());
    let route = request.extensions().get::<MatchedPath>().map(|path| path.as_str().to_owned());
    let trace = trace_id(request.headers()).unwrap_or_else(|| TraceId::generate(app.service.ids().as_ref()));
    // The span has the level error, so that every log line of the request has its fields. The path excludes the query, which may
    // contain a ticket.
    let span = tracing::error_span!("request", request_id = %id, trace.id = %trace, %method, path = request.uri().path());
    request.extensions_mut().insert(Trace(trace));
    let response = match misdirected(&app, &request) {
        Some(problem) => problem.into_response(),
        None => next.run(request).instrument(span.clone()).await,
    };
    let mut response = problem::render(response, &id, form);
    if let Ok(value) = HeaderValue::from_str(&id) {
        response.headers_mut().insert(X_REQUEST_ID, value);
    }
    response.headers_mut().entry("x-content-type-options").or_insert(HeaderValue::from_static("nosniff"));
    let status = response.status().as_u16();
    metrics::request(&method, route.as_deref().unwrap_or("none"), status, started_at.elapsed());
    // Logged inside the span, not only with it as parent: the JSON log contains only entered spans.
    span.in_scope(|| tracing::debug!(status, ms = started_at.elapsed().as_millis(), "answered"));
    response
}

/// Marks the requests of a connection beyond the limit of connections.
#[derive(Debug, Clone, Copy)]
pub struct ExcessConnection;

/// The paths at which operators and supervisors check the process.
const ALWAYS_ANSWERED: [&str; 3] = ["/healthz", "/readyz", "/metrics"];

/// Refuses requests of a connection above the [limit](ExcessConnection).
pub(crate) async fn admit(request: Request, next: Next) -> Response {
    if request.extensions().get::<ExcessConnection>().is_none() || ALWAYS_ANSWERED.contains(&request.uri().path()) {
        return next.run(request).await;
    }
    let detail = "the server has reached limits.max_connections; try again later";
    Problem::new(ProblemCode::Unavailable, detail).into_response()
}

/// Decompresses a request body with gzip, and refuses other content encodings. Limits of bodies apply to decompressed bytes.
pub(crate) async fn decode_body(mut request: Request, next: Next) -> Response {
    let all: Vec<_> = request.headers().get_all(CONTENT_ENCODING).iter().map(|value| value.as_bytes()).collect();
    let encoding = String::from_utf8_lossy(&all.join(&b", "[..])).trim().to_ascii_lowercase();
    request.headers_mut().remove(CONTENT_ENCODING);
    match encoding.as_str() {
        "identity" | "" => next.run(request).await,
        "gzip" | "x-gzip" => {
            request.headers_mut().remove(CONTENT_LENGTH);
            let (parts, body) = request.into_parts();
            let compressed = StreamReader::new(body.into_data_stream().map_err(std::io::Error::other));
            let decoded = ReaderStream::new(GzipDecoder::new(compressed));
            next.run(Request::from_parts(parts, Body::from_stream(decoded))).await
        }
        _ => {
            let excerpt = text::prefix(&encoding, 40);
            let detail = format!("the content-encoding {excerpt:?} is not supported: send the body with gzip or without encoding");
            let refusal = Problem::new(ProblemCode::UnsupportedMediaType, detail).into_response();
            ([(ACCEPT_ENCODING, "gzip, identity")], refusal).into_response()
        }
    }
}

/// Returns the client's trace id. Ignores an invalid or repeated header.
fn trace_id(headers: &HeaderMap) -> Option<TraceId> {
    let mut all = headers.get_all("traceparent").iter();
    let header = all.next().filter(|_| all.next().is_none())?;
    TraceId::from_traceparent(header.to_str().ok()?)
}

/// The trace id of a request: the client's, or a new one.
#[derive(Debug, Clone)]
pub(crate) struct Trace(pub TraceId);

impl FromRequestParts<App> for Trace {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Self::Rejection> {
        let known = parts.extensions.get::<Self>().cloned();
        Ok(known.unwrap_or_else(|| Self(TraceId::generate(app.service.ids().as_ref()))))
    }
}

/// Returns the client's request id, if it is safe to log and to send back.
fn request_id(headers: &HeaderMap) -> Option<String> {
    let id = headers.get(&X_REQUEST_ID)?.to_str().ok()?;
    let fits = (1..=64).contains(&id.len()) && id.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b));
    fits.then(|| id.to_owned())
}

fn misdirected(app: &App, request: &Request) -> Option<Problem> {
    let allowed = app.options.allowed_hosts.as_ref()?;
    let name = host_name(request_host(request.uri(), request.headers()).unwrap_or_default());
    if allowed.iter().any(|allowed| allowed.eq_ignore_ascii_case(name)) {
        return None;
    }
    Some(Problem::new(
        ProblemCode::MisdirectedRequest,
        "use the address that the server listens on, or add the host to its settings",
    ))
}

/// Returns the host of a request: its Host header, or for HTTP/2 the authority of the URI.
pub(crate) fn request_host<'a>(uri: &'a Uri, headers: &'a HeaderMap) -> Option<&'a str> {
    let host = headers.get(HOST).and_then(|host| host.to_str().ok());
    host.or_else(|| uri.authority().map(|authority| authority.as_str()))
}

/// Returns a host without its port and without the brackets of an IPv6 address.
pub(crate) fn host_name(host: &str) -> &str {
    if let Some(rest) = host.strip_prefix('[') {
        return rest.split(']').next().unwrap_or_default();
    }
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        Some(_) | None => host,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_lose_ports_and_brackets() {
        for (host, name) in [("a:80", "a"), ("a", "a"), ("[::1]:8080", "::1"), ("[::1]", "::1"), ("127.0.0.1:1", "127.0.0.1")] {
            assert_eq!(host_name(host), name);
        }
    }
}
