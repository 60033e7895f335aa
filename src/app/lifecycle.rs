//! What the process asks of the operating system, and how it is told to end: the first signal asks for an orderly end, the
//! second one for an immediate one.

use anyhow::Context as _;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// The signals that end the process.
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// Receives SIGTERM and SIGINT from now on instead of dying of them.
    ///
    /// # Errors
    /// If the handlers cannot be installed.
    pub fn install() -> anyhow::Result<Self> {
        let install = |kind| signal(kind).context("signals cannot be received");
        Ok(Self { terminate: install(SignalKind::terminate())?, interrupt: install(SignalKind::interrupt())? })
    }

    /// Waits for the next signal and names it. Cancel-safe.
    pub async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
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
