//! The routes of other protocols, as their document describes them: keys, resources of other owners, limits and repeated requests. Each
//! refusal has the form of its protocol.

use std::collections::{BTreeMap, BTreeSet};

use axum::http::{Method, StatusCode};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use capstan::http::protocols_json;
use serde_json::{Value, json};

use super::rig::{Reply, Rig, text};
use support::documents::PNG;
use support::repository::root;

/// The most lines of the document, for people who read it.
const MAX_LINES: usize = 3_200;
/// The runs that a user may have under way in these tests.
const MAX_ACTIVE_RUNS: usize = 100;

/// Set `CAPSTAN_UPDATE=1` to write the file instead of comparing it.
#[tokio::test]
async fn checked_in_document_of_protocols_is_served() {
    let path = root().join("openapi/protocols.json");
    #[expect(clippy::disallowed_methods, reason = "a switch of this test only")]
    let update = std::env::var("CAPSTAN_UPDATE").is_ok();
    if update {
        std::fs::write(&path, protocols_json()).unwrap();
    }
    let checked_in = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(checked_in == protocols_json(), "openapi/protocols.json is out of date: run this test with CAPSTAN_UPDATE=1");
    assert_eq!(Rig::new().await.get("/openapi/protocols.json").await.body, checked_in);
    let lines = checked_in.lines().count();
    assert!(lines <= MAX_LINES, "{lines} lines");
}

/// An operation of the document.
struct Operation {
    id: String,
    method: Method,
    path: String,
    /// The media type of its errors.
    error: String,
}

fn operations() -> Vec<Operation> {
    let document: Value = serde_json::from_str(&protocols_json()).unwrap();
    let mut operations = Vec::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            let error = text(&operation["responses"]["default"]["$ref"]);
            let error = document.pointer(error.trim_start_matches('#')).unwrap_or_else(|| panic!("{error}"));
            operations.push(Operation {
                id: text(&operation["operationId"]),
                method: method.to_uppercase().parse().unwrap(),
                path: path.clone(),
                error: error["content"].as_object().unwrap().keys().next().unwrap().clone(),
            });
        }
    }
    operations
}

/// Asserts that a reply is an error with this status, in the form of its operation.
fn assert_refused(operation: &Operation, reply: &Reply, status: u16) {
    let Operation { id, path, error, .. } = operation;
    assert_eq!(reply.status.as_u16(), status, "{id} {path}: {}", reply.body);
    assert!(reply.header("content-type").starts_with(error.as_str()), "{id} {path}: {:?}", reply.headers);
    match error.as_str() {
        "text/plain" => assert!(!reply.body.is_empty() && !reply.body.starts_with('{'), "{id}: {}", reply.body),
        "application/problem+json" => assert_eq!(reply.json()["status"], status, "{id}: {}", reply.body),
        _ => assert!(reply.json()["error"]["message"].is_string(), "{id}: {}", reply.body),
    }
}

#[tokio::test]
async fn no_route_of_a_protocol_answers_without_a_key() {
    let rig = Rig::with_keys().await;
    let operations = operations();
    assert!(operations.len() >= 30, "{}", operations.len());
    let ids: BTreeSet<&str> = operations.iter().map(|operation| operation.id.as_str()).collect();
    assert_eq!(ids.len(), operations.len(), "each id is unique");
    for operation in &operations {
        for authorization in ["", "Bearer cap_wrong"] {
            let headers = [("authorization", authorization)];
            let reply = rig.exchange(operation.method.clone(), &operation.path, &headers, None).await;
            assert_refused(operation, &reply, 401);
            assert_eq!(reply.header("www-authenticate"), "Bearer", "{}", operation.id);
        }
    }
}

/// The operations that name no resource of an owner.
const WITHOUT_RESOURCES: [&str; 13] = [
    "openai_list_models",
    "openai_get_model",
    "openai_create_chat_completion",
    "openai_create_embeddings",
    "openai_create_conversation",
    "openai_create_file",
    "openai_list_files",
    "openai_connect_responses",
    "ai_sdk_connect",
    "copilotkit_info",
    "mcp_send",
    "mcp_listen",
    "mcp_end",
];

