//! A connected server: its connection and its list of tools.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::RwLock;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::domain::tool::ToolDefinition;
use crate::tools::mcp::ServerConfig;
use crate::tools::mcp::calls::output_schemas::Outputs;
use crate::tools::mcp::process::slots::ProcessPermit;
use crate::tools::mcp::server::tool_definitions::{self, Labels};
use crate::tools::mcp::server::tool_list::ToolListState;
use crate::tools::mcp::transport::connection::Connection;
use crate::tools::mcp::transport::endpoint::ServerError;

/// How long a new list of tools may take.
const REFRESH_LIMIT: Duration = Duration::from_secs(10);
/// How long a run or a call waits for a new list.
pub const REFRESH_PATIENCE: Duration = Duration::from_secs(2);

/// Whether the known list of tools is current.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ToolListFreshness {
    Current,
    /// The tools have changed, and the new list has not arrived.
    Outdated,
}

pub struct ConnectedServer {
    pub connection: Connection,
    pub outputs: Outputs,
    tools: RwLock<Vec<Arc<ToolDefinition>>>,
    listed: Mutex<ToolListState>,
    /// Locked while the tools are listed again.
    listing: Arc<tokio::sync::Mutex<()>>,
    /// Whether the tools have changed, or could not be listed, and no new list has arrived since.
    is_outdated: AtomicBool,
    _permit: Option<ProcessPermit>,
}

impl ConnectedServer {
    pub async fn open(
        connection: Connection,
        labels: Labels<'_>,
        config: &ServerConfig,
        permit: Option<ProcessPermit>,
    ) -> Result<Self, ServerError> {
        let (tools, listed) = connection.list_tools().await?;
        let outputs = Outputs::default();
        outputs.replace(&tools);
        let tools = RwLock::new(tool_definitions::definitions(labels, config, &tools));
        let (listed, listing, is_outdated) = (Mutex::new(listed), Arc::default(), AtomicBool::new(false));
        Ok(Self { connection, outputs, tools, listed, listing, is_outdated, _permit: permit })
    }

    pub async fn tools(&self) -> Vec<Arc<ToolDefinition>> {
        self.tools.read().await.clone()
    }

    /// Returns the tools, unless they are being replaced.
    pub fn tools_now(&self) -> Option<Vec<Arc<ToolDefinition>>> {
        self.tools.try_read().ok().map(|tools| tools.clone())
    }

    pub async fn tool(&self, name: &str) -> Option<Arc<ToolDefinition>> {
        self.tools.read().await.iter().find(|definition| definition.tool == name).cloned()
    }

    /// Returns whether the list omits tools of the server.
    pub fn omits_tools(&self) -> bool {
        self.listed().left_out
    }

    fn listed(&self) -> MutexGuard<'_, ToolListState> {
        self.listed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lists the tools again, by the future `list_again`, if they have changed or their list has expired.
    ///
    /// Concurrent callers wait for the same list, but not for long: a server that does not answer must not block runs.
    pub async fn refresh(
        self: &Arc<Self>,
        list_again: impl Future<Output = ()> + Send + 'static,
        tasks: &TaskTracker,
    ) -> ToolListFreshness {
        let until = Instant::now() + REFRESH_PATIENCE;
        let lock_listing = || tokio::time::timeout_at(until, Arc::clone(&self.listing).lock_owned());
        let Ok(listing) = lock_listing().await else { return self.tool_list_freshness() };
        // The flag is cleared before listing, so that a later change causes another listing.
        let has_changed = self.connection.subscriptions.take_tools_changed();
        if !(has_changed || self.listed().is_stale()) {
            return ToolListFreshness::Current;
        }
        if has_changed {
            self.is_outdated.store(true, Ordering::SeqCst);
        }
        tasks.spawn(async move {
            list_again.await;
            drop(listing);
        });
        // The new list is used even if the server has announced another change: some servers announce one after each listing.
        let _listed_or_too_late = lock_listing().await;
        self.tool_list_freshness()
    }

    /// An expired list stays current until there is a new one, or until listing fails.
    fn tool_list_freshness(&self) -> ToolListFreshness {
        if self.is_outdated.load(Ordering::SeqCst) { ToolListFreshness::Outdated } else { ToolListFreshness::Current }
    }

    /// Lists the tools. After a failure the old list stays, and the next use lists again.
    pub async fn list_again(&self, labels: Labels<'_>, config: &ServerConfig, closing: &CancellationToken) {
        let listed = tokio::select! {
            () = closing.cancelled() => return,
            listed = tokio::time::timeout(REFRESH_LIMIT, self.connection.list_tools()) => listed,
        };
        let is_outdated = match listed {
            Ok(Ok((tools, listed))) => {
                *self.listed() = listed;
                self.outputs.replace(&tools);
                *self.tools.write().await = tool_definitions::definitions(labels, config, &tools);
                false
            }
            Ok(Err(_)) | Err(_) => {
                self.connection.subscriptions.mark_tools_stale();
                true
            }
        };
        self.is_outdated.store(is_outdated, Ordering::SeqCst);
    }
}
