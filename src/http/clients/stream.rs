//! The body of a translated event stream.
//!
//! A body ends cleanly only after the protocol's own end. Otherwise it is cut, because clients take a clean end for success.

use std::collections::VecDeque;

use axum::body::Body;
use axum::http::HeaderMap;
use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use futures_util::stream;
use serde_json::Value;
use tokio::time::Interval;
use tracing::{Instrument as _, Span};

use crate::domain::event::{SharedEvent, StoredEvent};
use crate::domain::problem::{ProblemBody, ProblemCode};
use crate::http::metrics::OpenStream;
use crate::http::options::App;
use crate::http::streams;
use crate::service::{Access, Reader, StreamItem};

/// Explains that the log was shortened or restored, so that its events are sent again from the first one.
pub(in crate::http) const RESTORED: &str = "the log of the run was shortened or restored; read the response again";

/// Returns the event of an item. Fails if the run has ended, or if its log was deleted, shortened or restored.
pub(in crate::http) fn event_of(item: StreamItem) -> Result<SharedEvent, Box<ProblemBody>> {
    let problem = match item {
        StreamItem::Event(event) => return Ok(event),
        StreamItem::Snapshot(_) | StreamItem::Reset { .. } => ProblemCode::Unavailable.body(RESTORED),
        StreamItem::End { .. } => response_missing(),
        StreamItem::Deleted { .. } => ProblemCode::NotFound.body("the run was deleted"),
    };
    Err(Box::new(problem))
}

/// Writes the events of one run as the frames of a protocol.
pub(in crate::http) trait FrameWriter: Send + 'static {
    /// Appends the frames of an event. Returns whether the protocol's stream is complete.
    fn write(&mut self, event: &StoredEvent, out: &mut String) -> bool;

    /// Appends the last frames of a stream that cannot go on. Returns false if the protocol has none: then the body is cut.
    fn interrupt(&mut self, problem: &ProblemBody, out: &mut String) -> bool;
}

/// A pure function from the events of one run to the chunks of a protocol.
pub(in crate::http) trait ChunkTranslator: Send + 'static {
    /// Returns the chunks that an event adds. The caller passes each event once, in the order of the log.
    fn translate(&mut self, event: &StoredEvent) -> Vec<Value>;

    /// Returns whether the protocol's stream is complete.
    fn is_over(&self) -> bool;
}

/// The differences between the frames of the protocols.
#[derive(Debug, Clone, Copy)]
pub(in crate::http) struct Frames {
    /// The last line of a complete stream.
    pub end: Option<&'static str>,
    /// Whether frames have ids: the `seq` of the event and the position of the chunk in it.
    pub ids: bool,
}

impl Frames {
    /// Writes the chunks of an event. `first` is the position of the first chunk.
    fn write(self, out: &mut String, seq: i64, first: usize, chunks: &[Value]) {
        use std::fmt::Write as _;
        for (position, chunk) in (first..).zip(chunks) {
            // Writing to a String cannot fail.
            let _ = match self.ids {
                true => write!(out, "id: {seq}-{position}\ndata: "),
                false => write!(out, "data: "),
            };
            push_chunk(out, chunk);
        }
    }
}

/// Appends a chunk and the end of its frame.
pub(in crate::http) fn push_chunk(out: &mut String, chunk: &Value) {
    // Unlike `Display` of a `Value`, this renders the whole chunk in one write. All keys are texts, so it cannot fail.
    out.push_str(&serde_json::to_string(chunk).unwrap_or_default());
    out.push_str("\n\n");
}

/// The reason why a body ends before its protocol's end.
#[derive(Debug, thiserror::Error)]
#[error("the stream is cut: reconnect for the rest")]
struct Cut;

/// Writes chunks as frames. Omits the frames up to and including the one with the id `cursor`.
pub(in crate::http) struct ChunkWriter<T> {
    pub translator: T,
    pub frames: Frames,
    pub cursor: Option<(i64, usize)>,
}

impl<T: ChunkTranslator> FrameWriter for ChunkWriter<T> {
    fn write(&mut self, event: &StoredEvent, out: &mut String) -> bool {
        let mut chunks = self.translator.translate(event);
        let mut first = 0;
        if let Some((seq, position)) = self.cursor {
            match event.seq.cmp(&seq) {
                std::cmp::Ordering::Less => chunks.clear(),
                std::cmp::Ordering::Equal => first = (position + 1).min(chunks.len()),
                std::cmp::Ordering::Greater => {}
            }
        }
        self.frames.write(out, event.seq, first, chunks.get(first..).unwrap_or_default());
        let is_over = self.translator.is_over();
        if is_over {
            out.extend(self.frames.end);
        }
        is_over
    }

