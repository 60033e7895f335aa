//! Event streams over HTTP. Each write contains the available events, up to a limit, in the framing that the client prefers.
//!
//! Owns the body of a stream. Must not know how events are read.

pub(super) mod cursor;
pub(super) mod framing;
pub(super) mod preferred_response;
pub(super) mod render;
pub(super) mod tickets;
pub(super) mod ws;

use std::collections::VecDeque;
use std::convert::Infallible;

use axum::body::Body;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderName};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::stream;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};
use tracing::{Instrument as _, Span};

use crate::http::metrics::OpenStream;
use crate::http::options::App;
use crate::http::streams::framing::Framing;
use crate::service::{Access, Reader, StreamItem, StreamStart};

/// Limit of one write in bytes, unless a single event is larger.
pub(in crate::http) const FRAME_BYTES: usize = 64 * 1024;

/// Responds with a stream, or with 204 if there are no more events. A browser's EventSource does not reconnect after a 204.
pub(crate) fn respond(app: &App, access: Access, start: StreamStart, framing: Framing) -> Response {
    match start {
        StreamStart::Stream(reader) => stream(app, access, reader, framing),
        StreamStart::Finished { .. } => StatusCode::NO_CONTENT.into_response(),
    }
}

/// Responds with a stream, which ends when the caller's access ends.
pub(crate) fn stream(app: &App, access: Access, reader: Reader, framing: Framing) -> Response {
    let (app, ping, open) = (app.clone(), pings(app), OpenStream::new(framing.transport()));
    let writer = Writer { app, access, reader, framing, ping, pending: VecDeque::new(), state: State::New, _open: open };
    // The body outlives the request, and its log lines belong to the same request.
    let span = Span::current();
    let frames = stream::unfold((writer, span), |(mut writer, span)| async move {
        let frame = writer.frame().instrument(span.clone()).await?;
        Some((Ok::<_, Infallible>(frame), (writer, span)))
    });
    (headers(framing.content_type(), "no-store"), Body::from_stream(frames)).into_response()
}

/// Returns the times at which a stream without events sends a keep-alive.
pub(in crate::http) fn pings(app: &App) -> Interval {
    let every = app.options.limits.sse_ping;
    let mut pings = interval_at(Instant::now() + every, every);
    pings.set_missed_tick_behavior(MissedTickBehavior::Delay);
    pings
}

/// Returns the headers of a stream.
pub(in crate::http) fn headers(content_type: &'static str, cache_control: &'static str) -> HeaderMap {
    let headers = [
        (CONTENT_TYPE, content_type),
        (CACHE_CONTROL, cache_control),
        // Tells nginx and similar proxies not to buffer.
        (HeaderName::from_static("x-accel-buffering"), "no"),
    ];
    headers.into_iter().map(|(name, value)| (name, HeaderValue::from_static(value))).collect()
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    New,
    Open,
    Over,
}

struct Writer {
    app: App,
    access: Access,
    reader: Reader,
    framing: Framing,
    ping: Interval,
    pending: VecDeque<StreamItem>,
    state: State,
    _open: OpenStream,
}

impl Writer {
    /// Returns the next write, or `None` at the end of the stream.
    async fn frame(&mut self) -> Option<Bytes> {
        match self.state {
            State::New => {
                self.state = State::Open;
                if let Some(words) = self.framing.opening() {
                    return Some(Bytes::from_static(words.as_bytes()));
                }
            }
            State::Open => {}
            State::Over => return None,
        }
        // A slow client may read a pending event long after its key was revoked.
        if self.access.is_over() {
            return self.end_with(self.framing.key_is_over());
        }
        while self.pending.is_empty() {
            let shutdown = self.app.options.shutdown.clone();
            tokio::select! {
                biased;
                () = self.access.wait_until_over() => return self.end_with(self.framing.key_is_over()),
                () = shutdown.cancelled() => return self.end_with(self.framing.restart_frame()),
                items = self.reader.next() => match items {
                    Ok(Some(items)) => self.pending = items.into(),
                    Ok(None) => return None,
                    Err(error) => {
                        // The client reconnects with its cursor and receives a response with the error.
                        tracing::error!(error = &error as &dyn std::error::Error, "an event stream ends because the log cannot be read");
                        return None;
                    }
                },
                _ = self.ping.tick() => {
                    let line = render::ping(&self.reader.scope, self.app.service.clock().now(), self.reader.cursor);
                    return Some(self.framing.ping(&line).into());
                }
            }
        }
        Some(self.render())
    }

    fn end_with(&mut self, words: Option<String>) -> Option<Bytes> {
        self.state = State::Over;
        words.map(Into::into)
    }

    fn render(&mut self) -> Bytes {
        let now = self.app.service.clock().now();
        let mut frame = String::new();
        while frame.len() < FRAME_BYTES {
            let Some(item) = self.pending.pop_front() else { break };
            let line = render::line(&item, &self.reader.scope, now);
            self.framing.event(&mut frame, line.cursor, &line.json);
        }
        frame.into()
    }
}