/// The resources of one owner.
struct Resources {
    conversation: String,
    run: String,
    message: String,
    file: String,
}

impl Resources {
    fn missing() -> Self {
        let id = |prefix: &str| format!("{prefix}_01980000000070008000000000000009");
        Self { conversation: id("conv"), run: id("run"), message: id("msg"), file: id("file") }
    }

    /// Returns requests that name these resources, by operation.
    fn requests(&self) -> Vec<(&'static str, Value)> {
        let Self { conversation, run, .. } = self;
        let response = run.replace("run_", "resp_");
        let input = json!({"threadId": conversation, "runId": "new", "messages": [{"id": "m", "role": "user", "content": "x"}]});
        let item = json!({"role": "user", "content": "x"});
        vec![
            ("openai_create_response", json!({"model": "default", "input": "x", "previous_response_id": response})),
            ("openai_create_response", json!({"model": "default", "input": "x", "conversation": conversation})),
            ("openai_get_response", Value::Null),
            ("openai_delete_response", Value::Null),
            ("openai_cancel_response", Value::Null),
            ("openai_list_input_items", Value::Null),
            ("openai_get_conversation", Value::Null),
            ("openai_update_conversation", json!({"metadata": {}})),
            ("openai_delete_conversation", Value::Null),
            ("openai_list_conversation_items", Value::Null),
            ("openai_create_conversation_items", json!({"items": [item]})),
            ("openai_get_conversation_item", Value::Null),
            ("openai_delete_conversation_item", Value::Null),
            ("openai_get_file", Value::Null),
            ("openai_get_file_content", Value::Null),
            ("openai_delete_file", Value::Null),
            (
                "ai_sdk_send",
                json!({"id": conversation, "messages": [{"id": "m", "role": "user", "parts": [{"type": "text", "text": "x"}]}]}),
            ),
            ("ai_sdk_send", json!({"id": conversation, "messages": [{"id": run, "role": "assistant", "parts": []}]})),
            ("ai_sdk_send", json!({"id": conversation, "trigger": "regenerate-message"})),
            ("ai_sdk_resume", Value::Null),
            ("ai_sdk_stop", Value::Null),
            ("ai_sdk_list_messages", Value::Null),
            ("ag_ui_run", input.clone()),
            ("ag_ui_read", json!({"query": format!("runId={run}")})),
            ("ag_ui_read", json!({"query": format!("threadId={conversation}")})),
            ("copilotkit_run", input.clone()),
            ("copilotkit_connect", input),
            ("copilotkit_stop", Value::Null),
        ]
    }

    /// Returns the path of an operation with the ids of these resources.
    fn path(&self, path: &str) -> String {
        let id = match path {
            _ if path.starts_with("/v1/responses") => self.run.replace("run_", "resp_"),
            _ if path.starts_with("/v1/files") => self.file.clone(),
            _ => self.conversation.clone(),
        };
        let path = path.replace("{id}", &id).replace("{thread}", &self.conversation);
        path.replace("{item}", &self.message).replace("{agent}", "default")
    }

    /// Sends a request that names these resources. Returns the reply, and its body without their ids.
    async fn send(&self, rig: &Rig, operation: &Operation, body: Value) -> (Reply, String) {
        let query = body["query"].as_str().map(|query| format!("?{query}"));
        let path = self.path(&operation.path) + &query.clone().unwrap_or_default();
        let body = Some(body).filter(|body| !body.is_null() && query.is_none());
        let reply = rig.exchange(operation.method.clone(), &path, &[("x-request-id", "one")], body).await;
        let named = [&self.run, &self.run.replace("run_", "resp_"), &self.conversation, &self.message, &self.file];
        let shape = named.into_iter().fold(reply.body.clone(), |body, id| body.replace(id, "ID"));
        (reply, shape)
    }
}

