//! Follows a run for one request: sends its translated events as a stream, or reads them until the translation is complete.

use std::sync::Arc;

use serde_json::Value;

use crate::domain::access::principal::Principal;
use crate::domain::event::StoredEvent;
use crate::domain::ids::RunId;
use crate::domain::problem::{ProblemBody, ProblemCode};
use crate::http::clients::stream::{ChunkTranslator, FrameWriter, RESTORED};
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

/// Cancels a run after `completion_grace` if its client has disconnected, because no client can read its answer later.
pub(super) struct DisconnectGuard {
    app: App,
    principal: Principal,
    run: Option<RunId>,
}

impl DisconnectGuard {
    pub(super) fn new(app: &App, principal: &Principal, run: &RunId) -> Self {
        Self { app: app.clone(), principal: principal.clone(), run: Some(run.clone()) }
    }

    /// Ends the guard when the client has its answer. Cancels a run that waits for its client, because the next request starts
    /// another run.
    pub(super) fn settle(&mut self, flow: Flow) {
        if let Some(run) = self.run.take().filter(|_| flow == Flow::Suspended) {
            cancel_after(&self.app, &self.principal, run, std::time::Duration::ZERO);
        }
    }
}

impl Drop for DisconnectGuard {
    fn drop(&mut self) {
        if let Some(run) = self.run.take() {
            cancel_after(&self.app, &self.principal, run, self.app.options.limits.completion_grace);
        }
    }
}

fn cancel_after(app: &App, principal: &Principal, run: RunId, grace: std::time::Duration) {
    let (service, principal) = (Arc::clone(&app.service), principal.clone());
    let shutdown = app.options.shutdown.clone();
    app.options.connections.spawn(async move {
        // A shutdown ends the grace time.
        let _ = tokio::time::timeout(grace, shutdown.cancelled()).await;
        if let Err(error) = service.cancel_run(&principal, &run, None).await {
            tracing::warn!(run.id = %run, error = &error as &dyn std::error::Error, "a run without its client could not be cancelled");
        }
    });
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

/// Writes the frames of a translator, and settles the guard of its run at the end.
pub(super) struct GuardedWriter<T> {
    pub translator: T,
    pub guard: Option<DisconnectGuard>,
}

impl<T: Translator> FrameWriter for GuardedWriter<T> {
    fn write(&mut self, event: &StoredEvent, out: &mut String) -> bool {
        let chunks = self.translator.translate(event);
        self.translator.write(&chunks, out);
        let is_over = self.translator.is_over();
        if let Some(guard) = self.guard.as_mut().filter(|_| is_over) {
            guard.settle(self.translator.flow());
        }
        is_over
    }

    fn interrupt(&mut self, problem: &ProblemBody, out: &mut String) -> bool {
        let chunks = self.translator.interrupt(problem);
        self.translator.write(&chunks, out);
        true
    }
}
