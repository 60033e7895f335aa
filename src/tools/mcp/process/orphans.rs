//! Orphaned processes of servers, and the guard that ends them.
//!
//! A process may leave the process group of its server (`setsid`), and no group ends when this program is killed. So each child gets a
//! marker in its environment. Its descendants inherit the marker, and `/proc` shows it. A process that has cleared its environment is found
//! by its parent while the parent lives, so this search precedes every kill. A process without marker and parent is found by its control
//! group only (`cgroup.rs`). All this exists on Linux only.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::process::Signal;
use secrecy::SecretString;
use tokio::process::{Child, Command};

use crate::support::ids::IdSource;
use crate::tools::mcp::process::cgroup::{self, Cgroup};
use crate::tools::mcp::process::container;

pub use self::proc::{UnmarkedDescendant, unmarked};
use self::proc::{find_remaining, signal};
use crate::support::locks::lock;

/// The environment variable of the marker.
pub const MARKER_VARIABLE: &str = "MCP_STARTED_BY";
/// The hidden command that waits for the end of its standard input, and then ends processes with the marker.
pub const GUARD_COMMAND: &str = "end-orphans";
const MARKER_PREFIX: &str = "capstan-";
/// How long processes may take to exit by themselves after this program has ended.
const GRACE: Duration = Duration::from_secs(2);
/// How long they may take to end after TERM.
const GRACE_TERM: Duration = Duration::from_secs(5);
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// The most rounds of killing: a process may have just started another one.
const MAX_ROUNDS: usize = 20;

/// Generates the markers of one process: unique, and with a common prefix that no other process has.
pub struct ProcessMarkerSource {
    pub prefix: String,
    count: AtomicU64,
}

impl ProcessMarkerSource {
    pub fn new(ids: &dyn IdSource) -> Self {
        Self { prefix: format!("{MARKER_PREFIX}{}-", ids.next()), count: AtomicU64::new(0) }
    }

    /// Returns the next marker. No marker is a prefix of another one.
    pub fn next(&self) -> String {
        format!("{}{}.", self.prefix, self.count.fetch_add(1, Ordering::Relaxed))
    }
}

#[cfg(target_os = "linux")]
mod proc {
    use std::collections::{BTreeMap, BTreeSet};
    use std::os::fd::OwnedFd;

    use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal, test_kill_process};

    use super::MARKER_VARIABLE;

    /// A descendant of a marked process that does not have the marker itself. Identified by a descriptor, so that a reused pid is never signalled.
    pub struct UnmarkedDescendant {
        process: OwnedFd,
        number: i32,
        started: u64,
    }

    impl UnmarkedDescendant {
        fn is_running(&self) -> bool {
            stat(self.number).is_some_and(|now| now.started == self.started && !now.is_over)
        }
    }

    struct Stat {
        /// Whether it is a zombie.
        is_over: bool,
        parent: i32,
        /// The start time, in ticks since boot.
        started: u64,
    }

    fn stat(number: i32) -> Option<Stat> {
        let read = std::fs::read(format!("/proc/{number}/stat")).ok()?;
        let read = String::from_utf8_lossy(&read);
        // The process chooses the text before the last bracket, which may contain any character.
        let mut fields = read.rsplit_once(')')?.1.split_whitespace();
        let is_over = matches!(fields.next()?, "Z" | "X" | "x");
        let parent = fields.next()?.parse().ok()?;
        let started = fields.nth(17)?.parse().ok()?;
        Some(Stat { is_over, parent, started })
    }

    fn numbers() -> impl Iterator<Item = i32> {
        let processes = std::fs::read_dir("/proc").into_iter().flatten();
        processes.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok())
    }

    fn has_marker(number: i32, marker: &str) -> bool {
        let marker_assignment = format!("{MARKER_VARIABLE}={marker}");
        std::fs::read(format!("/proc/{number}/environ")).is_ok_and(|environment| {
            environment.split(|byte| *byte == 0).any(|variable| variable.starts_with(marker_assignment.as_bytes()))
        })
    }

    /// Returns descendants without the marker: of the process `server`, or of processes whose marker begins with `marker`. Omits processes that
    /// this process may not signal.
    pub fn unmarked(server: Option<u32>, marker: &str) -> Vec<UnmarkedDescendant> {
        let server = server.and_then(|number| i32::try_from(number).ok());
        let all: BTreeMap<i32, Stat> = numbers().filter_map(|number| Some((number, stat(number)?))).collect();
        let roots: BTreeSet<i32> =
            all.keys().copied().filter(|number| server == Some(*number) || has_marker(*number, marker)).collect();
        let mut family = roots.clone();
        loop {
            let more = all.iter().filter(|(number, one)| {
                // A parent that is younger than its child is another process with a reused pid.
                let is_child = all.get(&one.parent).is_some_and(|parent| parent.started <= one.started);
                is_child && family.contains(&one.parent) && !family.contains(*number)
            });
            let more: Vec<i32> = more.map(|(number, _)| *number).collect();
            if more.is_empty() {
                break;
            }
            family.extend(more);
        }
        let hold = |number: i32| {
            let (pid, started) = (Pid::from_raw(number)?, all.get(&number)?.started);
            let process = pidfd_open(pid, PidfdFlags::empty()).ok()?;
            // Checked again after the descriptor is open, because the pid may have been reused before.
            let found = UnmarkedDescendant { process, number, started };
            (found.is_running() && test_kill_process(pid).is_ok()).then_some(found)
        };
        family.difference(&roots).copied().filter_map(hold).collect()
    }

    /// Returns the processes whose marker begins with `marker`, and those of `unmarked` that still run.
    pub fn find_remaining(marker: &str, unmarked: &[UnmarkedDescendant]) -> Vec<OwnedFd> {
        let marked = numbers().filter_map(|number| {
            let process = pidfd_open(Pid::from_raw(number)?, PidfdFlags::empty()).ok()?;
            // Read after the descriptor is open, because the pid may have been reused before.
            has_marker(number, marker).then_some(process)
        });
        let others = unmarked.iter().filter(|one| one.is_running()).filter_map(|one| one.process.try_clone().ok());
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
    pub struct UnmarkedDescendant;

    pub fn unmarked(_server: Option<u32>, _word: &str) -> Vec<UnmarkedDescendant> {
        Vec::new()
    }

    pub fn find_remaining(_word: &str, _unmarked: &[UnmarkedDescendant]) -> Vec<()> {
        Vec::new()
    }

    pub fn signal(_processes: &[()], _signal: rustix::process::Signal) {}
}

