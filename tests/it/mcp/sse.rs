//! Servers with the first HTTP transport, an event stream beside POSTs: real ones and faulty ones.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::http::{HeaderMap, StatusCode};
use axum::response::sse::{Event, Sse};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use capstan::domain::tool::ToolCallState;
use futures_util::StreamExt as _;
use rstest::rstest;
use serde_json::{Value, json};
use tokio::sync::mpsc::{self, UnboundedSender};
use tokio::task::JoinSet;
use tokio_stream::wrappers::UnboundedReceiverStream;

use support::mcp::everything_at;
use support::mcp::{Tools, text};
use support::wait;

/// As in the specification: a client without a configured transport tries the newer one first.
#[tokio::test(flavor = "multi_thread")]
async fn sse_transport_is_detected_or_configured() {
    let (_everything, port) = everything_at("sse").await;
    let url = format!("http://127.0.0.1:{port}/sse");
    let tools = Tools::new(&json!({
        "told": {"type": "sse", "url": url}, "untold": {"url": url}, "wrong": {"type": "http", "url": url},
    }))
    .await;
    for name in ["told", "untold"] {
        assert_eq!(text(&tools.call(&format!("{name}__echo"), json!({"message": "hello"})).await), "Echo: hello");
    }
    let calls = (0..10).map(|n| tools.call("untold__get-sum", json!({"a": n, "b": 1})));
    let sums = futures_util::future::join_all(calls).await;
    for (n, sum) in sums.iter().enumerate() {
        assert!(text(sum).contains(&format!("{}", n + 1)), "{sum:?}");
    }
    assert_eq!(tools.status("wrong").await.status, "error");
    tools.shutdown().await;
}

/// The fault of a server.
#[derive(Clone, Copy, PartialEq)]
enum Habit {
    /// Names an endpoint of another host.
    Foreign,
    /// Ends its stream before it names an endpoint.
    Mute,
    /// Ends its stream during the first call.
    Cut,
    /// Never answers the first call.
    Silent,
    /// Reports the first call's session as unknown.
    Forgetful,
    /// Sends other events between messages.
    Chatty,
    /// Speaks an unknown revision.
    Unheard,
}

#[derive(Default)]
struct Book {
    stream: Option<UnboundedSender<Event>>,
    streams: usize,
    calls: usize,
    headers: Vec<HeaderMap>,
}

fn open(book: &Mutex<Book>, habit: Habit, headers: HeaderMap) -> Response {
    let (sender, receiver) = mpsc::unbounded_channel();
    let endpoint = if habit == Habit::Foreign { "http://127.0.0.1:9/messages" } else { "/messages?session=1" };
    if habit != Habit::Mute {
        sender.send(Event::default().event("endpoint").data(endpoint)).unwrap();
    }
    let mut book = book.lock().unwrap();
    book.streams += 1;
    book.headers.push(headers);
    book.stream = (habit != Habit::Mute).then_some(sender);
    Sse::new(UnboundedReceiverStream::new(receiver).map(Ok::<_, Infallible>)).into_response()
}

fn message(book: &Mutex<Book>, habit: Habit, headers: HeaderMap, request: &Value) -> StatusCode {
    let mut book = book.lock().unwrap();
    book.headers.push(headers);
    let result = match request["method"].as_str().unwrap_or_default() {
        "initialize" => {
            let version = if habit == Habit::Unheard { "1999-01-01" } else { "2024-11-05" };
            json!({"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": {"name": "old", "version": "1"}})
        }
        "tools/list" => json!({"tools": [{"name": "pay", "description": "pays", "inputSchema": {"type": "object"}}]}),
        "tools/call" => {
            book.calls += 1;
            match habit {
                Habit::Cut if book.calls == 1 => {
                    book.stream = None;
                    return StatusCode::ACCEPTED;
                }
                Habit::Silent if book.calls == 1 => return StatusCode::ACCEPTED,
                Habit::Forgetful if book.calls == 1 => return StatusCode::NOT_FOUND,
                _ => json!({"content": [{"type": "text", "text": "paid"}]}),
            }
        }
        _ => return StatusCode::ACCEPTED,
    };
    let stream = book.stream.as_ref().unwrap();
    if habit == Habit::Chatty {
        for event in [Event::default().comment("ping"), Event::default().event("ping").data("{}"), Event::default().data("hello")] {
            stream.send(event).unwrap();
        }
    }
    let answer = json!({"jsonrpc": "2.0", "id": request["id"], "result": result});
    stream.send(Event::default().event("message").data(answer.to_string())).unwrap();
    StatusCode::ACCEPTED
}

