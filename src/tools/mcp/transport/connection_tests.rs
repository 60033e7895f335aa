//! Tests of a connection with an in-memory server that adds two numbers. The client is real, but its streams belong to no process, and time
//! is virtual. `tests/it/mcp` covers other behaviour of processes.

use std::sync::Arc;
use std::time::Duration;

use rmcp::model::{CallToolRequestParams, JsonObject};
use rmcp::service::ClientLifecycleMode;
use rstest::rstest;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, DuplexStream};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::tools::mcp::calls::reply::{Limits, Reply};
use crate::tools::mcp::config::redaction::SecretRedactor;
use crate::tools::mcp::transport::connection::Connection;
use crate::tools::mcp::transport::handler::{AllowedRequests, Handler};
use crate::tools::mcp::transport::stdio::StdioTransport;

const LIMITS: Limits = Limits { idle: Duration::from_secs(5), total: Duration::from_secs(10) };
/// The longest wait of a test, in virtual time, which does not advance while any task has work.
const PATIENCE: Duration = Duration::from_secs(60);
const SECRET: &str = "token-canary";

struct Adder {
    heard: mpsc::UnboundedReceiver<Value>,
    serving: JoinSet<()>,
}

impl Adder {
    /// Returns the next message with this method.
    async fn hears(&mut self, method: &str) -> Value {
        loop {
            let message = tokio::time::timeout(PATIENCE, self.heard.recv()).await.expect(method).expect(method);
            if message["method"] == method {
                return message;
            }
        }
    }

    /// Waits until its input has ended.
    async fn is_left(&mut self) {
        tokio::time::timeout(PATIENCE, self.serving.join_next()).await.expect("the end").expect("a server").expect("no panic");
    }
}

async fn serve(stream: DuplexStream, heard: mpsc::UnboundedSender<Value>) {
    let (input, mut output) = tokio::io::split(stream);
    let mut lines = BufReader::new(input).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        let message: Value = serde_json::from_str(&line).unwrap();
        let (answer, goes_away) = (answer(&message), message["params"]["name"] == "leave");
        let _ = heard.send(message);
        match answer {
            _ if goes_away => return,
            Some(answer) => output.write_all(format!("{answer}\n").as_bytes()).await.unwrap(),
            None => {}
        }
    }
}

