//! What the worker of a run is told while it works.

use super::StoreResult;
use crate::domain::ids::RunId;
use crate::domain::message::Message;

/// A request that concerns a run in progress.
#[derive(Debug, Clone, PartialEq)]
pub struct ControlSignal {
    /// The run.
    pub run_id: RunId,
    /// Who asked for it to be cancelled.
    pub cancel_by: Option<String>,
    /// Messages that joined the run since it was accepted, oldest first. The worker drops those it knows.
    pub joined: Vec<Message>,
    /// A message that joined it cannot be read, and neither can the run be loaded: it cannot go on as if nobody had said anything.
    pub is_damaged: bool,
    /// There is no such run any more: its conversation was deleted.
    pub gone: bool,
}

impl ControlSignal {
    /// Takes in a message of the user's side, if it can be read.
    pub(super) fn join(&mut self, message: StoreResult<Message>) {
        match message {
            // The server's own hints are messages of the user's side, too.
            Ok(message) if message.internal => {}
            Ok(message) => self.joined.push(message),
            // Whoever is told cannot load the run, which says the cause.
            Err(_) => self.is_damaged = true,
        }
    }

    /// Whether there is anything to be told.
    pub(super) fn says_something(&self) -> bool {
        self.gone || self.is_damaged || self.cancel_by.is_some() || !self.joined.is_empty()
    }
}
