//! A Streamable HTTP server that forgets its sessions, or does not complete its answers.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Json;
use axum::http::{HeaderName, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::post;
use capstan::domain::tool::ToolCallState;
use capstan::tools::Toolbox as _;
use rstest::rstest;
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio::task::JoinSet;

use support::mcp::{Tools, text};
use support::wait;

/// The record of the server's requests.
#[derive(Default)]
struct Done {
    sessions: usize,
    calls: usize,
}

/// The error text of the official examples.
const NO_SESSION: &str = "Bad Request: No valid session ID provided";

/// The server's answer to the first call.
#[derive(Clone, Copy)]
enum First {
    /// An unknown session, in the words of many servers.
    NoSession,
    /// The same to every call.
    NeverASession,
    /// An error with this code and text.
    Error(i32, &'static str),
    /// A status, with or without a challenge.
    Status(u16),
    Challenge,
    /// An insufficient scope.
    Scope,
    /// A status, and a protocol error in the body.
    InWords(u16),
    /// The start of an event stream.
    Cut,
    /// The start of an object, on a connection that breaks.
    CutObject,
    /// 202 without a later answer.
    Accepted,
    /// A body that is no message.
    Nonsense,
    /// The answer to later calls.
    Late,
}

/// Answers the first call as configured, and changes its tools at the next handshake if `changes` is set.
fn answer(done: &Mutex<Done>, first: First, changes: bool, request: &Value) -> Response {
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
            if matches!(first, First::NeverASession) || done.calls == 1 && !matches!(first, First::Late) {
                return first_answer(first, &request["id"]);
            }
            json!({"content": [{"type": "text", "text": "paid"}]})
        }
        _ => return StatusCode::ACCEPTED.into_response(),
    };
    let session = [(HeaderName::from_static("mcp-session-id"), format!("s{}", done.sessions))];
    (session, Json(json!({"jsonrpc": "2.0", "id": request["id"], "result": result}))).into_response()
}

fn first_answer(first: First, id: &Value) -> Response {
    let stream = [(header::CONTENT_TYPE, "text/event-stream")];
    match first {
        First::NoSession | First::NeverASession => first_answer(First::Error(-32000, NO_SESSION), id),
        First::Error(code, message) => {
            let error = json!({"code": code, "message": message});
            Json(json!({"jsonrpc": "2.0", "id": id, "error": error})).into_response()
        }
        First::Status(status) => StatusCode::from_u16(status).unwrap().into_response(),
        First::Challenge => (StatusCode::UNAUTHORIZED, [(header::WWW_AUTHENTICATE, "Bearer")]).into_response(),
        First::Scope => {
            (StatusCode::FORBIDDEN, [(header::WWW_AUTHENTICATE, "Bearer error=\"insufficient_scope\"")]).into_response()
        }
        First::InWords(status) => {
            let mut response = first_answer(First::Error(-32603, "no healthy upstream"), id);
            *response.status_mut() = StatusCode::from_u16(status).unwrap();
            response
        }
        First::Cut => (stream, "event: message\ndata: {\"jsonrpc\":\"2.0\",\"id\":").into_response(),
        First::CutObject => {
            let begun = Ok(bytes::Bytes::from_static(b"{\"jsonrpc\":\"2.0\",\"result\":{\"content\":["));
            let broken = Err(std::io::Error::other("the connection breaks"));
            let body = axum::body::Body::from_stream(futures_util::stream::iter([begun, broken]));
            ([(header::CONTENT_TYPE, "application/json")], body).into_response()
        }
        First::Accepted => StatusCode::ACCEPTED.into_response(),
        First::Late => unreachable!("it is answered like the others"),
        First::Nonsense => (stream, "data: {\"hello\": \"world\"}\n\n").into_response(),
    }
}

/// Returns state and text of the first call, the number of calls that arrived, and the text of the next call.
async fn called(first: First, changes: bool, capstan: Value) -> (ToolCallState, String, usize, String) {
    let done = Arc::new(Mutex::new(Done::default()));
    let state = Arc::clone(&done);
    let app = axum::Router::new()
        .route("/mcp", post(move |Json(request): Json<Value>| async move { answer(&state, first, changes, &request) }));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/mcp", listener.local_addr().unwrap());
    let mut serving = JoinSet::new();
    serving.spawn(async move { axum::serve(listener, app).await });
    let tools = Tools::new(&json!({"bank": {"url": url, "capstan": capstan}})).await;
    let outcome = tools.call("bank__pay", json!({})).await;
    let calls = done.lock().unwrap().calls;
    let next = wait::within("the next call", Duration::from_secs(10), tools.call("bank__pay", json!({}))).await;
    tools.door.shutdown().await;
    (outcome.state, text(&outcome), calls, text(&next))
}