async fn resources_of_ann(rig: &Rig) -> Resources {
    let (conversation, run) = rig.start("mine").await;
    rig.play().await;
    let messages = rig.get(&format!("/api/v1/conversations/{conversation}/messages")).await.json();
    let picture =
        json!({"type": "image", "media_type": "image/png", "url": format!("data:image/png;base64,{}", STANDARD.encode(PNG))});
    let stored = rig.post("/api/v1/runs", json!({"input": [picture]})).await;
    assert_eq!(stored.status, StatusCode::ACCEPTED, "{}", stored.body);
    let file = text(&stored.json()["message"]["parts"][0]["file_id"]);
    rig.play().await;
    Resources { conversation, run, message: text(&messages["data"][0]["id"]), file }
}

#[tokio::test]
async fn foreign_resource_looks_missing_in_every_protocol() {
    let mut rig = Rig::with_keys().await;
    let ann = resources_of_ann(&rig).await;
    let before = rig.get(&format!("/api/v1/conversations/{}", ann.conversation)).await.json();
    let key = rig.key.replace(rig.user("bob").await);
    let operations: BTreeMap<String, Operation> =
        operations().into_iter().map(|operation| (operation.id.clone(), operation)).collect();
    let requests = ann.requests();
    let known: BTreeSet<&str> = requests.iter().map(|(id, _)| *id).chain(WITHOUT_RESOURCES).collect();
    assert_eq!(known, operations.keys().map(String::as_str).collect(), "each operation is in one of the lists");
    for ((id, foreign), (_, missing)) in requests.into_iter().zip(Resources::missing().requests()) {
        // A new id of a conversation is a name for a new one.
        let is_new = matches!(id, "ai_sdk_send" | "ag_ui_run" | "copilotkit_run");
        let (reply, shape) = ann.send(&rig, &operations[id], foreign).await;
        assert_refused(&operations[id], &reply, 404);
        if !is_new {
            let (reply, same) = Resources::missing().send(&rig, &operations[id], missing).await;
            assert_refused(&operations[id], &reply, 404);
            assert_eq!(shape, same, "{id}");
        }
    }
    for tool in ["run_get", "run_wait", "run_cancel"] {
        let refused = mcp(&rig, &[], tool, json!({"run_id": ann.run})).await;
        let missing = mcp(&rig, &[], tool, json!({"run_id": Resources::missing().run})).await;
        assert!(refused.contains("\"isError\":true") && refused.contains("not_found"), "{tool}: {refused}");
        assert_eq!(refused.replace(&ann.run, "ID"), missing.replace(&Resources::missing().run, "ID"), "{tool}");
    }
    assert_eq!(rig.get("/api/v1/runs").await.json()["data"], json!([]));
    rig.key = key;
    assert_eq!(rig.get(&format!("/api/v1/conversations/{}", ann.conversation)).await.json(), before, "nothing has changed");
}

/// Calls a tool of the MCP server. Returns the body of the answer.
async fn mcp(rig: &Rig, headers: &[(&str, &str)], tool: &str, arguments: Value) -> String {
    let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": tool, "arguments": arguments}});
    let accept = [("accept", "application/json, text/event-stream")];
    let headers: Vec<_> = headers.iter().chain(&accept).copied().collect();
    let reply = rig.exchange(Method::POST, "/mcp", &headers, Some(call)).await;
    assert_eq!(reply.status, StatusCode::OK, "{}", reply.body);
    reply.body
}

/// Returns the body of a request for an input.
type BodyOf = fn(&str) -> Value;

