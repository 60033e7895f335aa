//! What a server may say to us unasked: progress of calls, and that its tools changed. It may ask for nothing.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rmcp::ClientHandler;
use rmcp::model::{
    ClientCapabilities, ClientConfig, Implementation, JsonRpcMessage, ProgressNotificationParam, ProgressToken, ServerNotification,
};
use rmcp::service::{NotificationContext, RoleClient, RxJsonRpcMessage, TxJsonRpcMessage};
use rmcp::transport::Transport;
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

    fn take_in(&self, message: &RxJsonRpcMessage<RoleClient>) {
        if let JsonRpcMessage::Notification(news) = message
            && let ServerNotification::ToolListChangedNotification(_) = news.notification
        {
            self.tools_are_stale();
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
pub struct Handler(pub Arc<Heard>);

impl ClientHandler for Handler {
    async fn on_progress(&self, params: ProgressNotificationParam, _context: NotificationContext<RoleClient>) {
        let sender = self.0.reports.lock().unwrap_or_else(PoisonError::into_inner).get(&params.progress_token).cloned();
        if let Some(sender) = sender {
            // A full channel drops the report: the next one says more anyway.
            let _ = sender.try_send(Progress { progress: params.progress, total: params.total, message: params.message });
        }
    }

    // News of tools that changed is heard by `Attentive`: this handler is told in a task of its own, perhaps long after the
    // answer that the server sent behind it.

    fn get_info(&self) -> ClientConfig {
        // No capabilities: servers may ask neither for model calls nor for input nor for folders.
        ClientConfig::new(ClientCapabilities::default(), Implementation::new("capstan", env!("CARGO_PKG_VERSION")))
    }
}

/// A transport that takes in what must be known before any message behind it is acted on.
pub struct Attentive<T> {
    inner: T,
    heard: Arc<Heard>,
}

impl<T> Attentive<T> {
    /// Listens to `inner`.
    pub fn new(inner: T, heard: Arc<Heard>) -> Self {
        Self { inner, heard }
    }
}

impl<T: Transport<RoleClient>> Transport<RoleClient> for Attentive<T> {
    type Error = T::Error;

    fn send(&mut self, item: TxJsonRpcMessage<RoleClient>) -> impl Future<Output = Result<(), Self::Error>> + Send + 'static {
        self.inner.send(item)
    }

    async fn receive(&mut self) -> Option<RxJsonRpcMessage<RoleClient>> {
        let message = self.inner.receive().await?;
        self.heard.take_in(&message);
        Some(message)
    }

    async fn close(&mut self) -> Result<(), Self::Error> {
        self.inner.close().await
    }
}
