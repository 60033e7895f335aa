//! Frames of an answer with one JSON document per line, with the same limits as server-sent events.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_util::{Stream, TryStreamExt as _};
use tokio_util::codec::{AnyDelimiterCodec, AnyDelimiterCodecError, FramedRead};
use tokio_util::io::StreamReader;

use crate::domain::model::{ModelError, ModelErrorKind};
use crate::provider::http::sse::{ByteStream, Frame};
use crate::provider::http::sse::{MAX_ANSWER_BYTES, MAX_EVENT_BYTES, bad_frame, too_large};

type Bytes = Pin<Box<dyn Stream<Item = Result<bytes::Bytes, std::io::Error>> + Send>>;

/// The lines of an answer that are not blank.
pub(in crate::provider) struct LineFrames {
    lines: FramedRead<StreamReader<Bytes, bytes::Bytes>, AnyDelimiterCodec>,
    total: usize,
    events: u64,
    /// The failure of the answer, returned after its last line.
    broken: Option<ModelError>,
}

impl LineFrames {
    pub(in crate::provider) fn new(bytes: ByteStream) -> Self {
        // The reader only supports I/O errors, so the typed error is wrapped in one and unwrapped below.
        let bytes: Bytes = Box::pin(bytes.map_err(std::io::Error::other));
        let codec = AnyDelimiterCodec::new_with_max_length(b"\n".to_vec(), b"\n".to_vec(), MAX_EVENT_BYTES);
        Self { lines: FramedRead::new(StreamReader::new(bytes), codec), total: 0, events: 0, broken: None }
    }
}

impl Stream for LineFrames {
    type Item = Result<Frame, ModelError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if let Some(error) = self.broken.take() {
            return Poll::Ready(Some(Err(error)));
        }
        loop {
            let line = match ready!(Pin::new(&mut self.lines).poll_next(cx)) {
                Some(Ok(line)) => line,
                Some(Err(error)) => {
                    // The last line may be complete except for its line end.
                    let last = std::mem::take(self.lines.read_buffer_mut()).freeze();
                    if serde_json::from_slice::<serde::de::IgnoredAny>(&last).is_err() {
                        return Poll::Ready(Some(Err(as_model_error(error))));
                    }
                    self.broken = Some(as_model_error(error));
                    last
                }
                None => return Poll::Ready(None),
            };
            self.total += line.len();
            if self.total > MAX_ANSWER_BYTES {
                return Poll::Ready(Some(Err(too_large("the answer", MAX_ANSWER_BYTES))));
            }
            if !line.trim_ascii().is_empty() {
                self.events += 1;
                return Poll::Ready(Some(frame(line, self.events)));
            }
        }
    }
}

fn frame(line: bytes::Bytes, event: u64) -> Result<Frame, ModelError> {
    let data = String::from_utf8(line.into()).map_err(|error| match error.utf8_error().error_len() {
        Some(_) => bad_frame(event, &error),
        // The last line of a broken connection.
        None => ModelError::new(ModelErrorKind::IncompleteStream, "the connection ended inside a character of the answer"),
    })?;
    Ok(Frame { event: None, data })
}

fn as_model_error(error: AnyDelimiterCodecError) -> ModelError {
    match error {
        AnyDelimiterCodecError::MaxChunkLengthExceeded => too_large("one line of the answer", MAX_EVENT_BYTES),
        AnyDelimiterCodecError::Io(error) => match error.downcast::<ModelError>() {
            Ok(error) => error,
            Err(error) => ModelError::new(ModelErrorKind::BadStream, &format!("bad_frame: {error}")),
        },
    }
}
