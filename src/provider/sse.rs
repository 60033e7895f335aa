//! Frames of a server-sent event stream, with bounds.
//!
//! The crate `sse-stream` knows the grammar: line ends, comments, byte order mark, text split between chunks. It keeps an unfinished
//! event for as long as bytes come, so the bytes are counted here before they reach it.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_util::Stream;
use sse_stream::{Sse, SseByteStream};

use super::frames::{ByteStream, Frame};
use super::strays::Strays;
use crate::domain::model::{ModelError, ModelErrorKind};

pub(super) const MAX_EVENT_BYTES: usize = 16 * 1024 * 1024;
pub(super) const MAX_ANSWER_BYTES: usize = 64 * 1024 * 1024;

pub(super) fn too_large(what: &str, limit: usize) -> ModelError {
    ModelError::new(ModelErrorKind::BadStream, &format!("{what} is larger than {} MiB", limit / (1024 * 1024)))
}

/// The events of an answer.
pub(super) struct SseFrames {
    parser: SseByteStream<Counted>,
    since_event: Arc<AtomicUsize>,
    events: u64,
}

impl SseFrames {
    pub(super) fn new(bytes: ByteStream) -> Self {
        let since_event = Arc::new(AtomicUsize::new(0));
        let counted = Counted { strays: Strays::default(), bytes, total: 0, since_event: Arc::clone(&since_event) };
        Self { parser: SseByteStream::new(counted), since_event, events: 0 }
    }
}

impl Stream for SseFrames {
    type Item = Result<Frame, ModelError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let item = Pin::new(&mut self.parser).poll_next(cx);
        if let Poll::Ready(Some(Ok(_))) = item {
            self.since_event.store(0, Ordering::Relaxed);
            self.events += 1;
        }
        let next = self.events + 1;
        item.map(|item| item.map(|item| item.map(frame).map_err(|error| as_model_error(error, next))))
    }
}

pub(super) fn bad_frame(event: u64, why: &dyn std::fmt::Display) -> ModelError {
    ModelError::new(ModelErrorKind::BadStream, &format!("bad_frame: event {event} of the answer: {why}"))
}

fn as_model_error(error: sse_stream::Error, event: u64) -> ModelError {
    match error {
        // The bytes come from `Counted`, so their errors are typed and only have to be unpacked.
        sse_stream::Error::Body(source) => match source.downcast::<ModelError>() {
            Ok(error) => *error,
            Err(source) => ModelError::new(ModelErrorKind::IncompleteStream, &source.to_string()),
        },
        other => bad_frame(event, &other),
    }
}

/// The texts that gateways send in events to keep a connection alive.
const SIGNS_OF_LIFE: [&str; 4] = ["ping", "keepalive", "keep-alive", "heartbeat"];

/// Other forms of the end mark `[DONE]`.
const MARKS_OF_THE_END: [&str; 3] = ["[done]", "done", "\"[done]\""];

fn frame(event: Sse) -> Frame {
    let is_sign = |text: &str| SIGNS_OF_LIFE.contains(&text);
    let is_named = |is: &dyn Fn(&str) -> bool| event.event.as_deref().is_some_and(is);
    let data = event.data.as_deref().unwrap_or_default().trim();
    // A gateway that takes comments for data passes them on as `data: : still here`. No JSON begins so.
    let says_nothing = data.is_empty() || data.starts_with(':') || data == "null" || is_sign(data) || is_named(&is_sign);
    let data = match event.data {
        // An error event without words.
        _ if says_nothing && is_named(&|name| name == "error") => "{}".to_owned(),
        _ if says_nothing => String::new(),
        Some(data) if MARKS_OF_THE_END.iter().any(|mark| data.trim().eq_ignore_ascii_case(mark)) => "[DONE]".to_owned(),
        data => data.unwrap_or_default(),
    };
    Frame { event: event.event, data }
}

/// Bytes with a count of those since the last event; the count is shared with [`SseFrames`], which sees the events.
struct Counted {
    strays: Strays,
    bytes: ByteStream,
    total: usize,
    since_event: Arc<AtomicUsize>,
}

impl Stream for Counted {
    type Item = Result<Bytes, ModelError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let item = self.bytes.as_mut().poll_next(cx);
        let Poll::Ready(Some(Ok(chunk))) = &item else { return item };
        self.total += chunk.len();
        let since_event = self.since_event.fetch_add(chunk.len(), Ordering::Relaxed) + chunk.len();
        if since_event > MAX_EVENT_BYTES {
            return Poll::Ready(Some(Err(too_large("one event of the answer", MAX_EVENT_BYTES))));
        }
        if self.total > MAX_ANSWER_BYTES {
            return Poll::Ready(Some(Err(too_large("the answer", MAX_ANSWER_BYTES))));
        }
        let chunk = chunk.clone();
        Poll::Ready(Some(Ok(self.strays.mend(chunk))))
    }
}
