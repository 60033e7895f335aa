//! Time limits of a model call.
//!
//! Two timeouts watch every answer. The byte timeout detects a dead connection. The event timeout detects an answer that never arrives,
//! because comments keep a connection alive for ever. Both run only while a reader waits for the provider, so that a slow reader never
//! counts as a slow provider.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::Stream;
use tokio::time::{Instant, Sleep};

use crate::domain::model::{CallLimits, ModelError, ModelErrorKind};

/// The limits of one model call. Models with reasoning of several minutes have longer limits in the catalogue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamLimits {
    pub connect: Duration,
    /// From sending the request to the first byte of the answer's body.
    pub first_byte: Duration,
    /// Between two bytes, comments included.
    pub idle: Duration,
    /// Between two events with content, and before the first one.
    pub progress: Duration,
    /// The complete call. An answer in progress has no such limit unless an operator sets one.
    pub total: Duration,
    /// From the stop reason to usage and end mark.
    pub after_finish: Duration,
}

impl Default for StreamLimits {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(5),
            first_byte: Duration::from_secs(30),
            idle: Duration::from_secs(30),
            progress: Duration::from_secs(120),
            total: Self::NO_LIMIT,
            after_finish: Duration::from_secs(2),
        }
    }
}

/// The limit of an answer that is not streamed, without a total limit.
const WHOLE_ANSWER: Duration = Duration::from_secs(600);

impl StreamLimits {
    pub const NO_LIMIT: Duration = Duration::MAX;

    /// Returns the limit of an answer that is one document. The progress timeout cannot watch such an answer.
    pub fn for_whole_answer(&self) -> Duration {
        if self.total == Self::NO_LIMIT { WHOLE_ANSWER.max(self.first_byte.saturating_mul(2)) } else { self.total }
    }

    /// Replaces the limits that are set.
    pub fn with(self, set: &CallLimits) -> Self {
        let limit = |ms: Option<u64>, usual: Duration| ms.map_or(usual, Duration::from_millis);
        Self {
            connect: limit(set.connect_ms, self.connect),
            first_byte: limit(set.first_byte_ms, self.first_byte),
            idle: limit(set.idle_ms, self.idle),
            progress: limit(set.progress_ms, self.progress),
            total: limit(set.total_ms, self.total),
            ..self
        }
    }

    /// Extends the limits for a model that may reason for this long before its answer. Some send no bytes meanwhile, others send comments.
    pub fn for_thinking(self, time: Duration) -> Self {
        Self {
            first_byte: self.first_byte.max(time),
            idle: self.idle.max(time),
            progress: self.progress.max(time),
            total: self.total.max(time.saturating_mul(2)),
            ..self
        }
    }
}

/// The failure text of the byte timeout.
pub(in crate::provider) const NO_BYTE: &str = "no byte arrived";

pub(in crate::provider) fn timeout(failure_text: &str, limit: Duration) -> ModelError {
    ModelError::new(ModelErrorKind::Timeout, &format!("{failure_text} for {}", seconds(limit)))
}

/// Returns the failure of a document that did not arrive within its limit.
pub(in crate::provider) fn document_timeout(failure_text: &str, limit: Duration) -> ModelError {
    ModelError::new(ModelErrorKind::Timeout, &format!("{failure_text} within {}", seconds(limit)))
}

/// Returns the failure of an answer that has reached the total limit of a call.
pub(in crate::provider) fn over_total(limit: Duration) -> ModelError {
    let words = format!("the answer was not complete after {}: set a higher `total_ms`", seconds(limit));
    ModelError { over_total_limit: true, ..ModelError::new(ModelErrorKind::Timeout, &words) }
}

fn seconds(limit: Duration) -> String {
    if limit.subsec_millis() == 0 { format!("{} s", limit.as_secs()) } else { format!("{} ms", limit.as_millis()) }
}

/// The deadline of a complete call, and the limit it was computed from.
#[derive(Debug, Clone, Copy)]
pub(in crate::provider) struct Deadline {
    pub(in crate::provider) at: Instant,
    pub(in crate::provider) limit: Duration,
}

impl Deadline {
    pub(in crate::provider) fn after(limit: Duration) -> Self {
        let now = Instant::now();
        // A limit beyond the clock's range counts as no limit; a year is longer than any call.
        let at = now.checked_add(limit).unwrap_or(now + Duration::from_secs(365 * 86_400));
        Self { at, limit }
    }
}

/// A stream with a time limit for each item. After a timeout it has ended, and its source is dropped.
pub(in crate::provider) struct Timed<S> {
    inner: Option<S>,
    /// The failure text, such as `no byte arrived`.
    failure_text: &'static str,
    longest_wait: Duration,
    waiting_since: Option<Instant>,
    /// The time of the last item. The time from there to the next poll is the reader's.
    item_taken_at: Option<Instant>,
    deadline: Deadline,
    // Reset only when it fires, because a timer operation for each token would be too expensive.
    timer: Pin<Box<Sleep>>,
}

impl<S> Timed<S> {
    pub(in crate::provider) fn new(inner: S, failure_text: &'static str, longest_wait: Duration, deadline: Deadline) -> Self {
        let first = Deadline::after(longest_wait).at.min(deadline.at);
        let timer = Box::pin(tokio::time::sleep_until(first));
        Self { inner: Some(inner), failure_text, longest_wait, waiting_since: None, item_taken_at: None, deadline, timer }
    }
}