/// The operations that start a run, each with the body for an input.
fn starts() -> Vec<(Operation, BodyOf)> {
    fn input(thread: &str, input: &str) -> Value {
        json!({"threadId": thread, "runId": format!("{thread}-{input}"), "messages": [{"role": "user", "content": input}]})
    }
    let bodies: BTreeMap<&str, BodyOf> = BTreeMap::from([
        (
            "openai_create_chat_completion",
            (|input| json!({"model": "default", "messages": [{"role": "user", "content": input}], "stream": true, "store": true}))
                as BodyOf,
        ),
        ("openai_create_response", |input| json!({"model": "default", "input": input, "stream": true})),
        ("ai_sdk_send", |input| json!({"id": "chat", "messages": [{"role": "user", "parts": [{"type": "text", "text": input}]}]})),
        ("ag_ui_run", |text| input("ag-ui", text)),
        ("copilotkit_run", |text| input("copilotkit", text)),
    ]);
    operations()
        .into_iter()
        .filter_map(|operation| bodies.get(operation.id.as_str()).copied().map(|body| (operation, body)))
        .collect()
}

/// Posts a request whose stream is not read.
async fn post_unread(rig: &Rig, operation: &Operation, key: &str, body: Value) -> StatusCode {
    rig.post_stream(&operation.path.replace("{agent}", "default"), &[("idempotency-key", key)], body).await.status
}

async fn post(rig: &Rig, operation: &Operation, headers: &[(&str, &str)], body: Value) -> Reply {
    rig.exchange(Method::POST, &operation.path.replace("{agent}", "default"), headers, Some(body)).await
}

async fn count_runs(rig: &Rig) -> usize {
    rig.get("/api/v1/runs?limit=100").await.json()["data"].as_array().unwrap().len()
}

#[tokio::test]
async fn repeated_request_of_a_protocol_starts_one_run() {
    let rig = Rig::with_keys().await;
    let starts = starts();
    assert_eq!(starts.len(), 5);
    for (runs, (operation, body)) in starts.iter().enumerate() {
        let id = operation.id.as_str();
        for _ in 0..2 {
            assert_eq!(post_unread(&rig, operation, id, body("one")).await, StatusCode::OK, "{id}");
        }
        assert_refused(operation, &post(&rig, operation, &[("idempotency-key", id)], body("two")).await, 422);
        assert_eq!(count_runs(&rig).await, runs + 1, "{id}");
    }
    let key = [("idempotency-key", "mcp")];
    let call = |message: &str| json!({"message": message, "wait_seconds": 0});
    let first = mcp(&rig, &key, "default", call("one")).await;
    assert_eq!(mcp(&rig, &key, "default", call("one")).await, first);
    let refused = mcp(&rig, &key, "default", call("two")).await;
    assert!(refused.contains("\"isError\":true") && refused.contains("idempotency"), "{refused}");
    assert_eq!(count_runs(&rig).await, starts.len() + 1);
}

#[tokio::test]
async fn limits_hold_in_every_protocol() {
    let rig = Rig::with_keys().await;
    for _ in 0..MAX_ACTIVE_RUNS {
        rig.start("queued").await;
    }
    for (operation, body) in starts() {
        assert_refused(&operation, &post(&rig, &operation, &[], body("one")).await, 429);
    }
    let refused = mcp(&rig, &[], "default", json!({"message": "one", "wait_seconds": 0})).await;
    assert!(refused.contains("\"isError\":true") && refused.contains("too_many_requests"), "{refused}");
    assert_eq!(count_runs(&rig).await, MAX_ACTIVE_RUNS);

    // Bodies have the usual limit, except those that hold a whole history.
    let large = "x".repeat(2 * 1024 * 1024);
    for (id, body) in [
        ("openai_create_embeddings", json!({"model": "mine/vectors", "input": large})),
        ("openai_create_conversation", json!({"items": [{"role": "user", "content": large}]})),
        ("mcp_send", json!({"jsonrpc": "2.0", "id": 1, "method": large})),
    ] {
        let operation = operations().into_iter().find(|operation| operation.id == id).unwrap();
        assert_refused(&operation, &post(&rig, &operation, &[], body).await, 413);
    }
}