/// Returns the server's answer. Notifications and the slow call get none, but a cancelled call does.
fn answer(message: &Value) -> Option<Value> {
    let params = &message["params"];
    let id = params.get("requestId").unwrap_or(&message["id"]);
    let said = |text: &str, is_error: bool| json!({"content": [{"type": "text", "text": text}], "isError": is_error});
    let result = match message["method"].as_str()? {
        "initialize" => {
            let (version, info) = (&params["protocolVersion"], json!({"name": "adder", "version": "1"}));
            json!({"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info})
        }
        "tools/list" => {
            let schema = json!({"type": "object", "properties": {"a": {"type": "number"}, "b": {"type": "number"}}});
            json!({"tools": [{"name": "add", "description": "Adds two numbers", "inputSchema": schema}]})
        }
        "tools/call" if params["name"] == "add" => {
            let [a, b] = ["a", "b"].map(|name| params["arguments"][name].as_f64());
            a.zip(b).map_or_else(|| said("a and b must be numbers", true), |(a, b)| said(&(a + b).to_string(), false))
        }
        "tools/call" if params["name"] == "brood" => return None,
        "notifications/cancelled" => said("too late", false),
        _ if id.is_null() => return None,
        _ => {
            let error = json!({"code": -32602, "message": format!("no such tool; the key is {SECRET}")});
            return Some(json!({"jsonrpc": "2.0", "id": id, "error": error}));
        }
    };
    Some(json!({"jsonrpc": "2.0", "id": id, "result": result}))
}

/// Returns a connection to the server. `exit` reports that its process has exited, though its streams may be open.
async fn connected(exit: &CancellationToken) -> (Connection, Adder) {
    // Smaller than any message, so that each arrives in pieces.
    let (ours, theirs) = tokio::io::duplex(64);
    let ((hears, heard), mut serving) = (mpsc::unbounded_channel(), JoinSet::new());
    serving.spawn(serve(theirs, hears));
    let mut redactor = SecretRedactor::default();
    redactor.add("API_TOKEN", SECRET);
    let allowed = AllowedRequests { elicits: false, samples: None, roots: Arc::default() };
    let handler = Handler { server: "adder".to_owned(), allowed, redactor, subscriptions: Arc::default() };
    let (output, input) = tokio::io::split(ours);
    let transport = StdioTransport::new(output, input, &handler.server, &handler.redactor);
    let (ending, tasks) = (transport.ending.clone(), TaskTracker::new());
    let service = transport.initialize(handler, ClientLifecycleMode::Initialize, exit.clone(), &tasks).await.unwrap();
    let Ok(connection) = Connection::check_initialized(service, None, ending, &tasks).await else { panic!("its version is known") };
    (connection, Adder { heard, serving })
}

/// Makes a call and returns its outcome. The call may continue until `token` ends it.
async fn called(connection: &Connection, name: &str, arguments: Value, token: &CancellationToken) -> String {
    let params = CallToolRequestParams::new(name.to_owned()).with_arguments(arguments.as_object().unwrap().clone());
    let (progress, _reports) = mpsc::channel(1);
    match connection.call(params, &JsonObject::new(), None, LIMITS, &progress, &token.clone().into()).await {
        Reply::Result(result) if result["isError"] == true => format!("error: {}", result["content"][0]["text"]),
        Reply::Result(result) => result["content"][0]["text"].as_str().unwrap().to_owned(),
        Reply::Refused(reason) => format!("refused: {reason}"),
        Reply::NotSent(reason) => format!("not sent: {reason}"),
        Reply::Lost(reason) => format!("lost: {reason}"),
        Reply::TimedOut(limit) => format!("silent for {limit:?}"),
        Reply::Cancelled => "cancelled".to_owned(),
        Reply::Task(_) | Reply::Paused | Reply::Gone(_) | Reply::PollFailed(_) | Reply::NoSession(_) => {
            "what it never does".to_owned()
        }
    }
}

async fn sum(connection: &Connection, a: Value, b: Value) -> String {
    called(connection, "add", json!({"a": a, "b": b}), &CancellationToken::new()).await
}

#[tokio::test(start_paused = true)]
async fn a_server_in_memory_is_greeted_and_adds_two_numbers() {
    let (connection, mut adder) = connected(&CancellationToken::new()).await;
    assert_eq!(adder.hears("initialize").await["params"]["clientInfo"]["name"], "capstan");
    adder.hears("notifications/initialized").await;
    let (tools, listed) = connection.list_tools().await.unwrap();
    let names: Vec<&str> = tools.iter().map(|tool| tool.name.as_ref()).collect();
    assert_eq!((names, listed.left_out), (vec!["add"], false));
    assert_eq!(sum(&connection, json!(2), json!(-0.5)).await, "1.5");
    connection.close().await;
    adder.is_left().await;
}

/// M-16.
#[tokio::test(start_paused = true)]
async fn an_error_is_a_result_or_a_refusal_and_ends_its_call_alone() {
    let (connection, _adder) = connected(&CancellationToken::new()).await;
    assert_eq!(sum(&connection, json!("two"), json!(3)).await, "error: \"a and b must be numbers\"");
    let refused = called(&connection, "subtract", json!({}), &CancellationToken::new()).await;
    assert!(refused.starts_with("refused: no such tool") && !refused.contains(SECRET), "{refused}");
    assert_eq!(sum(&connection, json!(2), json!(3)).await, "5");
}

/// M-03, M-05. The server learns which call was cancelled, and its late answer is not used for the next call.
#[rstest]
#[case::cancelled(Some("cancelled"), "the run was cancelled")]
#[case::silent(Some("silent for 5s"), "the time limit was reached")]
#[case::left_alone(None, "the caller no longer waits for the answer")]
#[tokio::test(start_paused = true)]
async fn a_call_that_is_given_up_is_taken_back(#[case] outcome: Option<&str>, #[case] reason: &str) {
    let (connection, mut adder) = connected(&CancellationToken::new()).await;
    let token = CancellationToken::new();
    let mut call = Box::pin(called(&connection, "brood", json!({}), &token));
    let asked = tokio::select! {
        outcome = &mut call => panic!("it is over: {outcome}"),
        asked = adder.hears("tools/call") => asked,
    };
    if outcome == Some("cancelled") {
        token.cancel();
    }
    match outcome {
        Some(outcome) => assert_eq!(call.await, outcome),
        None => drop(call),
    }
    let told = adder.hears("notifications/cancelled").await;
    assert_eq!((&told["params"]["requestId"], &told["params"]["reason"]), (&asked["id"], &json!(reason)));
    assert_eq!(sum(&connection, json!(2), json!(3)).await, "5");
    assert!(connection.is_alive());
}

/// M-02.
#[rstest]
#[case::with_its_streams("leave")]
#[case::while_others_hold_its_streams("brood")]
#[tokio::test(start_paused = true)]
async fn a_call_is_lost_with_its_server(#[case] tool: &str) {
    let exit = CancellationToken::new();
    let (connection, mut adder) = connected(&exit).await;
    let goes = async {
        adder.hears("tools/call").await;
        if tool == "brood" {
            exit.cancel();
        }
    };
    let token = CancellationToken::new();
    let began = tokio::time::Instant::now();
    let (outcome, ()) = tokio::join!(called(&connection, tool, json!({}), &token), goes);
    assert_eq!(outcome, "lost: the connection was closed");
    assert!(began.elapsed() <= Duration::from_secs(1), "{:?}", began.elapsed());
    assert!(!connection.is_alive());
    assert_eq!(sum(&connection, json!(2), json!(3)).await, "not sent: the connection was closed");
    adder.is_left().await;
}
