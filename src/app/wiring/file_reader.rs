//! Reads uploaded PDFs and office documents in a separate process, so that hostile bytes cannot harm the server. Pictures and text
//! are read in the server.
//!
//! The process is this program (`read-file`) with limits on memory and time. It receives the bytes, but no environment and no open
//! files.
//!
//! The process writes up to two replies, one a line. After success, only the last line counts, because libraries may print other
//! lines. After a failure, only the first line counts: it is the type of a PDF, written before a library extracts the text.

use std::io::{Read as _, Write as _};
use std::path::PathBuf;
use std::process::{ExitCode, Stdio};
use std::time::Duration;

use anyhow::Context as _;
use async_trait::async_trait;
use bytes::Bytes;
use rustix::process::{Resource, Rlimit, setrlimit};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::Command;
use tokio::sync::Semaphore;

use crate::documents::{self, FileKind, FileReader, ReadFileError};
use crate::domain::conversation::file::FileFacts;

pub const COMMAND: &str = "read-file";

/// The maximum number of reading processes. An owner has at most two uploads at a time, so one owner never uses all processes.
const MAX_PROCESSES: usize = 3;

const TIME_LIMIT: Duration = Duration::from_secs(30);
const CPU_SECONDS: u64 = 15;
const MEMORY_BYTES: u64 = 1024 * 1024 * 1024;

/// The limit of the output without the text of the file.
const OUTPUT_BYTES: u64 = 1024 * 1024;

/// The output of the process: the facts, or why the file is refused.
type Reply = Result<FileFacts, String>;

pub struct ReadingProcesses {
    program: PathBuf,
    permits: Semaphore,
}

impl ReadingProcesses {
    /// Uses the running program, even if its file has been replaced.
    pub fn new() -> anyhow::Result<Self> {
        let program = if cfg!(target_os = "linux") {
            PathBuf::from("/proc/self/exe")
        } else {
            std::env::current_exe().context("the path of the program is unknown")?
        };
        Ok(Self { program, permits: Semaphore::new(MAX_PROCESSES) })
    }

    async fn ask(&self, bytes: &[u8], name: &str, most_chars: usize) -> std::io::Result<Option<Reply>> {
        let _permit = self.permits.acquire().await.map_err(std::io::Error::other)?;
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
        let write = async {
            // The process may end before it has read all bytes.
            let _ = stdin.write_all(bytes).await;
            drop(stdin);
        };
        let mut output = Vec::new();
        // JSON encodes a character in at most six bytes (`\u0001`).
        let mut limited = stdout.take(OUTPUT_BYTES + 6 * most_chars as u64);
        let exchange = futures_util::future::join(write, limited.read_to_end(&mut output));
        if tokio::time::timeout(TIME_LIMIT, exchange).await.is_err() {
            process.kill().await?;
        }
        drop(limited);
        let succeeded = matches!(tokio::time::timeout(TIME_LIMIT, process.wait()).await, Ok(Ok(status)) if status.success());
        let mut lines = output.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        let line = if succeeded { lines.next_back() } else { lines.next() };
        Ok(line.and_then(|line| serde_json::from_slice(line).ok()))
    }
}

#[async_trait]
impl FileReader for ReadingProcesses {
    async fn read(&self, bytes: Bytes, name: &str, most_chars: usize) -> Result<FileFacts, ReadFileError> {
        let reply = if FileKind::of(&bytes).needs_reader() {
            let reply = self.ask(&bytes, name, most_chars).await.map_err(ReadFileError::Failed)?;
            reply.unwrap_or_else(|| {
                let words = "the file cannot be read: it is damaged, or would take too much time or memory";
                Err(format!("{words} (limits: {CPU_SECONDS} s of CPU time, {} s in total, 1 GiB)", TIME_LIMIT.as_secs()))
            })
        } else {
            documents::read(&bytes, name, most_chars, |_| {}).map_err(|refused| refused.0)
        };
        reply.map_err(ReadFileError::Refused)
    }
}

/// Runs in the reading process: reads standard input and writes replies.
pub fn run(name: &str, most_chars: usize) -> anyhow::Result<ExitCode> {
    limit_process();
    let mut bytes = Vec::new();
    std::io::stdin().lock().read_to_end(&mut bytes)?;
    let reply: Reply = documents::read(&bytes, name, most_chars, |facts| {
        // If standard output is closed, the last reply fails, too.
        let _ = write_line(&Ok(facts.clone()));
    })
    .map_err(|refused| refused.0);
    write_line(&reply)?;
    Ok(ExitCode::SUCCESS)
}

fn write_line(reply: &Reply) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(b"\n")?;
    serde_json::to_writer(&mut out, reply)?;
    out.write_all(b"\n")?;
    out.flush()
}

/// Limits the process. A system without these limits still has the time limit of the server.
fn limit_process() {
    for (resource, most) in [(Resource::As, MEMORY_BYTES), (Resource::Cpu, CPU_SECONDS), (Resource::Core, 0), (Resource::Fsize, 0)]
    {
        let _ = setrlimit(resource, Rlimit { current: Some(most), maximum: Some(most) });
    }
}
