//! The examples, as a reader runs them.

use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::process::Command;

use super::approvals::site as site_with_approvals;
use super::mcp_servers::installed;
use support::database::Kind;
use support::repository::root;
use support::server::{Server, Site};
use support::wait;

/// Runs a program with the address of the server, and returns its output.
async fn output(mut command: Command, server: &Server) -> String {
    command.env("CAPSTAN_URL", &server.url).kill_on_drop(true);
    let output = wait::within("the example", Duration::from_secs(60), command.output()).await.unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn example(path: &str) -> PathBuf {
    root().join("examples").join(path)
}

#[tokio::test(flavor = "multi_thread")]
async fn curl_script_returns_to_its_run() {
    let site = Site::new(Kind::Sqlite).await;
    let server = site.start().await;
    let said = output(Command::new(example("curl/follow.sh")), &server).await;
    assert!(said.contains("stream.end") && said.contains("\"status\":\"completed\"") && said.contains("391"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn python_script_reads_its_answer_again() {
    let site = Site::new(Kind::Sqlite).await;
    let server = site.start().await;
    let mut command = Command::new(installed().await.join("venv/bin/python"));
    command.arg(example("python/chat.py"));
    let said = output(command, &server).await;
    assert!(said.contains("completed, read again: ") && said.contains("391") && said.contains("2*21 = 42"), "{said}");
}

/// Runs the client module of a page with its packages, which are given as the names of the page and of the tests.
async fn page(server: &Server, name: &str, package: [&str; 2], script: &str) -> Value {
    let folder = tempfile::tempdir().unwrap();
    let modules = folder.path().join("node_modules");
    std::fs::create_dir(&modules).unwrap();
    let installed = installed().await.join("node_modules").canonicalize().unwrap();
    std::os::unix::fs::symlink(installed.join(package[1]), modules.join(package[0])).unwrap();
    std::fs::write(folder.path().join("package.json"), r#"{"type": "module"}"#).unwrap();
    let module = folder.path().join("client.js");
    std::fs::copy(example(name).join("src/client.js"), &module).unwrap();
    let mut command = Command::new("node");
    command.arg(root().join("tests/it/e2e/clients/example_page.mjs")).arg(module).args([server.url.as_str(), script]);
    serde_json::from_str(&output(command, server).await).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn use_chat_page_shows_and_finds_its_messages() {
    let site = Site::new(Kind::Sqlite).await;
    let server = site.start().await;
    let found = page(&server, "use-chat", ["ai", "ai7"], "What is 17*23?").await;
    assert!(found["said"].as_str().unwrap().contains("391"), "{found}");
    assert_eq!(found["stored"], json!(["user", "assistant"]));
}

#[tokio::test(flavor = "multi_thread")]
async fn ag_ui_page_decides_about_a_call() {
    let (_model, site, server) = Site::serve(async |model| site_with_approvals(Kind::Sqlite, model).await).await;
    let found = page(&server, "ag-ui", ["@ag-ui", "@ag-ui"], super::approvals::INPUT).await;
    assert_eq!((&found["asked"], &found["said"]), (&json!(["tool_call"]), &json!("bye")), "{found}");
    assert_eq!(site.ledger.count("append", "one"), 1);
}
