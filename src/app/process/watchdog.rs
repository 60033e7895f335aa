//! Reports tasks that block a thread of the runtime.
//!
//! A task that computes for a long time or waits for a lock blocks its thread, and the tasks in the queue of that thread. Tasks of
//! the runtime cannot reliably detect a blocked thread, so a separate thread takes samples. A runtime thread is still in the same
//! poll if it has neither parked nor finished a round of polls since the last sample.

use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::runtime::{Handle, RuntimeMetrics};

/// The time after which a poll is reported.
pub const POLL_LIMIT: Duration = Duration::from_secs(5);

/// The number of unchanged samples after which a poll is reported.
///
/// The watchdog counts samples and not time, so that it does not report a process that was suspended with SIGSTOP.
const SAMPLES_IN_LIMIT: u32 = 5;

/// The progress of a runtime thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Sample {
    /// The number of times that the thread parked or woke up; odd while it is parked.
    parks_and_wakes: u64,
    /// The time that the thread has spent on polls, up to its last finished round.
    busy: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WatchdogEvent {
    /// A task has blocked its thread for the limit.
    TaskStalled,
    /// The task that blocked its thread has yielded.
    TaskYielded,
}

/// The latest samples of a runtime thread.
#[derive(Default)]
struct SampleHistory {
    last: Option<Sample>,
    /// The number of unchanged samples in a row.
    unchanged: u32,
}

impl SampleHistory {
    /// Adds a sample. Returns an event if a task starts or stops blocking the thread.
    fn add(&mut self, sample: Sample) -> Option<WatchdogEvent> {
        let was_stalled = self.unchanged >= SAMPLES_IN_LIMIT;
        if self.last.replace(sample) == Some(sample) && sample.parks_and_wakes.is_multiple_of(2) {
            self.unchanged = self.unchanged.saturating_add(1);
        } else {
            self.unchanged = 0;
        }
        match (was_stalled, self.unchanged >= SAMPLES_IN_LIMIT) {
            (false, true) => Some(WatchdogEvent::TaskStalled),
            (true, false) => Some(WatchdogEvent::TaskYielded),
            (true, true) | (false, false) => None,
        }
    }
}

/// The thread that takes samples. It ends when this value is dropped.
pub struct Watchdog {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Watchdog {
    /// Starts to watch a runtime. Logs and counts polls that take longer than `limit`. Fails if no thread can be started.
    pub fn start(runtime: &Handle, limit: Duration) -> std::io::Result<Self> {
        Self::start_with_report(runtime, limit, move |thread, event| log(thread, event, limit))
    }

    /// Starts to watch a runtime. Calls `report` with the number of a runtime thread and its event.
    fn start_with_report(
        runtime: &Handle,
        limit: Duration,
        report: impl Fn(usize, WatchdogEvent) + Send + 'static,
    ) -> std::io::Result<Self> {
        let metrics = runtime.metrics();
        let (stop, stopped) = mpsc::channel();
        let watch = move || {
            let mut histories: Vec<SampleHistory> = (0..metrics.num_workers()).map(|_| SampleHistory::default()).collect();
            while stopped.recv_timeout(limit / SAMPLES_IN_LIMIT) == Err(RecvTimeoutError::Timeout) {
                for (thread, history) in histories.iter_mut().enumerate() {
                    if let Some(event) = history.add(take_sample(&metrics, thread)) {
                        report(thread, event);
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
            // Joining fails only after a panic, which the panic hook has logged.
            let _ = thread.join();
        }
    }
}

fn take_sample(metrics: &RuntimeMetrics, thread: usize) -> Sample {
    Sample { parks_and_wakes: metrics.worker_park_unpark_count(thread), busy: metrics.worker_total_busy_duration(thread) }
}

fn log(thread: usize, event: WatchdogEvent, limit: Duration) {
    match event {
        WatchdogEvent::TaskStalled => {
            metrics::counter!("capstan_stalls_total").increment(1);
            tracing::error!(thread, "a task has not yielded for {limit:?} and blocks the other tasks of its thread");
        }
        WatchdogEvent::TaskYielded => tracing::warn!(thread, "the task that blocked its thread has yielded"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thread_without_progress_is_reported_once() {
        let mut history = SampleHistory::default();
        let sample = |parks_and_wakes, busy| Sample { parks_and_wakes, busy: Duration::from_millis(busy) };
        let mut add = |sample, times: u32| (0..times).filter_map(|_| history.add(sample)).collect::<Vec<_>>();
        assert_eq!(add(sample(3, 7), 20), [], "the thread is parked");
        for n in 0..20 {
            assert_eq!(add(sample(4, 100 + n), 2), [], "the thread is busy, and its tasks yield");
        }
        assert_eq!(add(sample(4, 500), SAMPLES_IN_LIMIT), []);
        assert_eq!(add(sample(4, 500), 20), [WatchdogEvent::TaskStalled], "a stalled task is reported once");
        assert_eq!(add(sample(5, 900), 20), [WatchdogEvent::TaskYielded]);
    }

    #[test]
    fn task_that_does_not_yield_is_reported() {
        let time_limit = Duration::from_secs(30);
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
        let (reports, reported) = mpsc::channel();
        let watchdog = Watchdog::start_with_report(runtime.handle(), Duration::from_millis(100), move |thread, event| {
            let _ = reports.send((thread, event));
        });
        let (release, released) = mpsc::channel::<()>();
        let task = runtime.spawn(async move {
            let _ = released.recv();
        });
        let (thread, event) = reported.recv_timeout(time_limit).unwrap();
        assert_eq!(event, WatchdogEvent::TaskStalled);
        // The other thread continues and is not reported.
        runtime.block_on(runtime.spawn(tokio::task::yield_now())).unwrap();
        release.send(()).unwrap();
        runtime.block_on(task).unwrap();
        assert_eq!(reported.recv_timeout(time_limit).unwrap(), (thread, WatchdogEvent::TaskYielded));
        drop(watchdog);
        assert!(reported.try_recv().is_err());
    }
}
