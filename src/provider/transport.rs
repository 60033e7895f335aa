//! HTTP to a provider: one POST, its limits, and the beginning of the answer.

use std::error::Error as _;

use bytes::Bytes;
use futures_util::{Stream, StreamExt as _};
use reqwest::header::HeaderMap;
use reqwest::{Client, RequestBuilder, Response, Url, redirect};
use serde::de::IgnoredAny;
use tokio::time::{Instant, timeout_at};

use super::failure::RequestNames;
use super::frames::{Frames, Framing};
use super::limits::{Deadline, StreamLimits, Timed, over_total, timeout};
use super::lines::LineFrames;
use super::sse::{MAX_EVENT_BYTES, SseFrames, too_large};
use super::{SetupError, failure, monitor};
use crate::domain::model::{ModelError, ModelErrorKind};
use crate::support::clock::UnixMillis;
use crate::support::http::client_for;
use crate::support::outbound::{self, Reach};

/// The most bytes that the headers of an answer may have together. What is above some hundred thousand is not even read.
const MAX_HEADER_BYTES: usize = 32 * 1024;

/// The most bytes of an error's body that are looked at.
const MAX_ERROR_BODY_BYTES: usize = 64 * 1024;

/// An answer that has begun, by what its first byte says. The content type is not asked: gateways send events as JSON, JSON
/// as events, and both as text.
pub(super) enum Answer {
    /// A streamed one.
    Events(Frames),
    /// One JSON document, whole.
    Document(Vec<u8>),
}

/// An HTTP client for one provider. It follows no redirect: the next host would get the key and the conversation.
pub(super) fn client(url: &str, headers: HeaderMap, limits: &StreamLimits, reach: Reach) -> Result<Client, SetupError> {
    outbound::check(&endpoint_url(url, "")?, reach)?;
    outbound::guarded(client_for(url), reach)
        .user_agent(concat!("capstan/", env!("CARGO_PKG_VERSION")))
        .default_headers(headers)
        .connect_timeout(limits.connect)
        .redirect(redirect::Policy::none())
        .build()
        .map_err(|error| SetupError::Client(error.without_url()))
}

/// The URL of an operation below a base URL. A base without a path is the bare host of an API whose paths begin with `/v1`.
///
/// # Errors
/// If the base is no URL of HTTP.
pub fn endpoint_url(base: &str, operation: &str) -> Result<Url, SetupError> {
    let (url, path) = base_url(base)?;
    let path = if path.is_empty() { "/v1".to_owned() } else { path };
    Ok(with_operation(url, path, operation))
}

/// The URL of an operation of an API whose paths have a version in front, below a base URL that may end in one.
///
/// # Errors
/// If the base is no URL of HTTP.
pub(super) fn versioned_url(base: &str, version: &str, operation: &str) -> Result<Url, SetupError> {
    let (url, path) = base_url(base)?;
    let whole = !operation.is_empty() && path.ends_with(operation);
    let mut segments = path.rsplit('/');
    // Vertex names project and publisher behind the version.
    let has_version = segments.next().is_some_and(is_version) || segments.next() == Some("publishers");
    let path = if whole || has_version { path } else { format!("{path}/{version}") };
    Ok(with_operation(url, path, operation))
}

/// `v1`, `v1beta` and the like.
fn is_version(segment: &str) -> bool {
    let rest = segment.strip_prefix('v').unwrap_or_default();
    rest.starts_with(|first: char| first.is_ascii_digit()) && rest.bytes().all(|byte| byte.is_ascii_alphanumeric())
}

/// A base URL, and its path without a slash at the end.
pub(super) fn base_url(base: &str) -> Result<(Url, String), SetupError> {
    let refuse = |reason: &str| SetupError::BaseUrl { url: crate::support::redact::error_text(base), reason: reason.to_owned() };
    let url = Url::parse(base.trim()).map_err(|error| refuse(&error.to_string()))?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(refuse("the scheme is neither http nor https"));
    }
    let path = url.path().trim_end_matches('/').to_owned();
    Ok((url, path))
}

fn with_operation(mut url: Url, path: String, operation: &str) -> Url {
    if path.ends_with(operation) {
        url.set_path(&path);
    } else {
        url.set_path(&format!("{path}{operation}"));
    }
    url
}

