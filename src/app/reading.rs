//! Files are read in a process of their own: what they do to it, they do to nobody else.
//!
//! The process is this program once more (`read-file`). It gets no environment and no files, only the bytes, and has limits on its memory and
//! its time. What it says last is what counts: the libraries that read documents may say things before. If it does not end well, what it said
//! first counts, which was before any of them read a text.

use std::io::{Read as _, Write as _};
use std::path::PathBuf;
use std::process::{ExitCode, Stdio};
use std::time::Duration;

use anyhow::Context as _;
use async_trait::async_trait;
use bytes::Bytes;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::Command;
use tokio::sync::Semaphore;

use crate::documents::{self, FileReader, Kind, Unreadable};
use crate::domain::file::FileFacts;

/// The command's name.
pub const COMMAND: &str = "read-file";

/// Processes at a time: one more than an owner can have uploads.
const AT_ONCE: usize = 3;

/// How long one may take, and how much of that it may compute.
const WALL: Duration = Duration::from_secs(30);
const CPU_SECONDS: u64 = 15;

/// The most memory that it gets.
const MEMORY: u64 = 1024 * 1024 * 1024;

/// Beside its text, what it may say.
const MOST_SAID: u64 = 1024 * 1024;

/// What the process says: facts, or why there are none.
type Said = Result<FileFacts, String>;

/// Starts processes that read files.
pub struct ReadingProcesses {
    program: PathBuf,
    seats: Semaphore,
}

impl ReadingProcesses {
    /// With this very program, even if its file has been replaced since.
    ///
    /// # Errors
    /// If it is not known.
    pub fn new() -> anyhow::Result<Self> {
        let program = if cfg!(target_os = "linux") {
            PathBuf::from("/proc/self/exe")
        } else {
            std::env::current_exe().context("the program's own file is not known")?
        };
        Ok(Self { program, seats: Semaphore::new(AT_ONCE) })
    }

    async fn ask(&self, bytes: &[u8], name: &str, most_chars: usize) -> std::io::Result<Option<Said>> {
        let _seat = self.seats.acquire().await.map_err(std::io::Error::other)?;
        let mut process = Command::new(&self.program)
            .args([COMMAND, &most_chars.to_string(), "--", name])
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()?;
        let (Some(mut stdin), Some(stdout)) = (process.stdin.take(), process.stdout.take()) else {
            return Err(std::io::Error::other("the process has no pipes"));
        };
        // A character takes six bytes at most, as an escape.
        let most_said = MOST_SAID + 6 * most_chars as u64;
        let mut said = Vec::new();
        let told = async {
            // It may end before it has read everything.
            let _ = stdin.write_all(bytes).await;
            drop(stdin);
        };
        let mut limited = stdout.take(most_said);
        let talk = futures_util::future::join(told, limited.read_to_end(&mut said));
        if tokio::time::timeout(WALL, talk).await.is_err() {
            process.kill().await?;
        }
        drop(limited);
        let ended_well = matches!(tokio::time::timeout(WALL, process.wait()).await, Ok(Ok(status)) if status.success());
        let mut lines = said.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        let counts = if ended_well { lines.next_back() } else { lines.next() };
        Ok(counts.and_then(|line| serde_json::from_slice(line).ok()))
    }
}

#[async_trait]
impl FileReader for ReadingProcesses {
    async fn read(&self, bytes: Bytes, name: &str, most_chars: usize) -> Result<FileFacts, Unreadable> {
        let said = if Kind::of(&bytes).needs_reader() {
            let said = self.ask(&bytes, name, most_chars).await.map_err(Unreadable::Failed)?;
            said.unwrap_or_else(|| {
                let words = "the file cannot be read: it is damaged, or would take too much time or memory";
                Err(format!("{words} ({CPU_SECONDS} s, 1 GiB)"))
            })
        } else {
            documents::read(&bytes, name, most_chars, |_| {}).map_err(|refused| refused.0)
        };
        said.map_err(Unreadable::Refused)
    }
}

/// The process: reads standard input, and says what it is.
///
/// # Errors
/// If nobody listens.
pub fn run(name: &str, most_chars: usize) -> anyhow::Result<ExitCode> {
    limit_process();
    let mut bytes = Vec::new();
    std::io::stdin().lock().read_to_end(&mut bytes)?;
    let said: Said = documents::read(&bytes, name, most_chars, |facts| {
        // Nobody listens any more if it cannot be said, and then the rest is of no use either.
        let _ = say(&Ok(facts.clone()));
    })
    .map_err(|refused| refused.0);
    say(&said)?;
    Ok(ExitCode::SUCCESS)
}

/// On a line of its own.
fn say(said: &Said) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(b"\n")?;
    serde_json::to_writer(&mut out, said)?;
    out.write_all(b"\n")?;
    out.flush()
}

/// Where the system has no such limit, the time of the clock is the limit.
fn limit_process() {
    use rustix::process::{Resource, Rlimit, setrlimit};
    let most = |value| Rlimit { current: Some(value), maximum: Some(value) };
    for (resource, value) in [(Resource::As, MEMORY), (Resource::Cpu, CPU_SECONDS), (Resource::Core, 0), (Resource::Fsize, 0)] {
        let _ = setrlimit(resource, most(value));
    }
}
