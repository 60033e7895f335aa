//! One child process: how it is started, watched and ended.
//!
//! A child leads its own process group, so that what it starts itself (`npx` starts `node`) ends with it. It sees none of our
//! environment but a few harmless variables. It is ended in order: its standard input is closed, then the group gets TERM, then
//! KILL, and so does what has left the group; a control group, where there may be one, holds what hides from that. Should this server
//! itself be killed without a chance to do that, the children see their standard input end, which the protocol tells them to take as
//! the sign to exit, and a guard ends those that do not.

use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use process_wrap::tokio::{ChildWrapper, CommandWrap, KillOnDrop, ProcessGroup};
use secrecy::{ExposeSecret as _, SecretString};
use tokio::io::AsyncReadExt as _;
use tokio::process::{ChildStderr, ChildStdin, ChildStdout, Command};
use tokio::task::JoinHandle;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use super::cgroup::Cgroup;
use super::container::Removal;
use super::masks::{LONGEST_PIECE, Masks};
use super::orphans;
use crate::support::{redact, text};
use crate::tools::Environment;

/// What a child sees of our own environment.
const INHERITED: [&str; 7] = ["PATH", "HOME", "LANG", "LC_ALL", "TERM", "TMPDIR", "TZ"];
/// How much of the end of the standard error stream is kept to be shown, in bytes.
const STDERR_KEPT: usize = 64 * 1024;
/// How much of it is shown in logs and lists, in characters.
const STDERR_SHOWN: usize = 2_000;
/// How long a child may take to exit after its standard input was closed.
const GRACE_INPUT: Duration = Duration::from_secs(2);
/// How long its group may take to exit after TERM.
const GRACE_TERM: Duration = Duration::from_secs(5);
/// How long output may still arrive after the child has exited.
const GRACE_OUTPUT: Duration = Duration::from_millis(300);
/// How often the group is looked at while it ends.
const LOOK: Duration = Duration::from_millis(20);
/// TERM has this number on every Unix.
const SIGTERM: i32 = 15;
/// WINCH has this number on Linux, macOS and the BSDs. Processes ignore it unless they draw on a terminal, so it serves to find
/// out whether a group still has members.
const SIGWINCH: i32 = 28;

/// What to start.
pub struct Program<'a> {
    /// The program, looked up in `PATH`.
    pub command: &'a str,
    /// Its arguments.
    pub args: &'a [String],
    /// Its own variables.
    pub env: &'a BTreeMap<String, SecretString>,
    /// Its working directory.
    pub cwd: Option<&'a Path>,
    /// The word by which what it starts is found.
    pub word: String,
    /// What ends the container that it speaks for.
    pub removal: Option<Removal>,
    /// Holds a token until nothing of it is left.
    pub remains: &'a TaskTracker,
}

/// A running child process. Dropping it ends the process in the background.
pub struct Process {
    /// Ends the process when it is cancelled.
    ending: CancellationToken,
    _end_on_drop: DropGuard,
    watched: Arc<Watched>,
}

/// What the tasks of a process tell.
struct Watched {
    /// Cancelled once the child itself has exited and its last output had time to arrive.
    exited: CancellationToken,
    /// Cancelled once no member of the group is left.
    gone: CancellationToken,
    status: Mutex<Option<String>>,
    stderr: Mutex<Tail>,
    masks: Masks,
    word: String,
    removal: Option<Removal>,
}

/// What is left of a process that has ended.
#[derive(Default)]
pub struct LastWords {
    /// How it exited, as the end of a sentence; empty if it has not.
    pub exit: String,
    /// The end of what it said on its standard error stream, without secrets. For operators only: nobody knows what a server
    /// writes there.
    pub stderr: Option<String>,
}

