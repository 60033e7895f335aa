//! Writes the log. Lines go through a bounded queue to one thread, the only one that writes to standard error.
//!
//! The log is best effort. A closed pipe, a full disk or a stuck reader loses log lines, which a metric counts. It must never fail
//! a request, stop a worker or delay the end of the process.

use std::collections::VecDeque;
use std::io::{self, IsTerminal as _, Write};
use std::sync::{Arc, Condvar, Mutex, PoisonError, mpsc};
use std::time::Duration;

use anyhow::Context as _;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::{EnvFilter, fmt};

use crate::app::config::{LogConfig, LogFormat};
use crate::support::locks::lock;

/// Time limit for writing the queued lines at the end of the process.
const FLUSH_LIMIT: Duration = Duration::from_secs(1);

/// Starts the log of the process, which also receives panics.
pub fn start(config: &LogConfig) -> anyhow::Result<LogGuard> {
    let filter = EnvFilter::try_new(directives(&config.level)).context("log.level: invalid directives")?;
    let terminal = io::stderr().is_terminal();
    let text = match config.format {
        LogFormat::Auto => terminal,
        LogFormat::Text => true,
        LogFormat::Json => false,
    };
    let queue = LineQueue::start(config.queue_bytes, io::stderr()).context("no thread can be started for the log")?;
    let guard = LogGuard(Arc::clone(&queue));
    // Otherwise an error of the subscriber would be printed to standard error by the logging thread.
    let format = fmt().with_env_filter(filter).with_writer(queue).log_internal_errors(false);
    let started = if text {
        format.with_ansi(terminal).with_target(false).try_init()
    } else {
        format.json().flatten_event(true).with_current_span(false).try_init()
    };
    started.map_err(|error| anyhow::anyhow!("the log cannot be started: {error}"))?;
    std::panic::set_hook(Box::new(|panic| {
        let backtrace = std::backtrace::Backtrace::capture();
        let thread = std::thread::current();
        tracing::error!(thread = thread.name().unwrap_or("unnamed"), "{panic}");
        if backtrace.status() == std::backtrace::BacktraceStatus::Captured {
            tracing::error!("{backtrace}");
        }
    }));
    Ok(guard)
}

/// Writes the error of a command to standard error, with [`FLUSH_LIMIT`].
pub fn print_error(text: &str) {
    let line = format!("{text}\n");
    let (done, wait) = mpsc::channel();
    let write = move || {
        // If standard error is closed, the error cannot be reported.
        let _ = io::stderr().write_all(line.as_bytes());
        let _ = done.send(());
    };
    if std::thread::Builder::new().spawn(write).is_ok() {
        let _ = wait.recv_timeout(FLUSH_LIMIT);
    }
}

/// Waits for queued lines when it is dropped, at most for [`FLUSH_LIMIT`].
pub struct LogGuard(Arc<LineQueue>);

impl Drop for LogGuard {
    fn drop(&mut self) {
        self.0.flush(FLUSH_LIMIT);
    }
}

struct LineQueue {
    state: Mutex<QueueState>,
    /// Notified when lines arrive and when a batch is written.
    changed: Condvar,
    max_bytes: usize,
}

#[derive(Default)]
struct QueueState {
    lines: VecDeque<Vec<u8>>,
    /// The size of `lines`.
    bytes: usize,
    /// Whether the writing thread has taken lines from the queue.
    is_writing: bool,
}

impl LineQueue {
    /// Starts the writing thread, which runs as long as the process.
    fn start(max_bytes: usize, output: impl Write + Send + 'static) -> io::Result<Arc<Self>> {
        let queue = Arc::new(Self { state: Mutex::default(), changed: Condvar::new(), max_bytes });
        let writer = Arc::clone(&queue);
        std::thread::Builder::new().name("capstan-log".to_owned()).spawn(move || writer.write_lines(output))?;
        Ok(queue)
    }

    /// Waits until every line is written or dropped, at most for `limit`.
    fn flush(&self, limit: Duration) {
        let pending = |state: &mut QueueState| state.is_writing || !state.lines.is_empty();
        let waited = self.changed.wait_timeout_while(lock(&self.state), limit, pending);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }

    fn push(&self, line: &[u8]) {
        let mut state = lock(&self.state);
        if state.bytes.saturating_add(line.len()) > self.max_bytes {
            drop(state);
            count_dropped_line();
            return;
        }
        state.bytes = state.bytes.saturating_add(line.len());
        state.lines.push_back(line.to_vec());
        drop(state);
        self.changed.notify_all();
    }

    /// Takes all queued lines, and waits while there is none.
    fn take(&self) -> VecDeque<Vec<u8>> {
        let mut state = lock(&self.state);
        state.is_writing = false;
        self.changed.notify_all();
        let mut state = self.changed.wait_while(state, |state| state.lines.is_empty()).unwrap_or_else(PoisonError::into_inner);
        state.is_writing = true;
        state.bytes = 0;
        std::mem::take(&mut state.lines)
    }

