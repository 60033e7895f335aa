//! A server that is connected: its connection, and what is known of its tools.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::RwLock;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::ServerConfig;
use super::catalogue::{self, Labels};
use super::connection::Connection;
use super::endpoint::Fault;
use super::outputs::Outputs;
use super::processes::Place;
use super::tool_list::{Listed, ToolList};
use crate::domain::tool::ToolDefinition;

/// How long a list of tools that changed may take.
const REFRESH_LIMIT: Duration = Duration::from_secs(10);
/// How long a run or a call waits for that.
pub const REFRESH_PATIENCE: Duration = Duration::from_secs(2);

/// Whether what is known of a server's tools is what it last said of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Known {
    /// It is.
    Current,
    /// They have changed, and the new list has not come.
    Outdated,
}

/// A server that is connected.
pub struct Live {
    /// Its connection.
    pub connection: Connection,
    /// What structured answers of its tools look like.
    pub outputs: Outputs,
    tools: RwLock<Vec<Arc<ToolDefinition>>>,
    /// What is known of their list.
    listed: Mutex<Listed>,
    /// Held while the tools are listed again.
    listing: Arc<tokio::sync::Mutex<()>>,
    /// Whether the server has said that they changed, or could not list them, and no new list has come since.
    is_outdated: AtomicBool,
    /// That of its process, if it has one.
    _place: Option<Place>,
}

impl Live {
    /// Asks for the tools of a server that has just been connected.
    ///
    /// # Errors
    /// If it refuses or the connection is lost.
    pub async fn open(
        connection: Connection,
        labels: Labels<'_>,
        config: &ServerConfig,
        place: Option<Place>,
    ) -> Result<Self, Fault> {
        let ToolList { tools, listed } = connection.list_tools().await?;
        let outputs = Outputs::of(&tools);
        let tools = RwLock::new(catalogue::definitions(labels, config, &tools));
        let (listed, listing) = (Mutex::new(listed), Arc::default());
        let is_outdated = AtomicBool::new(false);
        Ok(Self { connection, outputs, tools, listed, listing, is_outdated, _place: place })
    }

    /// Its tools.
    pub async fn tools(&self) -> Vec<Arc<ToolDefinition>> {
        self.tools.read().await.clone()
    }

    /// The same, unless they are being replaced.
    pub fn tools_now(&self) -> Option<Vec<Arc<ToolDefinition>>> {
        self.tools.try_read().ok().map(|tools| tools.clone())
    }

    /// The tool that the server calls so.
    pub async fn tool(&self, name: &str) -> Option<Arc<ToolDefinition>> {
        self.tools.read().await.iter().find(|known| known.tool == name).cloned()
    }

    /// Whether it lists tools that are left out.
    pub fn leaves_out(&self) -> bool {
        self.listed().left_out
    }

    fn listed(&self) -> MutexGuard<'_, Listed> {
        self.listed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lists the tools again if the server has said that they changed, or until when the list holds. Whoever comes meanwhile waits for
    /// it, but not for long: a server that does not answer holds up nobody's run.
    ///
    /// `list_again` lists them once more, with [`Self::list_again`].
    pub async fn refresh(self: &Arc<Self>, list_again: impl Future<Output = ()> + Send + 'static, tasks: &TaskTracker) -> Known {
        let until = Instant::now() + REFRESH_PATIENCE;
        let idle = || tokio::time::timeout_at(until, Arc::clone(&self.listing).lock_owned());
        let Ok(busy) = idle().await else { return self.known() };
        // Taken before they are listed: what changes from then on is listed anew.
        let has_changed = self.connection.heard().take_tools_changed();
        if !(has_changed || self.listed().is_stale()) {
            return Known::Current;
        }
        if has_changed {
            self.is_outdated.store(true, Ordering::SeqCst);
        }
        tasks.spawn(async move {
            list_again.await;
            drop(busy);
        });
        // A server that says after each list that it has changed again is believed what it has listed.
        let _listed_or_too_late = idle().await;
        self.known()
    }

    /// A list that is merely old holds until there is a new one, or until none can be had.
    fn known(&self) -> Known {
        if self.is_outdated.load(Ordering::SeqCst) { Known::Outdated } else { Known::Current }
    }

    /// On failure the old list stays, to be asked for again.
    pub async fn list_again(&self, labels: Labels<'_>, config: &ServerConfig, closing: &CancellationToken) {
        let listed = tokio::select! {
            () = closing.cancelled() => return,
            listed = tokio::time::timeout(REFRESH_LIMIT, self.connection.list_tools()) => listed,
        };
        let is_outdated = match listed {
            Ok(Ok(ToolList { tools, listed })) => {
                *self.listed() = listed;
                self.outputs.replace(&tools);
                *self.tools.write().await = catalogue::definitions(labels, config, &tools);
                false
            }
            Ok(Err(_)) | Err(_) => {
                self.connection.heard().tools_are_stale();
                true
            }
        };
        self.is_outdated.store(is_outdated, Ordering::SeqCst);
    }
}
