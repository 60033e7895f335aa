//! Limits the number of server processes. If no slot is free, the server that was unused for longest loses its process; its tools stay on
//! offer. A call that waits for an answer of its user keeps no slot.

use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use crate::support::locks::lock;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

/// How long a start waits for a slot.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often it checks meanwhile whether a server has become idle.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// A server that may run as a process.
pub trait ProcessHolder: Send + Sync {
    /// Returns whether one of its calls waits for an answer of the user.
    fn is_paused(&self) -> bool;

    fn last_used(&self) -> Instant;

    /// Ends its process unless a call is under way. `leaving` is held until the process has ended.
    fn end_if_idle(self: Arc<Self>, leaving: TaskTrackerToken) -> bool;
}

pub struct Processes {
    slots: Arc<Semaphore>,
    most: usize,
    /// The servers that have had a slot.
    holders: Mutex<Vec<Weak<dyn ProcessHolder>>>,
    /// Holds a token for each waiting start.
    waiting: TaskTracker,
    /// Holds a token for each process that is ending to free a slot.
    leaving: TaskTracker,
}

pub struct ProcessPermit(#[expect(dead_code, reason = "dropping it releases the slot")] OwnedSemaphorePermit);

impl Processes {
    /// Has no limit if `most` is `None`.
    pub fn new(most: Option<usize>) -> Self {
        let most = most.unwrap_or(Semaphore::MAX_PERMITS).min(Semaphore::MAX_PERMITS);
        let (waiting, leaving) = (TaskTracker::new(), TaskTracker::new());
        Self { slots: Arc::new(Semaphore::new(most)), most, holders: Mutex::default(), waiting, leaving }
    }

    /// Waits for a slot for the process of a server, up to a limit.
    pub async fn acquire(&self, server: Arc<dyn ProcessHolder>) -> Result<ProcessPermit, String> {
        let until = Instant::now() + PATIENCE;
        let _waits = self.waiting.token();
        // The semaphore is fair, so this future must keep its position in the queue.
        let mut slot = std::pin::pin!(Arc::clone(&self.slots).acquire_owned());
        loop {
            if self.slots.available_permits() == 0 {
                self.make_room();
            }
            tokio::select! {
                biased;
                slot = &mut slot => {
                    let slot = slot.map_err(|_| "the servers are being shut down".to_owned())?;
                    self.note(&server);
                    metrics::gauge!("capstan_mcp_processes").increment(1.0);
                    return Ok(ProcessPermit(slot));
                }
                () = tokio::time::sleep_until(until.min(Instant::now() + CHECK_INTERVAL)) => {}
            }
            if Instant::now() >= until {
                let most = self.most;
                return Err(format!(
                    "the limit of {most} processes of MCP servers is reached (mcp.max_processes) and none of them is idle: try again later"
                ));
            }
        }
    }

    fn note(&self, server: &Arc<dyn ProcessHolder>) {
        let mut holders = lock(&self.holders);
        holders.retain(|holder| holder.strong_count() > 0 && !std::ptr::addr_eq(holder.as_ptr(), Arc::as_ptr(server)));
        holders.push(Arc::downgrade(server));
    }

    /// Ends the process that was unused for longest, unless enough processes are ending already. Servers with paused calls are last.
    fn make_room(&self) {
        if self.leaving.len() >= self.waiting.len() {
            return;
        }
        let mut holders: Vec<Arc<dyn ProcessHolder>> = lock(&self.holders).iter().filter_map(Weak::upgrade).collect();
        // Each key is computed once, because it may change during the sort.
        holders.sort_by_cached_key(|server| (server.is_paused(), server.last_used()));
        holders.into_iter().any(|server| server.end_if_idle(self.leaving.token()));
    }
}

impl Drop for ProcessPermit {
    fn drop(&mut self) {
        metrics::gauge!("capstan_mcp_processes").decrement(1.0);
    }
}
