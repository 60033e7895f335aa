//! A tool executor with MCP servers, and the log of the scripted server.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use capstan::domain::conversation::message::ToolContent;
use capstan::domain::ids::{CallId, MessageId, RunId, UserId};
use capstan::domain::tool::{ToolCall, ToolCallState, ToolDefinition, ToolOutcome};
use capstan::support::clock::SystemClock;
use capstan::support::ids::UuidIds;
use capstan::tools::mcp::{ConnectionLimits, ContainerOptions, McpConfig};
use capstan::tools::{CallControl, Progress, Report, ServerStatus, ToolExecutor, ToolExecutorOptions, Toolbox as _};
use serde_json::{Value, json};
use tokio::process::{Child, Command};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::repository::root;
use crate::server::{self, Port};
use crate::wait;

/// Longer than any successful step takes on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Returns the folder where `scripts/test-deps.sh` installs the servers.
pub fn packages() -> PathBuf {
    #[expect(clippy::disallowed_methods, reason = "where the servers are is a setting of the tests")]
    let given = std::env::var("CAPSTAN_TEST_DEPS").map(PathBuf::from);
    let folder = given.unwrap_or_else(|_| root().join("target/test-deps"));
    assert!(folder.join("installed").exists(), "the MCP servers are not in {}: run scripts/test-deps.sh first", folder.display());
    folder
}

/// Returns the program of a server from a Node package.
pub fn entry(package: &str) -> String {
    packages().join("node_modules/@modelcontextprotocol").join(package).join("dist/index.js").display().to_string()
}

/// Returns the next progress report.
pub async fn heard(reports: &mut mpsc::Receiver<Report>) -> Option<Progress> {
    match reports.recv().await? {
        Report::Progress(progress) => Some(progress),
        Report::Asks(asks) => panic!("nobody is asked: {asks:?}"),
        Report::Samples(samples) => panic!("no model is asked: {samples:?}"),
        Report::Pauses(pause) => panic!("nobody is asked: {pause:?}"),
        Report::Handle(handle) => panic!("there is no task: {handle:?}"),
    }
}

/// A tool executor with MCP servers.
pub struct Tools {
    pub door: Arc<ToolExecutor>,
    pub definitions: Vec<Arc<ToolDefinition>>,
}

/// Returns the owner of the calls' runs.
pub fn owner() -> UserId {
    UserId::from_stored("user_1".to_owned())
}

impl Tools {
    /// Starts the scripted server with these habits under the name `s`, and with `capstan` in its entry.
    pub async fn scripted(habits: &[&str], capstan: Option<Value>) -> (Scripted, Self) {
        let server = Scripted::default();
        let mut entry = server.entry(habits);
        if let Some(capstan) = capstan {
            entry["capstan"] = capstan;
        }
        let tools = Self::new(&json!({"s": entry})).await;
        (server, tools)
    }

    /// Starts these servers and lists their tools.
    pub async fn new(servers: &Value) -> Self {
        Self::patient(servers, PATIENCE).await
    }

    /// Does the same with a limit for the time of listing.
    pub async fn patient(servers: &Value, start_wait: Duration) -> Self {
        let default = (ConnectionLimits::default(), ContainerOptions::default());
        Self::opened(servers, start_wait, default, None).await
    }

    /// Does the same with other connection limits.
    pub async fn limited(servers: &Value, connections: ConnectionLimits) -> Self {
        Self::opened(servers, PATIENCE, (connections, ContainerOptions::default()), None).await
    }

    /// Does the same with working directories below this folder.
    pub async fn at_home(servers: &Value, homes: &Path) -> Self {
        let default = (ConnectionLimits::default(), ContainerOptions::default());
        Self::opened(servers, PATIENCE, default, Some(homes.to_owned())).await
    }

    /// Does the same with these container options.
    pub async fn contained(servers: &Value, containers: ContainerOptions) -> Self {
        Self::opened(servers, PATIENCE, (ConnectionLimits::default(), containers), None).await
    }

    /// Does the same with these variables instead of those of the process.
    pub async fn in_environment(servers: &Value, environment: impl Fn(&str) -> Option<String> + Send + Sync + 'static) -> Self {
        Self::started(servers, ToolExecutorOptions { start_wait: PATIENCE, environment: Arc::new(environment), ..options() }).await
    }

