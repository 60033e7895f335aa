//! Extractors: ids, queries, bodies, and preferences in headers.

use std::borrow::Cow;
use std::str::FromStr;

use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::header::{ACCEPT, CONTENT_LENGTH, CONTENT_TYPE, EXPECT, HeaderName};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, Uri};
use bytes::{Bytes, BytesMut};
use futures_util::StreamExt as _;
use serde::de::DeserializeOwned;
use utoipa::PartialSchema as _;
use utoipa::openapi::Required;
use utoipa::openapi::path::{Parameter, ParameterBuilder, ParameterIn};

use crate::domain::problem::ProblemCode;
use crate::http::options::App;
use crate::http::streams::framing::Framing;
use crate::http::wire::idempotency_header::{idempotency_key, request_key};
use crate::http::wire::problem::{HttpResult, Problem};
use crate::service::{Error, RequestKey};
use crate::support::suggestion::with_suggestion;
use crate::support::{json, number, text};

const PREFER: HeaderName = HeaderName::from_static("prefer");
/// Limit of discarded bytes of a body that is too large.
const MOST_DISCARDED: usize = 32 * 1024 * 1024;

fn missing<E>(_: E) -> Problem {
    Error::NotFound("thing at this path").into()
}

/// The id in a path. Text that is not an id matches nothing.
pub(crate) struct Id<T>(pub T);

impl<T: FromStr> FromRequestParts<App> for Id<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> HttpResult<Self> {
        let Path(raw) = Path::<String>::from_request_parts(parts, app).await.map_err(missing)?;
        raw.parse().map(Self).map_err(missing)
    }
}

pub(crate) struct Ids<T, U>(pub T, pub U);

impl<T: FromStr, U: FromStr> FromRequestParts<App> for Ids<T, U> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> HttpResult<Self> {
        let Path((outer, inner)) = Path::<(String, String)>::from_request_parts(parts, app).await.map_err(missing)?;
        Ok(Self(outer.parse().map_err(missing)?, inner.parse().map_err(missing)?))
    }
}

pub(crate) struct Params<T>(pub T);

impl<T: DeserializeOwned> FromRequestParts<App> for Params<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _app: &App) -> HttpResult<Self> {
        query(&parts.uri).map(Self)
    }
}

pub(crate) fn query<T: DeserializeOwned>(uri: &Uri) -> HttpResult<T> {
    match Query::<T>::try_from_uri(uri) {
        Ok(Query(params)) => Ok(params),
        Err(error) => {
            let why = std::error::Error::source(&error).map_or_else(|| error.to_string(), ToString::to_string);
            Err(Error::invalid(format!("the query is not valid: {}", text::prefix(&why, 200))).into())
        }
    }
}

/// The body of a POST or PATCH, with its idempotency key.
pub(crate) struct Input<T> {
    pub body: T,
    pub key: Option<RequestKey>,
}

impl<T: DeserializeOwned> FromRequest<App> for Input<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, app: &App) -> HttpResult<Self> {
        Self::read(request, app, app.options.limits.max_body_bytes, None).await
    }
}

/// Like [`Input`], for an optional body. Without a body, all fields have their defaults.
pub(crate) struct OptionalInput<T> {
    pub body: T,
    pub key: Option<RequestKey>,
}

impl<T: DeserializeOwned + Default> FromRequest<App> for OptionalInput<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, app: &App) -> HttpResult<Self> {
        let Input { body, key } = Input::read(request, app, app.options.limits.max_body_bytes, Some(T::default)).await?;
        Ok(Self { body, key })
    }
}

impl<T: DeserializeOwned> Input<T> {
    /// Reads a body of at most `most` bytes. `empty` returns the value of an absent body; `None` if a body is required.
    pub(crate) async fn read(request: Request, app: &App, most: usize, empty: Option<fn() -> T>) -> HttpResult<Self> {
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
            let value: serde_json::Value =
                json_text(&bytes).ok().and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default();
            request_key(key, &method, &path, &value)
        });
        Ok(Self { body, key })
    }
}

