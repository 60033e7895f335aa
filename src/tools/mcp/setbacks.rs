//! What has gone wrong with a server lately, and when it is tried again.
//!
//! A connection that was lost is made again by itself, after 1, 2, 4, 8 and 16 seconds, and at once if somebody needs it. After that,
//! and where it never stood, it is tried when somebody needs it, but not more often than that. A process that ends more than five
//! times within five minutes is left alone until the first of those times is five minutes ago.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

/// How often a lost connection is tried by itself.
const TRIES: u32 = 5;
/// How many losses are borne, and within which time.
const LOSSES: usize = 5;
const WINDOW: Duration = Duration::from_secs(300);

/// See the module documentation.
#[derive(Debug, Default)]
pub struct Setbacks {
    /// Since it last ran: its loss, and the attempts to start it that failed.
    in_a_row: u32,
    /// Whether it ran before those.
    has_run: bool,
    /// When the connection was found to be lost that stands for the newest setback.
    lost_at: Option<Instant>,
    /// When connections were lost, the newest last.
    losses: VecDeque<Instant>,
}

impl Setbacks {
    /// Why it is not tried any more.
    pub const TOO_MANY: &str =
        "it has ended more than 5 times within 5 minutes and is left alone for the rest of them, or until somebody starts it";

    /// Whether the last attempt failed.
    pub fn is_any(&self) -> bool {
        self.in_a_row > 0
    }

    /// It runs.
    pub fn runs(&mut self) {
        (self.in_a_row, self.has_run, self.lost_at) = (0, true, None);
    }

    /// An attempt to start it failed. How long it is left alone.
    pub fn failed(&mut self) -> Duration {
        let wait = Duration::from_secs(1 << self.in_a_row.min(4));
        self.in_a_row = self.in_a_row.saturating_add(1);
        wait
    }

    /// The connection is found to be lost: whether it is time to make it again by itself.
    pub fn is_due(&mut self, now: Instant) -> bool {
        let lost_at = *self.lost_at.get_or_insert(now);
        now.duration_since(lost_at) >= Duration::from_secs(1)
    }

    /// Whether it is tried without anybody needing it.
    pub fn tries_by_itself(&self) -> bool {
        self.has_run && self.in_a_row <= TRIES
    }

    /// A lost connection is about to be made again: not before this time, if it was lost too often. `counts` says whether losses of
    /// such a server are counted.
    pub fn given_up_until(&mut self, now: Instant, counts: bool) -> Option<Instant> {
        self.in_a_row = self.in_a_row.max(1);
        self.lost_at = None;
        if !counts {
            return None;
        }
        self.losses.push_back(now);
        while self.losses.len() > LOSSES + 1 || self.losses.front().is_some_and(|first| now.duration_since(*first) >= WINDOW) {
            self.losses.pop_front();
        }
        let first = self.losses.front().filter(|_| self.losses.len() > LOSSES)?;
        // It is not tried by itself then: the next time would be one time more.
        self.in_a_row = TRIES + 1;
        Some(*first + WINDOW)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_connection_is_tried_five_times_by_itself() {
        let mut setbacks = Setbacks::default();
        let now = Instant::now();
        assert_eq!(setbacks.failed(), Duration::from_secs(1));
        assert!(!setbacks.tries_by_itself(), "it has never run");
        setbacks.runs();
        assert!(!setbacks.is_any());
        assert!(!setbacks.is_due(now) && setbacks.is_due(now + Duration::from_secs(1)));
        assert_eq!(setbacks.given_up_until(now, true), None);
        let mut waits = vec![1];
        loop {
            let wait = setbacks.failed().as_secs();
            if !setbacks.tries_by_itself() {
                break;
            }
            waits.push(wait);
        }
        assert_eq!(waits, [1, 2, 4, 8, 16]);
        assert_eq!(setbacks.failed(), Duration::from_secs(16), "whoever needs it may ask that often");
        setbacks.runs();
        assert!(setbacks.tries_by_itself());
    }

    #[test]
    fn what_ends_again_and_again_is_left_alone() {
        let mut setbacks = Setbacks::default();
        let begun = Instant::now();
        let at = |seconds| begun + Duration::from_secs(seconds);
        for seconds in [0, 10, 20, 30, 40] {
            assert_eq!(setbacks.given_up_until(at(seconds), true), None);
            setbacks.runs();
        }
        assert_eq!(setbacks.given_up_until(at(50), true), Some(at(300)));
        assert!(!setbacks.tries_by_itself());
        setbacks.runs();
        assert_eq!(setbacks.given_up_until(at(305), true), Some(at(310)), "the first of the last six");
        setbacks.runs();
        assert_eq!(setbacks.given_up_until(at(700), true), None);
        let mut far = Setbacks::default();
        assert!((0..20).all(|seconds| far.given_up_until(at(seconds), false).is_none()));
    }
}