    async fn opened(
        servers: &Value,
        start_wait: Duration,
        (connections, containers): (ConnectionLimits, ContainerOptions),
        homes: Option<PathBuf>,
    ) -> Self {
        let environment = |name: &str| {
            #[expect(clippy::disallowed_methods, reason = "the tests play the part of the configuration")]
            std::env::var(name).ok()
        };
        let environment = Arc::new(environment);
        Self::started(servers, ToolExecutorOptions { start_wait, connections, containers, homes, environment, ..options() }).await
    }

    async fn started(servers: &Value, options: ToolExecutorOptions) -> Self {
        let mcp = McpConfig::parse(&json!({"mcpServers": servers}).to_string(), &|_| None).unwrap();
        let door = ToolExecutor::new(ToolExecutorOptions { mcp, ..options });
        let definitions = door.definitions(&owner()).await;
        Self { door, definitions }
    }

    pub fn definition(&self, name: &str) -> &ToolDefinition {
        let names: Vec<&str> = self.definitions.iter().map(|tool| tool.name.as_str()).collect();
        self.definitions.iter().find(|tool| tool.name == name).unwrap_or_else(|| panic!("{name} is not among {names:?}"))
    }

    /// Calls a tool and waits for its outcome.
    pub async fn call(&self, name: &str, arguments: Value) -> ToolOutcome {
        self.call_within(PATIENCE, name, arguments).await
    }

    /// Does the same with a timeout. A timeout in the entry would apply to all calls, also to those that must succeed.
    pub async fn call_within(&self, limit: Duration, name: &str, arguments: Value) -> ToolOutcome {
        let (progress, _reports) = mpsc::channel(1);
        self.call_with(name, arguments, limit, progress, CancellationToken::new()).await
    }

    /// Calls a tool with every option.
    pub async fn call_with(
        &self,
        name: &str,
        arguments: Value,
        timeout: Duration,
        progress: mpsc::Sender<Report>,
        cancel: CancellationToken,
    ) -> ToolOutcome {
        let definition = self.definition(name);
        let call = call(definition, arguments);
        let control = CallControl { timeout, progress, permit: cancel.into() };
        wait::within(name, PATIENCE * 2, self.door.execute(&owner(), definition, &call, control)).await
    }

    /// Returns the states of all servers.
    pub async fn door_statuses(&self) -> Vec<ServerStatus> {
        self.door.servers(&owner()).await
    }

    pub async fn shutdown(&self) {
        self.door.shutdown().await;
    }

    pub async fn status(&self, name: &str) -> ServerStatus {
        self.door.servers(&owner()).await.into_iter().find(|server| server.name == name).unwrap()
    }
}

fn options() -> ToolExecutorOptions {
    ToolExecutorOptions::new(std::env::temp_dir(), Arc::new(SystemClock))
}

pub fn call(definition: &ToolDefinition, arguments: Value) -> ToolCall {
    let of = (RunId::generate(&UuidIds), MessageId::generate(&UuidIds));
    let call = ToolCall::planned(CallId::generate(&UuidIds), of, definition, arguments);
    ToolCall { state: ToolCallState::Started, ..call }
}

/// Returns all texts of an outcome.
pub fn text(outcome: &ToolOutcome) -> String {
    let texts = outcome.content.iter().map(|content| match content {
        ToolContent::Text { text } => text.clone(),
        ToolContent::Image(binary) | ToolContent::File(binary) => {
            format!("[{}, {} characters]", binary.media_type, binary.data.as_deref().unwrap_or_default().len())
        }
    });
    texts.collect::<Vec<_>>().join("\n")
}

/// The scripted server, with its own folder.
pub struct Scripted {
    pub folder: tempfile::TempDir,
}

impl Default for Scripted {
    fn default() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }
}

impl Scripted {
    /// Returns a python that is a program, because `python3` is often a script that starts one.
    pub fn python() -> PathBuf {
        packages().join("venv/bin/python")
    }

    /// Returns its command line.
    pub fn command(&self, habits: &[&str]) -> Vec<String> {
        let script = root().join("tests/it/mcp/server.py");
        let mut command = vec![script.display().to_string(), self.folder.path().display().to_string()];
        command.extend(habits.iter().map(|habit| (*habit).to_owned()));
        command
    }

