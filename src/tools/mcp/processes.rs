//! How many processes of servers run at a time. Each has a place; where none is free, the one that nobody has used for longest
//! gives up its own, and its tools stay on offer. A call that waits for an answer of its user keeps none.

use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

/// How long a start waits for a place.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often it is looked meanwhile whether another one has become idle.
const LOOK: Duration = Duration::from_millis(500);

/// A server that may run as a process.
pub trait ProcessHolder: Send + Sync {
    /// Returns whether a call of it waits for an answer of its user.
    fn is_paused(&self) -> bool;

    /// Returns when it was wanted last.
    fn last_used(&self) -> Instant;

    /// Ends its process unless a call is under way. `leaving` is held until the process has ended.
    fn end_if_idle(self: Arc<Self>, leaving: TaskTrackerToken) -> bool;
}

/// The places.
pub struct Processes {
    places: Arc<Semaphore>,
    /// How many there are, for those who get none.
    most: usize,
    /// The servers that have had one.
    holders: Mutex<Vec<Weak<dyn ProcessHolder>>>,
    /// Holds a token for each start that waits.
    waiting: TaskTracker,
    /// Holds a token for each process that is being ended for one of those.
    leaving: TaskTracker,
}

/// The place of one process.
pub struct Place(#[expect(dead_code, reason = "it is given back when it is dropped")] OwnedSemaphorePermit);

impl Processes {
    /// At most so many, or as many as there are if absent.
    pub fn new(most: Option<usize>) -> Self {
        let most = most.unwrap_or(Semaphore::MAX_PERMITS).min(Semaphore::MAX_PERMITS);
        let (waiting, leaving) = (TaskTracker::new(), TaskTracker::new());
        Self { places: Arc::new(Semaphore::new(most)), most, holders: Mutex::default(), waiting, leaving }
    }

    /// A place for the process of a server, waited for within bounds.
    ///
    /// # Errors
    /// In words: why there is none.
    pub async fn place(&self, server: Arc<dyn ProcessHolder>) -> Result<Place, String> {
        let until = Instant::now() + PATIENCE;
        let _waits = self.waiting.token();
        // Whoever came first is served first, so this stays in its queue.
        let mut place = std::pin::pin!(Arc::clone(&self.places).acquire_owned());
        loop {
            if self.places.available_permits() == 0 {
                self.make_room();
            }
            tokio::select! {
                biased;
                place = &mut place => {
                    let place = place.map_err(|_| "the servers are being shut down".to_owned())?;
                    self.note(&server);
                    metrics::gauge!("capstan_mcp_processes").increment(1.0);
                    return Ok(Place(place));
                }
                () = tokio::time::sleep_until(until.min(Instant::now() + LOOK)) => {}
            }
            if Instant::now() >= until {
                let most = self.most;
                return Err(format!(
                    "{most} processes of MCP servers run already, none of them is idle, and mcp.max_processes allows no more: try again later"
                ));
            }
        }
    }

    fn note(&self, server: &Arc<dyn ProcessHolder>) {
        let mut holders = self.holders.lock().unwrap_or_else(PoisonError::into_inner);
        holders.retain(|holder| holder.strong_count() > 0 && !std::ptr::addr_eq(holder.as_ptr(), Arc::as_ptr(server)));
        holders.push(Arc::downgrade(server));
    }

    /// Ends the process that nobody has used for longest, unless as many end already as are waited for. Those that wait to be called
    /// again come last.
    fn make_room(&self) {
        if self.leaving.len() >= self.waiting.len() {
            return;
        }
        let mut holders: Vec<Arc<dyn ProcessHolder>> =
            self.holders.lock().unwrap_or_else(PoisonError::into_inner).iter().filter_map(Weak::upgrade).collect();
        // Each is asked once: they change while they are sorted.
        holders.sort_by_cached_key(|server| (server.is_paused(), server.last_used()));
        // Those that have a call under way do not rest.
        holders.into_iter().any(|server| server.end_if_idle(self.leaving.token()));
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        metrics::gauge!("capstan_mcp_processes").decrement(1.0);
    }
}
