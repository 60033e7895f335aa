//! Cancels the run of a request whose client has disconnected.

use std::sync::Arc;
use std::time::Duration;

use super::events::{Flow, Translator};
use crate::domain::access::principal::Principal;
use crate::domain::event::StoredEvent;
use crate::domain::ids::RunId;
use crate::domain::problem::ProblemBody;
use crate::http::clients::stream::FrameWriter;
use crate::http::options::App;

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
            cancel_after(&self.app, &self.principal, run, Duration::ZERO);
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

fn cancel_after(app: &App, principal: &Principal, run: RunId, grace: Duration) {
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
