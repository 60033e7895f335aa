//! Agents as tools of an MCP server, with the official packages as clients.

use std::time::Duration;

use reqwest::{Method, StatusCode};
use rstest::rstest;
use serde_json::{Value, json};
use tokio::process::Command;

use super::approvals::{INPUT, site as site_with_approvals};
use super::elicitation::{Asking, asking, told};
use super::mcp_servers::installed;
use support::database::Kind;
use support::repository::root;
use support::server::{Server, Site};
use support::wait;

const LEGACY: &str = "legacy";
const MODERN: &str = "2026-07-28";

/// Returns the findings of a client.
async fn findings(what: &str, mut command: Command) -> Value {
    let output = wait::within(what, Duration::from_secs(120), command.kill_on_drop(true).output()).await.unwrap();
    assert!(output.status.success(), "{what}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Plays tasks of the Python package in one process, each over its own connection, in a protocol version.
async fn python<const N: usize>(server: &Server, key: &str, mode: &str, tasks: [(&str, &[&str]); N]) -> [Value; N] {
    let mut command = Command::new(installed().await.join("venv/bin/python"));
    command.arg(root().join("tests/it/e2e/clients/mcp_client.py")).args([server.url.as_str(), key, mode]);
    command.arg(serde_json::to_string(tasks.as_slice()).unwrap());
    serde_json::from_value::<Vec<Value>>(findings("mcp_client.py", command).await).unwrap().try_into().unwrap()
}

/// Plays a task of the Node package.
async fn node(server: &Server, task: &str, arguments: &[&str]) -> Value {
    let mut command = Command::new("node");
    command.arg(root().join("tests/it/e2e/clients/mcp_client.mjs")).arg(installed().await.join("node_modules"));
    command.args([server.url.as_str(), "any", task]).args(arguments);
    findings(task, command).await
}

fn tool_names(found: &Value) -> Vec<&str> {
    found["tools"].as_array().unwrap().iter().map(|name| name.as_str().unwrap()).collect()
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn mcp_package_calls_agents(
    #[values(Kind::Sqlite, Kind::Postgres)] kind: Kind,
    #[values(LEGACY, MODERN, "auto")] mode: &str,
) {
    let version = if mode == LEGACY { "2025-11-25" } else { MODERN };
    let (model, site, server) = Site::start_scripted(kind).await;
    let input = r#"[[id:one]][[call:ledger__append {"text":"one"}]][[next]][[say:appended]]"#;
    let tasks: [(&str, &[&str]); 3] = [
        ("answer", &[input, "[[id:two]][[say:again]]"]),
        ("long", &["[[id:long]][[text:30,50]]"]),
        ("cancel", &["[[id:endless]][[text:1,0]][[hold]]"]),
    ];
    let [found, long, cancelled] = python(&server, "any", mode, tasks).await;
    // A client that knows the version before it connects never reads the server's name.
    let name = if mode == MODERN { Value::Null } else { json!("capstan") };
    assert_eq!((&found["version"], &found["server"]), (&json!(version), &name), "{found:#}");
    for name in ["default", "run_cancel", "run_get", "run_wait"] {
        assert!(tool_names(&found).contains(&name), "{found:#}");
    }
    assert_eq!(found["required"], json!(["message"]));
    let (first, second) = (&found["first"], &found["second"]);
    assert_eq!(
        (&first["text"], &first["error"], &second["text"]),
        (&json!("appended"), &json!(false), &json!("again")),
        "{found:#}"
    );
    assert_eq!((&first["facts"]["status"], &first["facts"]["text"]), (&json!("completed"), &json!("appended")));
    assert_eq!(first["facts"]["conversation_id"], second["facts"]["conversation_id"]);
    let run = first["facts"]["run_id"].as_str().unwrap();
    assert_eq!(server.get_json(&format!("/runs/{run}")).await["status"], "completed");
    assert!(found["progress"][0][1].as_str().unwrap().starts_with(run), "{found:#}");
    assert_eq!(site.ledger.count("append", "one"), 1);

    assert_ne!(long["handle"]["facts"]["status"], "completed", "{long:#}");
    assert!(long["handle"]["text"].as_str().unwrap().contains("run_wait"), "{long:#}");
    assert_eq!((&long["early"]["error"], &long["end"]["facts"]["status"]), (&json!(false), &json!("completed")), "{long:#}");
    assert_eq!(long["end"]["text"].as_str().unwrap().split_whitespace().count(), 30, "{long:#}");
    assert_eq!(long["end"], long["late"]);

    assert_eq!(
        (&cancelled["end"]["facts"]["status"], &cancelled["end"]["error"]),
        (&json!("cancelled"), &json!(true)),
        "{cancelled:#}"
    );
    site.assert_sound(&model).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn mcp_node_package_calls_agents() {
    let (model, site, server) = Site::start_scripted(Kind::Sqlite).await;
    let texts = ["[[id:one]][[say:hello]]", "[[id:long]][[text:30,50]]", "[[id:endless]][[text:1,0]][[hold]]"];
    let found = node(&server, "answer", &texts).await;
    assert_eq!((&found["server"], &found["session"]), (&json!("capstan"), &Value::Null), "no session is needed: {found:#}");
    assert!(tool_names(&found).contains(&"default"), "{found:#}");
    assert_eq!((&found["first"]["text"], &found["first"]["facts"]["status"]), (&json!("hello"), &json!("completed")), "{found:#}");
    assert!(found["progress"][0].as_str().unwrap().starts_with("run_"), "{found:#}");
    assert_ne!(found["handle"]["facts"]["status"], "completed", "{found:#}");
    assert_eq!(found["end"]["text"].as_str().unwrap().split_whitespace().count(), 30, "{found:#}");
    assert_eq!(found["cancelled"]["facts"]["status"], "cancelled", "{found:#}");
    site.assert_sound(&model).await;
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn mcp_client_that_can_ask_decides_approvals(
    #[values(LEGACY, MODERN)] mode: &str,
    #[values(r#"{"approve": true}"#, r#"{"approve": false, "reason": "not now"}"#, "null")] answer: &str,
) {
    let (_model, site, server) = Site::serve(async |model| site_with_approvals(Kind::Sqlite, model).await).await;
    let [found] = python(&server, "any", mode, [("ask", &[INPUT, answer])]).await;
    assert_eq!((&found["text"], &found["facts"]["status"]), (&json!("bye"), &json!("completed")), "{found:#}");
    let asked = found["asked"].as_array().unwrap();
    assert_eq!((asked.len(), &asked[0]["fields"]), (1, &json!(["approve", "reason"])), "{found:#}");
    let message = asked[0]["message"].as_str().unwrap();
    assert!(message.contains("ledger__append") && message.contains(r#"{"text":"one"}"#), "{message}");
    let is_allowed = answer == r#"{"approve": true}"#;
    assert_eq!(site.ledger.count("append", "one"), usize::from(is_allowed));
    let decided = server.get_json("/approvals").await["data"][0].clone();
    assert_eq!(decided["status"], if is_allowed { "allowed" } else { "denied" }, "{decided}");
    assert_eq!(decided["reason"] == "not now", answer.contains("not now"), "{decided}");
}

#[tokio::test(flavor = "multi_thread")]
async fn mcp_node_package_decides_approvals() {
    let (_model, site, server) = Site::serve(async |model| site_with_approvals(Kind::Sqlite, model).await).await;
    let found = node(&server, "ask", &[INPUT, "allow"]).await;
    assert_eq!((&found["text"], &found["session"]), (&json!("bye"), &json!("string")), "{found:#}");
    assert_eq!((found["asked"].as_array().unwrap().len(), site.ledger.count("append", "one")), (1, 1), "{found:#}");
    let denied = node(&server, "ask", &[&INPUT.replace("one", "two"), "deny"]).await;
    assert_eq!((&denied["text"], site.ledger.count("append", "two")), (&json!("bye"), 0), "{denied:#}");
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn mcp_client_that_can_ask_answers_questions(#[values(LEGACY, MODERN)] mode: &str) {
    let (_model, _site, server) =
        Site::serve(async |model| Site::scripted(Kind::Sqlite, model).await.env("CAPSTAN_TOOLS__ENABLE", r#"["ask_user"]"#)).await;
    let input = r#"[[id:ask]][[call:ask_user {"question":"Which one?","choices":["red","blue"]}]][[next]][[say:bye]]"#;
    let [found] = python(&server, "any", mode, [("ask", &[input, r#"{"choice": "blue"}"#])]).await;
    assert_eq!((&found["text"], &found["asked"][0]["message"]), (&json!("bye"), &json!("Which one?")), "{found:#}");
    let answered = server.get_json("/input-requests").await["data"][0].clone();
    assert_eq!(answered["answer"]["choice"], "blue", "{answered}");

    // An MCP server of the agent asks while its call goes on.
    let Asking { site, model: _model, folder: _folder } = asking(Kind::Sqlite, &[], json!({"elicitation": true})).await;
    let server = site.start().await;
    let input = "[[id:form]][[call:s__form {}]][[next]][[say:bye]]";
    let [found] = python(&server, "any", mode, [("ask", &[input, r#"{"colour": "green", "count": 7}"#])]).await;
    assert_eq!((&found["text"], &found["asked"][0]["message"]), (&json!("bye"), &json!("Which colour?")), "{found:#}");
    let result: Value = serde_json::from_str(&told(&server, &json!({"id": found["facts"]["run_id"]})).await).unwrap();
    assert_eq!(result, json!({"action": "accept", "content": {"colour": "green", "count": 7}}));
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn mcp_client_that_cannot_ask_reads_how_to_decide(#[values(LEGACY, MODERN)] mode: &str) {
    let (_model, site, server) = Site::serve(async |model| site_with_approvals(Kind::Sqlite, model).await).await;
    let [found] = python(&server, "any", mode, [("call", &[INPUT])]).await;
    let facts = &found["facts"];
    assert_eq!((&facts["status"], &facts["reason"]), (&json!("waiting"), &json!("approval")), "{found:#}");
    let text = found["text"].as_str().unwrap();
    assert!(text.contains("ledger__append") && text.contains("inbox") && text.contains("run_wait"), "{text}");
    let pending = &facts["pending"][0];
    assert_eq!((&pending["kind"], &pending["tool"]), (&json!("approval"), &json!("ledger__append")), "{found:#}");
    let path = pending["answer_url"].as_str().unwrap().strip_prefix("/api/v1").unwrap();
    assert_eq!(server.post_json(path, &json!({"decision": "allow"})).await.0, StatusCode::OK);
    server.finished(facts["run_id"].as_str().unwrap()).await;
    assert_eq!(site.ledger.count("append", "one"), 1);
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn foreign_run_looks_missing_to_mcp_client(#[values(LEGACY, MODERN)] mode: &str) {
    let site = Site::new(Kind::Sqlite).await;
    let (ada, bob) = (site.key_of("ada").await, site.key_of("bob").await);
    let mut server = site.start().await;
    server.set_key(&ada);
    let run = server.start_run(&json!({"input": "hello"})).await;
    let ids = [&run["id"], &run["conversation_id"]].map(|id| id.as_str().unwrap().to_owned());
    server.finished(&ids[0]).await;
    let digits = |id: &String| id.replace(|letter: char| letter.is_ascii_digit(), "1");
    let (run, conversation) = (digits(&ids[0]), digits(&ids[1]));
    let tasks: [(&str, &[&str]); 2] = [("refused", &[&ids[0], &ids[1]]), ("refused", &[&run, &conversation])];
    let [foreign, missing] = python(&server, &bob, mode, tasks).await;
    assert_eq!(foreign, missing);
    for name in ["run_get", "run_wait", "run_cancel", "conversation"] {
        assert_eq!(foreign[name]["error"], true, "{foreign:#}");
        assert!(foreign[name]["text"].as_str().unwrap().contains("not_found"), "{foreign:#}");
    }
    assert!(foreign["arguments"]["text"].as_str().unwrap().contains("run_id"), "{foreign:#}");
}

fn opening(capabilities: &Value) -> Value {
    let info = json!({"name": "test", "version": "1"});
    let params = json!({"protocolVersion": "2025-11-25", "capabilities": capabilities, "clientInfo": info});
    json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params})
}

/// Sends a message with these headers.
async fn post(server: &Server, body: &Value, headers: &[(&str, &str)]) -> reqwest::Response {
    let mut request = server.request(Method::POST, "//mcp").json(body).header("accept", "application/json, text/event-stream");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.send().await.unwrap()
}

/// Calls a tool without a client's package. Returns the result.
async fn call(server: &Server, arguments: &Value, headers: &[(&str, &str)]) -> Value {
    let params = json!({"name": "default", "arguments": arguments});
    let answer = post(server, &json!({"jsonrpc": "2.0", "id": 3, "method": "tools/call", "params": params}), headers).await;
    let text = wait::within("the end of the call", Duration::from_secs(60), answer.text()).await.unwrap();
    let mut frames = text.lines().filter_map(|line| line.strip_prefix("data:")).filter(|data| !data.trim().is_empty());
    let last: Value = serde_json::from_str(frames.next_back().unwrap_or_else(|| panic!("no frame in {text}"))).unwrap();
    last["result"].clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn repeated_mcp_call_with_key_starts_one_run() {
    let (model, site, server) = Site::start_scripted(Kind::Sqlite).await;
    let arguments = json!({"message": "[[id:once]][[say:hello]]"});
    let key = [("idempotency-key", "one")];
    let first = call(&server, &arguments, &key).await;
    let again = call(&server, &arguments, &key).await;
    assert_eq!((&first, &first["structuredContent"]["text"]), (&again, &json!("hello")));
    let other = call(&server, &json!({"message": "another"}), &key).await;
    assert!(other["isError"] == true && other["content"][0]["text"].as_str().unwrap().contains("idempotency_mismatch"), "{other}");
    assert_eq!(server.get_json("/runs").await["data"].as_array().unwrap().len(), 1);
    site.assert_sound(&model).await;
}

async fn error_of(answer: reqwest::Response) -> (StatusCode, Value) {
    let status = answer.status();
    let body: Value = answer.json().await.unwrap();
    assert_eq!(body["jsonrpc"], "2.0", "{body}");
    (status, body["error"]["data"]["code"].clone())
}

#[tokio::test(flavor = "multi_thread")]
async fn mcp_server_refuses_foreign_origin_and_missing_key() {
    let site = Site::new(Kind::Sqlite).await.env("CAPSTAN_SERVER__ALLOWED_ORIGINS", r#"["https://app.example"]"#);
    let mut open = site.start().await;
    let begin = opening(&json!({}));
    for method in [Method::POST, Method::GET, Method::DELETE] {
        let foreign = open.request(method, "//mcp").header("origin", "https://evil.example").send().await.unwrap();
        assert_eq!(error_of(foreign).await, (StatusCode::FORBIDDEN, json!("forbidden")));
    }
    for origin in ["https://app.example", open.url.as_str()] {
        assert_eq!(post(&open, &begin, &[("origin", origin)]).await.status(), 200, "{origin}");
    }
    open.kill9().await;
    let key = site.key_of("ada").await;
    let mut server = site.start().await;
    let refused = post(&server, &begin, &[]).await;
    assert_eq!(refused.headers()["www-authenticate"], "Bearer");
    assert_eq!(error_of(refused).await, (StatusCode::UNAUTHORIZED, json!("unauthorized")));
    server.set_key(&key);
    assert_eq!(post(&server, &begin, &[]).await.status(), 200);
    assert_eq!(post(&server, &begin, &[("origin", "https://evil.example")]).await.status(), 403, "a key changes nothing");
    // Errors of the protocol keep their own form: the client reads the supported versions in it.
    let meta = json!({"io.modelcontextprotocol/protocolVersion": "2099-01-01", "io.modelcontextprotocol/clientCapabilities": {}});
    let newer = json!({"jsonrpc": "2.0", "id": 7, "method": "tools/list", "params": {"_meta": meta}});
    let answer = post(&server, &newer, &[("mcp-protocol-version", "2099-01-01"), ("mcp-method", "tools/list")]).await;
    assert_eq!(answer.status(), 400);
    let error = answer.json::<Value>().await.unwrap()["error"].clone();
    assert_eq!(error["code"], -32022, "{error}");
    assert!(error["data"]["supported"].as_array().unwrap().contains(&json!(MODERN)), "{error}");
    assert_eq!(server.request(Method::GET, "//mcp").send().await.unwrap().status(), 405);
}

#[tokio::test(flavor = "multi_thread")]
async fn mcp_session_continues_after_restart() {
    let site = Site::new(Kind::Sqlite).await;
    let mut server = site.start().await;
    let begun = post(&server, &opening(&json!({"elicitation": {}})), &[]).await;
    let session = begun.headers()["mcp-session-id"].to_str().unwrap().to_owned();
    assert!(post(&server, &opening(&json!({})), &[]).await.headers().get("mcp-session-id").is_none());
    server.kill9().await;
    let server = site.start().await;
    let list = json!({"jsonrpc": "2.0", "id": 2, "method": "tools/list"});
    let headers = [("mcp-session-id", session.as_str()), ("mcp-protocol-version", "2025-11-25")];
    let mut answer = post(&server, &list, &headers).await;
    assert_eq!(answer.status(), 200);
    let mut text = String::new();
    while !text.contains("run_wait") {
        let chunk = wait::within("the tools", Duration::from_secs(20), answer.chunk()).await.unwrap().expect("the list of tools");
        text.push_str(&String::from_utf8_lossy(&chunk));
    }
    let invented = [("mcp-session-id", "made-up"), ("mcp-protocol-version", "2025-11-25")];
    assert_eq!(post(&server, &list, &invented).await.status(), 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn mcp_stream_ends_with_its_key() {
    let site = Site::new(Kind::Sqlite).await;
    let key = site.key_of("ada").await;
    let mut server = site.start().await;
    server.set_key(&key);
    let begun = post(&server, &opening(&json!({"elicitation": {}})), &[]).await;
    let session = begun.headers()["mcp-session-id"].to_str().unwrap().to_owned();
    let stream = server.request(Method::GET, "//mcp").header("accept", "text/event-stream").header("mcp-session-id", session);
    let mut stream = stream.send().await.unwrap();
    assert_eq!(stream.status(), 200);
    assert!(site.command(&["keys", "revoke", &key[..10]]).await.0);
    let end = async { while stream.chunk().await.unwrap().is_some() {} };
    wait::within("the stream to end", Duration::from_secs(15), end).await;
}
