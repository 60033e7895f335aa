//! Wall-clock time as a parameter.
//!
//! Wall-clock times are for display (`created_at`, `at`). The database's clock decides leases and timers, and the runtime's
//! monotonic clock decides timeouts. On SQLite the database's clock is the machine's clock. There the store reads this clock to
//! detect that the machine's clock was set.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

/// Milliseconds since the Unix epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct UnixMillis(pub i64);

impl UnixMillis {
    /// Returns RFC 3339 in UTC with exactly three fractional digits, the form of every timestamp on the wire.
    pub fn to_rfc3339(self) -> String {
        match jiff::Timestamp::from_millisecond(self.0) {
            Ok(timestamp) => format!("{timestamp:.3}"),
            // Only a corrupt row can contain a time outside of jiff's range (years -9999 to 9999). The epoch makes it visible.
            Err(_) => "1970-01-01T00:00:00.000Z".to_owned(),
        }
    }

    /// Returns the time `millis` milliseconds later.
    pub fn after(self, millis: u64) -> Self {
        Self(self.0.saturating_add_unsigned(millis))
    }

    pub fn from_rfc3339(text: &str) -> Option<Self> {
        text.parse::<jiff::Timestamp>().ok().map(|timestamp| Self(timestamp.as_millisecond()))
    }
}

pub trait Clock: Send + Sync {
    fn now(&self) -> UnixMillis;
}

pub type SharedClock = Arc<dyn Clock>;

#[derive(Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> UnixMillis {
        #[expect(clippy::disallowed_methods, reason = "this is the one place that reads the clock")]
        let now = jiff::Timestamp::now();
        UnixMillis(now.as_millisecond())
    }
}

/// A clock for tests that changes only when a test moves it.
#[derive(Debug)]
pub struct ManualClock(AtomicI64);

impl ManualClock {
    pub fn new(start: UnixMillis) -> Self {
        Self(AtomicI64::new(start.0))
    }

    /// Moves the clock by `millis`, backwards if negative.
    pub fn advance(&self, millis: i64) {
        self.0.fetch_add(millis, Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> UnixMillis {
        UnixMillis(self.0.load(Ordering::SeqCst))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timestamps_have_three_digits() {
        assert_eq!(UnixMillis(1_767_225_600_000).to_rfc3339(), "2026-01-01T00:00:00.000Z");
        assert_eq!(UnixMillis(1_767_225_600_007).to_rfc3339(), "2026-01-01T00:00:00.007Z");
    }
}
