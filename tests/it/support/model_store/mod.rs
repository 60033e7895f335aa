//! A model of the store: the promises of its traits, in maps behind one mutex.
//!
//! It is written from the traits alone and shares no code with the two real stores. The contract tests run on it, too
//! (`tests/it/store`). Its calls never wait, so each of them is one moment of the simulation. It stores no keys and no tickets.

mod accept;
mod budget;
mod bugs;
mod commit;
mod input;
mod queue;
mod reads;
mod rewind;
mod state;
mod unused;

use std::sync::{Arc, Mutex, MutexGuard};

use capstan::support::clock::UnixMillis;
use tokio::time::Instant;

pub use state::{RunRow, State};

pub use bugs::Bug;

/// The start of the simulated database's clock.
pub const BEGINNING: UnixMillis = UnixMillis(1_767_225_600_000);

/// See the module documentation.
pub struct ModelStore {
    state: Mutex<State>,
    began: Instant,
    bug: Option<Bug>,
}

impl ModelStore {
    /// Returns an empty store with a planted bug, if any, and a limit of concurrent runs for each owner. Zero means no limit.
    pub fn new(bug: Option<Bug>, owner_cap: u32) -> Arc<Self> {
        let state = State { owner_cap, ..State::default() };
        Arc::new(Self { state: Mutex::new(state), began: Instant::now(), bug })
    }

    /// Locks the rows.
    pub fn state(&self) -> MutexGuard<'_, State> {
        let mut state = self.state.lock().unwrap();
        state.now = BEGINNING.0 + i64::try_from(self.began.elapsed().as_millis()).unwrap();
        state
    }

    fn has(&self, bug: Bug) -> bool {
        self.bug == Some(bug)
    }
}