impl<S, T> Stream for Timed<S>
where
    S: Stream<Item = Result<T, ModelError>> + Unpin,
{
    type Item = Result<T, ModelError>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        let Some(inner) = this.inner.as_mut() else { return Poll::Ready(None) };
        let polled_at = Instant::now();
        if let Some(item_taken_at) = this.item_taken_at.take() {
            this.deadline.at += polled_at.saturating_duration_since(item_taken_at);
        }
        if let Poll::Ready(item) = Pin::new(inner).poll_next(cx) {
            (this.waiting_since, this.item_taken_at) = (None, Some(polled_at));
            return Poll::Ready(item);
        }
        let since = *this.waiting_since.get_or_insert(polled_at);
        while this.timer.as_mut().poll(cx).is_ready() {
            let now = Instant::now();
            let wait_end = since + this.longest_wait;
            let error = if now >= this.deadline.at {
                over_total(this.deadline.limit)
            } else if now >= wait_end {
                timeout(this.failure_text, this.longest_wait)
            } else {
                this.timer.as_mut().reset(wait_end.min(this.deadline.at));
                continue;
            };
            this.inner = None;
            return Poll::Ready(Some(Err(error)));
        }
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::StreamExt as _;

    /// An item after each of the pauses, then no more items.
    fn after_pauses(millis: &[u64]) -> impl Stream<Item = Result<u64, ModelError>> + Unpin + use<> {
        let pauses = millis.to_vec();
        Box::pin(
            futures_util::stream::iter(pauses)
                .then(|pause| async move {
                    tokio::time::sleep(Duration::from_millis(pause)).await;
                    Ok(pause)
                })
                .chain(futures_util::stream::pending()),
        )
    }

    async fn outcome(pauses: &[u64], longest: u64, total: u64) -> (usize, u128, String) {
        let start = Instant::now();
        let deadline = Deadline::after(Duration::from_millis(total));
        let mut stream = Timed::new(after_pauses(pauses), "no byte arrived", Duration::from_millis(longest), deadline);
        let mut items = 0;
        loop {
            match stream.next().await {
                Some(Ok(_)) => items += 1,
                Some(Err(error)) => {
                    assert_eq!(error.kind, ModelErrorKind::Timeout);
                    assert!(stream.next().await.is_none());
                    return (items, start.elapsed().as_millis(), error.message);
                }
                None => panic!("the stream never ends by itself"),
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn idle_timeout_restarts_with_each_item() {
        let (items, elapsed, message) = outcome(&[900, 900, 900], 1_000, 60_000).await;
        assert_eq!((items, message.as_str()), (3, "no byte arrived for 1 s"));
        assert!((3_700..3_720).contains(&elapsed), "{elapsed}");
    }

    #[tokio::test(start_paused = true)]
    async fn the_total_counts_although_items_come() {
        let (items, elapsed, message) = outcome(&[300; 100], 1_000, 2_500).await;
        assert_eq!((items, message.as_str()), (8, "the answer was not complete after 2500 ms: set a higher `total_ms`"));
        assert!((2_500..2_520).contains(&elapsed), "{elapsed}");
    }

    #[tokio::test(start_paused = true)]
    async fn slow_stream_has_no_total_limit_by_default() {
        let limits = StreamLimits::default();
        let deadline = Deadline::after(limits.total);
        let mut stream = Timed::new(after_pauses(&[1_000; 1_200]), NO_BYTE, limits.idle, deadline);
        for second in 0..1_200 {
            assert_eq!(stream.next().await, Some(Ok(1_000)), "after {second} s");
        }
        let thinking = limits.for_thinking(Duration::from_secs(600));
        assert_eq!((thinking.total, thinking.for_whole_answer()), (StreamLimits::NO_LIMIT, Duration::from_secs(1_200)));
        assert_eq!(limits.for_whole_answer(), Duration::from_secs(600));
        let set = limits.with(&CallLimits { total_ms: Some(5_000), ..CallLimits::default() });
        assert_eq!(set.for_whole_answer(), Duration::from_secs(5));
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_reader_is_not_a_slow_provider() {
        let deadline = Deadline::after(Duration::from_secs(600));
        let mut stream = Timed::new(after_pauses(&[100, 100]), "no byte arrived", Duration::from_secs(1), deadline);
        assert_eq!(stream.next().await, Some(Ok(100)));
        tokio::time::advance(Duration::from_secs(60)).await;
        assert_eq!(stream.next().await, Some(Ok(100)));
    }

    #[tokio::test(start_paused = true)]
    async fn the_time_of_a_slow_reader_is_not_part_of_the_total() {
        let deadline = Deadline::after(Duration::from_secs(1));
        let mut stream = Timed::new(after_pauses(&[100, 100, 100]), "no byte arrived", Duration::from_secs(10), deadline);
        for _ in 0..3 {
            assert_eq!(stream.next().await, Some(Ok(100)));
            tokio::time::advance(Duration::from_secs(60)).await;
        }
        let waited = Instant::now();
        assert!(stream.next().await.unwrap().is_err(), "the provider's own time is");
        assert!((690..720).contains(&waited.elapsed().as_millis()), "{:?}", waited.elapsed());
    }
}