    fn write_lines(&self, mut output: impl Write) {
        loop {
            for line in self.take() {
                if output.write_all(&line).and_then(|()| output.flush()).is_err() {
                    count_dropped_line();
                }
            }
        }
    }
}

fn count_dropped_line() {
    metrics::counter!("capstan_log_lines_dropped_total").increment(1);
}

/// Accepts one line per write, as the formatter sends them. Never fails, because the formatter would print the error.
impl Write for &LineQueue {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.push(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Targets that log contents: libraries (MCP messages, WebSocket frames, stream events), and the wire log of provider requests and
/// responses.
const CONTENT_TARGETS: [&str; 5] = ["rmcp", "tungstenite", "tokio_tungstenite", "sse_stream", "wire"];

/// Converts `log.level` to directives. A plain level applies to Capstan's own lines. Lines of libraries may contain secret URLs and
/// contents: they appear from `warn` on, and those of [`CONTENT_TARGETS`] never. Directives that name a library have priority.
fn directives(level: &str) -> String {
    let mut all = CONTENT_TARGETS.map(|target| format!("{target}=off")).to_vec();
    for directive in level.split(',') {
        match directive.trim().parse::<LevelFilter>() {
            Ok(level) => all.extend([level.min(LevelFilter::WARN).to_string(), format!("capstan={level}")]),
            Err(_) => all.push(directive.trim().to_owned()),
        }
    }
    all.join(",")
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender};

    use metrics_exporter_prometheus::PrometheusBuilder;

    use super::*;
    use tracing::Level;
    use tracing_subscriber::layer::SubscriberExt as _;

    /// Returns for `capstan`, `reqwest` and `rmcp` whether `warn` and `debug` lines appear.
    fn shown(level: &str) -> [(bool, bool); 3] {
        let filter = EnvFilter::try_new(directives(level)).unwrap();
        tracing::subscriber::with_default(tracing_subscriber::registry().with(filter), || {
            [
                (tracing::enabled!(target: "capstan::a", Level::WARN), tracing::enabled!(target: "capstan::a", Level::DEBUG)),
                (tracing::enabled!(target: "reqwest::a", Level::WARN), tracing::enabled!(target: "reqwest::a", Level::DEBUG)),
                (tracing::enabled!(target: "rmcp::a", Level::WARN), tracing::enabled!(target: "rmcp::a", Level::DEBUG)),
            ]
        })
    }

    #[test]
    fn libraries_do_not_log_what_they_carry_unless_they_are_named() {
        let (none, warn, all) = ((false, false), (true, false), (true, true));
        for (level, expected) in [
            ("info", [warn, warn, none]),
            ("DEBUG", [all, warn, none]),
            ("trace", [all, warn, none]),
            ("error", [none, none, none]),
            ("off", [none, none, none]),
            ("info,capstan::a=debug", [all, warn, none]),
            ("info, reqwest=debug", [warn, all, none]),
            ("warn,rmcp=trace", [warn, warn, all]),
            ("capstan=debug", [all, none, none]),
        ] {
            assert_eq!(shown(level), expected, "{level}");
        }
    }

    /// Sends each line to the test, and waits until the test continues it.
    struct HeldOutput {
        written: Sender<String>,
        released: Receiver<()>,
    }

    impl Write for HeldOutput {
        fn write(&mut self, line: &[u8]) -> io::Result<usize> {
            let _ = self.written.send(String::from_utf8_lossy(line).into_owned());
            self.released.recv().map_err(io::Error::other)?;
            Ok(line.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    const LIMIT: Duration = Duration::from_secs(20);

    #[test]
    fn full_queue_drops_and_counts_lines() {
        let recorder = PrometheusBuilder::new().build_recorder();
        let (written, lines) = mpsc::channel();
        let (release, released) = mpsc::channel();
        let queue = LineQueue::start(10, HeldOutput { written, released }).unwrap();
        let push = |line: &str| (&*queue).write_all(line.as_bytes()).unwrap();
        metrics::with_local_recorder(&recorder, || {
            push("first\n");
            assert_eq!(lines.recv_timeout(LIMIT).unwrap(), "first\n");
            // The thread is blocked in its first line, and ten more bytes fit.
            for line in ["12345\n", "abc\n", "lost\n", "!"] {
                push(line);
            }
        });
        assert!(recorder.handle().render().contains("capstan_log_lines_dropped_total 2"), "{}", recorder.handle().render());
        queue.flush(Duration::from_millis(1));
        for _ in 0..3 {
            release.send(()).unwrap();
        }
        queue.flush(LIMIT);
        assert_eq!(lines.try_iter().collect::<String>(), "12345\nabc\n");
    }

    #[test]
    fn refused_line_does_not_end_the_log() {
        let (written, lines) = mpsc::channel();
        let (release, released) = mpsc::channel();
        let queue = LineQueue::start(100, HeldOutput { written, released }).unwrap();
        // The receiver is dropped, so each write fails.
        drop(release);
        for _ in 0..2 {
            (&*queue).write_all(b"line\n").unwrap();
            queue.flush(LIMIT);
        }
        assert_eq!(lines.try_iter().collect::<String>(), "line\nline\n");
    }
}
