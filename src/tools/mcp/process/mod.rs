//! One child process: how it is started, monitored and ended.
//!
//! A child leads its own process group, so that its children (`npx` starts `node`) end with it. It inherits only a few harmless variables.
//! To end it, its standard input is closed; then the group gets TERM, then KILL. Processes that have left the group are ended in the same
//! way; a control group finds those that no other search finds. If this program is killed, the standard input of its children ends, so that
//! they exit, and a guard ends the others. Must not know the protocol of a server.

use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use process_wrap::tokio::{ChildWrapper, CommandWrap, KillOnDrop, ProcessGroup};
use secrecy::{ExposeSecret as _, SecretString};
use tokio::io::AsyncReadExt as _;
use tokio::process::{ChildStderr, ChildStdin, ChildStdout, Command};
use tokio::task::JoinHandle;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use crate::support::locks::lock;
use crate::support::{redact, text};
use crate::tools::Environment;
use crate::tools::mcp::config::redaction::{CUT_MARGIN, SecretRedactor};
use crate::tools::mcp::process::cgroup::Cgroup;
use crate::tools::mcp::process::container::ContainerCleanup;

pub(super) mod cgroup;
pub(super) mod container;
pub mod orphans;
pub(super) mod slots;

/// How much of the end of standard error is kept, in bytes.
const STDERR_KEPT: usize = 64 * 1024;
/// How much of it is shown in logs and lists, in characters.
const STDERR_SHOWN: usize = 2_000;
/// How long a child may take to exit after its standard input was closed.
const GRACE_INPUT: Duration = Duration::from_secs(2);
/// How long its group may take to exit after TERM.
const GRACE_TERM: Duration = Duration::from_secs(5);
/// How long output may still arrive after the child has exited.
const GRACE_OUTPUT: Duration = Duration::from_millis(300);
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// TERM has this number on every Unix.
const SIGTERM: i32 = 15;
/// WINCH has this number on Linux, macOS and the BSDs. Processes ignore it unless they draw on a terminal, so sending it tests whether a
/// group still has members.
const SIGWINCH: i32 = 28;

pub struct Program<'a> {
    /// The program, looked up in `PATH`.
    pub command: &'a str,
    pub args: &'a [String],
    pub env: &'a BTreeMap<String, SecretString>,
    pub cwd: Option<&'a Path>,
    /// The marker by which its descendants are found.
    pub marker: String,
    /// Removes the container if the program is a container engine.
    pub removal: Option<ContainerCleanup>,
    /// Holds a token until the process and its descendants have ended.
    pub open_resources: &'a TaskTracker,
}

/// A running child process. Dropping it ends the process in the background.
pub struct Process {
    /// Cancelled to end the process.
    ending: CancellationToken,
    _end_on_drop: DropGuard,
    state: Arc<ProcessState>,
}

/// The state that the tasks of a process share.
struct ProcessState {
    /// Cancelled after the child itself has exited and its last output had time to arrive.
    exited: CancellationToken,
    /// Cancelled when the group has no members.
    group_ended: CancellationToken,
    status: Mutex<Option<String>>,
    stderr: Mutex<Tail>,
    redactor: SecretRedactor,
    marker: String,
    removal: Option<ContainerCleanup>,
}

/// The exit status and last output of a process.
#[derive(Default)]
pub struct ExitReport {
    /// The exit status as the end of a sentence; empty before the exit.
    pub exit: String,
    /// The redacted end of standard error. For operators only, because a server may write any content there.
    pub stderr: Option<String>,
}

