//! Receives signals of the operating system. The first SIGTERM or SIGINT begins the shutdown, and each further one shortens it.

use anyhow::Context as _;
use tokio::signal::unix::{Signal, SignalKind, signal};

pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
    user_one: Signal,
    user_two: Signal,
}

impl Signals {
    /// Installs handlers for all five signals. By default, they would end the process.
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

    /// Waits for the next signal that ends the process, and returns its name. Cancel-safe.
    ///
    /// A closed terminal, `logrotate` and scripts send SIGHUP, and some managers SIGUSR1 or SIGUSR2. Capstan has nothing to reload
    /// or reopen, so it ignores them.
    pub async fn next(&mut self) -> &'static str {
        loop {
            let ignored = tokio::select! {
                _ = self.terminate.recv() => return "SIGTERM",
                _ = self.interrupt.recv() => return "SIGINT",
                _ = self.hangup.recv() => "SIGHUP",
                _ = self.user_one.recv() => "SIGUSR1",
                _ = self.user_two.recv() => "SIGUSR2",
            };
            tracing::info!(signal = ignored, "signal ignored: SIGTERM ends the server; settings are only read at the start");
        }
    }
}