async fn serve(habit: Habit) -> (String, Arc<Mutex<Book>>, JoinSet<()>) {
    let book = Arc::new(Mutex::new(Book::default()));
    let (opens, messages) = (Arc::clone(&book), Arc::clone(&book));
    let app = Router::new().route("/sse", get(move |headers: HeaderMap| async move { open(&opens, habit, headers) })).route(
        "/messages",
        post(move |headers: HeaderMap, Json(request): Json<Value>| async move { message(&messages, habit, headers, &request) }),
    );
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/sse", listener.local_addr().unwrap());
    let mut serving = JoinSet::new();
    serving.spawn(async move { axum::serve(listener, app).await.unwrap() });
    (url, book, serving)
}

#[rstest]
#[case::foreign(Habit::Foreign, "another origin")]
#[case::mute(Habit::Mute, "ended before the event with the endpoint")]
#[tokio::test(flavor = "multi_thread")]
async fn a_stream_without_an_endpoint_of_its_own_is_not_used(#[case] habit: Habit, #[case] words: &str) {
    let (url, book, _serving) = serve(habit).await;
    let tools = Tools::new(&json!({"old": {"type": "sse", "url": url, "headers": {"X-Key": "canary"}}})).await;
    let status = tools.status("old").await;
    assert!(status.error.as_ref().is_some_and(|error| error.contains(words)), "{status:?}");
    assert_eq!(book.lock().unwrap().headers.len(), 1, "only the stream was requested");
    tools.shutdown().await;
}

/// M-18, M-19.
#[rstest]
#[case::read("read", ToolCallState::Failed)]
#[case::unsafe_("unsafe", ToolCallState::Unknown)]
#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_is_cut_in_a_call_ends_it_by_its_class(#[case] class: &str, #[case] state: ToolCallState) {
    let (url, book, _serving) = serve(Habit::Cut).await;
    let entry = json!({"type": "sse", "url": url, "capstan": {"replay": {"pay": class}, "timeout": "10s"}});
    let tools = Tools::new(&json!({"old": entry})).await;
    let lost = wait::within("the call", Duration::from_secs(5), tools.call("old__pay", json!({}))).await;
    assert!(lost.state == state && text(&lost).contains("it ended its event stream"), "{lost:?}");
    assert_eq!(text(&tools.call("old__pay", json!({})).await), "paid");
    tools.shutdown().await;
    let book = book.lock().unwrap();
    assert_eq!((book.streams, book.calls), (2, 2));
}

/// M-19.
#[rstest]
#[case::silent(Habit::Silent, ToolCallState::Unknown, "did not answer within 1s")]
#[case::forgetful(Habit::Forgetful, ToolCallState::Failed, "404")]
#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_is_not_answered_is_not_waited_for_for_ever(
    #[case] habit: Habit,
    #[case] state: ToolCallState,
    #[case] words: &str,
) {
    let (url, _book, _serving) = serve(habit).await;
    let tools = Tools::new(&json!({"old": {"type": "sse", "url": url, "capstan": {"timeout": "1s"}}})).await;
    let lost = wait::within("the call", Duration::from_secs(10), tools.call("old__pay", json!({}))).await;
    assert!(lost.state == state && text(&lost).contains(words), "{lost:?}");
    assert_eq!(text(&tools.call("old__pay", json!({})).await), "paid");
    tools.shutdown().await;
}

/// M-17.
#[tokio::test(flavor = "multi_thread")]
async fn unknown_revision_is_named_over_sse() {
    let (url, _book, _serving) = serve(Habit::Unheard).await;
    let tools = Tools::new(&json!({"old": {"type": "sse", "url": url}})).await;
    let error = tools.status("old").await.error.unwrap();
    assert!(error.contains("uses version \"1999-01-01\"") && error.contains("2024-11-05, "), "{error}");
    tools.shutdown().await;
}

/// M-17, for the first revision: it has no version header.
#[tokio::test(flavor = "multi_thread")]
async fn headers_go_with_every_request_and_other_events_are_skipped() {
    let (url, book, _serving) = serve(Habit::Chatty).await;
    let tools = Tools::new(&json!({"old": {"url": url, "headers": {"X-Key": "canary"}}})).await;
    assert_eq!(text(&tools.call("old__pay", json!({})).await), "paid");
    tools.shutdown().await;
    let book = book.lock().unwrap();
    assert!(book.headers.len() >= 5 && book.headers.iter().all(|headers| headers["x-key"] == "canary"), "{:?}", book.headers);
}
