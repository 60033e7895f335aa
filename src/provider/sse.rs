//! Frames of a server-sent event stream, with bounds.
//!
//! The grammar (line ends, comments, byte order mark, text split between chunks) is `sse-stream`'s; it keeps an unfinished
//! event for as long as bytes come, so the bounds are counted here, before the bytes reach it.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_util::Stream;
use sse_stream::{Sse, SseByteStream};

use super::transport::{ByteStream, Frame};
use crate::domain::model::{ModelError, ModelErrorKind};

/// The most bytes that one event may have.
pub(super) const MAX_EVENT_BYTES: usize = 16 * 1024 * 1024;
/// The most bytes that one answer may have.
pub(super) const MAX_ANSWER_BYTES: usize = 64 * 1024 * 1024;

/// The error for an answer that is larger than we take.
pub(super) fn too_large(what: &str, limit: usize) -> ModelError {
    ModelError::new(ModelErrorKind::BadStream, &format!("{what} is larger than {} MiB", limit / (1024 * 1024)))
}

/// The events of an answer.
pub(super) struct SseFrames {
    parser: SseByteStream<Counted>,
    since_event: Arc<AtomicUsize>,
    /// The events that came so far.
    events: u64,
}

impl SseFrames {
    pub(super) fn new(bytes: ByteStream) -> Self {
        let since_event = Arc::new(AtomicUsize::new(0));
        let counted = Counted { errors: ErrorFields::default(), bytes, total: 0, since_event: Arc::clone(&since_event) };
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

/// The error for an event that cannot be read, with its number.
pub(super) fn bad_frame(event: u64, why: &dyn std::fmt::Display) -> ModelError {
    ModelError::new(ModelErrorKind::BadStream, &format!("bad_frame: event {event} of the answer: {why}"))
}

fn as_model_error(error: sse_stream::Error, event: u64) -> ModelError {
    match error {
        // The bytes come from us, so their errors are ours and only have to be unpacked.
        sse_stream::Error::Body(source) => match source.downcast::<ModelError>() {
            Ok(error) => *error,
            Err(source) => ModelError::new(ModelErrorKind::IncompleteStream, &source.to_string()),
        },
        other => bad_frame(event, &other),
    }
}

fn frame(event: Sse) -> Frame {
    // A gateway that takes comments for data passes them on as `data: : still here`. No JSON begins so.
    let data = event.data.filter(|data| !data.trim_start().starts_with(':'));
    Frame { event: event.event, data: data.unwrap_or_default() }
}

/// How far a line is on its way to be `error: {`, a field that no parser knows. Older servers of llama.cpp report errors in it.
#[derive(Debug, Default)]
struct ErrorFields {
    /// The bytes of [`ErrorFields::FIELD`] that the line began with.
    seen: usize,
    /// Whether the line is known to be another one.
    is_other: bool,
}

impl ErrorFields {
    const FIELD: &[u8] = b"error:";

    /// The same bytes with such fields as events of the type `error`.
    fn mend(&mut self, bytes: Bytes) -> Bytes {
        let is_end = |byte: u8| matches!(byte, b'\n' | b'\r');
        // Nearly always nothing is to be done.
        let begins = |at: usize| bytes.get(at).is_some_and(|byte| *byte == Self::FIELD[0]);
        let may_begin = (!self.is_other && (self.seen > 0 || begins(0)))
            || bytes.windows(2).any(|pair| is_end(pair[0]) && pair[1] == Self::FIELD[0]);
        if !may_begin {
            match bytes.last() {
                Some(last) if is_end(*last) => *self = Self::default(),
                Some(_) => self.is_other = true,
                None => {}
            }
            return bytes;
        }
        let mut mended = Vec::with_capacity(bytes.len() + 16);
        for byte in bytes {
            if !self.is_other {
                if Self::FIELD.get(self.seen) == Some(&byte) {
                    self.seen += 1;
                    continue;
                }
                self.is_other = true;
                match self.seen == Self::FIELD.len() {
                    true => mended.extend_from_slice(b"event: error\ndata:"),
                    false => mended.extend_from_slice(&Self::FIELD[..self.seen]),
                }
            }
            mended.push(byte);
            if is_end(byte) {
                *self = Self::default();
            }
        }
        mended.into()
    }
}

/// Bytes with a count of those since the last event; the count is shared with [`SseFrames`], which sees the events.
struct Counted {
    errors: ErrorFields,
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
        Poll::Ready(Some(Ok(self.errors.mend(chunk))))
    }
}
