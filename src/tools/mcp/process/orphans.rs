//! Orphaned processes of servers, and the guard that ends them.
//!
//! A process may leave the process group of its server (`setsid`), and no group ends when this program is killed. So each child gets a
//! mark in its environment, which its descendants inherit, and by which they are found in `/proc`. A process that has cleared its
//! environment is found by its parent while that one lives, so this search comes before anything is ended. A process without mark and
//! parent is found by its control group only (`cgroup.rs`). All this exists on Linux only.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rustix::process::Signal;
use secrecy::SecretString;
use tokio::process::{Child, Command};

use crate::support::ids::IdSource;
use crate::tools::mcp::process::cgroup::{self, Cgroup};
use crate::tools::mcp::process::container;

pub use self::proc::{Unmarked, unmarked};
use self::proc::{left, signal};

/// The environment variable of the mark.
pub const MARK: &str = "MCP_STARTED_BY";
/// The hidden command that waits for the end of its standard input, and then ends processes with the mark.
pub const GUARD_COMMAND: &str = "end-orphans";
const BEGINNING: &str = "capstan-";
/// How long processes may take to end by themselves after this program has gone.
const GRACE: Duration = Duration::from_secs(2);
/// How long they may take to end after TERM.
const GRACE_TERM: Duration = Duration::from_secs(5);
const LOOK: Duration = Duration::from_millis(100);
/// The most rounds of killing: a process may have just started another one.
const ROUNDS: usize = 20;

/// Makes the marks of one process: unique, and with a common beginning that no other process has.
pub struct Words {
    pub beginning: String,
    given: AtomicU64,
}

impl Words {
    pub fn new(ids: &dyn IdSource) -> Self {
        Self { beginning: format!("{BEGINNING}{}-", ids.next()), given: AtomicU64::new(0) }
    }

    /// Returns the next mark. No mark is the beginning of another one.
    pub fn next(&self) -> String {
        format!("{}{}.", self.beginning, self.given.fetch_add(1, Ordering::Relaxed))
    }
}

#[cfg(target_os = "linux")]
mod proc {
    use std::collections::{BTreeMap, BTreeSet};
    use std::os::fd::OwnedFd;

