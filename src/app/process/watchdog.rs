//! Reports a worker thread of the runtime that does not yield.
//!
//! A task that computes for long or waits for a lock blocks its thread and the tasks in that thread's queue. Tasks of the runtime
//! cannot reliably detect that, so a separate thread takes samples. A worker that neither parked nor finished a round of polls
//! since the last sample is still in the same poll.

use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::runtime::{Handle, RuntimeMetrics};

/// The shortest duration of a poll that is reported.
pub const LIMIT: Duration = Duration::from_secs(5);

/// The number of samples in one limit. Samples are counted instead of time, so that a suspended process (SIGSTOP) is not reported.
const SAMPLES: u32 = 5;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Sample {
    /// Counts parking and waking; odd while the thread is parked.
    parks: u64,
    /// The time spent polling tasks, up to the last round.
    busy: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WatchdogEvent {
    Stalled,
    Yielded,
}

#[derive(Default)]
struct History {
    last: Option<Sample>,
    /// Consecutive samples without a change.
    unchanged: u32,
}

impl History {
    fn add(&mut self, sample: Sample) -> Option<WatchdogEvent> {
        let was_stalled = self.unchanged >= SAMPLES;
        if self.last.replace(sample) == Some(sample) && sample.parks.is_multiple_of(2) {
            self.unchanged = self.unchanged.saturating_add(1);
        } else {
            self.unchanged = 0;
        }
        match (was_stalled, self.unchanged >= SAMPLES) {
            (false, true) => Some(WatchdogEvent::Stalled),
            (true, false) => Some(WatchdogEvent::Yielded),
            (true, true) | (false, false) => None,
        }
    }
}

/// The sampling thread. It ends when this value is dropped.
pub struct Watchdog {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Watchdog {
    /// Watches a runtime. Logs and counts a poll that takes longer than `limit`.
    pub fn start(runtime: &Handle, limit: Duration) -> std::io::Result<Self> {
        Self::reporting(runtime, limit, move |worker, news| log(worker, news, limit))
    }

    fn reporting(
        runtime: &Handle,
        limit: Duration,
        report: impl Fn(usize, WatchdogEvent) + Send + 'static,
    ) -> std::io::Result<Self> {
        let metrics = runtime.metrics();
        let (stop, stopped) = mpsc::channel();
        let watch = move || {
            let mut workers: Vec<History> = (0..metrics.num_workers()).map(|_| History::default()).collect();
            while stopped.recv_timeout(limit / SAMPLES) == Err(RecvTimeoutError::Timeout) {
                for (worker, history) in workers.iter_mut().enumerate() {
                    if let Some(news) = history.add(sample(&metrics, worker)) {
                        report(worker, news);
                    }
                }
            }
        };
        let thread = std::thread::Builder::new().name("watchdog".to_owned()).spawn(watch)?;
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.stop.take();
        if let Some(thread) = self.thread.take() {
            // Joining only fails after a panic, which the panic hook has logged.
            let _ = thread.join();
        }
    }
}

fn sample(metrics: &RuntimeMetrics, worker: usize) -> Sample {
    Sample { parks: metrics.worker_park_unpark_count(worker), busy: metrics.worker_total_busy_duration(worker) }
}

fn log(worker: usize, news: WatchdogEvent, limit: Duration) {
    match news {
        WatchdogEvent::Stalled => {
            metrics::counter!("capstan_stalls_total").increment(1);
            tracing::error!(worker, "a task has not yielded for {limit:?} and blocks the other tasks of its thread");
        }
        WatchdogEvent::Yielded => tracing::warn!(worker, "the task that blocked its thread has yielded"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_worker_that_stands_still_has_stalled() {
        let mut history = History::default();
        let at = |parks, busy| Sample { parks, busy: Duration::from_millis(busy) };
        let mut looks = |sample, times: u32| (0..times).filter_map(|_| history.add(sample)).collect::<Vec<_>>();
        assert_eq!(looks(at(3, 7), 20), [], "parked");
        for n in 0..20 {
            assert_eq!(looks(at(4, 100 + n), 2), [], "busy without parking, and yielding");
        }
        assert_eq!(looks(at(4, 500), SAMPLES), []);
        assert_eq!(looks(at(4, 500), 20), [WatchdogEvent::Stalled], "told once");
        assert_eq!(looks(at(5, 900), 20), [WatchdogEvent::Yielded]);
    }

    #[test]
    fn a_task_that_does_not_yield_is_reported() {
        let time_limit = Duration::from_secs(30);
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
        let (reports, reported) = mpsc::channel();
        let watchdog = Watchdog::reporting(runtime.handle(), Duration::from_millis(100), move |worker, news| {
            let _ = reports.send((worker, news));
        });
        let (release, released) = mpsc::channel::<()>();
        let task = runtime.spawn(async move {
            let _ = released.recv();
        });
        let (worker, news) = reported.recv_timeout(time_limit).unwrap();
        assert_eq!(news, WatchdogEvent::Stalled);
        // The other thread continues and is not reported.
        runtime.block_on(runtime.spawn(tokio::task::yield_now())).unwrap();
        release.send(()).unwrap();
        runtime.block_on(task).unwrap();
        assert_eq!(reported.recv_timeout(time_limit).unwrap(), (worker, WatchdogEvent::Yielded));
        drop(watchdog);
        assert!(reported.try_recv().is_err());
    }
}
