//! Signals to the worker of a run under way.

use crate::domain::conversation::message::Message;
use crate::domain::ids::RunId;
use crate::store::StoreResult;

/// A request that concerns a run under way.
#[derive(Debug, Clone, PartialEq)]
pub struct ControlSignal {
    pub run_id: RunId,
    /// The user who requested the cancellation of the run.
    pub cancel_by: Option<String>,
    /// Messages that joined the run since it was accepted, oldest first. The worker drops those it knows.
    pub joined: Vec<Message>,
    /// Whether a message that joined the run cannot be read. The run cannot go on without it, and cannot be loaded either.
    pub is_damaged: bool,
    /// Whether the run is gone: its conversation was deleted.
    pub gone: bool,
}

impl ControlSignal {
    /// Adds a user message, if it can be read.
    pub(in crate::store) fn join(&mut self, message: StoreResult<Message>) {
        match message {
            // The server's own hints are messages of the user's side, too.
            Ok(message) if message.internal => {}
            Ok(message) => self.joined.push(message),
            // The worker cannot load the run, and that error says the cause.
            Err(_) => self.is_damaged = true,
        }
    }

    /// Returns whether the signal says anything.
    pub(in crate::store) fn says_something(&self) -> bool {
        self.gone || self.is_damaged || self.cancel_by.is_some() || !self.joined.is_empty()
    }
}
