//! Extractors: ids, queries, bodies, and what headers ask for.

use std::str::FromStr;

use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::header::{ACCEPT, CONTENT_LENGTH, CONTENT_TYPE, EXPECT, HeaderName};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, Uri};
use bytes::{Bytes, BytesMut};
use futures_util::StreamExt as _;
use serde::de::DeserializeOwned;

use crate::domain::problem::ProblemCode;
use crate::http::options::App;
use crate::http::streams::framing::Framing;
use crate::http::wire::idempotency::{idempotency_key, request_key};
use crate::http::wire::problem::{Answer, Problem};
use crate::service::{Cursor, Error, RequestKey};
use crate::support::nearest::with_suggestion;
use crate::support::{number, text};

const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");
const PREFER: HeaderName = HeaderName::from_static("prefer");
/// The most bytes that are read of a body that is too large.
const MOST_DISCARDED: usize = 32 * 1024 * 1024;

fn missing<E>(_: E) -> Problem {
    Error::NotFound("thing at this path").into()
}

/// The id in a path. A text that is no id is the id of nothing.
pub(crate) struct Id<T>(pub T);

impl<T: FromStr> FromRequestParts<App> for Id<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Answer<Self> {
        let Path(raw) = Path::<String>::from_request_parts(parts, app).await.map_err(missing)?;
        raw.parse().map(Self).map_err(missing)
    }
}

pub(crate) struct Ids<T, U>(pub T, pub U);

impl<T: FromStr, U: FromStr> FromRequestParts<App> for Ids<T, U> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Answer<Self> {
        let Path((outer, inner)) = Path::<(String, String)>::from_request_parts(parts, app).await.map_err(missing)?;
        Ok(Self(outer.parse().map_err(missing)?, inner.parse().map_err(missing)?))
    }
}

pub(crate) struct Params<T>(pub T);

impl<T: DeserializeOwned> FromRequestParts<App> for Params<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _app: &App) -> Answer<Self> {
        query(&parts.uri).map(Self)
    }
}

pub(crate) fn query<T: DeserializeOwned>(uri: &Uri) -> Answer<T> {
    match Query::<T>::try_from_uri(uri) {
        Ok(Query(params)) => Ok(params),
        Err(error) => {
            let why = std::error::Error::source(&error).map_or_else(|| error.to_string(), ToString::to_string);
            Err(Error::invalid(format!("the query is not valid: {}", text::prefix(&why, 200))).into())
        }
    }
}

/// The body of a POST or PATCH, and the idempotency key that came with it.
pub(crate) struct Input<T> {
    pub body: T,
    pub key: Option<RequestKey>,
}

impl<T: DeserializeOwned> FromRequest<App> for Input<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, app: &App) -> Answer<Self> {
        Self::read(request, app, app.options.limits.max_body_bytes, None).await
    }
}

/// The same for a body that may be left out: then all its fields have their defaults.
pub(crate) struct OptionalInput<T> {
    pub body: T,
    pub key: Option<RequestKey>,
}

impl<T: DeserializeOwned + Default> FromRequest<App> for OptionalInput<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, app: &App) -> Answer<Self> {
        let Input { body, key } = Input::read(request, app, app.options.limits.max_body_bytes, Some(T::default)).await?;
        Ok(Self { body, key })
    }
}

impl<T: DeserializeOwned> Input<T> {
    /// Reads a body of at most `most` bytes. `empty` gives the value of an absent body; `None` if a body is required.
    pub(crate) async fn read(request: Request, app: &App, most: usize, empty: Option<fn() -> T>) -> Answer<Self> {
        let key = idempotency_key(request.headers())?;
        let method = request.method().clone();
        let path = request.uri().path().to_owned();
        let content_type = request.headers().get(CONTENT_TYPE).cloned();
        let bytes = read(request, app, most).await?;
        let body = match empty {
            Some(empty) if bytes.is_empty() => empty(),
            Some(_) | None => {
                if !content_type.as_ref().is_some_and(is_json) {
                    let detail = "send the body as application/json, with that content-type";
                    return Err(Problem::new(ProblemCode::UnsupportedMediaType, detail));
                }
                parse(&bytes)?
            }
        };
        let key = key.map(|key| {
            let value: serde_json::Value = serde_json::from_slice(&bytes).unwrap_or_default();
            request_key(key, &method, &path, &value)
        });
        Ok(Self { body, key })
    }
}

async fn read(request: Request, app: &App, most: usize) -> Answer<Bytes> {
    match tokio::time::timeout(app.options.limits.body_timeout, collect(request, most)).await {
        Ok(Ok(Some(bytes))) => Ok(bytes),
        Ok(Ok(None)) => {
            let detail = format!("at most {most} bytes are accepted");
            Err(Problem::new(ProblemCode::PayloadTooLarge, detail))
        }
        Ok(Err(_)) => {
            Err(Problem::new(ProblemCode::InvalidRequest, "the body ended before it was whole, or its gzip data is damaged"))
        }
        Err(_elapsed) => Err(Problem::new(ProblemCode::RequestTimeout, "the body took too long to arrive")),
    }
}

