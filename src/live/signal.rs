//! A wake-up that is stored until a task waits for it.

use tokio::sync::Notify;

/// Wakes one waiting task. Stores at most one wake-up.
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
