//! The randomness of one simulation run, and the record of its events.

use std::fmt::Arguments;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Mutex;
use std::time::Duration;

use tokio::time::Instant;

use support::print_figure;

/// More notes than any seed that ends.
const ENDLESS: u64 = 2_000_000;

/// The source of all randomness, derived from the seed, and the record of all events. Equal records mean equal runs.
pub struct Dice {
    rng: Mutex<fastrand::Rng>,
    notes: Mutex<Notes>,
    began: Instant,
}

#[derive(Default)]
struct Notes {
    hash: DefaultHasher,
    count: u64,
    /// Whether notes are printed at once.
    aloud: bool,
}

impl Dice {
    pub fn new(seed: u64, aloud: bool) -> Self {
        let notes = Notes { aloud, ..Notes::default() };
        Self { rng: Mutex::new(fastrand::Rng::with_seed(seed)), notes: Mutex::new(notes), began: Instant::now() }
    }

    /// Returns a number from 0 to `limit` - 1.
    pub fn below(&self, limit: u64) -> u64 {
        self.rng.lock().unwrap().u64(0..limit)
    }

    /// Returns true in `per_mille` of a thousand cases.
    pub fn chance(&self, per_mille: u64) -> bool {
        self.below(1_000) < per_mille
    }

    /// Returns one of several values.
    pub fn pick<T: Copy>(&self, of: &[T]) -> T {
        of[usize::try_from(self.below(of.len() as u64)).unwrap()]
    }

    /// Returns a duration between two numbers of milliseconds.
    pub fn between(&self, least: u64, most: u64) -> Duration {
        Duration::from_millis(least + self.below(most - least + 1))
    }

    /// Sleeps for a time between two numbers of milliseconds.
    pub async fn sleep(&self, least: u64, most: u64) {
        tokio::time::sleep(self.between(least, most)).await;
    }

    /// Yields to other tasks for a random time. Otherwise all events would always happen in the same order.
    pub async fn stumble(&self) {
        match self.below(8) {
            0 => self.sleep(1, 40).await,
            1 | 2 => self.sleep(1, 4).await,
            turns @ 3..5 => {
                for _ in 0..turns {
                    tokio::task::yield_now().await;
                }
            }
            _ => {}
        }
    }

    /// Records an event.
    pub fn note(&self, what: Arguments<'_>) {
        let mut notes = self.notes.lock().unwrap();
        let at = self.began.elapsed();
        let line = format!("{:>10.3} {what}", at.as_secs_f64());
        line.hash(&mut notes.hash);
        notes.count += 1;
        assert!(notes.count < ENDLESS, "the seed does not end: {line}");
        if notes.aloud {
            print_figure(&line);
        }
    }

    /// Returns the number and the hash of all notes.
    pub fn sum(&self) -> (u64, u64) {
        let notes = self.notes.lock().unwrap();
        (notes.count, notes.hash.finish())
    }
}
