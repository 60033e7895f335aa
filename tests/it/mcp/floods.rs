//! Remote answers that never end, or are larger than they seem.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Json;
use axum::body::Body;
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use bytes::Bytes;
use capstan::domain::tool::{ToolCallState, ToolOutcome};
use capstan::support::clock::SystemClock;
use capstan::support::net::egress::EgressScope;
use capstan::tools::{CallControl, ToolExecutor, ToolExecutorOptions, Toolbox as _};
use futures_util::{StreamExt as _, stream};
use rstest::rstest;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use support::mcp::{Tools, owner, text};
use support::wait;

/// The time limit of each test.
const PATIENCE: Duration = Duration::from_secs(30);

/// The kind of hostile answer.
#[derive(Debug, Clone, Copy)]
enum Flood {
    /// Compressed text that expands a thousandfold and never ends.
    Bomb,
    /// The same within one event of a stream.
    Event,
    /// A byte now and then, without end.
    Drip,
    /// Headers beyond the limit.
    Headers,
}

/// Returns endless gzip data: `beginning`, and then one letter repeated.
fn bomb(beginning: &str) -> Body {
    // The gzip header, then a stored block. Then the start of a block with fixed codes: the letter `a`, and a repetition of
    // length 258.
    let mut head = vec![0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255, 0];
    let length = u16::try_from(beginning.len()).unwrap();
    head.extend(length.to_le_bytes());
    head.extend((!length).to_le_bytes());
    head.extend(beginning.as_bytes());
    let repeat = [1, 1, 0, 0, 0, 1, 0, 1, 0, 0, 0, 0, 0];
    let letter = [0, 1, 0, 1, 0, 0, 1, 0, 0, 0, 1];
    head.extend(packed(&[&letter[..], &repeat].concat()));
    // Eight repetitions end at a byte boundary.
    let more = Bytes::from(packed(&repeat.repeat(8 * 1_000)));
    let chunks = stream::iter([Bytes::from(head)]).chain(stream::repeat(more));
    Body::from_stream(chunks.map(Ok::<_, Infallible>))
}

/// Packs bits as in deflate: the first bit is the lowest of its byte.
fn packed(bits: &[u8]) -> Vec<u8> {
    bits.chunks(8).map(|bits| bits.iter().rev().fold(0, |byte, bit| (byte << 1) | bit)).collect()
}

