//! Real MCP servers from their packages, over both transports, with the scripted model.

use std::path::PathBuf;
use std::time::Duration;

use rstest::rstest;
use serde_json::{Value, json};
use tokio::process::{Child, Command};

use support::database::Kind;
use support::mcp::everything_at;
#[cfg(target_os = "linux")]
use support::mcp::{control_group, kill};
use support::model::ModelMock;
use support::repository::root;
use support::server::Site;
use support::sse::{find, kinds};
use support::wait;

/// Returns the folder where `scripts/test-deps.sh` installs the servers. Runs the script if needed.
pub async fn installed() -> PathBuf {
    #[expect(clippy::disallowed_methods, reason = "where the servers are is a setting of the tests")]
    let given = std::env::var("CAPSTAN_TEST_DEPS").map(PathBuf::from);
    let folder = given.unwrap_or_else(|_| root().join("target/test-deps"));
    let script = root().join("scripts/test-deps.sh");
    let mut command = Command::new(script);
    let output = wait::within("the MCP servers to be installed", Duration::from_secs(300), command.output()).await.unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    folder
}

/// Starts server-everything over Streamable HTTP.
pub async fn everything_over_http() -> (Child, String) {
    let (child, port) = everything_at("streamableHttp").await;
    (child, format!("http://127.0.0.1:{port}/mcp"))
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn work_over_stdio_and_http(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) {
    let folder = installed().await;
    let packages = folder.join("node_modules/@modelcontextprotocol");
    let (_everything, address) = everything_over_http().await;
    let model = ModelMock::start().await;
    let site = Site::new(kind).await.with_model(&model);
    let files = site.folder.path().join("shared");
    std::fs::create_dir(&files).unwrap();
    std::fs::write(files.join("note.txt"), "the note says 42").unwrap();
    let files = files.canonicalize().unwrap().display().to_string();
    let site = site.mcp(json!({"mcpServers": {
        "everything": {"command": "node", "args": [packages.join("server-everything/dist/index.js"), "stdio"]},
        "files": {"command": "node", "args": [packages.join("server-filesystem/dist/index.js"), files]},
        "time": {"command": folder.join("venv/bin/python"), "args": ["-m", "mcp_server_time", "--local-timezone", "UTC"]},
        "remote": {"type": "http", "url": address},
        "broken": {"command": "/no/such/program"},
    }}));
    let server = site.start().await;
    let script = format!(
        r#"[[id:mcp]][[call:everything__echo {{"message":"hello"}}]][[call:files__read_text_file {{"path":"{files}/note.txt"}}]]
        [[call:time__get_current_time {{"timezone":"Europe/Paris"}}]][[call:remote__get-sum {{"a":17,"b":23}}]]
        [[next]][[call:files__read_text_file {{"path":"/etc/passwd"}}]][[call:no_such_tool {{}}]][[next]][[text:5,5]]"#
    );
    let frames = server.stream_run(&json!({"input": script})).await.all().await;
    assert_eq!(kinds(&frames)[frames.len() - 2], "run.completed", "{frames:#?}");
    let offered = model.exchanges("mcp")[0].request["tools"].to_string();
    for name in ["everything__echo", "files__read_text_file", "time__get_current_time", "remote__get-sum"] {
        assert!(offered.contains(name), "{name} is not offered: {offered}");
    }
    let completed: Vec<Value> =
        frames.iter().filter(|frame| frame.kind() == "tool.completed").map(|frame| frame.json()["data"].clone()).collect();
    let answer = |name: &str, error: bool| {
        let found = completed.iter().find(|data| data["name"] == name && data["is_error"] == error);
        found.unwrap_or_else(|| panic!("no answer of {name} with is_error {error}: {completed:#?}"))["content"].to_string()
    };
    assert!(answer("everything__echo", false).contains("hello"));
    assert!(answer("files__read_text_file", false).contains("the note says 42"));
    assert!(answer("time__get_current_time", false).contains("Europe/Paris"));
    assert!(answer("remote__get-sum", false).contains("40"));
    assert!(answer("files__read_text_file", true).to_lowercase().contains("denied"));
    answer("no_such_tool", true);
    assert!(find(&frames, "tool.started").is_some());

    let tools = server.get_json("/tools").await.to_string();
    assert!(tools.contains("broken"), "a broken server is reported: {tools}");
    site.assert_sound(&model).await;
}

/// The tool servers' processes end with the server, however it ends.
#[rstest]
#[case::by_signal("TERM")]
#[case::by_force("KILL")]
#[tokio::test(flavor = "multi_thread")]
async fn end_with_the_server(#[case] signal: &str) {
    let (_model, site, mut server) = Site::start_scripted(Kind::Sqlite).await;
    let run = server.start_run(&json!({"input": r#"[[id:e]][[call:ledger__append {"text":"x"}]][[next]][[text:1,0]]"#})).await;
    server.finished(run["id"].as_str().unwrap()).await;
    let children = || {
        let marker = site.folder.path().join("ledger.jsonl").display().to_string();
        let processes = std::fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok());
        processes
            .filter(|entry| {
                std::fs::read(entry.path().join("environ")).is_ok_and(|bytes| String::from_utf8_lossy(&bytes).contains(&marker))
            })
            .count()
    };
    assert_eq!(children(), 1);
    server.signal(signal).await;
    server.ended(Duration::from_secs(15)).await;
    wait::until("the tool servers to end", Duration::from_secs(10), || async { (children() == 0).then_some(()) }).await;
}

/// M-09, M-10: the processes end even if they ignore end of input and TERM, or start children in other process groups. Where
/// available, a control group finds unmarked ones.
#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread")]
async fn stubborn_ones_do_not_outlive_a_server_that_is_killed() {
    let python = installed().await.join("venv/bin/python");
    let model = ModelMock::start().await;
    let site = Site::new(Kind::Sqlite).await.with_model(&model);
    let notes = site.folder.path().join("notes");
    std::fs::create_dir(&notes).unwrap();
    let script = root().join("tests/it/mcp/server.py");
    let site = site.mcp(
        json!({"mcpServers": {"s": {"command": python, "args": [script, notes, "stubborn", "family", "escapes", "abandons"]}}}),
    );
    let mut server = site.start().await;
    let use_it = async |tool: &str| {
        let run = server.start_run(&json!({"input": format!("[[id:{tool}]][[call:s__{tool} {{}}]][[next]][[text:1,0]]")})).await;
        server.finished(run["id"].as_str().unwrap()).await;
    };
    let processes = || -> Vec<i64> {
        let log = std::fs::read_to_string(notes.join("log")).unwrap();
        log.lines().filter_map(|line| serde_json::from_str::<Value>(line).unwrap()["pid"].as_i64()).collect()
    };
    use_it("echo").await;
    let group = control_group(processes()[0]).await;
    use_it("abandon").await;
    let processes = processes();
    let alive = || processes.iter().filter(|pid| std::path::Path::new(&format!("/proc/{pid}/environ")).exists()).count();
    assert_eq!((processes.len(), alive()), (5, 5));
    server.kill9().await;
    let stay = usize::from(group.is_none());
    wait::until("all of them to end", Duration::from_secs(20), || async { (alive() == stay).then_some(()) }).await;
    match group {
        Some(group) => {
            wait::until("its group to be gone", Duration::from_secs(5), || async { (!group.exists()).then_some(()) }).await;
        }
        None => kill(processes[4]),
    }
}

/// A tool server gets only the environment of its entry.
#[tokio::test(flavor = "multi_thread")]
async fn do_not_inherit_the_environment() {
    let (model, _site, server) = Site::start_scripted(Kind::Sqlite).await;
    let script = "[[id:env]][[call:ledger__environment {}]][[call:ledger__fail {\"text\":\"no\"}]][[next]][[text:1,0]]";
    let frames = server.stream_run(&json!({"input": script})).await.all().await;
    let completed: Vec<Value> =
        frames.iter().filter(|frame| frame.kind() == "tool.completed").map(|frame| frame.json()["data"].clone()).collect();
    let environment = completed.iter().find(|data| data["name"] == "ledger__environment").unwrap()["content"].to_string();
    assert!(environment.contains("LEDGER_FILE"), "{environment}");
    for secret in ["OPENAI_API_KEY", "DATABASE_URL", "CAPSTAN_"] {
        assert!(!environment.contains(secret), "{environment}");
    }
    let failed = completed.iter().find(|data| data["name"] == "ledger__fail").unwrap();
    assert_eq!((&failed["is_error"], &failed["state"]), (&json!(true), &json!("failed")));
    let told = model.exchanges("env")[1].request["messages"].to_string();
    assert!(told.contains("recorded no"), "the model reads the tool's error: {told}");
}

/// M-11, M-15: the log of a run names the servers whose tools were left out.
#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn servers_left_out_are_in_the_run_log(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) {
    let model = ModelMock::start().await;
    let site = Site::new(kind).await.with_model(&model);
    let script = root().join("tests/it/mcp/server.py");
    let entry = |habits: &[&str]| {
        let notes = site.folder.path().display().to_string();
        let args: Vec<String> =
            [script.display().to_string(), notes].into_iter().chain(habits.iter().map(ToString::to_string)).collect();
        json!({"command": "python3", "args": args})
    };
    let servers = json!({"mcpServers": {"odd": entry(&["malformed"]), "plain": entry(&[])}});
    let site = site.mcp(servers);
    let server = site.start().await;
    for _ in 0..2 {
        let run = server.start_run(&json!({"input": "[[id:frozen]][[say:bye]]"})).await;
        server.finished(run["id"].as_str().unwrap()).await;
        let events = server.run_events_json(run["id"].as_str().unwrap()).await;
        let started = events.iter().find(|event| event["type"] == "run.started").unwrap();
        assert_eq!(started["data"]["left_out"], json!(["odd"]), "{started}");
    }
}