impl Process {
    /// Starts the program, and returns its output and input.
    pub fn start(
        program: &Program<'_>,
        redactor: &SecretRedactor,
        environment: &Environment,
        tasks: &TaskTracker,
    ) -> Result<(Self, ChildStdout, ChildStdin), String> {
        let mut command = Command::new(program.command);
        command.args(program.args).env_clear().stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.envs(inherited_variables(environment));
        command.envs(program.env.iter().map(|(name, value)| (name, value.expose_secret())));
        command.env(orphans::MARKER_VARIABLE, &program.marker);
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
        let state = Arc::new(ProcessState {
            exited: CancellationToken::new(),
            group_ended: CancellationToken::new(),
            status: Mutex::new(None),
            stderr: Mutex::default(),
            redactor: redactor.clone(),
            marker: program.marker.clone(),
            removal: program.removal.clone(),
        });
        let drained = tasks.spawn(state.clone().drain(stderr));
        // A container has its own limits.
        let (id, marker) = (child.id().filter(|_| program.removal.is_none()), program.marker.clone());
        let cgroup = tasks.spawn_blocking(move || Cgroup::create_for(id?, &marker));
        let group = Group { child, has_ended: false };
        tasks.spawn(program.open_resources.track_future(state.clone().watch(group, ending.clone(), cgroup, drained)));
        let process = Self { _end_on_drop: ending.clone().drop_guard(), ending, state };
        Ok((process, stdout, stdin))
    }

    /// Returns a token that is cancelled when the child has exited.
    pub fn exit_token(&self) -> CancellationToken {
        self.state.exited.clone()
    }

    /// Ends the process with its descendants, and waits for their end. The caller must also close its standard input.
    pub async fn end(&self) {
        self.ending.cancel();
        self.state.group_ended.cancelled().await;
    }

    pub fn stderr_tail(&self) -> Option<String> {
        let mut stderr = lock(&self.state.stderr);
        Some(stderr.redacted_text(&self.state.redactor)).filter(|text| !text.is_empty())
    }

    pub fn exit_report(&self) -> ExitReport {
        let status = lock(&self.state.status).clone();
        let exit = status.map(|status| format!("; the process ended with {status}")).unwrap_or_default();
        ExitReport { exit, stderr: self.stderr_tail() }
    }
}

impl ProcessState {
    /// Reads standard error to its end, because a child would block on a full pipe.
    async fn drain(self: Arc<Self>, mut stderr: ChildStderr) {
        let mut chunk = vec![0_u8; 8 * 1024];
        loop {
            let read = tokio::select! {
                read = stderr.read(&mut chunk) => read,
                // A process that has left the group may keep the stream open for ever.
                () = self.group_ended.cancelled() => return,
            };
            let Ok(length @ 1..) = read else { return };
            lock(&self.stderr).add(&chunk[..length]);
        }
    }

    /// Waits for the exit of the child or the order to end it, and then ends all its descendants.
    async fn watch(
        self: Arc<Self>,
        mut group: Group,
        ending: CancellationToken,
        cgroup: JoinHandle<Option<Cgroup>>,
        drained: JoinHandle<()>,
    ) {
        // Awaited before the child is reaped, because its pid may then be reused.
        let cgroup = cgroup.await.ok().flatten();
        // The wrapped child waits for the whole group; here only the leader counts.
        let exit = tokio::select! {
            exit = group.child.inner_mut().wait() => Some(exit),
            () = ending.cancelled() => None,
        };
        // Searched before any process ends: a process with a cleared environment is found by its parent only.
        let unmarked = match &self.removal {
            None => orphans::unmarked(group.child.id(), &self.marker),
            // The engine ends the processes of a container.
            Some(_) => Vec::new(),
        };
        let exit = match exit {
            Some(exit) => exit,
            None => match tokio::time::timeout(GRACE_INPUT, group.child.inner_mut().wait()).await {
                Ok(exit) => exit,
                Err(_) => group.end().await,
            },
        };
        // Output from before the exit may still be in the pipe.
        let _ = tokio::time::timeout(GRACE_OUTPUT, drained).await;
        let status = match exit {
            Ok(status) => status.to_string(),
            Err(error) => format!("an unknown status ({error})"),
        };
        lock(&self.stderr).is_over = true;
        *lock(&self.status) = Some(status);
        self.exited.cancel();
        let _ = group.end().await;
        if let Some(removal) = &self.removal {
            removal.remove_container().await;
        }
        let mut orphans_ended = orphans::end(&self.marker, &unmarked).await;
        if let Some(cgroup) = cgroup {
            orphans_ended += cgroup.end().await;
        }
        if orphans_ended > 0 {
            metrics::counter!("capstan_mcp_orphans_ended_total").increment(u64::try_from(orphans_ended).unwrap_or(u64::MAX));
            tracing::warn!(count = orphans_ended, "ended orphaned processes that had left the process group of their MCP server");
        }
        self.group_ended.cancel();
    }
}

