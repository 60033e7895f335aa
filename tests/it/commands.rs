//! The commands of the binary beside `serve`, as a user at a terminal sees them.

use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::Command;

use support::database::{Database, Kind};
use support::dialects::Dialect;
use support::model::ModelMock;
use support::refusing::RefusingProvider;
use support::server::{Site, program};
use support::wait;
use support::wire::{Answer, Wire};

const PATIENCE: Duration = Duration::from_secs(60);

fn chat(url: &str, question: &str) -> Command {
    let mut command = Command::new(program());
    command.args(["chat", "--url", url, question]).env_clear().kill_on_drop(true);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

#[tokio::test(flavor = "multi_thread")]
async fn chat_shows_tools_and_answer() {
    let site = Site::new(Kind::Sqlite).await;
    let server = site.start().await;
    let output = wait::within("chat", PATIENCE, chat(&server.url, "What is 17*23?").output()).await.unwrap();
    let (answer, remarks) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert!(output.status.success(), "{remarks}");
    assert!(answer.ends_with("17*23 = 391.\n"), "{answer:?}");
    assert!(remarks.contains("-> calculate {\"expression\":\"17*23\"}") && remarks.contains("<- calculate 391"), "{remarks:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn chat_lives_on_when_the_server_is_killed_and_started_again() {
    let site = Site::new(Kind::Sqlite).await;
    let mut server = site.start().await;
    let mut client = chat(&server.url, "What is 17*23?").spawn().unwrap();
    let mut shown = vec![0; 1];
    let mut answer = client.stdout.take().unwrap();
    wait::within("the answer to begin", PATIENCE, answer.read_exact(&mut shown)).await.unwrap();
    server.kill9().await;
    let address = server.url.trim_start_matches("http://").to_owned();
    let _again = site.spawn(&[("CAPSTAN_LISTEN", &address)]);
    wait::within("the answer to end", PATIENCE, answer.read_to_end(&mut shown)).await.unwrap();
    let output = client.wait_with_output().await.unwrap();
    let (answer, remarks) = (String::from_utf8(shown).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert!(output.status.success(), "{remarks}");
    assert!(
        remarks.contains("connection lost; reconnecting") && remarks.contains("-- crash: the answer starts over"),
        "{remarks:?}"
    );
    assert!(answer.ends_with("17*23 = 391.\n"), "{answer:?}");
    assert_eq!(remarks.matches("-> calculate").count(), 1, "a completed tool call does not run again: {remarks:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_proxy_for_the_world_outside_is_not_asked_for_this_machine() {
    let model = ModelMock::start().await;
    let site = Site::new(Kind::Sqlite).await.with_model(&model);
    // No process listens on this port.
    let proxy = ("ALL_PROXY", "http://127.0.0.1:1");
    let server = site.start_with(&[proxy]).await;
    let output = wait::within("chat", PATIENCE, chat(&server.url, "[[text:2,0]]").env(proxy.0, proxy.1).output()).await.unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[tokio::test(flavor = "multi_thread")]
async fn chat_says_what_to_do_without_a_server() {
    let output = wait::within("chat", PATIENCE, chat("http://127.0.0.1:1", "hi").output()).await.unwrap();
    let remarks = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && remarks.contains("capstan serve"), "{remarks:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn doctor_finds_what_is_wrong_and_says_so_by_its_exit_code() {
    let site = Site::new(Kind::Sqlite).await;
    let (good, report) = site.command(&["doctor"]).await;
    assert!(good, "{report}");
    for words in ["ok    database", "ok    data folder", "warn  model", "demonstration"] {
        assert!(report.contains(words), "{words:?} in {report}");
    }

    let file = site.folder.path().join("mcp.json");
    std::fs::write(&file, json!({"mcpServers": {"broken": {"command": "/nonexistent"}}}).to_string()).unwrap();
    let site = site.env("CAPSTAN_MCP_CONFIG", file.to_str().unwrap()).env("CAPSTAN_LISTEN", "0.0.0.0:1");
    let site = site.env("CAPSTAN_AGENT__APPROVAL__TOOLS__SEND", "ask");
    let (good, report) = site.command(&["doctor"]).await;
    assert!(!good, "{report}");
    for words in ["FAIL  mcp server    broken", "FAIL  keys", "agent.approval.tools names the tool send, which does not exist"] {
        assert!(report.contains(words), "{words:?} in {report}");
    }
}

fn assert_says(report: &str, words: &[&str]) {
    for words in words {
        assert!(report.contains(words), "{words:?} in {report}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn doctor_tells_the_state_of_models_on_one_screen() {
    let (good, report) = Site::new(Kind::Sqlite).await.doctor().await;
    assert!(good, "{report}");
    assert_says(&report, &["warn  model         demo/demo", "OPENAI_API_KEY", "the server works; read the lines with warn: 1"]);

    let (good, report) = Site::new(Kind::Sqlite).await.env("CAPSTAN_MODEL", "groq/llama-3.3").doctor().await;
    assert!(!good, "{report}");
    assert_says(&report, &["FAIL  model", "groq/llama-3.3", "set GROQ_API_KEY", "on the chat page", "ok    tools"]);

    let refusal = r#"{"error":{"message":"Incorrect API key provided","type":"invalid_request_error","code":"invalid_api_key"}}"#;
    let wire = Wire::play(vec![Answer::json(401, refusal)]).await;
    let site = Site::new(Kind::Sqlite).await.env("OPENAI_BASE_URL", &wire.base_url).env("OPENAI_API_KEY", "sk-canary-0123456789");
    let (good, report) = site.env("CAPSTAN_MODEL", "openai/acme-1").doctor().await;
    assert!(!good && !report.contains("canary"), "{report}");
    assert_says(
        &report,
        &["FAIL  provider      openai at ", "refuses the key: check OPENAI_API_KEY (Incorrect API key", "FAIL  model"],
    );

    let ollama = async |models: &[&str]| {
        let ollama = RefusingProvider::start_with(Dialect::Ollama, Arc::new(|_, _, _| None), models).await;
        let site = Site::new(Kind::Sqlite).await.env("OLLAMA_HOST", ollama.base_url.trim_end_matches("/v1"));
        site.doctor().await
    };
    let (good, report) = ollama(&["nomic-embed-text", "acme-1"]).await;
    assert!(good, "{report}");
    assert_says(
        &report,
        &["ok    provider      ollama at ", "lists 2 models", "ollama/acme-1 is the default model", "everything works"],
    );
    let (good, report) = ollama(&["nomic-embed-text"]).await;
    assert!(!good, "{report}");
    assert_says(&report, &["FAIL  model", "lists no model that can chat (1 in all)", "`ollama pull`"]);
    let (good, report) = Site::new(Kind::Sqlite).await.env("OLLAMA_HOST", "127.0.0.1:1").doctor().await;
    assert!(!good, "{report}");
    assert_says(&report, &["FAIL  model", "lists no models (", "`ollama pull`", "read the lines with FAIL: 1"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn doctor_names_broken_database_and_mcp_file_on_one_screen() {
    let site = Site::new(Kind::Sqlite).await.env("DATABASE_URL", "postgres://me:canary@127.0.0.1:1/capstan");
    let (good, report) = site.doctor().await;
    assert!(!good && !report.contains("canary"), "{report}");
    assert_says(&report, &["FAIL  database", "@127.0.0.1:1/capstan", "refused", "DATABASE_URL", "ok    tools"]);

    let site = Site::new(Kind::Sqlite).await;
    let file = site.folder.path().join("mcp.json");
    std::fs::write(&file, "{\n  \"mcpServers\": {\n    \"a\" {}\n  }\n}").unwrap();
    let (good, report) = site.env("CAPSTAN_MCP_CONFIG", file.to_str().unwrap()).doctor().await;
    assert!(!good, "{report}");
    assert_says(&report, &["FAIL  mcp config", "mcp.json", "line 3", "ok    database"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_answers_for_its_health_only() {
    let site = Site::on(Database::empty_on_postgres().await);
    let (migrated, _) = site.command(&["migrate"]).await;
    assert!(migrated);
    let worker = site.start_with(&[("CAPSTAN_SERVER__ROLE", "worker")]).await;
    let api = site.start_with(&[("CAPSTAN_SERVER__ROLE", "api")]).await;
    assert_eq!(worker.post_json("/runs", &json!({"input": "hello"})).await.0, 404);
    let run = api.start_run(&json!({"input": "What is 17*23?"})).await;
    assert_eq!(api.finished(run["id"].as_str().unwrap()).await["status"], "completed");
    let metrics = worker.get("//metrics").send().await.unwrap().text().await.unwrap();
    assert!(metrics.contains("capstan_runs_finished_total{status=\"completed\"} 1"), "{metrics}");

    let address = api.url.trim_start_matches("http://").to_owned();
    let (healthy, _) = site.command(&["healthcheck", "--listen", &address]).await;
    let (unhealthy, _) = site.command(&["healthcheck", "--listen", "127.0.0.1:1"]).await;
    assert!(healthy && !unhealthy);
}

/// Returns the client at a terminal: its standard input is typed there.
fn at_a_terminal(url: &str, question: &str) -> Command {
    let mut command = Command::new("script");
    let client = format!("{} chat --url {url} '{question}'", program().display());
    command
        .args(["-qec", &client, "/dev/null"])
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .env("SHELL", "/bin/sh")
        .kill_on_drop(true);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    command
}

/// Reads until the text appears.
async fn shown_until(terminal: &mut (impl tokio::io::AsyncRead + Unpin), shown: &mut String, words: &str) {
    let mut buffer = [0; 4_096];
    while !shown.contains(words) {
        let read = wait::within(words, PATIENCE, terminal.read(&mut buffer)).await.unwrap();
        assert!(read > 0, "the terminal was closed before {words:?}: {shown}");
        shown.push_str(&String::from_utf8_lossy(&buffer[..read]));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn chat_asks_at_the_terminal_whether_a_call_may_be_made() {
    let site = Site::new(Kind::Sqlite).await.env("CAPSTAN_AGENT__APPROVAL__TOOLS__CALCULATE", "ask");
    let server = site.start().await;
    let mut client = at_a_terminal(&server.url, "What is 17*23?").spawn().unwrap();
    let (mut typed, mut terminal) = (client.stdin.take().unwrap(), client.stdout.take().unwrap());
    let mut shown = String::new();
    shown_until(&mut terminal, &mut shown, "Allow it? y for once").await;
    assert!(shown.contains("calculate {\"expression\":\"17*23\"}"), "{shown}");
    typed.write_all(b"x\n").await.unwrap();
    shown.clear();
    shown_until(&mut terminal, &mut shown, "Allow it?").await;
    typed.write_all(b"y\n").await.unwrap();
    shown_until(&mut terminal, &mut shown, "17*23 = 391.").await;
    let status = wait::within("the client's end", PATIENCE, client.wait()).await.unwrap();
    assert!(status.success(), "no further line is expected: {shown}");
    // Without a terminal, the client prints where the answer goes, and another program sends it.
    let mut client = chat(&server.url, "What is 17*23?").spawn().unwrap();
    let mut remarks = client.stderr.take().unwrap();
    let mut shown = String::new();
    shown_until(&mut remarks, &mut shown, "needs an approval: POST /api/v1/approvals/").await;
    let id = shown.split("/api/v1/approvals/").nth(1).unwrap().split(' ').next().unwrap();
    assert_eq!(server.post_json(&format!("/approvals/{id}"), &json!({"decision": "deny"})).await.0, 200);
    let status = wait::within("the client's end", PATIENCE, client.wait()).await.unwrap();
    assert!(status.success(), "{shown}");
}

#[tokio::test(flavor = "multi_thread")]
async fn chat_sends_files_to_the_agent_that_is_named() {
    let (model, site, server) = Site::start_scripted(Kind::Sqlite).await;
    let notes = site.folder.path().join("notes.txt");
    std::fs::write(&notes, "The rent is due on the third.").unwrap();
    let mut command = chat(&server.url, "[[id:file]][[say:On the third.]]");
    let output = command.arg("--agent").arg("cms").arg("--file").arg(&notes).output();
    let output = wait::within("chat", PATIENCE, output).await.unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(String::from_utf8_lossy(&output.stdout), "On the third.\n");
    assert!(model.exchanges("file")[0].request.to_string().contains("The rent is due on the third."));
    let talks = server.get_json("/conversations").await;
    let messages = server.messages(talks["data"][0]["id"].as_str().unwrap()).await;
    let run = server.get_json(&format!("/runs/{}", messages[0]["run_id"].as_str().unwrap())).await;
    assert_eq!(run["agent"], "cms", "{run}");

    let missing = chat(&server.url, "hi").arg("--file").arg("/nonexistent/x.txt").output().await.unwrap();
    assert!(!missing.status.success() && String::from_utf8_lossy(&missing.stderr).contains("/nonexistent/x.txt cannot be read"));
}

/// D-19: beside a running server, which notices.
#[tokio::test(flavor = "multi_thread")]
async fn a_user_who_leaves_is_deleted_with_all_that_is_theirs() {
    let site = Site::new(Kind::Sqlite).await;
    let keys = [site.key_of("ada").await, site.key_of("bob").await];
    let mut server = site.start().await;
    for key in &keys {
        server.set_key(key);
        let run = server.start_run(&json!({"input": "hello"})).await;
        server.finished(run["id"].as_str().unwrap()).await;
    }
    let (ok, said) = site.command(&["users", "delete", "ada"]).await;
    assert!(ok && said.contains("1 conversations") && said.contains("Nothing was deleted"), "{said}");
    let (ok, _) = site.command(&["users", "delete", "eve", "--yes"]).await;
    assert!(!ok, "there is no such user");
    let (ok, said) = site.command(&["users", "delete", "ada", "--yes"]).await;
    assert!(ok && said.contains("ada was deleted, with 1 conversations"), "{said}");
    assert_eq!(site.database.count("SELECT CAST(count(*) AS text) FROM conversations").await, 1);
    assert_eq!(server.get_json("/conversations").await["data"].as_array().unwrap().len(), 1, "bob's conversation stays");
    server.set_key(&keys[0]);
    assert_eq!(server.get("/conversations").send().await.unwrap().status(), 401);
}

/// The port is configured once, for the server and the client.
#[tokio::test(flavor = "multi_thread")]
async fn chat_asks_the_server_of_its_configuration() {
    let site = Site::new(Kind::Sqlite).await;
    let server = site.start().await;
    let address = server.url.strip_prefix("http://").unwrap();
    let (ok, answer) = site.command(&["chat", "--listen", address, "What is 17*23?"]).await;
    assert!(ok && answer.contains("391"), "{answer}");
    let asking = site.spawn_command(&["chat", "What is 17*23?"], &[("CAPSTAN_LISTEN", address)]);
    let output = wait::within("chat", PATIENCE, asking.wait_with_output()).await.unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_role_is_the_users_and_changes_where_that_is_said() {
    let site = Site::new(Kind::Sqlite).await;
    site.key_of("ada").await;
    // The role would apply to existing keys, too.
    let refused = site.spawn_command(&["keys", "create", "--user", "ada", "--role", "admin"], &[]);
    let refused = wait::within("the command", PATIENCE, refused.wait_with_output()).await.unwrap();
    let reason = String::from_utf8(refused.stderr).unwrap();
    assert!(!refused.status.success() && reason.contains("capstan users role ada admin"), "{reason}");
    for (role, key) in [("admin", "key of ada (admin)"), ("member", "key of ada (member)")] {
        assert_eq!(
            site.command(&["users", "role", "ada", role]).await,
            (true, format!("ada has the role {role}, which applies to all their keys\n"))
        );
        let (_, made) = site.command(&["keys", "create", "--user", "ada"]).await;
        assert!(made.starts_with(key), "{made}");
    }
    assert!(!site.command(&["users", "role", "bob", "admin"]).await.0);
}

/// Returns the output of a command that must fail.
async fn refused(site: &Site, arguments: &[&str]) -> String {
    let child = site.spawn_command(arguments, &[]);
    let output = wait::within("the command", PATIENCE, child.wait_with_output()).await.unwrap();
    assert!(!output.status.success(), "{arguments:?}");
    String::from_utf8(output.stderr).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn groups_are_set_as_a_whole() {
    let site = Site::new(Kind::Sqlite).await;
    site.key_of("ada").await;
    for (groups, said) in [
        ("staff editors staff", "ada belongs to these groups: editors, staff\n"),
        ("team_7-a", "ada belongs to these groups: team_7-a\n"),
        ("", "ada belongs to no group\n"),
        ("staff", "ada belongs to these groups: staff\n"),
    ] {
        let arguments: Vec<&str> = ["users", "set-groups", "ada"].into_iter().chain(groups.split_whitespace()).collect();
        assert_eq!(site.command(&arguments).await, (true, said.to_owned()));
    }
    for wrong in ["Staff", "a b", "", "ä"] {
        let reason = refused(&site, &["users", "set-groups", "ada", "staff", wrong]).await;
        assert!(reason.contains(&format!("{wrong:?} cannot be the name of a group")), "{reason}");
    }
    let many: Vec<String> = (0..33).map(|n| format!("g{n}")).collect();
    let many: Vec<&str> = ["users", "set-groups", "ada"].into_iter().chain(many.iter().map(String::as_str)).collect();
    assert!(refused(&site, &many).await.contains("there are 33 groups; the maximum is 32"));
    assert!(refused(&site, &["users", "set-groups", "bob", "staff"]).await.contains("the user \"bob\" does not exist"));
    let kept = site.database.rows("SELECT groups FROM users WHERE name = 'ada'").await;
    assert_eq!(kept[0][0].as_deref(), Some("[\"staff\"]"), "a refused command changes nothing");
}
