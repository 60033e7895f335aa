//! Wall-clock time as a parameter.
//!
//! Wall-clock times are for people to read (`created_at`, `at`). Nothing in Capstan decides by them: leases and timers are
//! decided by the database's clock, time-outs by the runtime's monotonic one. The store on SQLite, whose clock is the machine's, looks
//! at it to notice that it was set.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

/// Milliseconds since the Unix epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct UnixMillis(pub i64);

impl UnixMillis {
    /// RFC 3339 in UTC with exactly three fractional digits, as every timestamp on the wire is written.
    #[must_use]
    pub fn to_rfc3339(self) -> String {
        match jiff::Timestamp::from_millisecond(self.0) {
            Ok(timestamp) => format!("{timestamp:.3}"),
            // Outside of jiff's range (year 9999 and later): only a corrupt row can hold it, and the epoch shows that.
            Err(_) => "1970-01-01T00:00:00.000Z".to_owned(),
        }
    }

    /// Reads a time as RFC 3339 writes it.
    #[must_use]
    pub fn from_rfc3339(text: &str) -> Option<Self> {
        text.parse::<jiff::Timestamp>().ok().map(|timestamp| Self(timestamp.as_millisecond()))
    }
}

/// Where wall-clock time comes from.
pub trait Clock: Send + Sync {
    /// The present moment.
    fn now(&self) -> UnixMillis;
}

/// A clock that is passed around.
pub type SharedClock = Arc<dyn Clock>;

/// The operating system's clock.
#[derive(Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> UnixMillis {
        #[expect(clippy::disallowed_methods, reason = "this is the one place that reads the clock")]
        let now = jiff::Timestamp::now();
        UnixMillis(now.as_millisecond())
    }
}

/// A clock for tests: stands still until told otherwise.
#[derive(Debug)]
pub struct ManualClock(AtomicI64);

impl ManualClock {
    /// A clock that shows `start`.
    #[must_use]
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
