//! Low-water marks of the queue and of the leases.
//!
//! Each claim and each release leaves dead index entries, and a scan from the start reads all of them. Vacuum removes them soon,
//! but not while a report or a backup holds a snapshot: after 100,000 runs, a claim then reads 5,300 pages instead of 2. So a
//! process remembers a time before which the queue has no entry, and another time for the leases. Scans start at these times.
//!
//! Owns both marks, which are times of the database's clock. An entry may still appear before a mark, after a long transaction or
//! when that clock was set back. A full scan finds it. The frequency of full scans depends on their cost.

use std::sync::Mutex;
use std::time::Duration;

use sqlx::PgConnection;
use tokio::time::Instant;

use super::timeouts::GuardedPool;
use crate::store::StoreResult;
use crate::support::locks::lock;

/// An entry becomes visible later than its own time, at most by the duration of its transaction. The slack is longer than the
/// statement timeout of 10 s. A full scan finds entries of longer transactions, and of commits that waited, such as for a standby.
const SLACK_MS: i64 = 15_000;

/// The shortest interval between full scans.
const WHOLE_LOOK_EVERY: Duration = Duration::from_secs(5);

/// The inverse of the time share of full scans: they use at most 1/50 of the time.
const WHOLE_LOOK_SHARE: u32 = 50;

/// The longest time until a failed full scan is repeated. Until then, entries before the marks are not found.
const FAILED_LOOK_AGAIN: Duration = Duration::from_secs(60);

/// Selects the first times of the queue and of the leases after the given ones, and the current time.
const LOOK: &str = "SELECT CAST(extract(epoch FROM statement_timestamp()) * 1000 AS bigint),
        (SELECT claimable_at FROM runs WHERE claimable_at >= $1 ORDER BY claimable_at LIMIT 1),
        (SELECT claimed_at FROM run_leases WHERE claimed_at >= $2 ORDER BY claimed_at LIMIT 1)";

/// Both marks, in milliseconds of the database's clock. 0 means that everything is scanned.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Marks {
    /// A time before which no run became claimable.
    pub(super) queue: i64,
    /// A time before which no lease was claimed.
    pub(super) leases: i64,
}

impl Marks {
    /// Returns the marks after a scan at `now`.
    fn after(now: i64, first_run: Option<i64>, first_lease: Option<i64>) -> Self {
        let mark = |first: Option<i64>| first.unwrap_or(now).min(now - SLACK_MS);
        Self { queue: mark(first_run), leases: mark(first_lease) }
    }
}

#[derive(Debug, Default)]
pub(super) struct LowWater {
    marks: Mutex<Marks>,
    /// The time of the next full scan; `None` for now.
    whole_look_at: Mutex<Option<Instant>>,
}

impl LowWater {
    pub(super) fn marks(&self) -> Marks {
        *lock(&self.marks)
    }

    /// Raises the marks to the beginning of the queue and of the leases, and lowers them for entries that appeared before. After an
    /// error they stay, which only makes claims slower.
    pub(super) async fn raise(&self, guarded_pool: &GuardedPool) -> StoreResult<()> {
        let whole = self.whole_is_due(Instant::now());
        let from = if whole { Marks::default() } else { self.marks() };
        // Measures the scan alone, without the wait for a connection.
        let mut took = Duration::ZERO;
        let timed = async |connection: &mut PgConnection| {
            let started_at = Instant::now();
            let found = read_marks(connection, from).await;
            took = started_at.elapsed();
            found
        };
        let found = guarded_pool.ask(timed).await;
        if whole {
            self.looked_through(Instant::now(), took, found.is_ok());
        }
        *lock(&self.marks) = found?;
        Ok(())
    }

    fn whole_is_due(&self, now: Instant) -> bool {
        lock(&self.whole_look_at).is_none_or(|at| now >= at)
    }

    /// Records the end of a full scan, successful or not, after `took`.
    fn looked_through(&self, now: Instant, took: Duration, is_done: bool) {
        let share = took * WHOLE_LOOK_SHARE;
        let pause = WHOLE_LOOK_EVERY.max(if is_done { share } else { share.min(FAILED_LOOK_AGAIN) });
        *lock(&self.whole_look_at) = Some(now + pause);
    }
}

async fn read_marks(connection: &mut PgConnection, from: Marks) -> StoreResult<Marks> {
    let found = sqlx::query_as(LOOK).bind(from.queue).bind(from.leases).fetch_one(connection).await?;
    let (now, first_run, first_lease): (i64, Option<i64>, Option<i64>) = found;
    Ok(Marks::after(now, first_run, first_lease))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_may_still_appear_lies_before_the_marks() {
        assert_eq!(Marks::after(100_000, None, None), Marks { queue: 85_000, leases: 85_000 });
        // A run that waits or works for a long time keeps the mark low.
        assert_eq!(Marks::after(100_000, Some(20_000), Some(30_000)), Marks { queue: 20_000, leases: 30_000 });
        // A timer in the future does not raise the mark.
        assert_eq!(Marks::after(100_000, Some(500_000), Some(99_999)), Marks { queue: 85_000, leases: 85_000 });
    }

    #[test]
    fn full_scan_is_periodic_and_rarer_when_slow() {
        let (low_water, now) = (LowWater::default(), Instant::now());
        assert!(low_water.whole_is_due(now));
        low_water.looked_through(now, Duration::from_millis(2), true);
        assert!(!low_water.whole_is_due(now + Duration::from_millis(4_999)));
        assert!(low_water.whole_is_due(now + Duration::from_secs(5)));
        low_water.looked_through(now, Duration::from_secs(2), true);
        assert!(!low_water.whole_is_due(now + Duration::from_secs(99)));
        assert!(low_water.whole_is_due(now + Duration::from_secs(100)));
        // A failed scan does not show how long one takes.
        low_water.looked_through(now, Duration::ZERO, false);
        assert!(low_water.whole_is_due(now + Duration::from_secs(5)));
        low_water.looked_through(now, Duration::from_secs(10), false);
        assert!(low_water.whole_is_due(now + Duration::from_secs(60)));
    }
}
