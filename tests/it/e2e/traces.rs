//! One search for a trace id finds the log lines of the request and of its run, on each node.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use rstest::rstest;
use serde_json::{Value, json};

use support::database::Kind;
use support::dialects::{Dialect, Says};
use support::model::ModelMock;
use support::server::{Server, Site};
use support::wait;
use support::wire::Wire;

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";

fn traceparent() -> String {
    format!("00-{TRACE}-00f067aa0ba902b7-01")
}

/// Starts a run in a trace and returns its id.
async fn start_in(server: &Server, traceparent: &str, input: &str) -> String {
    let answer = server.post("/runs", &json!({"input": input})).header("traceparent", traceparent).send().await.unwrap();
    assert_eq!(answer.status(), 202);
    let answer: Value = answer.json().await.unwrap();
    answer["run"]["id"].as_str().unwrap().to_owned()
}

/// A line of the log with the fields of its spans.
struct Line {
    message: String,
    text: String,
    scopes: Vec<Value>,
}

impl Line {
    fn has(&self, field: &str, value: &str) -> bool {
        self.scopes.iter().any(|scope| scope[field] == value)
    }
}

fn lines(server: &Server) -> Vec<Line> {
    let read = |text: &str| {
        let line: Value = serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"));
        let mut scopes = line["spans"].as_array().cloned().unwrap_or_default();
        let message = line["message"].as_str().unwrap_or_default().to_owned();
        scopes.push(line);
        Line { message, text: text.to_owned(), scopes }
    };
    server.log_text().lines().map(read).collect()
}

/// Returns the lines about a run. Asserts that each is in the trace.
fn lines_of(server: &Server, run: &str, trace: &str) -> Vec<String> {
    let about: Vec<Line> = lines(server).into_iter().filter(|line| line.has("run.id", run)).collect();
    for line in &about {
        assert!(line.has("trace.id", trace), "not in the trace {trace}: {}", line.text);
    }
    about.into_iter().map(|line| line.message).collect()
}

