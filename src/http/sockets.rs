//! The number of open WebSockets of each principal.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use crate::domain::ids::UserId;

/// How many WebSockets each principal has open.
#[derive(Default)]
pub(crate) struct Sockets(Mutex<HashMap<UserId, usize>>);

/// One open WebSocket of a principal, for as long as it lives.
pub(crate) struct SocketPermit {
    sockets: Arc<Sockets>,
    user: UserId,
}

impl Sockets {
    /// Returns a permit for one more socket, unless the principal has `most` already.
    pub(crate) fn permit(self: &Arc<Self>, user: &UserId, most: usize) -> Option<SocketPermit> {
        let mut open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = open.entry(user.clone()).or_default();
        if *count >= most {
            return None;
        }
        *count += 1;
        Some(SocketPermit { sockets: Arc::clone(self), user: user.clone() })
    }
}

impl Drop for SocketPermit {
    fn drop(&mut self) {
        let mut open = self.sockets.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = open.get_mut(&self.user) {
            *count -= 1;
            if *count == 0 {
                open.remove(&self.user);
            }
        }
    }
}