/// M-17: without a handshake, and without sessions.
#[tokio::test(flavor = "multi_thread")]
async fn the_stateless_revision_is_spoken_over_http() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let notes = Arc::clone(&seen);
    let answer = move |headers: axum::http::HeaderMap, Json(request): Json<Value>| async move {
        let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
        let method = request["method"].as_str().unwrap_or_default().to_owned();
        notes.lock().unwrap().push((method.clone(), header("mcp-protocol-version"), header("mcp-session-id")));
        let fresh = json!({"resultType": "complete", "ttlMs": 60_000, "cacheScope": "private"});
        let mut result = match method.as_str() {
            "server/discover" => json!({
                "supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}},
                "_meta": {"io.modelcontextprotocol/serverInfo": {"name": "stateless", "version": "1"}}
            }),
            "tools/list" => json!({"tools": [{"name": "pay", "description": "pays", "inputSchema": {"type": "object"}}]}),
            "tools/call" => json!({"content": [{"type": "text", "text": "paid"}]}),
            _ => {
                let error = json!({"code": -32601, "message": "Method not found"});
                return Json(json!({"jsonrpc": "2.0", "id": request["id"], "error": error})).into_response();
            }
        };
        result.as_object_mut().unwrap().extend(fresh.as_object().unwrap().clone());
        Json(json!({"jsonrpc": "2.0", "id": request["id"], "result": result})).into_response()
    };
    let app = axum::Router::new().route("/mcp", post(answer));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/mcp", listener.local_addr().unwrap());
    let mut serving = JoinSet::new();
    serving.spawn(async move { axum::serve(listener, app).await });
    let tools = Tools::new(&json!({"bank": {"url": url}})).await;
    for _ in 0..2 {
        assert_eq!(text(&tools.call("bank__pay", json!({})).await), "paid");
    }
    tools.door.shutdown().await;
    let seen = seen.lock().unwrap();
    let calls: Vec<_> = seen.iter().filter(|(method, ..)| method == "tools/call").collect();
    assert_eq!(calls.len(), 2, "{seen:?}");
    let stateless = |(_, version, session): &&(String, Option<String>, Option<String>)| {
        version.as_deref() == Some("2026-07-28") && session.is_none()
    };
    assert!(calls.iter().all(stateless), "{seen:?}");
    assert_eq!(seen.iter().filter(|(method, ..)| method == "tools/list").count(), 1, "its list has a time to live: {seen:?}");
}

/// M-18.
#[rstest]
#[case::in_words(First::NoSession)]
#[case::as_the_protocol_says(First::Status(404))]
#[case::by_a_wrong_401(First::Status(401))]
#[case::by_a_challenge(First::Challenge)]
#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_never_arrived_is_sent_again_on_a_new_session(#[case] first: First) {
    let (state, words, calls, _) = called(first, false, json!({})).await;
    assert_eq!((state, words.as_str(), calls), (ToolCallState::Done, "paid", 2));
}

/// M-18. A tool may quote such an error, and the effects before it have happened.
#[rstest]
#[case::quoted(First::Error(-32000, "the shop said: Bad Request: No valid session ID provided"))]
#[case::with_more(First::Error(-32000, "Bad Request: No valid session ID provided, but the order is placed"))]
#[case::by_another_code(First::Error(-32602, NO_SESSION))]
#[tokio::test(flavor = "multi_thread")]
async fn words_about_sessions_are_no_proof_that_nothing_was_sent(#[case] first: First) {
    let (state, words, calls, next) = called(first, false, json!({})).await;
    assert_eq!((state, calls, next.as_str()), (ToolCallState::Failed, 1, "paid"), "{words}");
    assert!(words.contains("answered with an error") && words.contains("No valid session ID"), "{words}");
}

/// M-18.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_is_sent_again_once_at_most() {
    let (state, words, calls, _) = called(First::NeverASession, false, json!({})).await;
    assert_eq!((state, calls), (ToolCallState::Failed, 2), "{words}");
    assert!(words.contains("answered with an error") && !words.contains("nothing was sent"), "{words}");
}

/// M-13, M-18.
#[rstest]
#[case::in_words(First::NoSession)]
#[case::as_the_protocol_says(First::Status(404))]
#[tokio::test(flavor = "multi_thread")]
async fn call_is_not_repeated_at_a_changed_tool(#[case] first: First) {
    let (state, words, calls, _) = called(first, true, json!({})).await;
    assert!(state == ToolCallState::Failed && words.contains("has changed since this run began"), "{state:?} {words}");
    assert_eq!(calls, 1);
}

