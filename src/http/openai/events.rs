//! Translates the events of a run for one request, and reads them until the translation is complete.

use serde_json::Value;

use crate::domain::problem::{ProblemBody, ProblemCode};
use crate::http::clients::stream::{ChunkTranslator, RESTORED};
use crate::http::options::App;
use crate::service::{Reader, StreamItem};

/// Whether a translation is complete.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Flow {
    #[default]
    Continue,
    /// The run has ended.
    End,
    /// The run waits for its client, and the response has everything that the client needs to continue.
    Suspended,
}

/// A translator whose stream may also end because the run waits for its client, or by the protocol's own error.
pub(super) trait Translator: ChunkTranslator {
    /// Returns whether the translation is complete, after the newest event.
    fn flow(&self) -> Flow;

    /// Returns the last chunks of a stream that cannot go on.
    fn interrupt(&mut self, problem: &ProblemBody) -> Vec<Value>;

    /// Appends the newest chunks as server-sent events.
    fn write(&self, chunks: &[Value], out: &mut String);
}

/// Reads a run until its translation is complete. Returns the problem if that never happens, or if the server shuts down first.
pub(super) async fn complete(app: &App, mut reader: Reader, translator: &mut impl Translator) -> Result<Flow, ProblemBody> {
    loop {
        let read = tokio::select! {
            read = reader.next() => read,
            () = app.options.shutdown.cancelled() => return Err(ProblemCode::Unavailable.body("the server restarts")),
        };
        let items = match read {
            Ok(Some(items)) => items,
            Ok(None) | Err(_) => return Err(ProblemCode::Internal.body("the log of the run cannot be read")),
        };
        for item in &items {
            match item {
                StreamItem::Event(event) => {
                    translator.translate(event);
                    if translator.is_over() {
                        return Ok(translator.flow());
                    }
                }
                StreamItem::Reset { .. } => return Err(ProblemCode::Unavailable.body(RESTORED)),
                StreamItem::Snapshot(_) => {}
                StreamItem::End { .. } | StreamItem::Deleted { .. } => {
                    return Err(ProblemCode::NotFound.body("the run was deleted before it had an answer"));
                }
            }
        }
    }
}