/// Reads the complete body, within the limits of time and size.
pub(crate) async fn read(request: Request, app: &App, most: usize) -> HttpResult<Bytes> {
    match tokio::time::timeout(app.options.limits.body_timeout, collect(request, most)).await {
        Ok(Ok(Some(bytes))) => Ok(bytes),
        Ok(Ok(None)) => {
            let detail = format!("the body must have at most {most} bytes");
            Err(Problem::new(ProblemCode::PayloadTooLarge, detail))
        }
        Ok(Err(_)) => Err(Problem::new(ProblemCode::InvalidRequest, "the body is incomplete, or its gzip data is damaged")),
        Err(_elapsed) => Err(Problem::new(ProblemCode::RequestTimeout, "the body took too long to arrive")),
    }
}

/// Reads the complete body, or `None` if it is larger than `most`. The excess is read and discarded, up to [`MOST_DISCARDED`]: a
/// client that is still sending when the connection closes cannot read the response.
pub(crate) async fn collect(request: Request, most: usize) -> Result<Option<Bytes>, axum::Error> {
    let announced = request.headers().get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    let mut is_too_large = announced.is_some_and(|length| length > most as u64);
    // A client with `Expect: 100-continue` waits for permission before it sends the body.
    if is_too_large && request.headers().contains_key(EXPECT) {
        return Ok(None);
    }
    let mut body = request.into_body().into_data_stream();
    let mut collected = BytesMut::new();
    let mut received_bytes = 0_usize;
    while let Some(chunk) = body.next().await {
        let chunk = chunk?;
        received_bytes = received_bytes.saturating_add(chunk.len());
        if received_bytes > MOST_DISCARDED {
            return Ok(None);
        }
        if is_too_large || received_bytes > most {
            is_too_large = true;
            collected = BytesMut::new();
            continue;
        }
        collected.extend_from_slice(&chunk);
    }
    Ok((!is_too_large).then(|| collected.freeze()))
}

fn is_json(content_type: &HeaderValue) -> bool {
    let essence = content_type.to_str().unwrap_or_default().split(';').next().unwrap_or_default().trim();
    essence.eq_ignore_ascii_case("application/json")
}

/// Returns the text of a body without its byte order mark. Halves of surrogate pairs become U+FFFD: JavaScript sends them where it
/// cuts a text inside a character.
fn json_text(bytes: &[u8]) -> HttpResult<Cow<'_, str>> {
    let bytes = bytes.strip_prefix("\u{feff}".as_bytes()).unwrap_or(bytes);
    let text = std::str::from_utf8(bytes).map_err(|error| {
        let at = error.valid_up_to();
        Error::field("", format!("is not UTF-8 from byte {at} on: encode the body as UTF-8"))
    })?;
    Ok(json::mend_surrogates(text).map_or(Cow::Borrowed(text), Cow::Owned))
}

/// Parses JSON of a documented type. An error contains the location of the fault.
pub(crate) fn parse<T: DeserializeOwned>(bytes: &[u8]) -> HttpResult<T> {
    let text = json_text(bytes)?;
    let bytes = text.as_bytes();
    // serde would also accept an array with the values of all fields, which is not documented.
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

/// Describes an optional header of a request.
pub(crate) fn header(name: &str, description: &str) -> Parameter {
    let header = ParameterBuilder::new().name(name).parameter_in(ParameterIn::Header).description(Some(description));
    header.required(Required::False).schema(Some(String::schema())).build()
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ResponseFormat {
    Json,
    Stream(Framing),
}

impl FromRequestParts<App> for ResponseFormat {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _app: &App) -> HttpResult<Self> {
        Self::of(&parts.headers)
    }
}

impl ResponseFormat {
    /// Parses the Accept headers. The highest `q` wins, then the first range.
    pub(crate) fn of(headers: &HeaderMap) -> HttpResult<Self> {
        let mut best: Option<(Self, f32)> = None;
        let mut is_requested = false;
        for value in headers.get_all(ACCEPT) {
            for range in value.to_str().unwrap_or_default().split(',').map(str::trim).filter(|range| !range.is_empty()) {
                is_requested = true;
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
            None if is_requested => {
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
        // An unknown preference is ignored (RFC 7240).
        Ok(Self(preferences.find_map(|preference| preference.strip_prefix("wait=")?.trim_matches('"').parse().ok())))
    }
}
