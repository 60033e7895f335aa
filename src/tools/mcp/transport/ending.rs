//! Records why a connection to an MCP server has ended. Must not know the transports.

use std::sync::{Arc, Mutex};

use crate::support::locks::lock;
use tokio_util::sync::CancellationToken;

/// The reason for the end of a connection, and the token that ends it. All clones share both.
#[derive(Clone, Default)]
pub struct Ending {
    reason: Arc<Mutex<Option<String>>>,
    ended: CancellationToken,
}

impl Ending {
    pub fn reason(&self) -> Option<String> {
        lock(&self.reason).clone()
    }

    /// Returns the token that `end` cancels.
    pub fn token(&self) -> CancellationToken {
        self.ended.clone()
    }

    /// Ends the connection. Only the first reason counts.
    pub fn end(&self, reason: String) {
        lock(&self.reason).get_or_insert(reason);
        self.ended.cancel();
    }
}
