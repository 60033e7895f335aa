//! The end of a connection by this side. Must not know the transports.

use std::sync::{Arc, Mutex, PoisonError};

use tokio_util::sync::CancellationToken;

/// Why this side has ended a connection.
#[derive(Clone, Default)]
pub struct Ending {
    reason: Arc<Mutex<Option<String>>>,
    over: CancellationToken,
}

impl Ending {
    pub fn reason(&self) -> Option<String> {
        self.reason.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns a token that is cancelled when the connection ends.
    pub fn token(&self) -> CancellationToken {
        self.over.clone()
    }

    /// Ends the connection. Only the first reason counts.
    pub fn end(&self, reason: String) {
        self.reason.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(reason);
        self.over.cancel();
    }
}