/// Sends a request, which holds these names, and waits for the first byte of its answer.
pub(super) async fn send(
    request: RequestBuilder,
    framing: Option<Framing>,
    limits: &StreamLimits,
    total: Deadline,
    now: UnixMillis,
    names: RequestNames<'_>,
) -> Result<Answer, ModelError> {
    let first_byte = Deadline::after(limits.first_byte);
    let until = first_byte.at.min(total.at);
    let late = || {
        if until == total.at { over_total(total.limit) } else { timeout("no answer came", limits.first_byte) }
    };

    monitor::sent(&request);
    let response = timeout_at(until, request.send()).await.map_err(|_| late())?.map_err(network_error)?;
    monitor::began(response.status());
    check_headers(response.headers())?;
    if !response.status().is_success() {
        return Err(refusal(response, until, now, names).await);
    }
    let mut raw = Box::pin(response.bytes_stream().inspect(|piece| piece.iter().for_each(|piece| monitor::came(piece))));
    let first = match timeout_at(until, raw.next()).await.map_err(|_| late())? {
        Some(chunk) => chunk.map_err(network_error)?,
        None => {
            return Err(ModelError::new(ModelErrorKind::IncompleteStream, "the provider closed the connection without an answer"));
        }
    };
    let rest = raw.map(|chunk| chunk.map_err(cut_error));
    // Nothing shows the progress of an answer in one piece.
    let whole = Deadline::after(limits.for_whole_answer());
    let whole = if whole.at < total.at { whole } else { total };
    begin(first, Timed::bytes(rest, limits.idle, total), framing, whole).await
}

/// Bounds what the rest of the program has to do with.
fn check_headers(headers: &HeaderMap) -> Result<(), ModelError> {
    let bytes: usize = headers.iter().map(|(name, value)| name.as_str().len() + value.len()).sum();
    if bytes <= MAX_HEADER_BYTES {
        return Ok(());
    }
    let words = format!(
        "the headers of the answer are larger than {} KiB: something else than a model's API answers there",
        MAX_HEADER_BYTES / 1024
    );
    Err(ModelError::new(ModelErrorKind::BadStream, &words))
}

/// Looks at the first byte that is not blank.
async fn begin<S>(first: Bytes, mut rest: S, framing: Option<Framing>, whole: Deadline) -> Result<Answer, ModelError>
where
    S: Stream<Item = Result<Bytes, ModelError>> + Send + Unpin + 'static,
{
    let mut head = vec![first];
    loop {
        match head.last().and_then(|chunk| chunk.iter().copied().find(|byte| !is_blank(*byte))) {
            Some(b'{') if framing == Some(Framing::Lines) => {
                let head = futures_util::stream::iter(head.into_iter().map(Ok));
                return Ok(Answer::Events(Box::pin(LineFrames::new(Box::pin(head.chain(rest))))));
            }
            Some(b'{' | b'[') => {
                let body = document(head, rest, whole).await?;
                let is_stream = framing == Some(Framing::Events) && goes_on(&body);
                return Ok(if is_stream { Answer::Events(events(body)) } else { Answer::Document(body) });
            }
            Some(b'<') => {
                return Err(ModelError::new(ModelErrorKind::BadStream, "the provider sent a page of HTML instead of an answer"));
            }
            Some(_) => {
                let head = futures_util::stream::iter(head.into_iter().map(Ok));
                return Ok(Answer::Events(Box::pin(SseFrames::new(Box::pin(head.chain(rest))))));
            }
            None if head.len() > 1024 => return Err(ModelError::new(ModelErrorKind::BadStream, "the answer is blank")),
            None => match timeout_at(whole.at, rest.next()).await.map_err(|_| over_total(whole.limit))? {
                Some(chunk) => head.push(chunk?),
                None => return Err(ModelError::new(ModelErrorKind::IncompleteStream, "the answer is blank")),
            },
        }
    }
}

/// Whether a body goes on after a first JSON document: gateways send one a line, or an error before the events of an answer.
fn goes_on(body: &[u8]) -> bool {
    let mut documents = serde_json::Deserializer::from_slice(body).into_iter::<IgnoredAny>();
    let is_first_whole = matches!(documents.next(), Some(Ok(_)));
    let rest = body.get(documents.byte_offset()..).unwrap_or_default();
    is_first_whole && !rest.trim_ascii().is_empty()
}

/// The events of a body that is there already.
fn events(body: Vec<u8>) -> Frames {
    let body = Bytes::from(body.trim_ascii_start().to_vec());
    Box::pin(SseFrames::new(Box::pin(futures_util::stream::iter([Ok(body)]))))
}

