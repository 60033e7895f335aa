//! Chats of the AI SDK and runs of AG-UI, with unmodified packages.

use std::time::Duration;

use rstest::rstest;
use serde_json::{Value, json};
use tokio::process::Command;

use super::approvals::site as site_with_approvals;
use super::mcp_servers::installed;
use support::database::Kind;
use support::repository::root;
use support::server::{Server, Site};
use support::wait;

/// Runs a task of a client, and returns its findings.
async fn plays(program: &str, server: &Server, package: &str, task: &str, script: &str) -> Value {
    let packages = installed().await.join("node_modules");
    let mut command = Command::new("node");
    command.arg(root().join("tests/it/e2e/clients").join(program)).arg(packages);
    command.args([package, server.url.as_str(), task, script]).kill_on_drop(true);
    let output = wait::within("the client", Duration::from_secs(60), command.output()).await.unwrap();
    assert!(output.status.success(), "{package} {task}: {}", String::from_utf8_lossy(&output.stderr));
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(found["errors"], json!([]), "{package} {task}: {found:#}");
    found
}

fn list(value: &Value) -> &[Value] {
    value.as_array().unwrap()
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn ai_sdk_answers_regenerates_and_edits(#[values("ai5", "ai6", "ai7", "ai7+websocket")] package: &str) {
    let (_model, _site, server) = Site::start_scripted(Kind::Sqlite).await;
    let script = r#"[[id:ui]][[reason:2,0]][[call:ledger__lookup {"text":"x"}]][[next]][[text:3,0]]"#;
    let found = plays("ai_sdk.mjs", &server, package, "answer", script).await;
    let (first, second) = (&found["first"], &found["second"]);
    assert_eq!(first["roles"], json!(["user", "assistant"]), "{found:#}");
    assert_eq!((&first["tools"][0]["type"], &first["tools"][0]["state"]), (&json!("dynamic-tool"), &json!("output-available")));
    assert!(first["texts"][1].as_str().unwrap().contains("r2t0"), "{found:#}");
    assert_eq!(list(&first["reasoning"]).len(), 1, "{found:#}");
    assert_ne!(first["ids"][1], second["ids"][1]);
    // The model counts its answers.
    let again = first["texts"][1].as_str().unwrap().replace("r2", "r4");
    assert_eq!((list(&second["ids"]).len(), &second["texts"][1]), (2, &json!(again)), "{found:#}");
    assert_eq!(found["edited"]["texts"], json!(["[[id:edited]][[say:edited]]", "edited"]), "{found:#}");
    assert_eq!(list(&found["stored"]).len(), 2);
    assert_eq!(found["stored"][1]["id"], found["edited"]["ids"][1]);
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn ai_sdk_answers_an_approval(#[values("ai6", "ai7", "ai7+websocket")] package: &str) {
    let (_model, site, server) = Site::serve(async |model| site_with_approvals(Kind::Sqlite, model).await).await;
    let found = plays("ai_sdk.mjs", &server, package, "approve", super::approvals::INPUT).await;
    assert_eq!(found["asked"]["tools"][0]["state"], "approval-requested", "{found:#}");
    assert_eq!(found["paused"][1]["parts"][1]["state"], "approval-requested", "{found:#}");
    let answered = &found["answered"];
    assert_eq!((list(&answered["ids"]).len(), &answered["ids"]), (2, &found["asked"]["ids"]), "{found:#}");
    assert_eq!((&answered["tools"][0]["state"], list(&answered["tools"]).len()), (&json!("output-available"), 1), "{found:#}");
    assert_eq!(answered["texts"][1], "bye");
    assert_eq!((site.ledger.count("append", "one"), &found["requests"]), (1, &json!(["POST", "POST"])));
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn ai_sdk_answers_two_approvals_at_once(#[values("ai6", "ai7", "ai7+websocket")] package: &str) {
    let (_model, site, server) = Site::serve(async |model| site_with_approvals(Kind::Sqlite, model).await).await;
    let appends = r#"[[call:ledger__append {"text":"one"}]][[call:ledger__append {"text":"two"}]]"#;
    let found = plays("ai_sdk.mjs", &server, package, "approve_all", &format!("[[id:ui]]{appends}[[next]][[say:bye]]")).await;
    assert_eq!((&found["answered"]["texts"][1], &found["requests"]), (&json!("bye"), &json!(["POST", "POST"])), "{found:#}");
    let states: Vec<&Value> = list(&found["answered"]["tools"]).iter().map(|tool| &tool["state"]).collect();
    assert_eq!(states, ["output-available", "output-available"], "{found:#}");
    assert_eq!((site.ledger.count("append", "one"), site.ledger.count("append", "two")), (1, 1));
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn ai_sdk_posts_no_result_twice(#[values("ai6", "ai7", "ai7+websocket")] package: &str) {
    let (_model, site, server) = Site::serve(async |model| site_with_approvals(Kind::Sqlite, model).await).await;
    let calls = r#"[[call:look {"at":"door"}]][[call:ledger__append {"text":"one"}]]"#;
    let found = plays("ai_sdk.mjs", &server, package, "beside", &format!("[[id:ui]]{calls}[[next]][[say:bye]]")).await;
    let states = |when: &str| -> Vec<Value> { list(&found[when]["tools"]).iter().map(|tool| tool["state"].clone()).collect() };
    assert_eq!(states("waiting"), ["output-available", "approval-requested"], "{found:#}");
    assert_eq!(states("answered"), ["output-available", "output-available"], "{found:#}");
    // The client sends its message, the result and the decision.
    assert_eq!((&found["calls"], &found["requests"]), (&json!(["look"]), &json!(["POST", "POST", "POST"])), "{found:#}");
    assert_eq!((&found["answered"]["texts"][1], site.ledger.count("append", "one")), (&json!("bye"), 1));
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn ai_sdk_executes_a_client_tool(#[values("ai5", "ai6", "ai7", "ai7+websocket")] package: &str) {
    let (_model, _site, server) = Site::start_scripted(Kind::Sqlite).await;
    let script = r#"[[id:ui]][[call:look {"at":"door"}]][[call:ledger__append {"text":"one"}]][[next]][[say:bye]]"#;
    let found = plays("ai_sdk.mjs", &server, package, "client", script).await;
    assert_eq!((&found["calls"], &found["requests"]), (&json!(["look"]), &json!(["POST", "POST"])), "{found:#}");
    let tool = &found["answered"]["tools"][0];
    assert_eq!(
        (&tool["type"], &tool["input"], &tool["output"]),
        (&json!("tool-look"), &json!({"at": "door"}), &json!({"seen": "a door"}))
    );
    assert_eq!((&found["answered"]["texts"][1], list(&found["answered"]["ids"]).len()), (&json!("bye"), 2));
    let parts = list(&found["stored"][1]["parts"]);
    assert!(parts.iter().any(|part| part["type"] == "tool-look" && part["output"] == json!({"seen": "a door"})), "{parts:#?}");
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn ai_sdk_resumes_an_active_run(#[values("ai5", "ai6", "ai7", "ai7+websocket")] package: &str) {
    let (_model, _site, server) = Site::start_scripted(Kind::Sqlite).await;
    let found = plays("ai_sdk.mjs", &server, package, "resume", "[[id:ui]][[text:40,25]]").await;
    assert_eq!(found["before"]["roles"], json!(["user"]), "the stream shows the answer from its beginning: {found:#}");
    let words: String = (0..40).map(|token| format!("r1t{token} ")).collect();
    assert_eq!(found["after"]["texts"][1].as_str().unwrap().trim_end(), words.trim_end(), "{found:#}");
    assert_eq!((&found["idle"], &found["stored"][1]["id"]), (&found["after"], &found["after"]["ids"][1]));
}

/// Returns the chunks of the response to a message of a chat with the client tool `look`.
async fn chunks_after(server: &Server, message: Value) -> Vec<Value> {
    let body = json!({"id": "repeats", "message": message, "tools": [{"name": "look"}]});
    let request = server.client.post(format!("{}/api/chat", server.url)).json(&body).send();
    let answer = wait::within("the stream", Duration::from_secs(20), async { request.await.unwrap().text().await.unwrap() }).await;
    let chunks = answer.lines().filter_map(|line| line.strip_prefix("data: ")).filter(|data| *data != "[DONE]");
    chunks.map(|chunk| serde_json::from_str(chunk).unwrap_or_else(|_| panic!("{answer}"))).collect()
}

fn chunk_of<'c>(chunks: &'c [Value], kind: &str) -> &'c Value {
    chunks.iter().find(|chunk| chunk["type"] == kind).unwrap_or_else(|| panic!("{kind} in {chunks:#?}"))
}

// The client has lost the response to its result, and the run waits for the next one.
#[tokio::test(flavor = "multi_thread")]
async fn repeated_result_of_a_client_tool_ends_at_the_pause() {
    let (_model, _site, server) = Site::start_scripted(Kind::Sqlite).await;
    let script = r#"[[id:ui]][[call:look {"at":"door"}]][[next]][[call:look {"at":"roof"}]][[next]][[say:bye]]"#;
    let asked = chunks_after(&server, json!({"id": "m1", "role": "user", "parts": [{"type": "text", "text": script}]})).await;
    let message = chunk_of(&asked, "start")["messageId"].clone();
    let call = |chunks: &[Value]| chunk_of(chunks, "tool-input-available")["toolCallId"].clone();
    let result = |call: &Value| json!({"type": "tool-look", "toolCallId": call, "state": "output-available", "output": "a door"});
    let answer = |parts: Value| json!({"id": message, "role": "assistant", "parts": parts});
    let first = answer(json!([result(&call(&asked))]));
    let second = chunks_after(&server, first.clone()).await;
    assert_eq!(chunk_of(&second, "tool-input-available")["input"], json!({"at": "roof"}), "{second:#?}");
    assert_eq!(chunks_after(&server, first.clone()).await, second);
    let none = server.client.post(format!("{}/api/chat", server.url)).json(&json!({"id": "repeats", "message": answer(json!([]))}));
    assert_eq!(none.send().await.unwrap().status(), 409);
    let both = answer(json!([result(&call(&asked)), result(&call(&second))]));
    let last = chunks_after(&server, both.clone()).await;
    let said: String = last.iter().filter_map(|chunk| chunk["delta"].as_str()).collect();
    assert_eq!((said.as_str(), &last.last().unwrap()["finishReason"]), ("bye", &json!("stop")), "{last:#?}");
    assert_eq!(chunks_after(&server, both).await, last);
    assert_eq!(chunks_after(&server, first).await, second);
}

const AG_UI: [&str; 2] = ["@ag-ui/client", "ag-ui-client-0"];

fn is_one(package: &str) -> bool {
    package == AG_UI[0]
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn ag_ui_streams_an_answer_once(#[values(AG_UI[0], AG_UI[1])] package: &str) {
    let (_model, _site, server) = Site::start_scripted(Kind::Sqlite).await;
    let script = r#"[[id:ui]][[reason:2,0]][[call:ledger__lookup {"text":"x"}]][[next]][[text:3,0]]"#;
    let found = plays("ag_ui.mjs", &server, package, "answer", script).await;
    let first = &found["first"];
    let roles: Vec<&Value> =
        list(&first["messages"]).iter().map(|message| &message["role"]).filter(|role| *role != "reasoning").collect();
    assert_eq!(roles, ["user", "assistant", "tool", "assistant"], "{found:#}");
    assert!(list(&first["messages"]).last().unwrap()["content"].as_str().unwrap().contains("r2t2"), "{found:#}");
    assert!(first["state"]["usage"]["inputTokens"].is_u64() && first["state"]["plan"].is_array(), "{found:#}");
    assert_eq!(first["last"]["outcome"]["type"].as_str(), is_one(package).then_some("success"), "{found:#}");
    assert_eq!((&found["again"]["types"], &found["count"]), (&first["types"], &json!(1)));
    assert_eq!(found["again"]["messages"], first["messages"]);
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn ag_ui_resumes_after_an_approval(#[values(AG_UI[0], AG_UI[1])] package: &str) {
    let (_model, site, server) = Site::serve(async |model| site_with_approvals(Kind::Sqlite, model).await).await;
    let found = plays("ag_ui.mjs", &server, package, "approve", super::approvals::INPUT).await;
    assert_eq!((&found["interrupt"]["reason"], site.ledger.count("append", "one")), (&json!("tool_call"), 1), "{found:#}");
    let answered = &found["answered"];
    assert_eq!(list(&answered["messages"]).last().unwrap()["content"], "bye", "{found:#}");
    assert_eq!(list(&answered["messages"]).iter().filter(|message| message["role"] == "tool").count(), 1);
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn ag_ui_takes_results_of_frontend_tools(#[values(AG_UI[0], AG_UI[1])] package: &str) {
    let (_model, _site, server) = Site::start_scripted(Kind::Sqlite).await;
    let script = r#"[[id:ui]][[call:look {"at":"door"}]][[next]][[say:bye]]"#;
    let found = plays("ag_ui.mjs", &server, package, "client", script).await;
    let outcome = is_one(package).then(|| json!({"type": "success", "pendingToolCallIds": [found["call"]["id"]]}));
    assert_eq!(found["asked"]["last"].get("outcome"), outcome.as_ref(), "{found:#}");
    let messages = list(&found["answered"]["messages"]);
    assert_eq!(messages.last().unwrap()["content"], "bye", "{found:#}");
    let results: Vec<&Value> = messages.iter().filter(|message| message["role"] == "tool").map(|message| &message["id"]).collect();
    assert_eq!(results, ["t1"], "the client has its own result only");
}

#[tokio::test(flavor = "multi_thread")]
async fn tanstack_reconnects_hydrates_and_joins() {
    let (_model, _site, server) = Site::start_scripted(Kind::Sqlite).await;
    let script = "[[id:ui]][[text:20,15]]";
    let found = plays("ag_ui.mjs", &server, "@tanstack/ai-client", "answer", script).await;
    let words: String = (0..20).map(|token| format!("r1t{token} ")).collect();
    for (what, said) in [("texts", &found["texts"][1]), ("hydrated", &found["hydrated"][1]), ("joined", &found["joined"])] {
        assert_eq!(said.as_str().unwrap().trim_end(), words.trim_end(), "{what}: {found:#}");
    }
    assert_eq!((&found["count"], &found["activeRun"]), (&json!(1), &Value::Null));
    assert!(list(&found["posts"])[1].as_str().unwrap().contains('-'), "{found:#}");
}

#[tokio::test(flavor = "multi_thread")]
async fn tanstack_decides_and_executes() {
    let (model, site, server) = Site::serve(async |model| site_with_approvals(Kind::Sqlite, model).await).await;
    let calls = r#"[[call:ledger__append {"text":"one"}]][[next]][[call:ledger__append {"text":"two"}]][[next]][[call:look {"at":"door"}]]"#;
    let script = format!("[[id:ui]]{calls}[[next]][[say:bye]]");
    let found = plays("ag_ui.mjs", &server, "@tanstack/ai-client", "act", &script).await;
    assert_eq!((&found["canResolve"], &found["calls"]), (&json!(true), &json!([{"at": "door"}])), "{found:#}");
    assert_eq!((&found["count"], site.ledger.count("append", "one")), (&json!(1), 1), "{found:#}");
    assert_eq!(site.ledger.count("append", "two"), 1, "{found:#}");
    model.assert_history_was_sendable();
}

#[tokio::test(flavor = "multi_thread")]
async fn tanstack_reload_replaces_the_answer() {
    let (_model, _site, server) = Site::start_scripted(Kind::Sqlite).await;
    let script = "[[id:ui]][[say:one]]";
    let found = plays("ag_ui.mjs", &server, "@tanstack/ai-client", "reload", script).await;
    let said = json!([script, "one"]);
    assert_eq!((&found["texts"], &found["hydrated"], &found["count"]), (&said, &said, &json!(2)), "{found:#}");
}

#[tokio::test(flavor = "multi_thread")]
async fn copilotkit_decides_executes_connects_and_stops() {
    let (model, site, server) = Site::serve(async |model| site_with_approvals(Kind::Sqlite, model).await).await;
    let script = r#"[[id:ui]][[call:ledger__append {"text":"one"}]][[next]][[call:look {"at":"door"}]][[next]][[say:bye]]"#;
    let found = plays("ag_ui.mjs", &server, "@copilotkit/core", "thread", script).await;
    assert!(list(&found["agents"]).contains(&json!("default")), "{found:#}");
    assert_eq!((&found["asked"], &found["calls"]), (&json!(1), &json!([{"at": "door"}])), "{found:#}");
    let said = |of: &str, role: &str| -> Vec<Value> {
        list(&found[of]).iter().filter(|message| message[0] == role).map(|message| message[1].clone()).collect()
    };
    let results = said("said", "tool");
    assert_eq!((results.len(), &results[1]), (2, &json!("a door")), "{found:#}");
    assert_eq!(said("connected", "tool"), results, "{found:#}");
    for of in ["said", "connected"] {
        assert_eq!(said(of, "assistant").iter().filter(|text| **text == "bye").count(), 1, "{of}: {found:#}");
    }
    assert_eq!(site.ledger.count("append", "one"), 1);
    model.assert_history_was_sendable();
}