/// Waits for the last line and returns all. A client may see the end of a run before its worker writes that line.
async fn all_lines_of(server: &Server, run: &str, trace: &str) -> Vec<String> {
    wait::until("the line of the run's end", Duration::from_secs(10), || async {
        Some(lines_of(server, run, trace)).filter(|lines| lines.iter().any(|line| line == "run ended"))
    })
    .await
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn request_and_run_have_one_trace(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) {
    let site = Site::new(kind).await.env("CAPSTAN_LOG__FORMAT", "json").env("CAPSTAN_LOG__LEVEL", "info,capstan=debug");
    let server = site.start().await;
    let run = start_in(&server, &traceparent(), "What is 17*23?").await;
    assert_eq!(server.finished(&run).await["trace_id"], TRACE, "the run shows its trace id");
    assert_eq!(server.get_json(&format!("/runs/{run}/explain")).await["run"]["trace_id"], TRACE);
    let events = server.run_events_json(&run).await;
    assert!(events.iter().all(|event| !event.to_string().contains(TRACE)), "the event log does not contain it");
    let found = all_lines_of(&server, &run, TRACE).await;
    for message in ["run accepted", "tool call ended", "run ended"] {
        assert!(found.iter().any(|line| line == message), "{message} in {found:?}");
    }
    let lines_in = |trace: &str| lines(&server).into_iter().filter(|line| line.text.contains(trace)).collect::<Vec<_>>();
    let answered = |line: &Line| line.message == "answered" && line.has("path", "/api/v1/runs");
    assert!(lines_in(TRACE).iter().any(answered), "the request's own lines are in the trace, too");

    // An invalid traceparent is ignored, and the request gets its own trace.
    for wrong in ["00-0-0-0", "", &traceparent().to_uppercase(), &format!("{} ", traceparent().replace("00-4", "ff-4"))] {
        let run = start_in(&server, wrong, "hello").await;
        server.finished(&run).await;
        let accepted = lines(&server).into_iter().find(|line| line.message == "run accepted" && line.has("run.id", &run)).unwrap();
        let trace = accepted.scopes.iter().find_map(|scope| scope["trace.id"].as_str()).unwrap().to_owned();
        assert!(trace.len() == 32 && trace != TRACE && trace.bytes().all(|byte| byte.is_ascii_hexdigit()), "{trace}");
        all_lines_of(&server, &run, &trace).await;
        assert!(lines_in(&trace).iter().any(answered));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn wire_log_is_written_if_its_target_is_enabled() {
    let model = ModelMock::start().await;
    let site = Site::scripted(Kind::Sqlite, &model).await.env("CAPSTAN_LOG__FORMAT", "json").env("OPENAI_API_KEY", "a-key-of-mine");
    for level in ["info,wire=trace", "trace"] {
        let mut server = site.start_with(&[("CAPSTAN_LOG__LEVEL", level)]).await;
        let input = "a word of mine [[id:one]][[say:theirs]]";
        let run = start_in(&server, &traceparent(), input).await;
        server.finished(&run).await;
        all_lines_of(&server, &run, TRACE).await;
        let log = server.log_text();
        assert!(!log.contains("a-key-of-mine"), "{log}");
        let seen: Vec<Line> = lines(&server).into_iter().filter(|line| line.has("target", "wire")).collect();
        if level == "trace" {
            assert!(seen.is_empty() && !log.contains("a word of mine"), "no other log level shows message content");
        } else {
            let shows = |message: &str, text: &str| {
                let of_run = seen.iter().filter(|line| line.message == message && line.has("run.id", &run));
                of_run.map(|line| line.text.as_str()).collect::<String>().contains(text)
            };
            assert!(shows("request to the provider", "/v1/chat/completions") && shows("request to the provider", "a word of mine"));
            assert!(shows("bytes from the provider", "theirs") && shows("answer of the provider", r#""status":200"#), "{log}");
        }
        server.kill9().await;
    }
}

/// Returns the value of a header in the head of a request.
fn header(head: &str, name: &str) -> Option<String> {
    head.lines().find_map(|line| {
        let (known, value) = line.split_once(':')?;
        known.eq_ignore_ascii_case(name).then(|| value.trim().to_owned())
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn trace_goes_out_to_provider_and_mcp_server() {
    let (seen, notes) = (Arc::new(Mutex::new(Vec::new())), Arc::new(Mutex::new(Vec::new())));
    let (headers, metas) = (Arc::clone(&seen), Arc::clone(&notes));
    let handler = move |head: axum::http::HeaderMap, axum::Json(request): axum::Json<Value>| async move {
        let result = match request["method"].as_str().unwrap_or_default() {
            "initialize" => json!({
                "protocolVersion": request["params"]["protocolVersion"], "capabilities": {"tools": {}},
                "serverInfo": {"name": "plain", "version": "1"},
            }),
            "tools/list" => json!({"tools": [{"name": "pay", "inputSchema": {"type": "object"}}]}),
            "tools/call" => {
                let traceparent = head.get("traceparent").and_then(|value| value.to_str().ok()).unwrap_or_default();
                headers.lock().unwrap().push(traceparent.to_owned());
                metas.lock().unwrap().push(request["params"]["_meta"]["traceparent"].clone());
                json!({"content": [{"type": "text", "text": "paid"}]})
            }
            _ => json!({}),
        };
        axum::Json(json!({"jsonrpc": "2.0", "id": request["id"], "result": result}))
    };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/mcp", listener.local_addr().unwrap());
    let mut serving = tokio::task::JoinSet::new();
    serving.spawn(async move { axum::serve(listener, axum::Router::new().route("/mcp", axum::routing::post(handler))).await });
    let none = json!({});
    let calls = Dialect::Openai.answer(Says { call: Some(("call_1", "bank__pay", &none)), ..Says::default() });
    let wire = Wire::play(vec![calls, Dialect::Openai.answer(Says { text: "Done.", ..Says::default() })]).await;
    let mut site = Site::new(Kind::Sqlite).await.env("CAPSTAN_MODEL", Dialect::Openai.model());
    for (name, value) in Dialect::Openai.environment(&wire.base_url) {
        site = site.env(name, &value);
    }
    let site = site.mcp(json!({"mcpServers": {"bank": {"url": url}}}));
    let server = site.start().await;
    let run = start_in(&server, &traceparent(), "pay").await;
    assert_eq!(server.finished(&run).await["status"], "completed");
    let to_provider: Vec<_> = wire.asked().iter().map(|asked| header(&asked.head, "traceparent")).collect();
    assert_eq!(to_provider.len(), 2);
    let sent = to_provider[0].clone().unwrap_or_default();
    assert!(sent.starts_with(&format!("00-{TRACE}-")) && sent.len() == traceparent().len(), "{sent}");
    assert_eq!(to_provider[1].as_ref(), Some(&sent));
    // So does the name of the program.
    let agents: Vec<_> = wire.asked().iter().map(|asked| header(&asked.head, "user-agent").unwrap_or_default()).collect();
    assert!(agents.iter().all(|agent| agent.starts_with("capstan/")), "{agents:?}");
    assert_eq!(*seen.lock().unwrap(), std::slice::from_ref(&sent), "the header of the call");
    assert_eq!(*notes.lock().unwrap(), [json!(sent)], "the field of the protocol");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_keeps_its_trace_on_another_node() {
    let site = Site::new(Kind::Postgres).await.short_leases().env("CAPSTAN_LOG__FORMAT", "json");
    let mut first = site.start_with(&[("CAPSTAN_FAILPOINTS", "C07=kill@4")]).await;
    let run = start_in(&first, &traceparent(), "What is 17*23?").await;
    first.ended(Duration::from_secs(30)).await;
    lines_of(&first, &run, TRACE);
    let second = site.start().await;
    second.finished(&run).await;
    let found = all_lines_of(&second, &run, TRACE).await;
    for message in ["lease expired, run put back into the queue", "run ended"] {
        assert!(found.iter().any(|line| line == message), "{message} in {found:?}");
    }
}
