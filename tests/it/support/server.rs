//! The real binary as a child process.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use reqwest::{Client, RequestBuilder, StatusCode};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::process::{Child, Command};

use super::audit;
use super::database::{Database, Kind};
use super::ledger::Ledger;
use super::model::ModelMock;
use super::sse::SseStream;
use super::wait;

/// The parts that outlive a server process: folder, database, ledger and settings. Servers are started on it one after the other or
/// in parallel.
pub struct Site {
    /// Gone with the value.
    pub folder: TempDir,
    /// The database.
    pub database: Database,
    /// The external record of tool executions.
    pub ledger: Ledger,
    env: BTreeMap<String, String>,
    mcp: Option<Value>,
    bears_small_files: bool,
    program: PathBuf,
    arguments: Vec<&'static str>,
    started: Arc<std::sync::atomic::AtomicUsize>,
}

impl Site {
    /// A place with a database without rows, no model and no tool servers: the demo model answers.
    pub async fn new(kind: Kind) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let database = Database::new(kind, folder.path()).await;
        Self::with(folder, database)
    }

    fn with(folder: TempDir, database: Database) -> Self {
        let ledger = Ledger::new(folder.path());
        let env = BTreeMap::from([
            ("DATABASE_URL".to_owned(), database.url.clone()),
            ("CAPSTAN_DATA_DIR".to_owned(), folder.path().join("data").display().to_string()),
            ("CAPSTAN_DATABASE__MAX_CONNECTIONS".to_owned(), "10".to_owned()),
            ("CAPSTAN_LOG__FORMAT".to_owned(), "text".to_owned()),
            // Requests and connections would bury what matters when a test fails.
            ("CAPSTAN_LOG__LEVEL".to_owned(), "debug,capstan::http::request=info,capstan::app::listen=info".to_owned()),
        ]);
        let program = program();
        Self {
            folder,
            database,
            ledger,
            env,
            mcp: None,
            bears_small_files: false,
            program,
            arguments: Vec::new(),
            started: Arc::default(),
        }
    }

    /// A place with the scripted model and the ledger.
    pub async fn scripted(kind: Kind, model: &ModelMock) -> Self {
        Self::new(kind).await.script(model)
    }

    /// Returns a scripted model, a place with it, and a server there.
    pub async fn start_scripted(kind: Kind) -> (ModelMock, Self, Server) {
        Self::serve(async |model| Self::scripted(kind, model).await).await
    }

    /// Returns a scripted model, the place that `build` makes for it, and a server there.
    pub async fn serve(build: impl AsyncFnOnce(&ModelMock) -> Self) -> (ModelMock, Self, Server) {
        let model = ModelMock::start().await;
        let site = build(&model).await;
        let server = site.start().await;
        (model, site, server)
    }

    /// Returns a scripted model, a place with it and short leases, and a server there with this failpoint.
    pub async fn start_with_failpoint(kind: Kind, point: &str) -> (ModelMock, Self, Server) {
        let model = ModelMock::start().await;
        let site = Self::scripted(kind, &model).await.short_leases();
        let server = site.start_with(&[("CAPSTAN_FAILPOINTS", point)]).await;
        (model, site, server)
    }

    /// Panics unless the rows are sound and the model could be sent each request.
    pub async fn assert_sound(&self, model: &ModelMock) {
        model.assert_history_was_sendable();
        audit::assert_sound(&self.database).await;
    }

    /// A place with this database, no model and no tool servers.
    pub fn on(database: Database) -> Self {
        Self::with(tempfile::tempdir().unwrap(), database)
    }

    /// A place with this database, the scripted model and the ledger.
    pub fn scripted_on(database: Database, model: &ModelMock) -> Self {
        Self::on(database).script(model)
    }

    fn script(mut self, model: &ModelMock) -> Self {
        self.mcp = Some(self.ledger.mcp_config());
        self.with_model(model)
    }

    /// Adds the scripted model.
    pub fn with_model(self, model: &ModelMock) -> Self {
        self.env("OPENAI_BASE_URL", &model.base_url).env("OPENAI_API_KEY", "sk-test").env("CAPSTAN_MODEL", "openai/mock")
    }

    /// Sets a variable for all servers that are started from now on.
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.env.insert(name.to_owned(), value.to_owned());
        self
    }

    /// Sets the `mcpServers` file.
    pub fn mcp(mut self, config: Value) -> Self {
        self.mcp = Some(config);
        self
    }

    /// Servers that are started from now on are of another build.
    pub fn program(self, program: &Path) -> Self {
        Self { program: program.to_owned(), ..self }
    }

    /// A file that may not grow any more fails the writes of the servers instead of killing them.
    pub fn bears_small_files(self) -> Self {
        Self { bears_small_files: true, ..self }
    }

    /// Starts servers with this after `serve`, too.
    pub fn argument(mut self, argument: &'static str) -> Self {
        self.arguments.push(argument);
        self
    }

    /// Starts servers with nothing more after `serve`.
    pub fn without_arguments(self) -> Self {
        Self { arguments: Vec::new(), ..self }
    }

    /// Leases of two seconds, so that a test of their loss does not take long.
    pub fn short_leases(self) -> Self {
        self.env("CAPSTAN_WORKER__LEASE_MS", "2000")
            .env("CAPSTAN_WORKER__RENEW_MS", "500")
            .env("CAPSTAN_WORKER__SELF_STOP_MS", "1500")
            .env("CAPSTAN_WORKER__SWEEP_MS", "250")
    }

    /// Starts a server.
    pub async fn start(&self) -> Server {
        self.start_with(&[]).await
    }

    /// Starts a server with more variables than the others.
    pub async fn start_with(&self, extra: &[(&str, &str)]) -> Server {
        for _ in 0..3 {
            match self.try_start(extra).await {
                Ok(server) => return server,
                Err(ended) => ended.print_log(),
            }
        }
        panic!("the server did not start")
    }

    /// Starts a server that may refuse to: then what is left of it, whose log says why.
    pub async fn try_start(&self, extra: &[(&str, &str)]) -> Result<Server, Server> {
        let mut server = self.spawn(extra);
        let client = server.client.clone();
        let ready = format!("{}/readyz", server.url);
        let asking = wait::until("the server to be ready", Duration::from_secs(60), || {
            let exited = server.child.try_wait().unwrap().is_some();
            let request = client.get(&ready).send();
            async move {
                if exited {
                    return Some(false);
                }
                request.await.is_ok_and(|answer| answer.status() == StatusCode::OK).then_some(true)
            }
        });
        if asking.await { Ok(server) } else { Err(server) }
    }

    /// Starts a server at the address of one that is gone, where its clients return.
    pub async fn restarted(&self, gone: &Server) -> Server {
        let mut server = self.spawn(&[("CAPSTAN_LISTEN", gone.url.trim_start_matches("http://"))]);
        server.url.clone_from(&gone.url);
        wait::until("the server to be back", Duration::from_secs(60), || async {
            server.get("//readyz").send().await.is_ok_and(|answer| answer.status() == StatusCode::OK).then_some(())
        })
        .await;
        server
    }

    /// Starts the process and does not wait for anything.
    pub fn spawn(&self, extra: &[(&str, &str)]) -> Server {
        self.spawn_logging_to(None, extra)
    }

    /// Starts the process with another standard error than the log file of the test.
    pub fn spawn_logging_to(&self, stderr: Option<Stdio>, extra: &[(&str, &str)]) -> Server {
        let port = Port::free();
        let count = self.started.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let log = self.folder.path().join(format!("server-{count}.log"));
        let output = std::fs::File::create(&log).unwrap();
        let mut command = match self.bears_small_files {
            false => Command::new(&self.program),
            // An ignored signal stays ignored after exec.
            true => {
                let mut shell = Command::new("sh");
                shell.args(["-c", "trap '' XFSZ; exec \"$0\" \"$@\""]).arg(&self.program);
                shell
            }
        };
        command.arg("serve").args(&self.arguments).current_dir(self.folder.path());
        let inherited = inherited_variables();
        command.env_clear().envs(inherited).envs(&self.env).env("CAPSTAN_LISTEN", format!("127.0.0.1:{}", port.number));
        if let Some(mcp) = &self.mcp {
            // One file a server: another one may be reading its own in this moment.
            let file = self.folder.path().join(format!("server-{count}.mcp.json"));
            std::fs::write(&file, mcp.to_string()).unwrap();
            command.env("CAPSTAN_MCP_CONFIG", file);
        }
        command.envs(extra.iter().copied());
        command.stdin(Stdio::null()).stdout(output.try_clone().unwrap()).kill_on_drop(true);
        command.stderr(stderr.unwrap_or_else(|| output.into()));
        let child = command.spawn().unwrap();
        let client = Client::builder().no_proxy().build().unwrap();
        let url = format!("http://127.0.0.1:{}", port.number);
        Server { child, url, client, log, key: None, _port: port }
    }

    /// A new key of a user.
    pub async fn key_of(&self, user: &str) -> String {
        let (ok, output) = self.command(&["keys", "create", "--user", user]).await;
        assert!(ok, "{output}");
        output.lines().last().unwrap().trim().to_owned()
    }

    /// Runs a command of the binary to its end and gives its standard output.
    pub async fn command(&self, arguments: &[&str]) -> (bool, String) {
        let child = self.spawn_command(arguments, &[]);
        let output = wait::within("the command", Duration::from_secs(60), child.wait_with_output()).await.unwrap();
        (output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Runs `doctor`, and asserts that its report fits on a screen of 24 lines and 100 columns. Returns whether it found nothing bad,
    /// and the report.
    pub async fn doctor(&self) -> (bool, String) {
        let (good, report) = self.command(&["doctor"]).await;
        let lines: usize = report.lines().map(|line| line.chars().count().div_ceil(100)).sum();
        assert!(lines <= 24, "{lines} lines: {report}");
        (good, report)
    }

    /// Starts a command of the binary with more variables than the others, and does not wait for anything.
    pub fn spawn_command(&self, arguments: &[&str], extra: &[(&str, &str)]) -> Child {
        let mut command = Command::new(&self.program);
        let inherited = inherited_variables();
        command.args(arguments).current_dir(self.folder.path()).env_clear().envs(inherited).envs(&self.env);
        command.envs(extra.iter().copied()).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.kill_on_drop(true).spawn().unwrap()
    }
}

/// A port for one server, which no server of another test takes: those run side by side in processes of their own.
pub struct Port {
    /// Its number.
    pub number: u16,
    /// A lock on the port: the same port of another address of this machine. A test that cannot bind it tries another port. `None`
    /// if there is no such address.
    _right: Option<std::net::TcpListener>,
}

impl Port {
    /// One below those that the system gives out itself.
    pub fn free() -> Self {
        static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        loop {
            let next = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            // Processes that begin one after the other begin far apart: none walks in the footsteps of another one, whose clients
            // may still ask where their server was.
            let offset = std::process::id().wrapping_mul(7_919).wrapping_add(next) % 20_000;
            let number = 10_000 + u16::try_from(offset).unwrap();
            let right = match std::net::TcpListener::bind(("127.0.0.2", number)) {
                Ok(right) => Some(right),
                Err(error) if error.kind() == std::io::ErrorKind::AddrNotAvailable => None,
                Err(_taken) => continue,
            };
            if std::net::TcpListener::bind(("127.0.0.1", number)).is_ok() {
                return Self { number, _right: right };
            }
        }
    }
}

/// A running server. Killed when dropped; its log is printed when the test fails.
pub struct Server {
    child: Child,
    /// Where it listens, without a slash at the end.
    pub url: String,
    /// For requests to it.
    pub client: Client,
    log: PathBuf,
    key: Option<String>,
    /// Last: it is given back when the process is gone.
    _port: Port,
}

impl Server {
    /// The same server seen with a key.
    pub fn set_key(&mut self, key: &str) {
        self.key = Some(key.to_owned());
    }

    /// A GET below `/api/v1`, or of an absolute path that begins with `//`.
    pub fn get(&self, path: &str) -> RequestBuilder {
        self.with_key(self.client.get(self.address(path)))
    }

    /// A POST of JSON below `/api/v1`.
    pub fn post(&self, path: &str, body: &Value) -> RequestBuilder {
        self.with_key(self.client.post(self.address(path)).json(body))
    }

    /// Any other method below `/api/v1`.
    pub fn request(&self, method: reqwest::Method, path: &str) -> RequestBuilder {
        self.with_key(self.client.request(method, self.address(path)))
    }

    fn with_key(&self, request: RequestBuilder) -> RequestBuilder {
        match &self.key {
            Some(key) => request.bearer_auth(key),
            None => request,
        }
    }

    fn address(&self, path: &str) -> String {
        match path.strip_prefix("//") {
            Some(absolute) => format!("{}/{absolute}", self.url),
            None => format!("{}/api/v1{path}", self.url),
        }
    }

    /// GETs JSON; panics unless the answer is 200.
    pub async fn get_json(&self, path: &str) -> Value {
        let answer = self.get(path).send().await.unwrap();
        let status = answer.status();
        let body = answer.text().await.unwrap();
        assert_eq!(status, 200, "GET {path}: {body}");
        serde_json::from_str(&body).unwrap()
    }

    /// POSTs JSON and gives status and body.
    pub async fn post_json(&self, path: &str, body: &Value) -> (StatusCode, Value) {
        let answer = self.post(path, body).send().await.unwrap();
        let status = answer.status();
        let text = answer.text().await.unwrap();
        (status, serde_json::from_str(&text).unwrap_or(Value::String(text)))
    }

    /// Starts a run by `POST /runs` and gives the run.
    pub async fn start_run(&self, body: &Value) -> Value {
        let (status, answer) = self.post_json("/runs", body).await;
        assert_eq!(status, 202, "{answer}");
        answer["run"].clone()
    }

    /// Posts a message to a conversation and gives the whole answer; panics unless it is accepted.
    pub async fn send(&self, conversation: &str, content: &str, on_busy: &str) -> Value {
        let body = json!({"content": content, "on_busy": on_busy});
        let (status, answer) = self.post_json(&format!("/conversations/{conversation}/messages"), &body).await;
        assert_eq!(status, 202, "{answer}");
        answer
    }

    /// Starts a run by `POST /runs` whose answer is its event stream.
    pub async fn stream_run(&self, body: &Value) -> SseStream {
        SseStream::new(self.post("/runs", body).header("accept", "text/event-stream").send().await.unwrap())
    }

    /// The event stream of a run from its beginning.
    pub async fn run_events(&self, run: &str) -> SseStream {
        self.run_events_after(run, None).await.unwrap()
    }

    /// The event stream of a run after a cursor; `None` if the run is over and the client has everything.
    pub async fn run_events_after(&self, run: &str, last_event_id: Option<&str>) -> Option<SseStream> {
        let mut request = self.get(&format!("/runs/{run}/events")).header("accept", "text/event-stream");
        if let Some(id) = last_event_id {
            request = request.header("last-event-id", id);
        }
        let answer = request.send().await.unwrap();
        (answer.status() != StatusCode::NO_CONTENT).then(|| SseStream::new(answer))
    }

    /// All events of a run as JSON pages give them.
    pub async fn run_events_json(&self, run: &str) -> Vec<Value> {
        let mut events = Vec::new();
        let mut path = format!("/runs/{run}/events?limit=100");
        loop {
            let page = self.get_json(&path).await;
            events.extend(page["data"].as_array().unwrap().iter().cloned());
            match page["next_cursor"].as_str() {
                Some(cursor) => path = format!("/runs/{run}/events?limit=100&cursor={cursor}"),
                None => return events,
            }
        }
    }

    /// All messages of a conversation.
    pub async fn messages(&self, conversation: &str) -> Vec<Value> {
        let page = self.get_json(&format!("/conversations/{conversation}/messages?limit=100")).await;
        page["data"].as_array().unwrap().clone()
    }

    /// Waits until a run has ended.
    pub async fn finished(&self, run: &str) -> Value {
        let path = format!("/runs/{run}");
        wait::until(&format!("the end of {run}"), Duration::from_secs(60), || async {
            let answer = self.get(&path).header("prefer", "wait=5").send().await.ok()?;
            let body: Value = answer.json().await.ok()?;
            is_terminal(body["status"].as_str()?).then_some(body)
        })
        .await
    }

    /// A completed run in a conversation, or in a new one.
    pub async fn say(&self, conversation: Option<&str>, input: &str) -> Value {
        let mut body = json!({"input": input});
        if let Some(id) = conversation {
            body["conversation_id"] = json!(id);
        }
        let run = self.start_run(&body).await;
        let ended = self.finished(run["id"].as_str().unwrap()).await;
        assert_eq!(ended["status"], "completed", "{ended}");
        ended
    }

    /// Sends a signal by its name, such as `TERM`.
    pub async fn signal(&self, name: &str) {
        let Some(pid) = self.child.id() else { panic!("the server is gone already") };
        let status = Command::new("kill").arg(format!("-{name}")).arg(pid.to_string()).status().await.unwrap();
        assert!(status.success());
    }

    /// From now on no file of the process grows beyond so many bytes; `None` for as many as it likes.
    pub async fn limit_files(&self, bytes: Option<u64>) {
        let Some(pid) = self.child.id() else { panic!("the server is gone already") };
        let most = bytes.map_or_else(|| "unlimited".to_owned(), |bytes| bytes.to_string());
        let mut command = Command::new("prlimit");
        let status = command.args(["--pid", &pid.to_string(), &format!("--fsize={most}:unlimited")]).status().await.unwrap();
        assert!(status.success());
    }

    /// Waits until the process stands still after a SIGSTOP.
    pub async fn stopped(&self) {
        let Some(pid) = self.child.id() else { panic!("the server is gone already") };
        let stopped = || async { (process_state(pid) == Some('T')).then_some(()) };
        wait::until("the server to stand still", Duration::from_secs(10), stopped).await;
    }

    /// Kills the process without warning.
    pub async fn kill9(&mut self) {
        self.child.kill().await.unwrap();
    }

    /// Memory of the process that is in use, in KiB.
    pub fn memory_kib(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id().unwrap())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.split_whitespace().next().unwrap().parse().unwrap()
    }

    /// Returns the processor time that the process has used, to 10 ms.
    pub fn processor_time(&self) -> Duration {
        // User and system time are the fields 14 and 15.
        let fields = process_fields(self.child.id().unwrap()).unwrap();
        let ticks: u64 = fields[11..13].iter().map(|ticks| ticks.parse::<u64>().unwrap()).sum();
        Duration::from_millis(ticks * 10)
    }

    /// Whether the process is gone.
    pub fn is_gone(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    /// Waits for the process to end by itself.
    pub async fn ended(&mut self, limit: Duration) -> std::process::ExitStatus {
        wait::within("the server to end", limit, self.child.wait()).await.unwrap()
    }

    /// Waits for the process to end by itself, however long that takes.
    pub async fn exit(&mut self) -> std::process::ExitStatus {
        self.child.wait().await.unwrap()
    }

    /// Returns the log so far.
    pub fn log_text(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    fn print_log(&self) {
        let text = self.log_text();
        let lines: Vec<&str> = text.lines().collect();
        let from = lines.len().saturating_sub(100);
        let mut out = std::io::stderr().lock();
        let _ = writeln!(out, "--- log of {} ({} of {} lines)", self.url, lines.len() - from, lines.len());
        for line in &lines[from..] {
            let _ = writeln!(out, "{line}");
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.print_log();
        }
    }
}

/// Whether a run with this status has ended.
pub fn is_terminal(status: &str) -> bool {
    matches!(status, "completed" | "failed" | "cancelled")
}

/// Returns the server's binary, which has failpoints. Cargo builds it before the tests, two folders above them.
pub fn program() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    test.ancestors().nth(2).unwrap().join("capstan-failpoints")
}

/// Returns the variables that a program under test inherits: nothing else of the tester's environment may reach it.
fn inherited_variables() -> impl Iterator<Item = (&'static str, String)> {
    #[expect(clippy::disallowed_methods, reason = "the child needs these of the tester's variables")]
    ["PATH", "HOME", "SSL_CERT_FILE"].into_iter().filter_map(|name| Some((name, std::env::var(name).ok()?)))
}

/// Returns the fields of a process in `/proc/PID/stat` from the third one on; `None` if there is no such process.
fn process_fields(pid: u32) -> Option<Vec<String>> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name of the program, in parentheses, may contain spaces.
    Some(stat.rsplit_once(')')?.1.split_whitespace().map(str::to_owned).collect())
}

/// Returns the state of a process, such as `T` for stopped and `Z` for a zombie; `None` if there is no such process.
pub fn process_state(pid: u32) -> Option<char> {
    process_fields(pid)?.first()?.chars().next()
}
