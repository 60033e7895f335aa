//! HTTP to a provider: one POST, its limits, and the beginning of the answer.

use std::time::Duration;

use bytes::Bytes;
use futures_util::{Stream, StreamExt as _};
use reqwest::header::HeaderMap;
use reqwest::{RequestBuilder, Response};
use serde::de::IgnoredAny;
use tokio::time::{Instant, timeout_at};

use crate::domain::model::{ModelError, ModelErrorKind};
use crate::provider::errors::failure;
use crate::provider::errors::failure::RequestNames;
use crate::provider::http::frames::{Frames, Framing};
use crate::provider::http::ndjson::LineFrames;
use crate::provider::http::sse::{MAX_EVENT_BYTES, sse_frames, too_large};
use crate::provider::http::timeouts::{Deadline, SILENCE, StreamLimits, Timed, over_total, timeout};
use crate::provider::http::wire_log;
use crate::support::clock::UnixMillis;
use crate::support::net::http::{body_within, chain_without_url};

/// The most bytes that the headers of an answer may have together. The HTTP client itself refuses some hundred thousand.
const MAX_HEADER_BYTES: usize = 32 * 1024;

/// The most bytes of an error's body that are read.
const MAX_ERROR_BODY_BYTES: usize = 64 * 1024;

/// An answer that has begun, by its first byte: gateways send events as JSON, JSON as events, and both as text.
pub(in crate::provider) enum Answer {
    Events(Frames),
    /// One whole JSON document.
    Document(Vec<u8>),
}

/// Sends a request, which holds these names, and waits for the first byte of its answer.
pub(in crate::provider) async fn send(
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

    wire_log::sent(&request);
    let response = timeout_at(until, request.send()).await.map_err(|_| late())?.map_err(network_error)?;
    wire_log::began(response.status());
    check_headers(response.headers())?;
    if !response.status().is_success() {
        return Err(refusal(response, until, now, names).await);
    }
    let mut raw = Box::pin(response.bytes_stream().inspect(|piece| piece.iter().for_each(|piece| wire_log::came(piece))));
    let first = match timeout_at(until, raw.next()).await.map_err(|_| late())? {
        Some(chunk) => chunk.map_err(network_error)?,
        None => {
            return Err(ModelError::new(ModelErrorKind::IncompleteStream, "the provider closed the connection without an answer"));
        }
    };
    let cut =
        |error| ModelError::new(ModelErrorKind::IncompleteStream, &format!("the answer was cut: {}", chain_without_url(error)));
    let rest = raw.map(move |chunk| chunk.map_err(cut));
    // Nothing shows the progress of an answer in one piece.
    let whole = Deadline::after(limits.for_whole_answer());
    let whole = if whole.at < total.at { whole } else { total };
    begin(first, Timed::new(rest, SILENCE, limits.idle, total), framing, whole).await
}

/// Bounds the headers that the rest of the program works with.
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

/// Tells the kind of an answer by its first byte that is not blank.
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
                return Ok(Answer::Events(sse_frames(Box::pin(head.chain(rest)))));
            }
            None if head.len() > 1024 => return Err(ModelError::new(ModelErrorKind::BadStream, "the answer is blank")),
            None => match timeout_at(whole.at, rest.next()).await.map_err(|_| over_total(whole.limit))? {
                Some(chunk) => head.push(chunk?),
                None => return Err(ModelError::new(ModelErrorKind::IncompleteStream, "the answer is blank")),
            },
        }
    }
}

/// Returns whether a body goes on after a first JSON document: gateways send one a line, or an error before the events.
fn goes_on(body: &[u8]) -> bool {
    let mut documents = serde_json::Deserializer::from_slice(body).into_iter::<IgnoredAny>();
    let is_first_whole = matches!(documents.next(), Some(Ok(_)));
    let rest = body.get(documents.byte_offset()..).unwrap_or_default();
    is_first_whole && !rest.trim_ascii().is_empty()
}

/// Returns the events of a whole body.
fn events(body: Vec<u8>) -> Frames {
    let body = Bytes::from(body.trim_ascii_start().to_vec());
    sse_frames(Box::pin(futures_util::stream::iter([Ok(body)])))
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
            // A whole document needs no end of the body.
            Some(Err(_)) if serde_json::from_slice::<IgnoredAny>(&body).is_ok() => return Ok(body),
            Some(Err(error)) => return Err(error),
            None => return Ok(body),
        }
        if body.len() > MAX_EVENT_BYTES {
            return Err(too_large("the answer", MAX_EVENT_BYTES));
        }
    }
}

/// Reads an answer with an error status. Its body is optional, so bytes that come late are left out.
async fn refusal(response: Response, until: Instant, now: UnixMillis, names: RequestNames<'_>) -> ModelError {
    let (status, headers) = (response.status(), response.headers().clone());
    let mut body = Vec::new();
    let mut chunks = Box::pin(response.bytes_stream().inspect(|piece| piece.iter().for_each(|piece| wire_log::came(piece))));
    while let Ok(Some(Ok(chunk))) = timeout_at(until, chunks.next()).await {
        let room = MAX_ERROR_BODY_BYTES - body.len();
        body.extend_from_slice(&chunk[..chunk.len().min(room)]);
        if body.len() == MAX_ERROR_BODY_BYTES {
            break;
        }
    }
    failure::from_response(status, &headers, &body, now, names)
}

/// Sends a request whose answer is one document. Returns `None` if that has more than `limit` bytes.
///
/// # Errors
/// A typed failure. One of a document that does not come in time says `late`.
pub(in crate::provider) async fn fetch(
    request: RequestBuilder,
    limit: usize,
    late: &str,
    patience: Duration,
    now: UnixMillis,
) -> Result<Option<Vec<u8>>, ModelError> {
    let fetched = tokio::time::timeout(patience, async {
        let response = request.send().await.map_err(network_error)?;
        if !response.status().is_success() {
            return Err(refusal(response, Instant::now() + patience, now, RequestNames::default()).await);
        }
        body_within(response, limit).await.map_err(network_error)
    });
    fetched.await.map_err(|_| timeout(late, patience))?
}

/// Returns the failure of a connection that could not be made, or broke before the answer began.
fn network_error(error: reqwest::Error) -> ModelError {
    ModelError::new(ModelErrorKind::Network, &chain_without_url(error))
}