    fn interrupt(&mut self, _: &ProblemBody, _: &mut String) -> bool {
        false
    }
}

/// Responds with a translated stream, which ends when the caller's access ends.
pub(in crate::http) fn respond(app: &App, access: Access, reader: Reader, writer: impl FrameWriter) -> Response {
    let open = OpenStream::new("sse");
    let body = TranslatedBody {
        app: app.clone(),
        access,
        reader,
        writer,
        ping: streams::pings(app),
        pending: VecDeque::new(),
        has_begun: false,
        has_ended: false,
        _open: open,
    };
    // The body outlives the request, and its log lines belong to the same request.
    let span = Span::current();
    let bytes = stream::unfold((body, span), |(mut body, span)| async move {
        let write = body.next().instrument(span.clone()).await?;
        Some((write, (body, span)))
    });
    (stream_headers(), Body::from_stream(bytes)).into_response()
}

/// Responds with a stream that is complete already.
pub(in crate::http) fn complete(frames: Frames, chunks: &[Value]) -> Response {
    let mut out = String::new();
    frames.write(&mut out, 0, 0, chunks);
    out.extend(frames.end);
    (stream_headers(), out).into_response()
}

fn stream_headers() -> HeaderMap {
    streams::headers("text/event-stream", "no-cache")
}

struct TranslatedBody<W> {
    app: App,
    access: Access,
    reader: Reader,
    writer: W,
    ping: Interval,
    pending: VecDeque<StreamItem>,
    has_begun: bool,
    has_ended: bool,
    _open: OpenStream,
}

type Write = Option<Result<Bytes, Cut>>;

impl<W: FrameWriter> TranslatedBody<W> {
    /// Returns the next write; `None` after the end.
    async fn next(&mut self) -> Write {
        if self.has_ended {
            return None;
        }
        if !std::mem::replace(&mut self.has_begun, true) {
            return Some(Ok(Bytes::from_static(b": connected\n\n")));
        }
        let mut out = String::new();
        loop {
            if self.access.is_over() {
                return self.interrupt(&access_ended(), out);
            }
            if self.pending.is_empty() {
                let shutdown = self.app.options.shutdown.clone();
                tokio::select! {
                    biased;
                    () = self.access.wait_until_over() => return self.interrupt(&access_ended(), out),
                    () = shutdown.cancelled() => return self.interrupt(&ProblemCode::Unavailable.body("the server restarts"), out),
                    items = self.reader.next() => match items {
                        Ok(Some(items)) => self.pending = items.into(),
                        Ok(None) => return self.interrupt(&response_missing(), out),
                        Err(error) => {
                            let error = &error as &dyn std::error::Error;
                            tracing::error!(error, "a translated stream ends because the log cannot be read");
                            return self.interrupt(&ProblemCode::Internal.body("the log of the run cannot be read"), out);
                        }
                    },
                    _ = self.ping.tick() => return Some(Ok(Bytes::from_static(b": keep-alive\n\n"))),
                }
            }
            while out.len() < streams::FRAME_BYTES && !self.has_ended {
                match self.pending.pop_front().map(event_of) {
                    None => break,
                    Some(Ok(event)) => self.has_ended = self.writer.write(&event, &mut out),
                    Some(Err(problem)) => return self.interrupt(&problem, out),
                }
            }
            if !out.is_empty() {
                return Some(Ok(out.into()));
            }
            if self.has_ended {
                return None;
            }
        }
    }

    /// Ends the body early: with the protocol's error frames if it has any, else by a cut.
    fn interrupt(&mut self, problem: &ProblemBody, mut out: String) -> Write {
        self.has_ended = true;
        Some(if self.writer.interrupt(problem, &mut out) { Ok(out.into()) } else { Err(Cut) })
    }
}

fn access_ended() -> ProblemBody {
    ProblemCode::Unauthorized.body("the key was revoked, or the session has ended")
}

fn response_missing() -> ProblemBody {
    ProblemCode::NotFound.body("the run has ended, and its log does not contain this response")
}
