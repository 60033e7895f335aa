//! Real MCP servers from their packages.

use std::time::Duration;

use capstan::domain::tool::{ReplayClass, ToolCallState};
use serde_json::{Value, json};
use tokio::process::Child;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use support::mcp::{PATIENCE, Tools, entry, everything_at, listening_on, packages, text};
use support::wait;

fn everything() -> Value {
    json!({"command": "node", "args": [entry("server-everything"), "stdio"], "capstan": {"trusted": true}})
}

async fn everything_over_http() -> (Child, u16) {
    everything_at("streamableHttp").await
}

#[tokio::test(flavor = "multi_thread")]
async fn four_servers_at_once_over_both_transports() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().canonicalize().unwrap();
    std::fs::write(root.join("note.txt"), "inside").unwrap();
    let (_http, port) = everything_over_http().await;
    let tools = Tools::new(&json!({
        "everything": everything(),
        "files": {"command": "node", "args": [entry("server-filesystem"), root]},
        "time": {"command": packages().join("venv/bin/mcp-server-time"), "args": ["--local-timezone", "UTC"]},
        "remote": {"type": "http", "url": format!("http://127.0.0.1:{port}/mcp"), "headers": {"X-Test": "1"}},
        "broken": {"command": "/no/such/program"},
        "misspelt": {"command": "node", "capstan": {"trust": true}},
    }))
    .await;

    let statuses: Vec<(String, String)> =
        tools.door_statuses().await.into_iter().map(|server| (server.name, server.status)).collect();
    let expected =
        [("broken", "error"), ("everything", "ok"), ("files", "ok"), ("misspelt", "error"), ("remote", "ok"), ("time", "ok")];
    assert_eq!(statuses, expected.map(|(name, status)| (name.to_owned(), status.to_owned())));
    assert!(tools.status("broken").await.error.unwrap().contains("/no/such/program was not found"));
    assert!(tools.status("misspelt").await.error.unwrap().contains("capstan.trust is unknown"));

    let echo = tools.call("everything__echo", json!({"message": "hello"})).await;
    assert_eq!((echo.state, text(&echo)), (ToolCallState::Done, "Echo: hello".to_owned()));
    let sum = tools.call("remote__get-sum", json!({"a": 17, "b": 23})).await;
    assert_eq!((sum.state, text(&sum)), (ToolCallState::Done, "The sum of 17 and 23 is 40.".to_owned()));
    let image = tools.call("everything__get-tiny-image", json!({})).await;
    assert!(text(&image).contains("[image/png, "), "{image:?}");
    let invalid = tools.call("everything__get-sum", json!({"a": "one", "b": 2})).await;
    assert!(invalid.state == ToolCallState::Failed && text(&invalid).contains("/a: \"one\" is not of type"), "{invalid:?}");

    let read = tools.call("files__read_text_file", json!({"path": root.join("note.txt")})).await;
    assert_eq!((read.state, text(&read)), (ToolCallState::Done, "inside".to_owned()));
    let outside = tools.call("files__read_text_file", json!({"path": "/etc/passwd"})).await;
    assert!(outside.is_error && outside.state == ToolCallState::Failed, "{outside:?}");
    assert!(text(&outside).contains("outside allowed directories"), "{outside:?}");

    let time = tools.call("time__get_current_time", json!({"timezone": "Europe/Paris"})).await;
    assert!(time.state == ToolCallState::Done && text(&time).contains("Europe/Paris"), "{time:?}");

    // Hints count only for servers that the operator trusts: two entries of the same program differ only in that.
    assert_eq!(tools.definition("everything__get-sum").replay, ReplayClass::Read);
    assert_eq!(tools.definition("remote__get-sum").replay, ReplayClass::Unsafe);
    tools.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_git_and_fetch() {
    let folder = tempfile::tempdir().unwrap();
    let repository = folder.path().canonicalize().unwrap().join("repository");
    let git = |arguments: &[&str]| {
        let mut command = std::process::Command::new("git");
        command.args(["-c", "user.name=Ada", "-c", "user.email=ada@example.org"]).args(arguments);
        assert!(command.current_dir(folder.path()).output().unwrap().status.success(), "git {arguments:?}");
    };
    git(&["init", "--quiet", "repository"]);
    std::fs::write(repository.join("note.txt"), "one").unwrap();
    git(&["-C", "repository", "add", "note.txt"]);
    git(&["-C", "repository", "commit", "--quiet", "--message", "The first note"]);
    let page =
        "<html><head><title>T</title></head><body><article><p>The page says 42, and so does everybody.</p></article></body></html>";
    let app = axum::Router::new()
        .route("/page", axum::routing::get(move || async move { axum::response::Html(page) }))
        .route("/robots.txt", axum::routing::get(|| async { "User-agent: *\nDisallow: /secret\n" }));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let mut serving = tokio::task::JoinSet::new();
    serving.spawn(async move { axum::serve(listener, app).await });

    let memory = folder.path().join("memory.jsonl");
    let program = |name: &str| packages().join("venv/bin").join(name);
    let tools = Tools::new(&json!({
        "memory": {"command": "node", "args": [entry("server-memory")], "env": {"MEMORY_FILE_PATH": memory}},
        "git": {"command": program("mcp-server-git"), "args": ["--repository", repository]},
        "fetch": {"command": program("mcp-server-fetch"), "args": ["--allow-private-ips"]},
    }))
    .await;
    let ada = json!({"name": "Ada", "entityType": "person", "observations": ["likes numbers"]});
    let kept = tools.call("memory__create_entities", json!({"entities": [ada]})).await;
    assert_eq!(kept.state, ToolCallState::Done, "{kept:?}");
    let found = tools.call("memory__search_nodes", json!({"query": "numbers"})).await;
    assert!(text(&found).contains("Ada") && !text(&found).contains("does not fit"), "{found:?}");
    assert!(std::fs::read_to_string(&memory).unwrap().contains("likes numbers"));

    let log = tools.call("git__git_log", json!({"repo_path": repository})).await;
    assert!(log.state == ToolCallState::Done && text(&log).contains("The first note"), "{log:?}");
    std::fs::write(repository.join("note.txt"), "two").unwrap();
    let diff = tools.call("git__git_diff_unstaged", json!({"repo_path": repository})).await;
    assert!(text(&diff).contains("-one") && text(&diff).contains("+two"), "{diff:?}");
    let elsewhere = tools.call("git__git_log", json!({"repo_path": "/"})).await;
    assert!(elsewhere.is_error && elsewhere.state == ToolCallState::Failed, "{elsewhere:?}");

    let page = tools.call("fetch__fetch", json!({"url": format!("http://{address}/page")})).await;
    assert!(page.state == ToolCallState::Done && text(&page).contains("The page says 42"), "{page:?}");
    let secret = tools.call("fetch__fetch", json!({"url": format!("http://{address}/secret")})).await;
    assert!(secret.is_error && text(&secret).contains("robots.txt"), "{secret:?}");
    tools.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn progress_is_passed_on_and_a_cancelled_call_returns_at_once() {
    let tools = Tools::new(&json!({"everything": everything()})).await;
    let long = json!({"duration": 1.2, "steps": 6});
    let (progress, mut reports) = mpsc::channel(16);
    // Each progress report restarts the timeout of half a second.
    let outcome = tools
        .call_with(
            "everything__trigger-long-running-operation",
            long,
            Duration::from_millis(900),
            progress,
            CancellationToken::new(),
        )
        .await;
    assert_eq!(outcome.state, ToolCallState::Done, "{outcome:?}");
    let first = support::mcp::heard(&mut reports).await.unwrap();
    assert_eq!(first.total, Some(6.0));

    let cancel = CancellationToken::new();
    let (progress, mut reports) = mpsc::channel(16);
    let call = tools.call_with(
        "everything__trigger-long-running-operation",
        json!({"duration": 100, "steps": 1000}),
        PATIENCE,
        progress,
        cancel.clone(),
    );
    let stop = async {
        reports.recv().await.unwrap();
        cancel.cancel();
        std::time::Instant::now()
    };
    let (outcome, asked) = tokio::join!(call, stop);
    assert!(asked.elapsed() < Duration::from_secs(5), "{:?}", asked.elapsed());
    assert_eq!(outcome.state, ToolCallState::Unknown);
    let echo = tools.call("everything__echo", json!({"message": "still here"})).await;
    assert_eq!(text(&echo), "Echo: still here");
    tools.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_over_http_that_was_restarted_is_used_again() {
    let (mut child, port) = everything_over_http().await;
    let tools = Tools::new(&json!({"remote": {"url": format!("http://127.0.0.1:{port}/mcp")}})).await;
    assert_eq!(text(&tools.call("remote__echo", json!({"message": "one"})).await), "Echo: one");
    child.kill().await.unwrap();
    let down = tools.call("remote__echo", json!({"message": "two"})).await;
    assert_eq!(down.state, ToolCallState::Failed, "{down:?}");
    assert!(text(&down).contains("nothing was sent"), "{down:?}");
    let _child = listening_on(port, "streamableHttp").await.expect("nobody else takes the port meanwhile");
    // The new process reports the session as unknown, and the client starts a new one.
    let again = wait::until("the server to be used again", PATIENCE, || async {
        let outcome = tools.call("remote__echo", json!({"message": "three"})).await;
        (outcome.state == ToolCallState::Done).then_some(outcome)
    });
    assert_eq!(text(&again.await), "Echo: three");
    tools.shutdown().await;
}
