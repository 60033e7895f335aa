//! The restart policy of a server.
//!
//! A lost connection is restored automatically after 1, 2, 4, 8 and 16 seconds, and at once for a call. After that, and before the first
//! success, only a call starts the server, with the same backoff. A process that ends more than five times within five minutes is in a
//! crash loop: it is not started until the first of those ends is five minutes ago.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

/// The most automatic attempts to restore a connection.
const MAX_ATTEMPTS: u32 = 5;
/// More losses than this within the window are a crash loop.
const MAX_LOSSES: usize = 5;
const WINDOW: Duration = Duration::from_secs(300);

#[derive(Debug, Default)]
pub struct RestartPolicy {
    /// Failures since it last ran: the loss of its connection, and failed starts.
    in_a_row: u32,
    /// Whether it ran before these failures.
    has_run: bool,
    /// When the loss of the current connection was detected.
    lost_at: Option<Instant>,
    /// When connections were lost, the newest last.
    losses: VecDeque<Instant>,
}

impl RestartPolicy {
    pub const TOO_MANY: &str = "it is crash-looping: it ended more than 5 times within 5 minutes; a call starts it again once the \
                                first of these ends is 5 minutes old, or start it through POST /api/v1/mcp-servers/{id}/start";

    /// Returns whether the last attempt failed.
    pub fn has_failed(&self) -> bool {
        self.in_a_row > 0
    }

    /// Returns the number of failures in a row.
    pub fn failures(&self) -> u32 {
        self.in_a_row
    }

    /// Records a successful start.
    pub fn started(&mut self) {
        (self.in_a_row, self.has_run, self.lost_at) = (0, true, None);
    }

    /// Records a failed start, and returns the backoff.
    pub fn failed(&mut self) -> Duration {
        let wait = Duration::from_secs(1 << self.in_a_row.min(4));
        self.in_a_row = self.in_a_row.saturating_add(1);
        wait
    }

    /// Returns whether a lost connection is to be restored automatically now.
    pub fn is_due(&mut self, now: Instant) -> bool {
        let lost_at = *self.lost_at.get_or_insert(now);
        now.duration_since(lost_at) >= Duration::from_secs(1)
    }

    /// Returns whether it is started without a call.
    pub fn reconnects_automatically(&self) -> bool {
        self.has_run && self.in_a_row <= MAX_ATTEMPTS
    }

    /// Records a lost connection, and returns the end of the wait if this is a crash loop. Counts the loss only if `is_process`.
    pub fn record_loss(&mut self, now: Instant, is_process: bool) -> Option<Instant> {
        self.in_a_row = self.in_a_row.max(1);
        self.lost_at = None;
        if !is_process {
            return None;
        }
        self.losses.push_back(now);
        while self.losses.len() > MAX_LOSSES + 1 || self.losses.front().is_some_and(|first| now.duration_since(*first) >= WINDOW) {
            self.losses.pop_front();
        }
        let first = self.losses.front().filter(|_| self.losses.len() > MAX_LOSSES)?;
        // No automatic start, because it would only count as one more loss.
        self.in_a_row = MAX_ATTEMPTS + 1;
        Some(*first + WINDOW)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_connection_is_tried_five_times_by_itself() {
        let mut policy = RestartPolicy::default();
        let now = Instant::now();
        assert_eq!(policy.failed(), Duration::from_secs(1));
        assert!(!policy.reconnects_automatically(), "it has never run");
        policy.started();
        assert!(!policy.has_failed() && policy.failures() == 0);
        assert!(!policy.is_due(now) && policy.is_due(now + Duration::from_secs(1)));
        assert_eq!(policy.record_loss(now, true), None);
        let mut waits = vec![1];
        loop {
            let wait = policy.failed().as_secs();
            if !policy.reconnects_automatically() {
                break;
            }
            waits.push(wait);
        }
        assert_eq!(waits, [1, 2, 4, 8, 16]);
        assert_eq!(policy.failures(), 6, "the loss, and five attempts");
        assert_eq!(policy.failed(), Duration::from_secs(16), "whoever needs it may ask that often");
        policy.started();
        assert!(policy.reconnects_automatically());
    }

    #[test]
    fn crash_loop_stops_restarts() {
        let mut policy = RestartPolicy::default();
        let begun = Instant::now();
        let at = |seconds| begun + Duration::from_secs(seconds);
        for seconds in [0, 10, 20, 30, 40] {
            assert_eq!(policy.record_loss(at(seconds), true), None);
            policy.started();
        }
        assert_eq!(policy.record_loss(at(50), true), Some(at(300)));
        assert!(!policy.reconnects_automatically());
        policy.started();
        assert_eq!(policy.record_loss(at(305), true), Some(at(310)), "the first of the last six");
        policy.started();
        assert_eq!(policy.record_loss(at(700), true), None);
        let mut far = RestartPolicy::default();
        assert!((0..20).all(|seconds| far.record_loss(at(seconds), false).is_none()));
    }
}
