//! Named points at which a test can kill, stop or fail the process.
//!
//! The points exist only with the `failpoints` feature, never in a release build. `CAPSTAN_FAILPOINTS=NAME=ACTION[@N][;...]` sets the
//! action for the N-th time (default 1) that a point is reached. `kill` sends SIGKILL to the process, `stop` sends SIGSTOP, `panic`
//! panics in the task. `ask:HOST:PORT` sends the name of the point to a listener and waits: the reply is one of these words, or empty.
//!
//! `CAPSTAN_PLANTED=NAME` plants a bug, to see that a test finds it.

/// Marks a boundary between two persisted steps. The name is the id of the crash point, such as `C09`.
#[cfg(not(feature = "failpoints"))]
#[inline(always)]
pub fn hit(_name: &'static str) {}

/// Returns whether a test has planted this bug, in its own thread or in this process.
#[cfg(not(feature = "failpoints"))]
#[inline(always)]
pub fn is_planted(_name: &'static str) -> bool {
    false
}

#[cfg(feature = "failpoints")]
pub use active::{hit, is_planted, plant};

#[cfg(feature = "failpoints")]
mod active {
    use std::cell::Cell;
    use std::collections::HashMap;
    use std::io::Write as _;
    use std::sync::{LazyLock, Mutex, PoisonError};

    use rustix::process::{Signal, getpid, kill_process};
    use tokio::runtime::{Handle, RuntimeFlavor};

    struct Point {
        action: String,
        left: u64,
    }

    static POINTS: LazyLock<Mutex<HashMap<String, Point>>> = LazyLock::new(|| {
        #[expect(clippy::disallowed_methods, reason = "the points must work before any configuration is read")]
        let setting = std::env::var("CAPSTAN_FAILPOINTS").unwrap_or_default();
        Mutex::new(parse(&setting))
    });

    static PLANTED_IN_PROCESS: LazyLock<Option<String>> = LazyLock::new(|| {
        #[expect(clippy::disallowed_methods, reason = "a bug must be there before any configuration is read")]
        let setting = std::env::var("CAPSTAN_PLANTED");
        setting.ok()
    });

    fn parse(setting: &str) -> HashMap<String, Point> {
        let mut points = HashMap::new();
        for entry in setting.split(';').filter(|entry| !entry.trim().is_empty()) {
            let Some((name, action)) = entry.split_once('=') else { continue };
            let (action, at) = action.split_once('@').unwrap_or((action, "1"));
            let left = at.trim().parse().unwrap_or(1);
            points.insert(name.trim().to_owned(), Point { action: action.trim().to_owned(), left });
        }
        points
    }

    thread_local! {
        static PLANTED: Cell<Option<&'static str>> = const { Cell::new(None) };
    }

    /// Plants a bug in this thread, or removes it.
    pub fn plant(name: Option<&'static str>) {
        PLANTED.set(name);
    }

    pub fn is_planted(name: &'static str) -> bool {
        PLANTED.get() == Some(name) || PLANTED_IN_PROCESS.as_deref() == Some(name)
    }

    pub fn hit(name: &'static str) {
        let action = {
            let mut points = POINTS.lock().unwrap_or_else(PoisonError::into_inner);
            let Some(point) = points.get_mut(name) else { return };
            point.left = point.left.saturating_sub(1);
            if point.left > 0 {
                return;
            }
            match points.remove(name) {
                Some(point) => point.action,
                None => return,
            }
        };
        tracing::warn!(point = name, action, "failpoint reached");
        let action = match action.strip_prefix("ask:") {
            Some(listener) => block_this_task_only(|| ask(listener, name)),
            None => action,
        };
        match action.as_str() {
            "kill" => signal(Signal::KILL),
            "stop" => signal(Signal::STOP),
            "panic" => fail(name),
            _ => {}
        }
    }

    /// Returns the action that the listener names; empty without a listener.
    fn ask(listener: &str, name: &str) -> String {
        let reply = std::net::TcpStream::connect(listener).and_then(|mut stream| {
            writeln!(stream, "{name}")?;
            std::io::read_to_string(stream)
        });
        reply.map(|answer| answer.trim().to_owned()).unwrap_or_default()
    }

    /// Blocks the task, but not the other tasks of its thread, for which the listener may wait.
    fn block_this_task_only<T>(work: impl FnOnce() -> T) -> T {
        match Handle::try_current().map(|runtime| runtime.runtime_flavor()) {
            Ok(RuntimeFlavor::MultiThread) => tokio::task::block_in_place(work),
            Ok(_) | Err(_) => work(),
        }
    }

    #[expect(clippy::panic, reason = "a panic in the task is what the test asked for")]
    fn fail(name: &str) {
        panic!("failpoint {name}");
    }

    fn signal(signal: Signal) {
        let _ = kill_process(getpid(), signal);
        // On a busy machine another thread may handle the signal a moment later; no code may run until then.
        let _ = std::process::Command::new("sleep").arg("0.1").status();
    }
}