impl Process {
    /// Starts the program, with its standard streams.
    ///
    /// # Errors
    /// In words, if there is no such program or it may not be started.
    pub fn start(
        program: &Program<'_>,
        masks: &Masks,
        environment: &Environment,
        tasks: &TaskTracker,
    ) -> Result<(Self, ChildStdout, ChildStdin), String> {
        let mut command = Command::new(program.command);
        command.args(program.args).env_clear().stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.envs(INHERITED.iter().filter_map(|name| environment(name).map(|value| (*name, value))));
        command.envs(program.env.iter().map(|(name, value)| (name, value.expose_secret())));
        command.env(orphans::MARK, &program.word);
        if let Some(cwd) = program.cwd {
            command.current_dir(cwd);
        }
        let mut child = CommandWrap::from(command)
            .wrap(ProcessGroup::leader())
            .wrap(KillOnDrop)
            .spawn()
            .map_err(|error| not_started(program, &error))?;
        let (Some(stdin), Some(stdout), Some(stderr)) = (child.stdin().take(), child.stdout().take(), child.stderr().take()) else {
            return Err("the streams of the program are missing".to_owned());
        };
        let ending = CancellationToken::new();
        let watched = Arc::new(Watched {
            exited: CancellationToken::new(),
            gone: CancellationToken::new(),
            status: Mutex::new(None),
            stderr: Mutex::default(),
            masks: masks.clone(),
            word: program.word.clone(),
            removal: program.removal.clone(),
        });
        let drained = tasks.spawn(watched.clone().drain(stderr));
        // What an engine runs has bounds of its own.
        let (id, word) = (child.id().filter(|_| program.removal.is_none()), program.word.clone());
        let cgroup = tasks.spawn_blocking(move || Cgroup::around(id?, &word));
        let group = Group { child, gone: false };
        tasks.spawn(program.remains.track_future(watched.clone().watch(group, ending.clone(), cgroup, drained)));
        let process = Self { _end_on_drop: ending.clone().drop_guard(), ending, watched };
        Ok((process, stdout, stdin))
    }

    /// Resolves once the child has exited, whoever ended it.
    pub async fn exited(&self) {
        self.watched.exited.cancelled().await;
    }

    /// A token that is cancelled once the child has exited.
    pub fn exit_token(&self) -> CancellationToken {
        self.watched.exited.clone()
    }

    /// Ends the process and its group, and waits until nothing of it is left. The caller has closed its standard input.
    pub async fn end(&self) {
        self.ending.cancel();
        self.watched.gone.cancelled().await;
    }

    /// The end of what it said on its standard error stream, without secrets.
    pub fn said(&self) -> Option<String> {
        Some(self.watched.said()).filter(|said| !said.is_empty())
    }

    /// How it exited, if it has, and what it said last.
    pub fn last_words(&self) -> LastWords {
        let status = self.watched.status.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let exit = status.map(|status| format!("; the process ended with {status}")).unwrap_or_default();
        LastWords { exit, stderr: self.said() }
    }
}

impl Watched {
    /// Reads the standard error stream to its end, always: a child that finds it full would stand still.
    async fn drain(self: Arc<Self>, mut stderr: ChildStderr) {
        let mut chunk = vec![0_u8; 8 * 1024];
        loop {
            let read = tokio::select! {
                read = stderr.read(&mut chunk) => read,
                // A process that left the group may hold the stream open for ever.
                () = self.gone.cancelled() => return,
            };
            let Ok(length @ 1..) = read else { return };
            self.stderr.lock().unwrap_or_else(PoisonError::into_inner).add(&chunk[..length]);
        }
    }

