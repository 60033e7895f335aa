//! A server over HTTP that forgets its sessions.

use std::sync::{Arc, Mutex};

use axum::Json;
use axum::http::{HeaderName, StatusCode};
use axum::response::{IntoResponse as _, Response};
use axum::routing::post;
use capstan::domain::tool::ToolCallState;
use capstan::tools::Toolbox as _;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::setup::{Tools, text};

/// What the server has done.
#[derive(Default)]
struct Done {
    sessions: usize,
    calls: usize,
}

/// Knows no session any more at the first call, and changes its tool when it is greeted again.
fn answer(done: &Mutex<Done>, changes: bool, request: &Value) -> Response {
    let mut done = done.lock().unwrap();
    let result = match request["method"].as_str().unwrap_or_default() {
        "initialize" => {
            done.sessions += 1;
            json!({
                "protocolVersion": request["params"]["protocolVersion"],
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "forgetful", "version": "1"},
            })
        }
        "tools/list" => {
            let description = if changes { format!("of session {}", done.sessions) } else { "the same".to_owned() };
            json!({"tools": [{"name": "pay", "description": description, "inputSchema": {"type": "object"}}]})
        }
        "tools/call" => {
            done.calls += 1;
            if done.calls == 1 {
                let error = json!({"code": -32000, "message": "Bad Request: No valid session ID provided"});
                return Json(json!({"jsonrpc": "2.0", "id": request["id"], "error": error})).into_response();
            }
            json!({"content": [{"type": "text", "text": "paid"}]})
        }
        _ => return StatusCode::ACCEPTED.into_response(),
    };
    let session = [(HeaderName::from_static("mcp-session-id"), format!("s{}", done.sessions))];
    (session, Json(json!({"jsonrpc": "2.0", "id": request["id"], "result": result}))).into_response()
}

async fn called(changes: bool) -> (ToolCallState, String, usize) {
    let done = Arc::new(Mutex::new(Done::default()));
    let state = Arc::clone(&done);
    let app =
        axum::Router::new().route("/mcp", post(move |Json(request): Json<Value>| async move { answer(&state, changes, &request) }));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/mcp", listener.local_addr().unwrap());
    let mut serving = JoinSet::new();
    serving.spawn(async move { axum::serve(listener, app).await });
    let tools = Tools::new(&json!({"bank": {"url": url}})).await;
    let outcome = tools.call("bank__pay", json!({})).await;
    tools.door.shutdown().await;
    let calls = done.lock().unwrap().calls;
    (outcome.state, text(&outcome), calls)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_never_arrived_is_sent_again_on_a_new_session() {
    assert_eq!(called(false).await, (ToolCallState::Done, "paid".to_owned(), 2));
}

#[tokio::test(flavor = "multi_thread")]
async fn it_is_not_sent_again_to_a_tool_that_is_another_one_by_then() {
    let (state, words, calls) = called(true).await;
    assert!(state == ToolCallState::Failed && words.contains("has changed since this run began"), "{state:?} {words}");
    assert_eq!(calls, 1);
}
