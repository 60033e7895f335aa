//! Named points at which a test can make the process die, stop or fail.
//!
//! The points exist only with the `failpoints` feature; a release build holds no trace of them. They are switched on by
//! `CAPSTAN_FAILPOINTS=NAME=ACTION[@N][;...]`: at the N-th time (default 1) that the point is reached, `kill` sends the
//! process SIGKILL, `stop` sends it SIGSTOP, `panic` panics in the task. `ask:HOST:PORT` tells the name of the point to
//! whoever listens there, waits for the answer, and does what it says: one of these words, or nothing.
//!
//! `CAPSTAN_PLANTED=NAME` plants a bug, to see that a test finds it. Without the feature there is no such bug.

/// Marks a boundary between two persisted steps. The name is that of the crash point, such as `C09`.
#[cfg(not(feature = "failpoints"))]
#[inline(always)]
pub fn reached(_name: &'static str) {}

/// Whether a test has planted the bug of that name, to see that it is found: in its own thread, or in this process.
#[cfg(not(feature = "failpoints"))]
#[inline(always)]
#[must_use]
pub fn is_planted(_name: &'static str) -> bool {
    false
}

#[cfg(feature = "failpoints")]
pub use active::{is_planted, plant, reached};

#[cfg(feature = "failpoints")]
mod active {
    use std::cell::Cell;
    use std::collections::HashMap;
    use std::io::Write as _;
    use std::sync::{LazyLock, Mutex, PoisonError};

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

    /// Plants a bug for whatever runs in this thread, or takes it out again.
    pub fn plant(name: Option<&'static str>) {
        PLANTED.set(name);
    }

    /// See above.
    #[must_use]
    pub fn is_planted(name: &'static str) -> bool {
        PLANTED.get() == Some(name) || PLANTED_IN_PROCESS.as_deref() == Some(name)
    }

    /// See the module documentation.
    pub fn reached(name: &'static str) {
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
            Some(listener) => without_holding_up_others(|| ask(listener, name)),
            None => action,
        };
        match action.as_str() {
            "kill" => signal("KILL"),
            "stop" => signal("STOP"),
            "panic" => fail(name),
            _ => {}
        }
    }

    /// What to do, as the listener says. Nobody there means nothing to do.
    fn ask(listener: &str, name: &str) -> String {
        let asked = std::net::TcpStream::connect(listener).and_then(|mut stream| {
            writeln!(stream, "{name}")?;
            std::io::read_to_string(stream)
        });
        asked.map(|answer| answer.trim().to_owned()).unwrap_or_default()
    }

    /// The task stands still at the point; those behind it on its thread shall not, or what the listener waits for could not
    /// happen.
    fn without_holding_up_others<T>(work: impl FnOnce() -> T) -> T {
        match Handle::try_current().map(|runtime| runtime.runtime_flavor()) {
            Ok(RuntimeFlavor::MultiThread) => tokio::task::block_in_place(work),
            Ok(_) | Err(_) => work(),
        }
    }

    #[expect(clippy::panic, reason = "a panic in the task is what the test asked for")]
    fn fail(name: &str) {
        panic!("failpoint {name}");
    }

    fn signal(which: &str) {
        // A child process sends it, because no safe call in the standard library does. The process dies or stops inside
        // `status`, so nothing after this point runs before the signal.
        let pid = std::process::id().to_string();
        let _ = std::process::Command::new("kill").arg(format!("-{which}")).arg(pid).status();
        // Another thread may be the one that receives it, a moment later on a busy machine: nothing may run until then.
        let _ = std::process::Command::new("sleep").arg("0.1").status();
    }
}
