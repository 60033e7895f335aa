//! What a server may say to us unasked: progress of calls, and that its tools changed. It may ask for nothing.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rmcp::ClientHandler;
use rmcp::model::{ClientCapabilities, ClientConfig, Implementation, ProgressNotificationParam, ProgressToken};
use tokio::sync::mpsc;

use crate::tools::Progress;

/// How many reports of one call may wait; more are dropped.
const REPORTS: usize = 16;

/// What was heard on one connection.
#[derive(Default)]
pub struct Heard {
    reports: Mutex<HashMap<ProgressToken, mpsc::Sender<Progress>>>,
    tools_changed: AtomicBool,
}

impl Heard {
    /// The reports of the call with this token, until the receiver is dropped.
    pub fn reports_of(self: &Arc<Self>, token: ProgressToken) -> Reports {
        let (sender, receiver) = mpsc::channel(REPORTS);
        self.reports.lock().unwrap_or_else(PoisonError::into_inner).insert(token.clone(), sender);
        Reports { heard: self.clone(), token, receiver }
    }

    /// Hands on a report of the call with this token.
    pub fn report(&self, token: &ProgressToken, report: &ProgressNotificationParam) {
        let sender = self.reports.lock().unwrap_or_else(PoisonError::into_inner).get(token).cloned();
        if let Some(sender) = sender {
            // A full channel drops the report: the next one says more anyway.
            let _ = sender.try_send(Progress { progress: report.progress, total: report.total, message: report.message.clone() });
        }
    }

    /// Whether the server has said since the last question that its tools changed.
    pub fn take_tools_changed(&self) -> bool {
        self.tools_changed.swap(false, Ordering::SeqCst)
    }

    /// Asks for the tools again at the next use.
    pub fn tools_are_stale(&self) {
        self.tools_changed.store(true, Ordering::SeqCst);
    }
}

/// The progress reports of one call.
pub struct Reports {
    heard: Arc<Heard>,
    token: ProgressToken,
    receiver: mpsc::Receiver<Progress>,
}

impl Reports {
    /// The next report. Never resolves when there is none.
    pub async fn next(&mut self) -> Progress {
        match self.receiver.recv().await {
            Some(report) => report,
            None => std::future::pending().await,
        }
    }
}

impl Drop for Reports {
    fn drop(&mut self) {
        self.heard.reports.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.token);
    }
}

/// Our side of a connection.
pub struct Handler;

impl ClientHandler for Handler {
    // News of tools that changed and progress are heard by `Attentive`: this handler is told in a task of its own, perhaps long
    // after the answer that the server sent behind it.

    fn get_info(&self) -> ClientConfig {
        // No capabilities: servers may ask neither for model calls nor for input nor for folders.
        ClientConfig::new(ClientCapabilities::default(), Implementation::new("capstan", env!("CARGO_PKG_VERSION")))
    }
}