    /// Returns its entry in the configuration.
    pub fn entry(&self, habits: &[&str]) -> Value {
        json!({"command": Self::python(), "args": self.command(habits)})
    }

    /// Makes its next starts fail, until [`Self::repair`].
    pub fn damage(&self) {
        std::fs::write(self.folder.path().join("broken"), "").unwrap();
    }

    pub fn repair(&self) {
        std::fs::remove_file(self.folder.path().join("broken")).unwrap();
    }

    /// Returns the values that the server logged under `key`, in order.
    pub fn log(&self, key: &str) -> Vec<Value> {
        let log = std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default();
        let entries = log.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        entries.filter_map(|entry| entry.get(key).cloned()).collect()
    }

    /// Returns the logged processes that still run.
    pub fn alive(&self) -> Vec<i64> {
        self.log("pid").iter().filter_map(Value::as_i64).filter(|pid| runs(*pid)).collect()
    }

    /// Waits until none of its processes is left.
    pub async fn gone(&self) {
        wait::until("the processes to end", PATIENCE, || async { self.alive().is_empty().then_some(()) }).await;
    }
}

/// Starts server-everything over one of the HTTP transports.
pub async fn everything_at(transport: &str) -> (Child, u16) {
    for _ in 0..3 {
        // The server listens on all addresses, including the one that reserves the port, so the reservation is released first.
        let port = Port::free().number;
        if let Some(child) = listening_on(port, transport).await {
            return (child, port);
        }
    }
    panic!("the server did not listen")
}

/// Starts it at a port. Returns `None` if the server exits, as it does if another process has taken the port.
pub async fn listening_on(port: u16, transport: &str) -> Option<Child> {
    let mut command = Command::new("node");
    command.arg(entry("server-everything")).arg(transport).env("PORT", port.to_string());
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true).spawn().unwrap();
    let listens = wait::until("the server to listen", PATIENCE, || {
        let has_ended = child.try_wait().unwrap().is_some();
        async move {
            if has_ended {
                return Some(false);
            }
            tokio::net::TcpStream::connect(("127.0.0.1", port)).await.is_ok().then_some(true)
        }
    })
    .await;
    listens.then_some(child)
}

/// Waits for the server's own control group and returns its folder, where control groups are available.
#[cfg(target_os = "linux")]
pub async fn control_group(server: i64) -> Option<PathBuf> {
    let group = |pid: &str| {
        let groups = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
        groups.lines().find_map(|line| line.strip_prefix("0::/").map(str::to_owned))
    };
    let ours = group("self")?;
    let of_server = || group(&server.to_string()).filter(|group| *group != ours);
    let mounts = std::fs::read_to_string("/proc/mounts").unwrap();
    let place = |line: &str| {
        let mut fields = line.split(' ').skip(1);
        let place = PathBuf::from(fields.next()?);
        (fields.next()? == "cgroup2").then_some(place)
    };
    let root = mounts.lines().find_map(place)?;
    if may_have_control_group(&root.join(&ours).join(format!("test-{server}"))) {
        wait::until("the server to have a control group", PATIENCE, || async { of_server().map(drop) }).await;
    }
    Some(root.join(of_server()?))
}

/// Returns whether a child process can have this control group, by trying it.
#[cfg(target_os = "linux")]
fn may_have_control_group(group: &Path) -> bool {
    if std::fs::create_dir(group).is_err() {
        return false;
    }
    let mut child = std::process::Command::new("/bin/sleep").arg("1000").spawn().unwrap();
    let may = std::fs::write(group.join("cgroup.procs"), child.id().to_string()).is_ok();
    child.kill().unwrap();
    child.wait().unwrap();
    std::fs::remove_dir(group).unwrap();
    may
}

/// Kills a process that is no child of this one.
#[cfg(target_os = "linux")]
pub fn kill(pid: i64) {
    let killed = std::process::Command::new("kill").args(["-KILL", &pid.to_string()]).status().unwrap();
    assert!(killed.success());
}

/// Returns whether a process runs. A zombie does not.
fn runs(pid: i64) -> bool {
    u32::try_from(pid).is_ok_and(|pid| server::process_state(pid).is_some_and(|state| state != 'Z'))
}