    /// Waits for the child to exit or for the order to end it, and sees to it that nothing of its group is left.
    async fn watch(
        self: Arc<Self>,
        mut group: Group,
        ending: CancellationToken,
        cgroup: JoinHandle<Option<Cgroup>>,
        drained: JoinHandle<()>,
    ) {
        // First of all: once the child has been waited for, its number may become that of a stranger.
        let cgroup = cgroup.await.ok().flatten();
        // The wrapped child waits for the whole group; here the leader alone counts.
        let exit = tokio::select! {
            exit = group.child.inner_mut().wait() => Some(exit),
            () = ending.cancelled() => None,
        };
        // Before anything of it is ended: who has cleared its environment is found by its parent alone.
        let unmarked = match &self.removal {
            None => orphans::unmarked(group.child.id(), &self.word),
            // What an engine has started is for the engine to end.
            Some(_) => Vec::new(),
        };
        let exit = match exit {
            Some(exit) => exit,
            None => match tokio::time::timeout(GRACE_INPUT, group.child.inner_mut().wait()).await {
                Ok(exit) => exit,
                Err(_) => group.end().await,
            },
        };
        // What was written before the exit is still in the pipes.
        let _ = tokio::time::timeout(GRACE_OUTPUT, drained).await;
        let status = match exit {
            Ok(status) => status.to_string(),
            Err(error) => format!("an unknown status ({error})"),
        };
        self.stderr.lock().unwrap_or_else(PoisonError::into_inner).is_over = true;
        *self.status.lock().unwrap_or_else(PoisonError::into_inner) = Some(status);
        self.exited.cancel();
        let _ = group.end().await;
        if let Some(removal) = &self.removal {
            removal.carry_out().await;
        }
        let mut escaped = orphans::end(&self.word, &unmarked).await;
        if let Some(cgroup) = cgroup {
            escaped += cgroup.end().await;
        }
        if escaped > 0 {
            metrics::counter!("capstan_mcp_escaped_total").increment(u64::try_from(escaped).unwrap_or(u64::MAX));
            tracing::warn!(count = escaped, "processes had left the group of their MCP server and were ended");
        }
        self.gone.cancel();
    }

    fn said(&self) -> String {
        self.stderr.lock().unwrap_or_else(PoisonError::into_inner).shown(&self.masks)
    }
}

/// The end of what a process has written on its standard error stream.
#[derive(Default)]
struct Tail {
    bytes: VecDeque<u8>,
    /// Whether something stood before them.
    is_cut: bool,
    /// Whether the process has ended, and its last line with it.
    is_over: bool,
}

impl Tail {
    fn add(&mut self, chunk: &[u8]) {
        self.bytes.extend(chunk);
        let excess = self.bytes.len().saturating_sub(LONGEST_PIECE + STDERR_KEPT);
        self.is_cut |= excess > 0;
        self.bytes.drain(..excess);
    }

    /// It without secrets, and without what may be a piece of one: its first bytes if others stood before them, and a line of which the
    /// rest is still to come.
    fn shown(&mut self, masks: &Masks) -> String {
        let masked = masks.hide(&String::from_utf8_lossy(self.bytes.make_contiguous()));
        let mut shown = masked.as_str();
        if self.is_cut {
            let (_, sure) = shown.split_at(text::prefix(shown, LONGEST_PIECE).len());
            // One line may be longer than all that is kept, and is better than nothing.
            shown = sure.split_once('\n').map_or(sure, |(_, lines)| lines);
        }
        if !self.is_over {
            shown = shown.rsplit_once('\n').map_or("", |(lines, _)| lines);
        }
        let lines: Vec<String> = shown.lines().map(redact::error_text).filter(|line| !line.is_empty()).collect();
        lines.join("\n")
    }
}

/// Stands in arguments and variables of an entry for the folder that is the server's own, and its owner's if each has a process.
pub const HOME: &str = "${server.home}";

/// Arguments and variables with `home` in the place of [`HOME`]. Makes the folder if it is named there, or to be the working directory.
///
/// # Errors
/// In words: why there is none.
pub async fn at_home(
    (args, env): (&[String], &BTreeMap<String, SecretString>),
    home: Option<&Path>,
    is_cwd: bool,
) -> Result<(Vec<String>, BTreeMap<String, SecretString>), String> {
    let names_home =
        args.iter().map(String::as_str).chain(env.values().map(|value| value.expose_secret())).any(|text| text.contains(HOME));
    let Some(home) = home.filter(|_| names_home || is_cwd) else {
        return match names_home {
            true => Err(format!("{HOME} stands for nothing here")),
            false => Ok((args.to_vec(), env.clone())),
        };
    };
    make_home(home).await?;
    let home = home.display().to_string();
    let args = args.iter().map(|arg| arg.replace(HOME, &home)).collect();
    let env = env.iter().map(|(name, value)| (name.clone(), SecretString::from(value.expose_secret().replace(HOME, &home))));
    Ok((args, env.collect()))
}