/// The end of standard error.
#[derive(Default)]
struct Tail {
    bytes: VecDeque<u8>,
    /// Whether earlier bytes were dropped.
    is_cut: bool,
    /// Whether the process has ended, so that the last line is complete.
    is_over: bool,
}

impl Tail {
    fn add(&mut self, chunk: &[u8]) {
        self.bytes.extend(chunk);
        let excess = self.bytes.len().saturating_sub(CUT_MARGIN + STDERR_KEPT);
        self.is_cut |= excess > 0;
        self.bytes.drain(..excess);
    }

    /// Returns the redacted text without bytes that may contain a part of a secret: those beside the cut, and an incomplete last line.
    fn redacted_text(&mut self, redactor: &SecretRedactor) -> String {
        let redacted_output = redactor.redact(&String::from_utf8_lossy(self.bytes.make_contiguous()));
        let mut visible = redacted_output.as_str();
        if self.is_cut {
            let (_, sure) = visible.split_at(text::prefix(visible, CUT_MARGIN).len());
            // A single line may be longer than the buffer.
            visible = sure.split_once('\n').map_or(sure, |(_, lines)| lines);
        }
        if !self.is_over {
            visible = visible.rsplit_once('\n').map_or("", |(lines, _)| lines);
        }
        let lines: Vec<String> = visible.lines().map(redact::error_text).filter(|line| !line.is_empty()).collect();
        lines.join("\n")
    }
}

/// The placeholder of the server's working directory in arguments and variables of an entry.
pub const HOME: &str = "${server.home}";

/// Replaces [`HOME`] in arguments and variables by `home`. Creates the folder if they use it, or if it is the working directory.
pub async fn expand_home(
    (args, env): (&[String], &BTreeMap<String, SecretString>),
    home: Option<&Path>,
    is_cwd: bool,
) -> Result<(Vec<String>, BTreeMap<String, SecretString>), String> {
    let names_home =
        args.iter().map(String::as_str).chain(env.values().map(|value| value.expose_secret())).any(|text| text.contains(HOME));
    let Some(home) = home.filter(|_| names_home || is_cwd) else {
        return match names_home {
            true => Err(format!("{HOME} has no value here, because this server has no working directory of its own")),
            false => Ok((args.to_vec(), env.clone())),
        };
    };
    // Other users of the machine get no access. An existing folder keeps its permissions.
    let created = tokio::fs::DirBuilder::new().recursive(true).mode(0o700).create(home).await;
    let home = home.display().to_string();
    created.map_err(|error| format!("its working directory {home} could not be created: {error}"))?;
    let args = args.iter().map(|arg| arg.replace(HOME, &home)).collect();
    let env = env.iter().map(|(name, value)| (name.clone(), SecretString::from(value.expose_secret().replace(HOME, &home))));
    Ok((args, env.collect()))
}

/// Returns the end of an output, for logs and lists.
pub fn stderr_end(stderr: &str) -> &str {
    let excess = stderr.chars().count().saturating_sub(STDERR_SHOWN);
    &stderr[text::prefix_chars(stderr, excess).len()..]
}

/// The child with its process group, which is killed on drop if it has not ended.
struct Group {
    child: Box<dyn ChildWrapper>,
    has_ended: bool,
}

