//! A model of the store: what the traits promise, in maps behind one mutex.
//!
//! It is a reading of the traits of its own and shares no code with the two real stores; the contract suite is told to it as
//! well (`tests/it/store`). Its calls never wait, so each of them is one moment of the simulation. It keeps no keys and no
//! tickets.

mod accept;
mod budget;
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

use super::bugs::Bug;

/// The moment at which the simulated database's clock begins.
pub const BEGINNING: UnixMillis = UnixMillis(1_767_225_600_000);

/// See the module documentation.
pub struct ModelStore {
    state: Mutex<State>,
    began: Instant,
    bug: Option<Bug>,
}

impl ModelStore {
    /// An empty store, which has the planted bug, if there is one, and lets so many runs of one owner be worked on; 0 for any number.
    pub fn new(bug: Option<Bug>, owner_cap: u32) -> Arc<Self> {
        let state = State { owner_cap, ..State::default() };
        Arc::new(Self { state: Mutex::new(state), began: Instant::now(), bug })
    }

    /// A look at the rows.
    pub fn state(&self) -> MutexGuard<'_, State> {
        let mut state = self.state.lock().unwrap();
        state.now = BEGINNING.0 + i64::try_from(self.began.elapsed().as_millis()).unwrap();
        state
    }

    fn has(&self, bug: Bug) -> bool {
        self.bug == Some(bug)
    }
}