/// Returns an endless answer whose content starts with `beginning`.
fn answer(flood: Flood, kind: &'static str, beginning: &str) -> Response {
    let kind = (header::CONTENT_TYPE, HeaderValue::from_static(kind));
    let gzip = (header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    match flood {
        Flood::Bomb => ([kind, gzip], bomb(beginning)).into_response(),
        Flood::Event => {
            let stream = (header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
            ([stream, gzip], bomb(&format!("data: {beginning}"))).into_response()
        }
        Flood::Drip => {
            let first = stream::iter([Bytes::from(beginning.to_owned())]);
            let drops = stream::unfold(tokio::time::interval(Duration::from_millis(20)), |mut clock| async move {
                clock.tick().await;
                Some((Bytes::from_static(b"a"), clock))
            });
            ([kind], Body::from_stream(first.chain(drops).map(Ok::<_, Infallible>))).into_response()
        }
        Flood::Headers => {
            let mut response = ([kind], "here").into_response();
            for n in 0..1_100 {
                let name = HeaderName::try_from(format!("x-header-{n}")).unwrap();
                response.headers_mut().insert(name, HeaderValue::from_static("x"));
            }
            response
        }
    }
}

async fn serving(app: axum::Router) -> (String, JoinSet<std::io::Result<()>>) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let base = format!("http://{}", listener.local_addr().unwrap());
    let mut serving = JoinSet::new();
    serving.spawn(async move { axum::serve(listener, app).await });
    (base, serving)
}

async fn fetched(flood: Flood) -> ToolOutcome {
    let (base, _serving) =
        serving(axum::Router::new().route("/", get(move || async move { answer(flood, "text/plain", "It begins ") }))).await;
    let enabled = vec!["http_fetch".to_owned()];
    let options = ToolExecutorOptions::new(std::env::temp_dir(), Arc::new(SystemClock));
    let door = ToolExecutor::new(ToolExecutorOptions { enabled, egress: EgressScope::Anywhere, ..options });
    let definitions = door.definitions(&owner()).await;
    let tool = definitions.iter().find(|tool| tool.name == "http_fetch").unwrap();
    let (progress, _reports) = mpsc::channel(1);
    let call = support::mcp::call(tool, json!({"url": base}));
    let control = CallControl { timeout: Duration::from_secs(2), progress, permit: CancellationToken::new().into() };
    wait::within("the page", PATIENCE, door.execute(&owner(), tool, &call, control)).await
}

/// S-14.
#[tokio::test(flavor = "multi_thread")]
async fn a_page_that_is_packed_is_measured_unpacked() {
    let outcome = fetched(Flood::Bomb).await;
    let said = text(&outcome);
    assert_eq!(outcome.state, ToolCallState::Done, "{}", &said[..said.len().min(300)]);
    assert!(said.contains("It begins aaaa") && said.ends_with("bytes are shown]"), "{}", &said[said.len() - 100..]);
    assert!(said.len() < 1024 * 1024 + 200, "{} bytes", said.len());
}

/// S-14.
#[rstest]
#[case(Flood::Drip, "did not finish within")]
#[case(Flood::Headers, "error")]
#[tokio::test(flavor = "multi_thread")]
async fn a_page_that_never_ends_is_given_up(#[case] flood: Flood, #[case] reason: &str) {
    let outcome = fetched(flood).await;
    assert_eq!(outcome.state, ToolCallState::Failed, "{outcome:?}");
    assert!(text(&outcome).contains(reason), "{outcome:?}");
}

/// S-14: the outcome of the call is unknown, the next call works, and memory and time are limited.
#[rstest]
#[case(Flood::Bomb)]
#[case(Flood::Event)]
#[case(Flood::Drip)]
#[case(Flood::Headers)]
#[tokio::test(flavor = "multi_thread")]
async fn an_mcp_server_that_floods_takes_neither_memory_nor_time(#[case] flood: Flood) {
    let calls = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&calls);
    let respond = move |Json(request): Json<Value>| async move {
        let result = match request["method"].as_str().unwrap_or_default() {
            "initialize" => json!({
                "protocolVersion": request["params"]["protocolVersion"], "capabilities": {"tools": {}},
                "serverInfo": {"name": "flood", "version": "1"},
            }),
            "tools/list" => json!({"tools": [{"name": "pay", "description": "pays", "inputSchema": {"type": "object"}}]}),
            "tools/call" if count.fetch_add(1, Ordering::SeqCst) == 0 => {
                let beginning =
                    format!(r#"{{"jsonrpc":"2.0","id":{},"result":{{"content":[{{"type":"text","text":"It begins "#, request["id"]);
                return answer(flood, "application/json", &beginning);
            }
            "tools/call" => json!({"content": [{"type": "text", "text": "paid"}]}),
            "ping" => json!({}),
            _ => return StatusCode::ACCEPTED.into_response(),
        };
        Json(json!({"jsonrpc": "2.0", "id": request["id"], "result": result})).into_response()
    };
    let (base, _serving) = serving(axum::Router::new().route("/mcp", axum::routing::post(respond))).await;
    let tools = Tools::new(&json!({"bank": {"url": format!("{base}/mcp"), "capstan": {"timeout": "4s"}}})).await;
    let before = peak_kib();
    let outcome = wait::within("the end of the call", PATIENCE, tools.call("bank__pay", json!({}))).await;
    assert_eq!(outcome.state, ToolCallState::Unknown, "{outcome:?}");
    assert!(text(&outcome).len() < 2_000, "the received text is not shown: {} bytes", text(&outcome).len());
    let next = wait::within("the next call", PATIENCE, tools.call("bank__pay", json!({}))).await;
    assert_eq!((text(&next).as_str(), calls.load(Ordering::SeqCst)), ("paid", 2));
    // 16 MiB of it are read, into buffers that double in size.
    assert!(peak_kib() - before < 200 * 1024, "{} KiB more", peak_kib() - before);
    tools.door.shutdown().await;
}

/// Returns the peak memory of this process, where it is available.
fn peak_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap_or("0");
    line.trim().trim_end_matches("kB").trim().parse().unwrap_or(0)
}
