//! What servers started and left behind.
//!
//! A process may leave the group of its server (`setsid`), and nobody ends a group when this program is killed. So each child gets
//! a word in its environment, which everything that it starts inherits, and by which it can be found in `/proc`. A process that has
//! cleared its environment is found by its parent, as long as that one lives: so it is looked for before anything is ended. One that has
//! lost its parent, too, is found by its control group alone (`cgroup.rs`), and where there is none, not at all. All this exists on
//! Linux only.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rustix::process::Signal;
use secrecy::SecretString;
use tokio::process::{Child, Command};

use super::cgroup::{self, Cgroup};
use super::container;
use crate::support::ids::IdSource;

pub use self::proc::{Unmarked, unmarked};
use self::proc::{left, signal};

/// The variable that holds the word.
pub const MARK: &str = "MCP_STARTED_BY";
/// The hidden command of this program that waits until its standard input ends, and then ends what bears the word.
pub const GUARD_COMMAND: &str = "end-orphans";
/// How all words begin.
const BEGINNING: &str = "capstan-";
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
        Self { beginning: format!("{BEGINNING}{}-", ids.next()), given: AtomicU64::new(0) }
    }

    /// How all of them begin.
    pub fn beginning(&self) -> &str {
        &self.beginning
    }

    /// The next one. None is the beginning of another one.
    pub fn next(&self) -> String {
        format!("{}{}.", self.beginning, self.given.fetch_add(1, Ordering::Relaxed))
    }

    /// Whether this may be one, of whatever program.
    fn is_one(name: &str) -> bool {
        name.starts_with(BEGINNING) && name.ends_with('.')
    }
}

#[cfg(target_os = "linux")]
mod proc {
    use std::collections::{BTreeMap, BTreeSet};
    use std::os::fd::OwnedFd;

    use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal, test_kill_process};

    use super::MARK;

    /// A process that descends from one with a word, and does not bear it. Held by a descriptor, as all are, so that no other process
    /// that gets its number is meant.
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

    /// What the kernel says of a process.
    struct Stat {
        /// It has ended, and its parent has not been told.
        is_over: bool,
        parent: i32,
        /// In ticks since the machine started.
        began: u64,
    }

    fn stat(number: i32) -> Option<Stat> {
        let read = std::fs::read(format!("/proc/{number}/stat")).ok()?;
        let read = String::from_utf8_lossy(&read);
        // Before the last bracket stands the name that it has given itself, which may hold anything.
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

    /// What descends at this moment from the process with the number `server`, or from those whose word begins with `word`, bears no
    /// such word, and may be ended by us.
    pub fn unmarked(server: Option<u32>, word: &str) -> Vec<Unmarked> {
        let server = server.and_then(|number| i32::try_from(number).ok());
        let all: BTreeMap<i32, Stat> = numbers().filter_map(|number| Some((number, stat(number)?))).collect();
        let roots: BTreeSet<i32> = all.keys().copied().filter(|number| server == Some(*number) || bears(*number, word)).collect();
        let mut family = roots.clone();
        loop {
            let more = all.iter().filter(|(number, one)| {
                // Nobody is older than its parent: that would be another process, which has got the number of the real one.
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
            // Looked at again after it is held: it is the one that was found, or nobody.
            let found = Unmarked { process, number, began };
            (found.runs() && test_kill_process(pid).is_ok()).then_some(found)
        };
        family.difference(&roots).copied().filter_map(hold).collect()
    }

    /// The processes whose word begins with `word`, and those of `unmarked` that still run.
    pub fn left(word: &str, unmarked: &[Unmarked]) -> Vec<OwnedFd> {
        let marked = numbers().filter_map(|number| {
            let process = pidfd_open(Pid::from_raw(number)?, PidfdFlags::empty()).ok()?;
            // Read after the process is held: this is its environment, or that of nobody.
            bears(number, word).then_some(process)
        });
        let others = unmarked.iter().filter(|one| one.runs()).filter_map(|one| one.process.try_clone().ok());
        marked.chain(others).collect()
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
    /// Nobody: such processes are not found here.
    pub struct Unmarked;

    /// Nobody.
    pub fn unmarked(_server: Option<u32>, _word: &str) -> Vec<Unmarked> {
        Vec::new()
    }

    pub fn left(_word: &str, _unmarked: &[Unmarked]) -> Vec<()> {
        Vec::new()
    }

    pub fn signal(_processes: &[()], _signal: rustix::process::Signal) {}
}

/// Ends all processes whose word begins with `word`, and those of `unmarked`, and tells how many there were.
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

/// The guard itself: waits until whoever holds the other end of its standard input is gone. Nothing else goes on in its
/// process, so it may hold the thread.
pub async fn guard(word: &str, engine: Option<&Path>, handed: Option<&Path>) {
    // Those of programs that were killed together with their guards. Whose they are is not known, so nobody in them is ended.
    for empty in cgroup::below(Words::is_one) {
        empty.remove();
    }
    let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
    // Before any of them has ended, and left others without a parent.
    let unmarked = unmarked(None, word);
    let groups = cgroup::below(|name| name.starts_with(word));
    // Most see that their input has ended; an orderly end of the program has left none.
    let is_over = left(word, &unmarked).is_empty() && groups.iter().all(Cgroup::is_empty);
    tokio::time::sleep(if is_over { Duration::ZERO } else { GRACE }).await;
    end(word, &unmarked).await;
    for group in groups {
        group.end().await;
    }
    if let Some(engine) = engine {
        // There is nobody to be told if it fails, and whoever starts next tries again.
        let _ = container::remove_all(engine, None, &[word]).await;
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