/// Reads the whole body, or `None` if it is larger than `most`. The excess is read and dropped, up to [`MOST_DISCARDED`]: a client that is
/// still writing when the connection is closed never gets to see the answer.
pub(crate) async fn collect(request: Request, most: usize) -> Result<Option<Bytes>, axum::Error> {
    let announced = request.headers().get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    let mut is_too_large = announced.is_some_and(|length| length > most as u64);
    // This client waits for permission before it sends.
    if is_too_large && request.headers().contains_key(EXPECT) {
        return Ok(None);
    }
    let mut body = request.into_body().into_data_stream();
    let mut kept = BytesMut::new();
    let mut seen = 0_usize;
    while let Some(chunk) = body.next().await {
        let chunk = chunk?;
        seen = seen.saturating_add(chunk.len());
        if seen > MOST_DISCARDED {
            return Ok(None);
        }
        if is_too_large || seen > most {
            is_too_large = true;
            kept = BytesMut::new();
            continue;
        }
        kept.extend_from_slice(&chunk);
    }
    Ok((!is_too_large).then(|| kept.freeze()))
}

fn is_json(content_type: &HeaderValue) -> bool {
    let essence = content_type.to_str().unwrap_or_default().split(';').next().unwrap_or_default().trim();
    essence.eq_ignore_ascii_case("application/json")
}

/// Reads JSON of a documented shape; an error names the place of the fault.
pub(crate) fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Answer<T> {
    // serde would take a list of the values of all fields, too, which is not documented.
    if bytes.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'[') {
        return Err(Error::field("", "must be a JSON object, not a list").into());
    }
    number::check_text(bytes).map_err(|error| Error::field("", error.to_string()))?;
    let mut deserializer = serde_json::Deserializer::from_slice(bytes);
    let value = serde_path_to_error::deserialize(&mut deserializer).map_err(|error| {
        let pointer = pointer(error.path());
        let why = with_suggestion(&error.into_inner().to_string());
        Error::field(&pointer, text::storable(text::prefix(&why, 300)))
    })?;
    deserializer.end().map_err(|_| Error::field("", "is followed by something that is not JSON"))?;
    Ok(value)
}

fn pointer(path: &serde_path_to_error::Path) -> String {
    use serde_path_to_error::Segment;
    let mut pointer = String::new();
    for segment in path {
        match segment {
            Segment::Seq { index } => pointer.push_str(&format!("/{index}")),
            Segment::Map { key } => pointer.push_str(&format!("/{}", key.replace('~', "~0").replace('/', "~1"))),
            Segment::Enum { .. } | Segment::Unknown => {}
        }
    }
    text::prefix(&pointer, 200).to_owned()
}

/// The form of the response that the client accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wants {
    Json,
    Stream(Framing),
}

impl FromRequestParts<App> for Wants {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _app: &App) -> Answer<Self> {
        Self::of(&parts.headers)
    }
}

impl Wants {
    /// Reads the Accept headers. The higher `q` wins, then the earlier range.
    pub(crate) fn of(headers: &HeaderMap) -> Answer<Self> {
        let mut best: Option<(Self, f32)> = None;
        let mut asked = false;
        for value in headers.get_all(ACCEPT) {
            for range in value.to_str().unwrap_or_default().split(',').map(str::trim).filter(|range| !range.is_empty()) {
                asked = true;
                let mut pieces = range.split(';').map(str::trim);
                let wants = match pieces.next().unwrap_or_default().to_ascii_lowercase().as_str() {
                    "application/json" | "application/*" | "*/*" | "application/problem+json" => Self::Json,
                    media_type => match Framing::named(media_type) {
                        Some(framing) => Self::Stream(framing),
                        None => continue,
                    },
                };
                let q = pieces.find_map(|piece| piece.strip_prefix("q=")?.parse::<f32>().ok()).unwrap_or(1.0);
                if q > 0.0 && best.is_none_or(|(_, known)| q > known) {
                    best = Some((wants, q));
                }
            }
        }
        match best {
            Some((wants, _)) => Ok(wants),
            None if asked => {
                let detail = "application/json, text/event-stream and application/x-ndjson can be produced";
                Err(Problem::new(ProblemCode::NotAcceptable, detail))
            }
            None => Ok(Self::Json),
        }
    }
}

/// `Prefer: wait=N`, in seconds.
pub(crate) struct PreferWait(pub Option<u64>);

impl FromRequestParts<App> for PreferWait {
    type Rejection = std::convert::Infallible;

    async fn from_request_parts(parts: &mut Parts, _app: &App) -> Result<Self, Self::Rejection> {
        let all = parts.headers.get_all(PREFER).iter().filter_map(|value| value.to_str().ok());
        let mut preferences = all.flat_map(|value| value.split(',')).map(str::trim);
        // A preference that cannot be understood is ignored (RFC 7240).
        Ok(Self(preferences.find_map(|preference| preference.strip_prefix("wait=")?.trim_matches('"').parse().ok())))
    }
}

/// Returns the cursor of a stream or a page of events: `Last-Event-ID` or `?after=`, which mean the same. The header wins, because a browser
/// that reconnects repeats the URL and adds the newer header.
pub(crate) fn cursor(headers: &HeaderMap, after: Option<&str>) -> Answer<Option<Cursor>> {
    let header = match headers.get(LAST_EVENT_ID) {
        // An EventSource that has seen no id sends no header; an empty one is the same.
        Some(value) if value.is_empty() => None,
        Some(value) => Some(value.to_str().unwrap_or("?")),
        None => None,
    };
    Ok(header.or(after).map(Cursor::parse).transpose()?)
}
