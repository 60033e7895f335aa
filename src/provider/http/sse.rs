//! Frames of a server-sent event stream, with limits.
//!
//! The crate `sse-stream` parses line ends, comments, the byte order mark, and text that is split between chunks. It buffers an unfinished
//! event without a limit, so this module counts the bytes first.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use futures_util::{Stream, StreamExt as _};
use sse_stream::{Sse, SseByteStream};

use crate::domain::model::{ModelError, ModelErrorKind};
use crate::provider::http::unframed_errors::UnframedErrorFilter;

/// The largest event or line of an answer, in bytes.
pub(in crate::provider) const MAX_EVENT_BYTES: usize = 16 * 1024 * 1024;
/// The largest answer, in bytes.
pub(in crate::provider) const MAX_ANSWER_BYTES: usize = 64 * 1024 * 1024;

/// Returns the error about a `subject` that is larger than `limit` bytes.
pub(in crate::provider) fn too_large(subject: &str, limit: usize) -> ModelError {
    ModelError::new(ModelErrorKind::BadStream, &format!("{subject} is larger than {} MiB", limit / (1024 * 1024)))
}

/// Returns the frames of an answer. The stream fails when an event or the answer exceeds its limit.
pub(in crate::provider) fn sse_frames(bytes: ByteStream) -> Frames {
    let bytes_since_event = Arc::new(AtomicUsize::new(0));
    let (mut error_filter, mut total) = (UnframedErrorFilter::default(), 0);
    let counted = {
        let bytes_since_event = Arc::clone(&bytes_since_event);
        bytes.map(move |chunk| {
            let chunk = chunk?;
            total += chunk.len();
            if bytes_since_event.fetch_add(chunk.len(), Ordering::Relaxed) + chunk.len() > MAX_EVENT_BYTES {
                return Err(too_large("one event of the answer", MAX_EVENT_BYTES));
            }
            if total > MAX_ANSWER_BYTES {
                return Err(too_large("the answer", MAX_ANSWER_BYTES));
            }
            Ok(error_filter.convert(chunk))
        })
    };
    let mut events = 0;
    Box::pin(SseByteStream::new(counted).map(move |event| {
        let event = event.map_err(|error| as_model_error(error, events + 1))?;
        bytes_since_event.store(0, Ordering::Relaxed);
        events += 1;
        Ok(frame_of(event))
    }))
}

/// Returns the error about an invalid event. `event` is its number in the answer, from 1.
pub(in crate::provider) fn bad_frame(event: u64, why: &dyn std::fmt::Display) -> ModelError {
    ModelError::new(ModelErrorKind::BadStream, &format!("bad_frame: event {event} of the answer: {why}"))
}

fn as_model_error(error: sse_stream::Error, event: u64) -> ModelError {
    match error {
        // An error of the byte stream contains a `ModelError`.
        sse_stream::Error::Body(source) => match source.downcast::<ModelError>() {
            Ok(error) => *error,
            Err(source) => ModelError::new(ModelErrorKind::IncompleteStream, &source.to_string()),
        },
        other => bad_frame(event, &other),
    }
}

/// The names or data of keep-alive events that gateways send.
const KEEP_ALIVES: [&str; 4] = ["ping", "keepalive", "keep-alive", "heartbeat"];

/// Other spellings of the end mark `[DONE]`.
const END_MARKS: [&str; 3] = ["[done]", "done", "\"[done]\""];

/// Converts an event. The data of a keep-alive event becomes empty, and every end mark becomes `[DONE]`.
fn frame_of(event: Sse) -> Frame {
    let is_keep_alive = |text: &str| KEEP_ALIVES.contains(&text);
    let is_named = |is: &dyn Fn(&str) -> bool| event.event.as_deref().is_some_and(is);
    let data = event.data.as_deref().unwrap_or_default().trim();
    // A gateway that treats comments as data sends `data: : still here`. No JSON begins with a colon.
    let is_empty = data.is_empty() || data.starts_with(':') || data == "null" || is_keep_alive(data) || is_named(&is_keep_alive);
    let data = match event.data {
        // The event `error` has no data here. The decoder reports `{}` as an error.
        _ if is_empty && is_named(&|name| name == "error") => "{}".to_owned(),
        _ if is_empty => String::new(),
        Some(data) if END_MARKS.iter().any(|mark| data.trim().eq_ignore_ascii_case(mark)) => "[DONE]".to_owned(),
        data => data.unwrap_or_default(),
    };
    Frame { event: event.event, data }
}

/// The bytes of an answer. Every failure is a typed [`ModelError`].
pub(in crate::provider) type ByteStream = Pin<Box<dyn Stream<Item = Result<Bytes, ModelError>> + Send>>;

/// The format in which a provider divides a streamed answer into frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::provider) enum Framing {
    /// Server-sent events.
    Events,
    /// One JSON document per line.
    Lines,
}

/// One frame of a streamed answer.
pub(in crate::provider) struct Frame {
    /// The type of a server-sent event, if it has one.
    pub(in crate::provider) event: Option<String>,
    /// The data; empty for a keep-alive event.
    pub(in crate::provider) data: String,
}

pub(in crate::provider) type Frames = Pin<Box<dyn Stream<Item = Result<Frame, ModelError>> + Send>>;