/// M-18, M-19.
#[rstest]
#[case::by_a_gateway(First::Status(503))]
#[case::by_a_gateway_in_words(First::InWords(503))]
#[case::in_the_middle_of_the_answer(First::Cut)]
#[case::in_the_middle_of_an_object(First::CutObject)]
#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_was_lost_ends_by_its_class(#[case] first: First, #[values(true, false)] reads: bool) {
    let (class, expected) = if reads { ("read", ToolCallState::Failed) } else { ("unsafe", ToolCallState::Unknown) };
    let (state, words, calls, next) = called(first, false, json!({"replay": {"pay": class}, "timeout": "5s"})).await;
    assert_eq!((state, calls), (expected, 1), "{words}");
    assert!(words.contains("was lost during the call"), "{words}");
    assert_eq!(next, "paid");
}

/// Starts a server that answers the first call when a third one arrives, and answers `second` to the second one.
async fn held_up(second: First) -> (SocketAddr, Arc<Mutex<Done>>, JoinSet<std::io::Result<()>>) {
    let done = Arc::new(Mutex::new(Done::default()));
    let (state, released) = (Arc::clone(&done), Arc::new(Notify::new()));
    let app = axum::Router::new().route(
        "/mcp",
        post(move |Json(request): Json<Value>| {
            let (state, released) = (Arc::clone(&state), Arc::clone(&released));
            async move {
                let first = if request["method"] == "tools/call" { state.lock().unwrap().calls + 1 } else { 0 };
                let answered = answer(&state, First::Late, false, &request);
                match first {
                    1 => released.notified().await,
                    2 => return first_answer(second, &request["id"]),
                    3 => released.notify_one(),
                    _ => {}
                }
                answered
            }
        }),
    );
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let mut serving = JoinSet::new();
    serving.spawn(async move { axum::serve(listener, app).await });
    (address, done, serving)
}

/// M-18.
#[rstest]
#[case::asked_too_often(First::Status(429), ToolCallState::Failed, 1)]
#[case::not_for_everybody(First::Status(403), ToolCallState::Failed, 1)]
#[case::not_with_this_scope(First::Scope, ToolCallState::Failed, 1)]
#[case::a_mistake(First::Status(500), ToolCallState::Failed, 1)]
#[case::a_mistake_in_words(First::InWords(500), ToolCallState::Failed, 1)]
#[case::a_session_that_may_be_gone(First::Status(503), ToolCallState::Unknown, 2)]
#[case::the_same_in_words(First::InWords(503), ToolCallState::Unknown, 2)]
#[tokio::test(flavor = "multi_thread")]
async fn failed_call_does_not_end_other_calls(#[case] second: First, #[case] expected: ToolCallState, #[case] sessions: usize) {
    let (address, done, _serving) = held_up(second).await;
    let tools = Tools::new(&json!({"bank": {"url": format!("http://{address}/mcp")}})).await;
    let held = tools.call("bank__pay", json!({}));
    let others = async {
        wait::until("the first call", Duration::from_secs(10), || async { (done.lock().unwrap().calls == 1).then_some(()) }).await;
        let refused = tools.call("bank__pay", json!({})).await;
        (refused, tools.call("bank__pay", json!({})).await)
    };
    let (held, (refused, next)) = wait::within("all calls", Duration::from_secs(20), async { tokio::join!(held, others) }).await;
    assert_eq!((held.state, text(&held).as_str()), (ToolCallState::Done, "paid"), "{held:?}");
    assert_eq!((refused.state, text(&next).as_str()), (expected, "paid"), "{refused:?}");
    let (greeted, called) = {
        let done = done.lock().unwrap();
        (done.sessions, done.calls)
    };
    assert_eq!((greeted, called), (sessions, 3), "no call is sent twice");
    tools.door.shutdown().await;
}

/// M-19.
#[rstest]
#[case::accepted(First::Accepted)]
#[case::nonsense(First::Nonsense)]
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_never_comes_is_not_waited_for_for_ever(#[case] first: First, #[values(true, false)] reads: bool) {
    let (class, expected) = if reads { ("read", ToolCallState::Failed) } else { ("unsafe", ToolCallState::Unknown) };
    let (state, words, calls, next) = called(first, false, json!({"replay": {"pay": class}, "timeout": "1s"})).await;
    assert_eq!((state, calls, next.as_str()), (expected, 1, "paid"), "{words}");
}