impl Group {
    /// Ends every member of the group and reaps the child.
    async fn end(&mut self) -> std::io::Result<std::process::ExitStatus> {
        if self.child.signal(SIGTERM).is_ok() {
            let empty = async {
                while self.child.signal(SIGWINCH).is_ok() {
                    // The leader stays in the group until it is reaped.
                    let _ = tokio::time::timeout(POLL_INTERVAL, self.child.inner_mut().wait()).await;
                    tokio::time::sleep(POLL_INTERVAL).await;
                }
            };
            if tokio::time::timeout(GRACE_TERM, empty).await.is_err() {
                let _ = self.child.start_kill();
            }
        }
        self.has_ended = true;
        self.child.inner_mut().wait().await
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if !self.has_ended {
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

const INHERITED: [&str; 12] = [
    "PATH",
    "HOME",
    "LANG",
    "LC_ALL",
    "TERM",
    "TMPDIR",
    "TZ",
    // The certificate authorities of a company's network, by the names of OpenSSL, Node, Python and curl.
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "NODE_EXTRA_CA_CERTS",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
];

/// The proxy variables, which are inherited without user and password.
pub const PROXIES: [&str; 8] =
    ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "all_proxy", "no_proxy"];

/// Returns the inherited variables that are set.
pub(super) fn inherited_variables(environment: &Environment) -> impl Iterator<Item = (&'static str, String)> {
    let unchanged = INHERITED.into_iter().filter_map(move |name| Some((name, environment(name)?)));
    let proxies = PROXIES.into_iter().filter_map(move |name| Some((name, without_login(&environment(name)?))));
    unchanged.chain(proxies)
}

/// Returns the URL of a proxy without user and password.
pub fn without_login(proxy: &str) -> String {
    let (scheme, rest) = proxy.split_at(proxy.find("://").map_or(0, |at| at + 3));
    let host = rest.rsplit_once('@').map_or(rest, |(_, host)| host);
    format!("{scheme}{host}")
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &str = "token-canary";

    fn redactor() -> SecretRedactor {
        let mut redactor = SecretRedactor::default();
        redactor.add("API_TOKEN", SECRET);
        redactor
    }

    /// Returns the displayed tail of a process that has written `stderr` and has ended.
    fn redacted_text(stderr: &str) -> String {
        let mut tail = Tail { is_over: true, ..Tail::default() };
        stderr.as_bytes().chunks(8 * 1024).for_each(|chunk| tail.add(chunk));
        tail.redacted_text(&redactor())
    }

    /// Checks every position at which the end of long output begins.
    #[test]
    fn no_end_of_a_secret_is_left_where_what_stood_before_is_gone() {
        for more in 0..=SECRET.len() {
            for line_end in ["\n", " "] {
                let flood = format!("{SECRET}{line_end}").repeat(10_000) + &"x".repeat(more);
                let visible = redacted_text(&flood);
                assert!(visible.contains("[redacted]"), "{more}: {visible}");
                let piece = (0..=SECRET.len() - 8).map(|from| &SECRET[from..]).find(|end| visible.contains(end));
                assert_eq!(piece, None, "{more} {line_end:?}");
            }
        }
    }

    #[test]
    fn as_much_as_ever_is_shown() {
        let flood = "some words\n".repeat(20_000) + "the last ones";
        let visible = redacted_text(&flood);
        assert!((STDERR_KEPT - 32..=STDERR_KEPT).contains(&visible.len()), "{} bytes", visible.len());
        assert!(visible.starts_with("some words\n") && visible.ends_with("\nthe last ones"));
    }

    #[test]
    fn a_line_is_shown_when_it_or_its_process_has_ended() {
        let mut tail = Tail::default();
        tail.add(b"ready\nasks with token-can");
        assert_eq!(tail.redacted_text(&redactor()), "ready");
        tail.add(b"ary");
        assert_eq!(tail.redacted_text(&redactor()), "ready");
        tail.is_over = true;
        assert_eq!(tail.redacted_text(&redactor()), "ready\nasks with [redacted]");
    }

    #[test]
    fn proxy_of_child_has_no_login() {
        for (proxy, visible) in [
            ("http://ann:pw@proxy:3128", "http://proxy:3128"),
            ("ann:p@w@proxy:3128", "proxy:3128"),
            ("http://proxy:3128/", "http://proxy:3128/"),
            ("localhost,.example", "localhost,.example"),
        ] {
            assert_eq!(without_login(proxy), visible);
        }
    }
}
