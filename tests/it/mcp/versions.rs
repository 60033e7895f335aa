//! MCP servers with older and newer protocol revisions.

use std::sync::{Arc, Mutex};

use axum::body::Bytes;
use axum::http::{HeaderMap, HeaderName, Method, StatusCode};
use axum::response::{IntoResponse as _, Response};
use axum::routing::any;
use axum::{Json, Router};
use rstest::rstest;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use support::mcp::{PATIENCE, Tools, text};
use support::wait;

/// M-17.
#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn every_revision_with_a_handshake_is_spoken(
    #[values("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")] version: &str,
) {
    let (server, tools) = Tools::scripted(&[&format!("version={version}")], None).await;
    assert_eq!(text(&tools.call("s__echo", json!({"text": version})).await), version);
    assert_eq!(server.log("ready").len(), 1);
    tools.shutdown().await;
}

/// M-17.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_handshake_is_found_out_once() {
    let (server, tools) = Tools::scripted(&["stateless"], None).await;
    assert_eq!(text(&tools.call("s__echo", json!({"text": "one"})).await), "one");
    assert_eq!((server.log("pid").len(), server.log("discovered").len()), (2, 1), "two handshakes, with a process each");
    tools.call("s__die", json!({})).await;
    assert_eq!(text(&tools.call("s__echo", json!({"text": "two"})).await), "two");
    assert_eq!((server.log("pid").len(), server.log("discovered").len()), (3, 2), "and one from then on");
    tools.shutdown().await;
    server.gone().await;
}

/// M-17.
#[tokio::test(flavor = "multi_thread")]
async fn unknown_revision_is_named() {
    let (server, tools) = Tools::scripted(&["version=1999-01-01"], None).await;
    let error = tools.status("s").await.error.unwrap();
    assert!(error.contains("uses version \"1999-01-01\"") && error.contains("2024-11-05, "), "{error}");
    tools.shutdown().await;
    server.gone().await;
}

/// A request as an HTTP server sees it.
#[derive(Debug)]
struct Seen {
    /// The protocol method, or the HTTP method if there is no message.
    method: String,
    version: Option<String>,
    session: Option<String>,
}

/// Returns the answers of an HTTP server of revision `version`, with sessions and without its own stream.
fn answer(version: &str, seen: &Mutex<Vec<Seen>>, (method, headers, body): (&Method, &HeaderMap, &[u8])) -> Response {
    let request: Value = serde_json::from_slice(body).unwrap_or_default();
    let method = request["method"].as_str().unwrap_or(method.as_str()).to_owned();
    let header = |name: &str| headers.get(name).map(|value| value.to_str().unwrap().to_owned());
    let result = match method.as_str() {
        "initialize" => json!({
            "protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": {"name": "remote", "version": "1"},
        }),
        "tools/list" => json!({"tools": [{"name": "echo", "description": "echoes", "inputSchema": {"type": "object"}}]}),
        "tools/call" => json!({"content": [{"type": "text", "text": request["params"]["arguments"]["text"]}]}),
        "GET" => Value::Null,
        _ => json!({}),
    };
    seen.lock().unwrap().push(Seen { method, version: header("mcp-protocol-version"), session: header("mcp-session-id") });
    match (result, &request["id"]) {
        (Value::Null, _) => StatusCode::METHOD_NOT_ALLOWED.into_response(),
        (_, Value::Null) => StatusCode::ACCEPTED.into_response(),
        (result, id) => {
            let session = [(HeaderName::from_static("mcp-session-id"), "s1")];
            (session, Json(json!({"jsonrpc": "2.0", "id": id, "result": result}))).into_response()
        }
    }
}

/// Starts a server of revision `version`. Returns its URL and the requests that it gets.
async fn remote(version: &str) -> (String, Arc<Mutex<Vec<Seen>>>, JoinSet<std::io::Result<()>>) {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let (version, notes) = (version.to_owned(), Arc::clone(&seen));
    let answered = move |method: Method, headers: HeaderMap, body: Bytes| async move {
        answer(&version, &notes, (&method, &headers, &body[..]))
    };
    let app = Router::new().route("/mcp", any(answered));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/mcp", listener.local_addr().unwrap());
    let mut serving = JoinSet::new();
    serving.spawn(async move { axum::serve(listener, app).await });
    (url, seen, serving)
}

/// Waits until its session has ended.
async fn left(seen: &Mutex<Vec<Seen>>) {
    let is_left = || async { seen.lock().unwrap().iter().any(|seen| seen.method == "DELETE").then_some(()) };
    wait::until("the end of the session", PATIENCE, is_left).await;
}

/// M-17. The first revision has its own transport (`sse.rs`), but some servers use it over this one. From 2025-06-18 on, each
/// request has a version header.
#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn every_revision_with_a_handshake_is_spoken_over_http(
    #[values("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")] version: &str,
) {
    let (url, seen, _serving) = remote(version).await;
    let tools = Tools::new(&json!({"s": {"url": url}})).await;
    assert_eq!(text(&tools.call("s__echo", json!({"text": version})).await), version);
    tools.shutdown().await;
    left(&seen).await;
    let seen = seen.lock().unwrap();
    let (greeting, after) = seen.split_first().unwrap();
    assert_eq!((greeting.method.as_str(), greeting.session.as_deref()), ("initialize", None));
    for method in ["notifications/initialized", "tools/list", "tools/call", "DELETE"] {
        assert_eq!(after.iter().filter(|seen| seen.method == method).count(), 1, "{method} in {seen:?}");
    }
    assert!(after.iter().all(|seen| seen.session.as_deref() == Some("s1")), "{seen:?}");
    if version >= "2025-06-18" {
        assert!(after.iter().all(|seen| seen.version.as_deref() == Some(version)), "{seen:?}");
    }
}

/// M-17.
#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn unknown_revision_is_named_over_http(#[values("1999-01-01", "2999-01-01")] version: &str) {
    let (url, seen, _serving) = remote(version).await;
    let tools = Tools::new(&json!({"s": {"url": url}})).await;
    let error = tools.status("s").await.error.unwrap();
    assert!(error.contains(&format!("uses version \"{version}\"")) && error.contains("2024-11-05, "), "{error}");
    tools.shutdown().await;
    left(&seen).await;
    assert!(seen.lock().unwrap().iter().all(|seen| !seen.method.starts_with("tools/")), "{seen:?}");
}
