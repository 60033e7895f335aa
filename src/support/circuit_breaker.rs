//! A circuit breaker: after failures in a row it refuses requests for a cool-down.
//!
//! Owns the states closed, open and half-open. Must not know the requests; its users decide what a failure is.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::locks::lock;
use tokio::time::Instant;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BreakerLimits {
    /// Failures in a row; 0 for a breaker that never opens.
    pub failures: u32,
    /// The cool-down. After it, one request may pass; the others wait until its answer begins.
    pub open: Duration,
}

/// A circuit breaker. Clones share one state.
#[derive(Debug, Clone)]
pub struct CircuitBreaker {
    limits: BreakerLimits,
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    failures: u32,
    open_until: Option<Instant>,
    /// Whether the one request of the half-open breaker is under way.
    is_probing: bool,
}

/// The error of a request that an open breaker refuses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BreakerOpen {
    pub failures: u32,
    /// How long to wait before the next request.
    pub wait: Duration,
}

/// A change of a breaker, for logs and metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum BreakerChange {
    None,
    Opened { failures: u32 },
    Closed,
}

impl CircuitBreaker {
    pub fn new(limits: BreakerLimits) -> Self {
        Self { limits, state: Arc::default() }
    }

    /// Returns whether the breaker is open or half-open.
    pub fn is_open(&self) -> bool {
        lock(&self.state).open_until.is_some()
    }

    /// Admits a request, unless the breaker is open, or half-open with a request under way. A dropped permit counts neither as a success
    /// nor as a failure.
    pub fn enter(&self) -> Result<BreakerPermit, BreakerOpen> {
        let mut state = lock(&self.state);
        let permit = |is_probe| BreakerPermit { breaker: self.clone(), is_probe, is_settled: false };
        let Some(until) = state.open_until else { return Ok(permit(false)) };
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() && !state.is_probing {
            state.is_probing = true;
            return Ok(permit(true));
        }
        // While the one request is under way the wait is short: the breaker closes when its answer begins.
        Err(BreakerOpen { failures: state.failures, wait: left.max(Duration::from_secs(1)) })
    }

    /// Ends the cool-down at once.
    #[cfg(test)]
    pub fn end_cool_down(&self) {
        if let Some(until) = &mut lock(&self.state).open_until {
            *until = Instant::now();
        }
    }
}

/// One admitted request.
#[derive(Debug)]
pub struct BreakerPermit {
    breaker: CircuitBreaker,
    is_probe: bool,
    is_settled: bool,
}

impl BreakerPermit {
    /// Closes a half-open breaker when the answer begins, because its end may be minutes away. The failure count stays, so that the next
    /// failure opens the breaker again.
    pub fn answering(&mut self) -> BreakerChange {
        if !std::mem::take(&mut self.is_probe) {
            return BreakerChange::None;
        }
        let mut state = lock(&self.breaker.state);
        state.is_probing = false;
        close(&mut state)
    }

    /// Records the request as a success. Only the first record counts.
    pub fn succeeded(&mut self) -> BreakerChange {
        if std::mem::replace(&mut self.is_settled, true) {
            return BreakerChange::None;
        }
        let mut state = lock(&self.breaker.state);
        state.failures = 0;
        state.is_probing &= !self.is_probe;
        close(&mut state)
    }

    /// Records the request as a failure. Only the first record counts.
    pub fn failed(&mut self) -> BreakerChange {
        if std::mem::replace(&mut self.is_settled, true) {
            return BreakerChange::None;
        }
        let limits = self.breaker.limits;
        let mut state = lock(&self.breaker.state);
        state.failures = state.failures.saturating_add(1);
        state.is_probing &= !self.is_probe;
        let is_over = limits.failures > 0 && state.failures >= limits.failures;
        if !is_over || (state.open_until.is_some() && !self.is_probe) {
            return BreakerChange::None;
        }
        state.open_until = Some(Instant::now() + limits.open);
        BreakerChange::Opened { failures: state.failures }
    }
}

impl Drop for BreakerPermit {
    fn drop(&mut self) {
        if self.is_probe && !self.is_settled {
            lock(&self.breaker.state).is_probing = false;
        }
    }
}

fn close(state: &mut State) -> BreakerChange {
    state.open_until.take().map_or(BreakerChange::None, |_| BreakerChange::Closed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn breaker() -> CircuitBreaker {
        CircuitBreaker::new(BreakerLimits { failures: 3, open: Duration::from_secs(30) })
    }

    fn fail(breaker: &CircuitBreaker) -> BreakerChange {
        breaker.enter().unwrap().failed()
    }

    #[tokio::test(start_paused = true)]
    async fn breaker_opens_after_failures_in_a_row() {
        let breaker = breaker();
        assert_eq!([fail(&breaker), fail(&breaker)], [BreakerChange::None; 2]);
        assert_eq!(breaker.enter().unwrap().succeeded(), BreakerChange::None);
        assert_eq!([fail(&breaker), fail(&breaker)], [BreakerChange::None; 2]);
        assert_eq!(fail(&breaker), BreakerChange::Opened { failures: 3 });
        assert_eq!(breaker.enter().unwrap_err(), BreakerOpen { failures: 3, wait: Duration::from_secs(30) });
    }

    #[tokio::test(start_paused = true)]
    async fn half_open_breaker_lets_one_request_through() {
        let breaker = breaker();
        let _ = [fail(&breaker), fail(&breaker), fail(&breaker)];
        tokio::time::advance(Duration::from_secs(31)).await;
        let given_up = breaker.enter().unwrap();
        assert_eq!(breaker.enter().unwrap_err().wait, Duration::from_secs(1));
        drop(given_up);
        assert_eq!(fail(&breaker), BreakerChange::Opened { failures: 4 });
        tokio::time::advance(Duration::from_secs(31)).await;
        let mut probe = breaker.enter().unwrap();
        assert_eq!(probe.answering(), BreakerChange::Closed);
        assert!(!breaker.is_open() && breaker.enter().is_ok());
        assert_eq!(probe.failed(), BreakerChange::Opened { failures: 5 });
    }

    #[tokio::test(start_paused = true)]
    async fn breaker_without_limit_never_opens() {
        let breaker = CircuitBreaker::new(BreakerLimits { failures: 0, open: Duration::from_secs(30) });
        assert!((0..10).all(|_| fail(&breaker) == BreakerChange::None) && !breaker.is_open());
    }
}
