//! Receives signals, and raises the limit of open files. The first SIGTERM or SIGINT drains the server, the second one ends it.

use anyhow::Context as _;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::signal::unix::{Signal, SignalKind, signal};

pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
    user_one: Signal,
    user_two: Signal,
}

impl Signals {
    /// Installs handlers for all five signals: the system's default is to kill the process.
    pub fn install() -> anyhow::Result<Self> {
        let install = |kind| signal(kind).context("signals cannot be received");
        Ok(Self {
            terminate: install(SignalKind::terminate())?,
            interrupt: install(SignalKind::interrupt())?,
            hangup: install(SignalKind::hangup())?,
            user_one: install(SignalKind::user_defined1())?,
            user_two: install(SignalKind::user_defined2())?,
        })
    }

    /// Waits for the next signal that ends the process and names it. Cancel-safe.
    ///
    /// A closed terminal, `logrotate` and scripts send SIGHUP, and some managers SIGUSR1 or SIGUSR2. Capstan has nothing to reload or
    /// reopen, so these signals change nothing.
    pub async fn next(&mut self) -> &'static str {
        loop {
            let ignored = tokio::select! {
                _ = self.terminate.recv() => return "SIGTERM",
                _ = self.interrupt.recv() => return "SIGINT",
                _ = self.hangup.recv() => "SIGHUP",
                _ = self.user_one.recv() => "SIGUSR1",
                _ = self.user_two.recv() => "SIGUSR2",
            };
            tracing::info!(signal = ignored, "signal ignored: SIGTERM ends the server, and settings are read at its start");
        }
    }
}

/// Raises the limit of open files to what the system allows: many systems begin at 1,024, and each stream needs one.
pub fn raise_file_limit() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current == maximum {
        return;
    }
    match setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }) {
        Ok(()) => tracing::debug!(before = current, now = maximum, "raised the limit of open files"),
        Err(error) => tracing::warn!(limit = current, %error, "the limit of open files cannot be raised"),
    }
}
