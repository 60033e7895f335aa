//! All chance of one run of the simulation, and a record of what came of it.

use std::fmt::Arguments;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Mutex;
use std::time::Duration;

use tokio::time::Instant;

use crate::support::tell;

/// So much happens in no seed that comes to an end.
const ENDLESS: u64 = 2_000_000;

/// Everything that is random comes from here, and so from the seed. Everything that happens is noted here: two runs that noted
/// the same were the same.
pub struct Dice {
    rng: Mutex<fastrand::Rng>,
    notes: Mutex<Notes>,
    began: Instant,
}

#[derive(Default)]
struct Notes {
    hash: DefaultHasher,
    count: u64,
    /// Whether they are told as they are made.
    aloud: bool,
}

impl Dice {
    pub fn new(seed: u64, aloud: bool) -> Self {
        let notes = Notes { aloud, ..Notes::default() };
        Self { rng: Mutex::new(fastrand::Rng::with_seed(seed)), notes: Mutex::new(notes), began: Instant::now() }
    }

    /// From 0 to `limit` - 1.
    pub fn below(&self, limit: u64) -> u64 {
        self.rng.lock().unwrap().u64(0..limit)
    }

    /// True in so many of a thousand cases.
    pub fn chance(&self, per_mille: u64) -> bool {
        self.below(1_000) < per_mille
    }

    /// One of several.
    pub fn pick<T: Copy>(&self, of: &[T]) -> T {
        of[usize::try_from(self.below(of.len() as u64)).unwrap()]
    }

    /// A time between two numbers of milliseconds.
    pub fn between(&self, least: u64, most: u64) -> Duration {
        Duration::from_millis(least + self.below(most - least + 1))
    }

    /// Sleeps for a time between two numbers of milliseconds.
    pub async fn sleep(&self, least: u64, most: u64) {
        tokio::time::sleep(self.between(least, most)).await;
    }

    /// Lets others go first, for a moment of which nobody knows how long it is. Without this all would always happen in the
    /// same order.
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

    /// Notes what has happened.
    pub fn note(&self, what: Arguments<'_>) {
        let mut notes = self.notes.lock().unwrap();
        let at = self.began.elapsed();
        let line = format!("{:>10.3} {what}", at.as_secs_f64());
        line.hash(&mut notes.hash);
        notes.count += 1;
        assert!(notes.count < ENDLESS, "the seed does not come to an end: {line}");
        if notes.aloud {
            tell(&line);
        }
    }

    /// What stands for all notes: their number and their hash.
    pub fn sum(&self) -> (u64, u64) {
        let notes = self.notes.lock().unwrap();
        (notes.count, notes.hash.finish())
    }
}
