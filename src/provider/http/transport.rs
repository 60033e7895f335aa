//! HTTP requests to a provider: sends a request within its time limits, and detects the form of the answer.

use std::time::Duration;

use bytes::Bytes;
use futures_util::{Stream, StreamExt as _};
use reqwest::header::HeaderMap;
use reqwest::{Client, RequestBuilder, Response};
use serde::de::IgnoredAny;
use tokio::time::{Instant, timeout_at};

use crate::domain::model::{ModelError, ModelErrorKind};
use crate::provider::errors::failure;
use crate::provider::errors::failure::RequestNames;
use crate::provider::http::ndjson::LineFrames;
use crate::provider::http::sse::{Frames, Framing};
use crate::provider::http::sse::{MAX_EVENT_BYTES, sse_frames, too_large};
use crate::provider::http::timeouts::{Deadline, NO_BYTE, StreamLimits, Timed, document_timeout, over_total, timeout};
use crate::provider::http::wire_log;
use crate::support::clock::UnixMillis;
use crate::support::net::http::{body_within, chain_without_url};
use crate::support::trace;

/// The most bytes of all headers of an answer. The HTTP client itself accepts some hundred thousand.
const MAX_HEADER_BYTES: usize = 32 * 1024;

/// The most bytes of an error's body that are read.
const MAX_ERROR_BODY_BYTES: usize = 64 * 1024;

/// The most chunks without content before an answer counts as blank.
const MAX_BLANK_CHUNKS: usize = 1024;

/// The form of an answer. Gateways mislabel content types, so the body decides.
pub(in crate::provider) enum Answer {
    Events(Frames),
    /// One complete JSON document.
    Document(Vec<u8>),
}

/// Sends a request, and waits for the first byte of the answer's body. If the connection breaks before the response head, sends the
/// request once more over the client that `fresh` returns. `names` are the model and the tools of the request, which errors may
/// quote.
pub(in crate::provider) async fn send(
    request: RequestBuilder,
    fresh: impl Fn() -> Option<Client>,
    framing: Option<Framing>,
    limits: &StreamLimits,
    total: Deadline,
    now: UnixMillis,
    names: RequestNames<'_>,
) -> Result<Answer, ModelError> {
    let first_byte = Deadline::after(limits.first_byte);
    let until = first_byte.at.min(total.at);
    let timeout_error = || {
        if until == total.at { over_total(total.limit) } else { timeout("no answer arrived", limits.first_byte) }
    };

    let request = traced(request);
    wire_log::sent(&request);
    let (client, request) = request.build_split();
    let request = request.map_err(network_error)?;
    let again = request.try_clone();
    let sent = timeout_at(until, client.execute(request)).await.map_err(|_| timeout_error())?;
    let response = match (sent, again) {
        (Err(error), Some(again)) if broke_before_head(&error) => match fresh() {
            Some(fresh) => timeout_at(until, fresh.execute(again)).await.map_err(|_| timeout_error())?,
            None => Err(error),
        },
        (sent, _) => sent,
    };
    let response = response.map_err(network_error)?;
    wire_log::began(response.status());
    check_headers(response.headers())?;
    if !response.status().is_success() {
        return Err(refusal(response, until, now, names).await);
    }
    let mut raw = Box::pin(response.bytes_stream().inspect(|piece| piece.iter().for_each(|piece| wire_log::log_received(piece))));
    let first = match timeout_at(until, raw.next()).await.map_err(|_| timeout_error())? {
        Some(chunk) => chunk.map_err(network_error)?,
        None => {
            return Err(ModelError::new(ModelErrorKind::IncompleteStream, "the provider closed the connection without an answer"));
        }
    };
    let cut = |error| {
        ModelError::new(
            ModelErrorKind::IncompleteStream,
            &format!("the connection ended inside the answer: {}", chain_without_url(error)),
        )
    };
    let rest = raw.map(move |chunk| chunk.map_err(cut));
    // The progress timeout cannot watch an answer that is one document, so this deadline limits it.
    let whole = Deadline::after(limits.for_whole_answer());
    let whole = if whole.at < total.at { whole } else { total };
    begin(first, Timed::new(rest, NO_BYTE, limits.idle, total), framing, whole).await
}

/// Returns whether an established connection broke before the response head.
fn broke_before_head(error: &reqwest::Error) -> bool {
    error.is_request() && !error.is_connect() && !error.is_timeout()
}

/// Adds the trace of the current task to a request.
fn traced(request: RequestBuilder) -> RequestBuilder {
    match trace::traceparent() {
        Some(traceparent) => request.header(trace::TRACEPARENT, traceparent),
        None => request,
    }
}

/// Limits the size of the headers.
fn check_headers(headers: &HeaderMap) -> Result<(), ModelError> {
    let bytes: usize = headers.iter().map(|(name, value)| name.as_str().len() + value.len()).sum();
    if bytes <= MAX_HEADER_BYTES {
        return Ok(());
    }
    let words = format!(
        "the headers of the answer are larger than {} KiB: the server at this URL is not a model API",
        MAX_HEADER_BYTES / 1024
    );
    Err(ModelError::new(ModelErrorKind::BadStream, &words))
}

