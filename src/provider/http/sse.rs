//! Frames of a server-sent event stream, with bounds.
//!
//! The crate `sse-stream` knows the grammar: line ends, comments, byte order mark, text split between chunks. It keeps an unfinished
//! event for as long as bytes come, so the bytes are counted here before they reach it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::StreamExt as _;
use sse_stream::{Sse, SseByteStream};

use crate::domain::model::{ModelError, ModelErrorKind};
use crate::provider::http::frames::{ByteStream, Frame, Frames};
use crate::provider::http::strays::Strays;

pub(in crate::provider) const MAX_EVENT_BYTES: usize = 16 * 1024 * 1024;
pub(in crate::provider) const MAX_ANSWER_BYTES: usize = 64 * 1024 * 1024;

pub(in crate::provider) fn too_large(what: &str, limit: usize) -> ModelError {
    ModelError::new(ModelErrorKind::BadStream, &format!("{what} is larger than {} MiB", limit / (1024 * 1024)))
}

/// Returns the events of an answer.
pub(in crate::provider) fn sse_frames(bytes: ByteStream) -> Frames {
    let since_event = Arc::new(AtomicUsize::new(0));
    let (mut strays, mut total, counter) = (Strays::default(), 0, Arc::clone(&since_event));
    let counted = bytes.map(move |chunk| {
        let chunk = chunk?;
        total += chunk.len();
        if counter.fetch_add(chunk.len(), Ordering::Relaxed) + chunk.len() > MAX_EVENT_BYTES {
            return Err(too_large("one event of the answer", MAX_EVENT_BYTES));
        }
        if total > MAX_ANSWER_BYTES {
            return Err(too_large("the answer", MAX_ANSWER_BYTES));
        }
        Ok(strays.mend(chunk))
    });
    let mut events = 0;
    Box::pin(SseByteStream::new(counted).map(move |event| {
        let event = event.map_err(|error| as_model_error(error, events + 1))?;
        since_event.store(0, Ordering::Relaxed);
        events += 1;
        Ok(frame(event))
    }))
}

pub(in crate::provider) fn bad_frame(event: u64, why: &dyn std::fmt::Display) -> ModelError {
    ModelError::new(ModelErrorKind::BadStream, &format!("bad_frame: event {event} of the answer: {why}"))
}

fn as_model_error(error: sse_stream::Error, event: u64) -> ModelError {
    match error {
        // Errors of the counted bytes are typed, and only have to be unpacked.
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
