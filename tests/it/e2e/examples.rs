//! The examples, as a reader runs them.

use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::process::Command;

use super::approvals::site as site_with_approvals;
use super::mcp_servers::installed;
use super::use_chat::Pages;
use support::browser::Browser;
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

#[tokio::test(flavor = "multi_thread")]
async fn use_chat_page_shows_and_finds_its_messages() {
    let pages = Pages::start().await;
    pages.bundle("example", &example("use-chat/src/main.jsx"), 7).await;
    let site = pages.allowed(Site::new(Kind::Sqlite).await);
    let server = site.start().await;
    let browser = Browser::start().await;
    browser.open(&pages.address("example", &server, "")).await;
    browser.write("input", "What is 17*23?").await;
    browser.click("form button").await;
    browser.shows("section:last-of-type", "391").await;
    browser.reload().await;
    browser.shows("section:last-of-type", "391").await;
    assert_eq!(browser.count("section").await, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn ag_ui_page_decides_about_a_call() {
    let (_model, site, server) = Site::serve(async |model| site_with_approvals(Kind::Sqlite, model).await).await;
    let folder = tempfile::tempdir().unwrap();
    let modules = folder.path().join("node_modules");
    std::fs::create_dir(&modules).unwrap();
    let installed = installed().await.join("node_modules").canonicalize().unwrap();
    std::os::unix::fs::symlink(installed.join("@ag-ui"), modules.join("@ag-ui")).unwrap();
    std::fs::write(folder.path().join("package.json"), r#"{"type": "module"}"#).unwrap();
    let module = folder.path().join("client.js");
    std::fs::copy(example("ag-ui/src/client.js"), &module).unwrap();
    let mut command = Command::new("node");
    command.arg(root().join("tests/it/e2e/clients/example_page.mjs")).arg(module);
    command.args([server.url.as_str(), super::approvals::INPUT]);
    let found: Value = serde_json::from_str(&output(command, &server).await).unwrap();
    assert_eq!((&found["asked"], &found["said"]), (&json!(["tool_call"]), &json!("bye")), "{found}");
    assert_eq!(site.ledger.count("append", "one"), 1);
}
