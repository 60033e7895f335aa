//! What servers started and left behind.
//!
//! A process may leave the group of its server (`setsid`), and nobody ends a group when this program is killed. So each child gets
//! a word in its environment, which everything that it starts inherits, and by which it can be found in `/proc`. That exists on
//! Linux only, and a process that clears its environment is not found.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rustix::process::Signal;
use secrecy::SecretString;
use tokio::process::{Child, Command};

use super::container;
use crate::support::ids::IdSource;

use self::proc::{marked, signal};

/// The variable that holds the word.
pub const MARK: &str = "MCP_STARTED_BY";
/// The hidden command of this program that waits until its standard input ends, and then ends what bears the word.
pub const GUARD_COMMAND: &str = "end-orphans";
/// How long processes may take to see by themselves that nobody is there any more.
const GRACE: Duration = Duration::from_secs(2);
/// How long they may take to end after TERM.
const GRACE_TERM: Duration = Duration::from_secs(5);
/// How often they are looked for meanwhile.
const LOOK: Duration = Duration::from_millis(100);
/// How often at most they are killed: each may have started another one just then.
const ROUNDS: usize = 20;

/// Makes the words of one program: they begin alike, and no two are the same.
pub struct Words {
    beginning: String,
    given: AtomicU64,
}

impl Words {
    /// Words that no other program has.
    pub fn new(ids: &dyn IdSource) -> Self {
        Self { beginning: format!("capstan-{}-", ids.next()), given: AtomicU64::new(0) }
    }

    /// How all of them begin.
    pub fn beginning(&self) -> &str {
        &self.beginning
    }

    /// The next one. None is the beginning of another one.
    pub fn next(&self) -> String {
        format!("{}{}.", self.beginning, self.given.fetch_add(1, Ordering::Relaxed))
    }
}

#[cfg(target_os = "linux")]
mod proc {
    use std::os::fd::OwnedFd;

    use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

    use super::MARK;

    /// The processes whose word begins with `word`. Held by descriptors, so that no other process that gets their number is meant.
    pub fn marked(word: &str) -> Vec<OwnedFd> {
        let Ok(processes) = std::fs::read_dir("/proc") else { return Vec::new() };
        let numbers = processes.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
        let wanted = format!("{MARK}={word}");
        let found = numbers.filter_map(|number: i32| {
            let process = pidfd_open(Pid::from_raw(number)?, PidfdFlags::empty()).ok()?;
            // Read after the process is held: this is its environment, or that of nobody.
            let environment = std::fs::read(format!("/proc/{number}/environ")).ok()?;
            environment.split(|byte| *byte == 0).any(|variable| variable.starts_with(wanted.as_bytes())).then_some(process)
        });
        found.collect()
    }

    pub fn signal(processes: &[OwnedFd], signal: Signal) {
        for process in processes {
            // It may have ended meanwhile.
            let _ = pidfd_send_signal(process, signal);
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod proc {
    pub fn marked(_word: &str) -> Vec<()> {
        Vec::new()
    }

    pub fn signal(_processes: &[()], _signal: rustix::process::Signal) {}
}

/// Ends all processes whose word begins with `word`, and tells how many there were.
pub async fn end(word: &str) -> usize {
    let first = marked(word);
    if first.is_empty() {
        return 0;
    }
    signal(&first, Signal::TERM);
    let empty = async {
        while !marked(word).is_empty() {
            tokio::time::sleep(LOOK).await;
        }
    };
    if tokio::time::timeout(GRACE_TERM, empty).await.is_err() {
        for _ in 0..ROUNDS {
            let left = marked(word);
            if left.is_empty() {
                break;
            }
            signal(&left, Signal::KILL);
            tokio::time::sleep(LOOK).await;
        }
    }
    first.len()
}

/// The guard itself: waits until whoever holds the other end of its standard input is gone. Nothing else goes on in its
/// process, so it may hold the thread.
pub async fn guard(word: &str, engine: Option<&Path>, handed: Option<&Path>) {
    let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
    // Most see that their input has ended; an orderly end of the program has left none.
    tokio::time::sleep(if marked(word).is_empty() { Duration::ZERO } else { GRACE }).await;
    end(word).await;
    if let Some(engine) = engine {
        container::remove_all(engine, word).await;
    }
    if let Some(handed) = handed {
        // There is nobody to be told if it fails, and whoever starts next tries again.
        let _ = container::sweep(handed);
    }
}

/// What survives this process, to end what it leaves behind.
pub struct Guard {
    /// This program; `None` where there shall be no guard.
    program: Option<PathBuf>,
    word: String,
    /// The one that knows of processes, and the one that knows of containers, too.
    running: Mutex<[Option<Child>; 2]>,
}

impl Guard {
    /// A guard that is not started yet, for processes and containers whose word begins with `word`.
    pub fn new(program: Option<PathBuf>, word: String) -> Self {
        Self { program, word, running: Mutex::default() }
    }

    /// Starts it if it does not run.
    pub fn watch(&self) {
        self.start(0, |_| {});
    }

    /// Starts the one that knows of containers, too, which `engine` runs.
    pub fn watch_containers(&self, engine: &Path, variables: &BTreeMap<String, SecretString>, handed: Option<&Path>) {
        self.start(1, |command| {
            command.arg(engine).args(handed).envs(container::plain(variables));
        });
    }

    fn start(&self, which: usize, also: impl FnOnce(&mut Command)) {
        let Some(program) = &self.program else { return };
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        let running = &mut running[which];
        if running.as_mut().is_some_and(|child| matches!(child.try_wait(), Ok(None))) {
            return;
        }
        let mut command = Command::new(program);
        command.args([GUARD_COMMAND, &self.word]).env_clear().process_group(0);
        also(&mut command);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        match command.spawn() {
            Ok(child) => *running = Some(child),
            Err(error) => tracing::warn!(%error, "there is no guard: MCP servers may outlive this program if it is killed"),
        }
    }

    /// Lets it end, once all servers have ended.
    pub async fn dismiss(&self) {
        let running = std::mem::take(&mut *self.running.lock().unwrap_or_else(PoisonError::into_inner));
        for mut child in running.into_iter().flatten() {
            drop(child.stdin.take());
            let _ = tokio::time::timeout(GRACE + GRACE_TERM, child.wait()).await;
        }
    }
}