/// Makes a working directory, for nobody else on the machine. One that is there stays as it is.
///
/// # Errors
/// In words, if it cannot be made.
async fn make_home(home: &Path) -> Result<(), String> {
    let mut builder = tokio::fs::DirBuilder::new();
    #[cfg(unix)]
    builder.mode(0o700);
    let made = builder.recursive(true).create(home).await;
    made.map_err(|error| format!("its working directory {} cannot be made: {error}", home.display()))
}

/// The end of what a process said, where there is not room for all of it.
pub fn last_words(said: &str) -> &str {
    let excess = said.chars().count().saturating_sub(STDERR_SHOWN);
    &said[text::prefix_chars(said, excess).len()..]
}

/// The child with its group, which is killed when this is dropped before it was ended.
struct Group {
    child: Box<dyn ChildWrapper>,
    gone: bool,
}

impl Group {
    /// Ends every member of the group and reaps the child.
    async fn end(&mut self) -> std::io::Result<std::process::ExitStatus> {
        if self.child.signal(SIGTERM).is_ok() {
            let empty = async {
                while self.child.signal(SIGWINCH).is_ok() {
                    // The leader stays in the group until it is reaped.
                    let _ = tokio::time::timeout(LOOK, self.child.inner_mut().wait()).await;
                    tokio::time::sleep(LOOK).await;
                }
            };
            if tokio::time::timeout(GRACE_TERM, empty).await.is_err() {
                let _ = self.child.start_kill();
            }
        }
        self.gone = true;
        self.child.inner_mut().wait().await
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if !self.gone {
            let _ = self.child.start_kill();
        }
    }
}

fn not_started(program: &Program<'_>, error: &std::io::Error) -> String {
    let command = program.command;
    match (error.kind(), program.cwd) {
        (std::io::ErrorKind::NotFound, Some(cwd)) => {
            format!("the program {command} or the folder {} was not found", cwd.display())
        }
        (std::io::ErrorKind::NotFound, None) => format!("the program {command} was not found in PATH"),
        (_, _) => format!("the program {command} could not be started: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &str = "token-canary";

    fn masks() -> Masks {
        let mut masks = Masks::default();
        masks.add("API_TOKEN", SECRET);
        masks
    }

    /// What is shown of a process that has written this and has ended.
    fn shown(said: &str) -> String {
        let mut tail = Tail { is_over: true, ..Tail::default() };
        said.as_bytes().chunks(8 * 1024).for_each(|chunk| tail.add(chunk));
        tail.shown(&masks())
    }

    /// Wherever the end of a flood of it begins.
    #[test]
    fn no_end_of_a_secret_is_left_where_what_stood_before_is_gone() {
        for more in 0..=SECRET.len() {
            for line_end in ["\n", " "] {
                let flood = format!("{SECRET}{line_end}").repeat(10_000) + &"x".repeat(more);
                let shown = shown(&flood);
                assert!(shown.contains("[redacted]"), "{more}: {shown}");
                let piece = (0..=SECRET.len() - 8).map(|from| &SECRET[from..]).find(|end| shown.contains(end));
                assert_eq!(piece, None, "{more} {line_end:?}");
            }
        }
    }

    #[test]
    fn as_much_as_ever_is_shown() {
        let flood = "some words\n".repeat(20_000) + "the last ones";
        let shown = shown(&flood);
        assert!((STDERR_KEPT - 32..=STDERR_KEPT).contains(&shown.len()), "{} bytes", shown.len());
        assert!(shown.starts_with("some words\n") && shown.ends_with("\nthe last ones"));
    }

    #[test]
    fn a_line_is_shown_when_it_or_its_process_has_ended() {
        let mut tail = Tail::default();
        tail.add(b"ready\nasks with token-can");
        assert_eq!(tail.shown(&masks()), "ready");
        tail.add(b"ary");
        assert_eq!(tail.shown(&masks()), "ready");
        tail.is_over = true;
        assert_eq!(tail.shown(&masks()), "ready\nasks with [redacted]");
    }
}