/// White space, or part of a UTF-8 byte order mark.
fn is_blank(byte: u8) -> bool {
    byte.is_ascii_whitespace() || matches!(byte, 0xef | 0xbb | 0xbf)
}

async fn document<S>(head: Vec<Bytes>, mut rest: S, whole: Deadline) -> Result<Vec<u8>, ModelError>
where
    S: Stream<Item = Result<Bytes, ModelError>> + Unpin,
{
    let mut body = head.concat();
    loop {
        let next = timeout_at(whole.at, rest.next()).await.map_err(|_| over_total(whole.limit))?;
        match next {
            Some(Ok(chunk)) => body.extend_from_slice(&chunk),
            // A document shows itself that it is whole.
            Some(Err(_)) if serde_json::from_slice::<IgnoredAny>(&body).is_ok() => return Ok(body),
            Some(Err(error)) => return Err(error),
            None => return Ok(body),
        }
        if body.len() > MAX_EVENT_BYTES {
            return Err(too_large("the answer", MAX_EVENT_BYTES));
        }
    }
}

/// An answer with an error status. Its body is a help, not a need: what has not come in time is left out.
pub(super) async fn refusal(response: Response, until: Instant, now: UnixMillis, names: RequestNames<'_>) -> ModelError {
    let (status, headers) = (response.status(), response.headers().clone());
    let mut body = Vec::new();
    let mut chunks = Box::pin(response.bytes_stream().inspect(|piece| piece.iter().for_each(|piece| monitor::came(piece))));
    while let Ok(Some(Ok(chunk))) = timeout_at(until, chunks.next()).await {
        let room = MAX_ERROR_BODY_BYTES - body.len();
        body.extend_from_slice(&chunk[..chunk.len().min(room)]);
        if body.len() == MAX_ERROR_BODY_BYTES {
            break;
        }
    }
    failure::from_response(status, &headers, &body, now, names)
}

/// A connection that could not be made, or broke before the answer began.
pub(super) fn network_error(error: reqwest::Error) -> ModelError {
    ModelError::new(ModelErrorKind::Network, &words(error))
}

/// A connection that broke within the answer.
fn cut_error(error: reqwest::Error) -> ModelError {
    ModelError::new(ModelErrorKind::IncompleteStream, &format!("the answer was cut: {}", words(error)))
}

/// The error with its causes, without the URL, which may hold a key.
fn words(error: reqwest::Error) -> String {
    let error = error.without_url();
    let mut words = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let text = error.to_string();
        if !words.ends_with(&text) {
            words.push_str(": ");
            words.push_str(&text);
        }
        cause = error.source();
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_of_all_sorts_of_base_urls() {
        for (base, url) in [
            ("https://api.openai.com", "https://api.openai.com/v1/chat/completions"),
            ("https://api.openai.com/", "https://api.openai.com/v1/chat/completions"),
            ("https://api.openai.com/v1/", "https://api.openai.com/v1/chat/completions"),
            ("http://localhost:11434/v1", "http://localhost:11434/v1/chat/completions"),
            ("https://host/v1beta/openai", "https://host/v1beta/openai/chat/completions"),
            ("https://host/d/gpt?api-version=1", "https://host/d/gpt/chat/completions?api-version=1"),
            ("https://host/v1/chat/completions", "https://host/v1/chat/completions"),
        ] {
            assert_eq!(endpoint_url(base, "/chat/completions").unwrap().as_str(), url, "{base}");
        }
        for base in ["localhost:8000", "ftp://host/v1", "", "/v1"] {
            assert!(endpoint_url(base, "/chat/completions").is_err(), "{base}");
        }
    }

    #[test]
    fn a_version_is_added_once() {
        for (base, url) in [
            ("https://api.anthropic.com", "https://api.anthropic.com/v1/messages"),
            ("https://api.anthropic.com/v1/", "https://api.anthropic.com/v1/messages"),
            ("https://host/anthropic", "https://host/anthropic/v1/messages"),
            ("https://host/v1/account/gateway/anthropic", "https://host/v1/account/gateway/anthropic/v1/messages"),
            ("https://host/v2beta", "https://host/v2beta/messages"),
            ("https://host/vertex?x=1", "https://host/vertex/v1/messages?x=1"),
            ("https://host/a/v1/messages", "https://host/a/v1/messages"),
        ] {
            assert_eq!(versioned_url(base, "v1", "/messages").unwrap().as_str(), url, "{base}");
        }
        assert!(versioned_url("host", "v1", "/messages").is_err());
    }
}
