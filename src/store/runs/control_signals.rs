//! Control signals to the worker of a running run.

use crate::domain::conversation::message::Message;
use crate::domain::ids::RunId;
use crate::store::StoreResult;

/// A request that concerns a running run.
#[derive(Debug, Clone, PartialEq)]
pub struct ControlSignal {
    pub run_id: RunId,
    /// The user who requested the cancellation of the run.
    pub cancel_by: Option<String>,
    /// Messages that joined the run since it was accepted, oldest first. The worker drops those that it knows.
    pub joined: Vec<Message>,
    /// Whether a message that joined the run is unreadable. The run cannot continue without it, and cannot be loaded either.
    pub is_damaged: bool,
    /// Whether the run is gone: its conversation was deleted.
    pub is_gone: bool,
}

impl ControlSignal {
    /// Adds a user message, if it is readable.
    pub(in crate::store) fn join(&mut self, message: StoreResult<Message>) {
        match message {
            // Internal messages have the role `user`, too.
            Ok(message) if message.internal => {}
            Ok(message) => self.joined.push(message),
            // The worker cannot load the run, and that error contains the reason.
            Err(_) => self.is_damaged = true,
        }
    }

    /// Returns whether the signal requires an action.
    pub(in crate::store) fn has_changes(&self) -> bool {
        self.is_gone || self.is_damaged || self.cancel_by.is_some() || !self.joined.is_empty()
    }
}
