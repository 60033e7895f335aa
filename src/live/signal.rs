//! A wake-up that remembers: a notification that comes while nobody waits is kept for the next one who does.

use tokio::sync::Notify;

/// Wakes one waiting task; at most one wake-up is remembered.
#[derive(Debug, Default)]
pub struct Signal(Notify);

impl Signal {
    /// Wakes the waiting task, or the next one to wait.
    pub fn notify(&self) {
        self.0.notify_one();
    }

    /// Waits for a wake-up.
    pub async fn wait(&self) {
        self.0.notified().await;
    }
}