/// Ends all processes whose marker begins with `marker`, and those of `unmarked`, and returns their number.
pub async fn end(marker: &str, unmarked: &[UnmarkedDescendant]) -> usize {
    let first = find_remaining(marker, unmarked);
    if first.is_empty() {
        return 0;
    }
    signal(&first, Signal::TERM);
    let empty = async {
        while !find_remaining(marker, unmarked).is_empty() {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    };
    if tokio::time::timeout(GRACE_TERM, empty).await.is_err() {
        for _ in 0..MAX_ROUNDS {
            let still = find_remaining(marker, unmarked);
            if still.is_empty() {
                break;
            }
            signal(&still, Signal::KILL);
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }
    first.len()
}

/// Runs the guard: waits for the end of its standard input, and then ends the orphans of the server process. It may block the thread,
/// because its process has no other work.
pub async fn run_guard(marker: &str, engine: Option<&Path>, input_files_dir: Option<&Path>) {
    // Removes empty groups of processes that were killed together with their guards. Groups with processes may be in use.
    for empty in cgroup::find_children(|name| name.starts_with(MARKER_PREFIX) && name.ends_with('.')) {
        empty.remove();
    }
    let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
    // Searched before any process ends and leaves children without a parent.
    let unmarked = unmarked(None, marker);
    let groups = cgroup::find_children(|name| name.starts_with(marker));
    // Most servers exit when their input ends, and an orderly shutdown leaves none.
    let is_over = find_remaining(marker, &unmarked).is_empty() && groups.iter().all(Cgroup::is_empty);
    tokio::time::sleep(if is_over { Duration::ZERO } else { GRACE }).await;
    end(marker, &unmarked).await;
    for group in groups {
        group.end().await;
    }
    // The next start repeats a failed removal.
    if let Some(engine) = engine {
        let _ = container::remove_all(engine, None, &[marker]).await;
    }
    if let Some(input_files_dir) = input_files_dir {
        let _ = container::remove_stale_files(input_files_dir);
    }
}

/// Starts guards: processes that survive this one, and end its orphaned processes and containers.
pub struct GuardProcess {
    /// This program; `None` without a guard.
    program: Option<PathBuf>,
    marker: String,
    /// The guard for processes, and the one for processes and containers.
    running: Mutex<[Option<Child>; 2]>,
}

impl GuardProcess {
    /// Starts no guard yet. `marker` is the prefix of all markers.
    pub fn new(program: Option<PathBuf>, marker: String) -> Self {
        Self { program, marker, running: Mutex::default() }
    }

    /// Starts the guard for processes, unless it runs.
    pub fn watch(&self) {
        self.start(0, |_| {});
    }

    /// Starts the guard for processes and containers of `engine`, unless it runs.
    pub fn watch_containers(&self, engine: &Path, variables: &BTreeMap<String, SecretString>, input_files_dir: Option<&Path>) {
        self.start(1, |command| {
            command.arg(engine).args(input_files_dir).envs(container::plain(variables));
        });
    }

    fn start(&self, which: usize, also: impl FnOnce(&mut Command)) {
        let Some(program) = &self.program else { return };
        let mut running = lock(&self.running);
        let running = &mut running[which];
        if running.as_mut().is_some_and(|child| matches!(child.try_wait(), Ok(None))) {
            return;
        }
        let mut command = Command::new(program);
        command.args([GUARD_COMMAND, &self.marker]).env_clear().process_group(0);
        also(&mut command);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        match command.spawn() {
            Ok(child) => *running = Some(child),
            Err(error) => {
                tracing::warn!(%error, "the guard process could not be started: MCP servers may outlive this program if it is killed");
            }
        }
    }

    /// Ends the guards, after all servers have ended.
    pub async fn stop_guards(&self) {
        let running = std::mem::take(&mut *lock(&self.running));
        for mut child in running.into_iter().flatten() {
            drop(child.stdin.take());
            let _ = tokio::time::timeout(GRACE + GRACE_TERM, child.wait()).await;
        }
    }
}