    use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal, test_kill_process};

    use super::MARK;

    /// A descendant of a marked process without the mark. Held by a descriptor, so that a reused pid is never signalled.
    pub struct Unmarked {
        process: OwnedFd,
        number: i32,
        began: u64,
    }

    impl Unmarked {
        fn runs(&self) -> bool {
            stat(self.number).is_some_and(|now| now.began == self.began && !now.is_over)
        }
    }

    struct Stat {
        /// Whether it is a zombie.
        is_over: bool,
        parent: i32,
        /// The start, in ticks since boot.
        began: u64,
    }

    fn stat(number: i32) -> Option<Stat> {
        let read = std::fs::read(format!("/proc/{number}/stat")).ok()?;
        let read = String::from_utf8_lossy(&read);
        // The process chooses the text before the last bracket, which may contain anything.
        let mut fields = read.rsplit_once(')')?.1.split_whitespace();
        let is_over = matches!(fields.next()?, "Z" | "X" | "x");
        let parent = fields.next()?.parse().ok()?;
        let began = fields.nth(17)?.parse().ok()?;
        Some(Stat { is_over, parent, began })
    }

    fn numbers() -> impl Iterator<Item = i32> {
        let processes = std::fs::read_dir("/proc").into_iter().flatten();
        processes.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok())
    }

    fn bears(number: i32, word: &str) -> bool {
        let wanted = format!("{MARK}={word}");
        std::fs::read(format!("/proc/{number}/environ"))
            .is_ok_and(|environment| environment.split(|byte| *byte == 0).any(|variable| variable.starts_with(wanted.as_bytes())))
    }

    /// Returns the current descendants of the process `server`, or of processes whose mark begins with `word`, that have no such mark and
    /// may be signalled by us.
    pub fn unmarked(server: Option<u32>, word: &str) -> Vec<Unmarked> {
        let server = server.and_then(|number| i32::try_from(number).ok());
        let all: BTreeMap<i32, Stat> = numbers().filter_map(|number| Some((number, stat(number)?))).collect();
        let roots: BTreeSet<i32> = all.keys().copied().filter(|number| server == Some(*number) || bears(*number, word)).collect();
        let mut family = roots.clone();
        loop {
            let more = all.iter().filter(|(number, one)| {
                // A parent that is younger than its child is another process with a reused pid.
                let is_child = all.get(&one.parent).is_some_and(|parent| parent.began <= one.began);
                is_child && family.contains(&one.parent) && !family.contains(*number)
            });
            let more: Vec<i32> = more.map(|(number, _)| *number).collect();
            if more.is_empty() {
                break;
            }
            family.extend(more);
        }
        let hold = |number: i32| {
            let (pid, began) = (Pid::from_raw(number)?, all.get(&number)?.began);
            let process = pidfd_open(pid, PidfdFlags::empty()).ok()?;
            // Checked again after the descriptor is open, because the pid may have been reused before.
            let found = Unmarked { process, number, began };
            (found.runs() && test_kill_process(pid).is_ok()).then_some(found)
        };
        family.difference(&roots).copied().filter_map(hold).collect()
    }

    /// Returns the processes whose mark begins with `word`, and those of `unmarked` that still run.
    pub fn left(word: &str, unmarked: &[Unmarked]) -> Vec<OwnedFd> {
        let marked = numbers().filter_map(|number| {
            let process = pidfd_open(Pid::from_raw(number)?, PidfdFlags::empty()).ok()?;
            // Read after the descriptor is open, because the pid may have been reused before.
            bears(number, word).then_some(process)
        });
        let others = unmarked.iter().filter(|one| one.runs()).filter_map(|one| one.process.try_clone().ok());
        marked.chain(others).collect()
    }

    pub fn signal(processes: &[OwnedFd], signal: Signal) {
        for process in processes {
            let _ = pidfd_send_signal(process, signal);
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod proc {
    pub struct Unmarked;

    pub fn unmarked(_server: Option<u32>, _word: &str) -> Vec<Unmarked> {
        Vec::new()
    }

    pub fn left(_word: &str, _unmarked: &[Unmarked]) -> Vec<()> {
        Vec::new()
    }

    pub fn signal(_processes: &[()], _signal: rustix::process::Signal) {}
}

/// Ends all processes whose mark begins with `word`, and those of `unmarked`, and returns how many there were.
pub async fn end(word: &str, unmarked: &[Unmarked]) -> usize {
    let first = left(word, unmarked);
    if first.is_empty() {
        return 0;
    }
    signal(&first, Signal::TERM);
    let empty = async {
        while !left(word, unmarked).is_empty() {
            tokio::time::sleep(LOOK).await;
        }
    };
    if tokio::time::timeout(GRACE_TERM, empty).await.is_err() {
        for _ in 0..ROUNDS {
            let still = left(word, unmarked);
            if still.is_empty() {
                break;
            }
            signal(&still, Signal::KILL);
            tokio::time::sleep(LOOK).await;
        }
    }
    first.len()
}

/// Runs the guard: waits for the end of its standard input, and then ends what the server process has left. It may block the thread,
/// because its process does nothing else.
pub async fn guard(word: &str, engine: Option<&Path>, handed: Option<&Path>) {
    // Empty groups of processes that were killed together with their guards. Groups with processes may be in use.
    for empty in cgroup::below(|name| name.starts_with(BEGINNING) && name.ends_with('.')) {
        empty.remove();
    }
    let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
    // Searched before any process ends and leaves children without a parent.
    let unmarked = unmarked(None, word);
    let groups = cgroup::below(|name| name.starts_with(word));
    // Most servers exit when their input ends, and an orderly shutdown has left none.
    let is_over = left(word, &unmarked).is_empty() && groups.iter().all(Cgroup::is_empty);
    tokio::time::sleep(if is_over { Duration::ZERO } else { GRACE }).await;
    end(word, &unmarked).await;
    for group in groups {
        group.end().await;
    }
    // The next start tries again what fails here.
    if let Some(engine) = engine {
        let _ = container::remove_all(engine, None, &[word]).await;
    }
    if let Some(handed) = handed {
        let _ = container::sweep(handed);
    }
}

/// Starts guards: processes that survive this one, and end its orphaned processes and containers.
pub struct Guard {
    /// This program; `None` without a guard.
    program: Option<PathBuf>,
    word: String,
    /// The guard for processes, and the one for processes and containers.
    running: Mutex<[Option<Child>; 2]>,
}

impl Guard {
    /// Starts nothing yet. `word` is the beginning of all marks.
    pub fn new(program: Option<PathBuf>, word: String) -> Self {
        Self { program, word, running: Mutex::default() }
    }

    /// Starts the guard for processes, unless it runs.
    pub fn watch(&self) {
        self.start(0, |_| {});
    }

    /// Starts the guard for processes and containers of `engine`, unless it runs.
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

    /// Ends the guards, after all servers have ended.
    pub async fn dismiss(&self) {
        let running = std::mem::take(&mut *self.running.lock().unwrap_or_else(PoisonError::into_inner));
        for mut child in running.into_iter().flatten() {
            drop(child.stdin.take());
            let _ = tokio::time::timeout(GRACE + GRACE_TERM, child.wait()).await;
        }
    }
}