/// Detects the form of an answer by its first non-blank byte, and by content after its first JSON document.
async fn begin<S>(first: Bytes, mut rest: S, framing: Option<Framing>, whole: Deadline) -> Result<Answer, ModelError>
where
    S: Stream<Item = Result<Bytes, ModelError>> + Send + Unpin + 'static,
{
    let mut first_chunks = vec![first];
    loop {
        match first_chunks.last().and_then(|chunk| chunk.iter().copied().find(|byte| !is_blank(*byte))) {
            Some(b'{') if framing == Some(Framing::Lines) => {
                let first_chunks = futures_util::stream::iter(first_chunks.into_iter().map(Ok));
                return Ok(Answer::Events(Box::pin(LineFrames::new(Box::pin(first_chunks.chain(rest))))));
            }
            Some(b'{' | b'[') => {
                let body = document(first_chunks, rest, whole).await?;
                if framing == Some(Framing::Events) && has_more_documents(&body) {
                    let body = Bytes::from(body.trim_ascii_start().to_vec());
                    return Ok(Answer::Events(sse_frames(Box::pin(futures_util::stream::iter([Ok(body)])))));
                }
                return Ok(Answer::Document(body));
            }
            Some(b'<') => {
                return Err(ModelError::new(ModelErrorKind::BadStream, "the provider sent a page of HTML instead of an answer"));
            }
            Some(_) => {
                let first_chunks = futures_util::stream::iter(first_chunks.into_iter().map(Ok));
                return Ok(Answer::Events(sse_frames(Box::pin(first_chunks.chain(rest)))));
            }
            None if first_chunks.len() > MAX_BLANK_CHUNKS => {
                return Err(ModelError::new(ModelErrorKind::BadStream, "the answer is blank"));
            }
            None => match timeout_at(whole.at, rest.next()).await.map_err(|_| over_total(whole.limit))? {
                Some(chunk) => first_chunks.push(chunk?),
                None => return Err(ModelError::new(ModelErrorKind::IncompleteStream, "the answer is blank")),
            },
        }
    }
}

/// Returns whether content follows the first JSON document of a body: gateways send one document per line, or an error before the events.
fn has_more_documents(body: &[u8]) -> bool {
    let mut documents = serde_json::Deserializer::from_slice(body).into_iter::<IgnoredAny>();
    let is_first_whole = matches!(documents.next(), Some(Ok(_)));
    let rest = body.get(documents.byte_offset()..).unwrap_or_default();
    is_first_whole && !rest.trim_ascii().is_empty()
}

/// Returns whether a byte is white space, or part of a UTF-8 byte order mark.
fn is_blank(byte: u8) -> bool {
    byte.is_ascii_whitespace() || matches!(byte, 0xef | 0xbb | 0xbf)
}

async fn document<S>(first_chunks: Vec<Bytes>, mut rest: S, whole: Deadline) -> Result<Vec<u8>, ModelError>
where
    S: Stream<Item = Result<Bytes, ModelError>> + Unpin,
{
    let mut body = first_chunks.concat();
    loop {
        let next = timeout_at(whole.at, rest.next()).await.map_err(|_| over_total(whole.limit))?;
        match next {
            Some(Ok(chunk)) => body.extend_from_slice(&chunk),
            // A complete document does not need the end of the body.
            Some(Err(_)) if serde_json::from_slice::<IgnoredAny>(&body).is_ok() => return Ok(body),
            Some(Err(error)) => return Err(error),
            None => return Ok(body),
        }
        if body.len() > MAX_EVENT_BYTES {
            return Err(too_large("the answer", MAX_EVENT_BYTES));
        }
    }
}

/// Reads an answer with an error status. Stops reading the body at the deadline, because the status alone is enough.
async fn refusal(response: Response, until: Instant, now: UnixMillis, names: RequestNames<'_>) -> ModelError {
    let (status, headers) = (response.status(), response.headers().clone());
    let mut body = Vec::new();
    let mut chunks =
        Box::pin(response.bytes_stream().inspect(|piece| piece.iter().for_each(|piece| wire_log::log_received(piece))));
    while let Ok(Some(Ok(chunk))) = timeout_at(until, chunks.next()).await {
        let room = MAX_ERROR_BODY_BYTES - body.len();
        body.extend_from_slice(&chunk[..chunk.len().min(room)]);
        if body.len() == MAX_ERROR_BODY_BYTES {
            break;
        }
    }
    failure::from_response(status, &headers, &body, now, names)
}

/// Sends a request whose answer is one document. Returns `None` if the document has more than `limit` bytes.
///
/// # Errors
/// A typed failure. The text of a timeout begins with `timeout_text` and ends with the limit.
pub(in crate::provider) async fn fetch(
    request: RequestBuilder,
    limit: usize,
    timeout_text: &str,
    time_limit: Duration,
    now: UnixMillis,
) -> Result<Option<Vec<u8>>, ModelError> {
    let until = Deadline::after(time_limit).at;
    let timeout_error = || document_timeout(timeout_text, time_limit);

    let sent = timeout_at(until, traced(request).send()).await.map_err(|_| timeout_error())?;
    let response = sent.map_err(network_error)?;
    if !response.status().is_success() {
        return Err(refusal(response, until, now, RequestNames::default()).await);
    }
    let body = timeout_at(until, body_within(response, limit)).await.map_err(|_| timeout_error())?;
    body.map_err(network_error)
}

/// Converts an error of the HTTP client into a network failure, without the URL.
fn network_error(error: reqwest::Error) -> ModelError {
    ModelError::new(ModelErrorKind::Network, &chain_without_url(error))
}
