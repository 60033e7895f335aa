//! Malformed and hostile requests: each gets its documented error, and the server stays healthy.

use std::time::Duration;

use reqwest::Method;
use rstest::rstest;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::process::Command;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::frame::Frame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::{Data, OpCode};

use support::audit;
use support::database::Kind;
use support::server::{Server, Site};
use support::wait;
use support::ws::{Incoming, WsClient};

const MISSING_RUN: &str = "run_01980000000070008000000000000001";
const MISSING_CONVERSATION: &str = "conv_01980000000070008000000000000001";

/// Returns the status and the code of the answer, which must be a documented problem.
async fn problem(what: &str, answer: reqwest::Response) -> (u16, String) {
    let status = answer.status().as_u16();
    let kind = answer.headers().get("content-type").map(|kind| kind.to_str().unwrap().to_owned());
    let text = answer.text().await.unwrap();
    assert_eq!(kind.as_deref(), Some("application/problem+json"), "{what}: {status} {text}");
    let body: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(body["status"], status, "{what}: {body}");
    for field in ["type", "title", "detail", "code", "request_id"] {
        assert!(body[field].as_str().is_some_and(|value| !value.is_empty()), "{what}: {field} is missing in {body}");
    }
    assert!(body["retryable"].is_boolean(), "{what}: {body}");
    (status, body["code"].as_str().unwrap().to_owned())
}

async fn assert_unharmed(server: &mut Server, site: &Site) {
    assert!(!server.is_gone());
    let run = server.start_run(&json!({"input": "hello"})).await;
    assert_eq!(server.finished(run["id"].as_str().unwrap()).await["status"], "completed");
    let log = server.log_text();
    assert!(!log.contains("panicked"), "the log holds a panic");
    audit::assert_sound(&site.database).await;
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn bodies_and_ids_and_cursors(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) {
    let site = Site::new(kind).await;
    let mut server = site.start().await;
    let run = server.start_run(&json!({"input": "hello"})).await;
    let conversation = run["conversation_id"].as_str().unwrap().to_owned();
    let run = run["id"].as_str().unwrap().to_owned();
    server.finished(&run).await;

    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    let deep_input = format!(r#"{{"input":{deep}}}"#);
    let bodies: Vec<(&str, Vec<u8>, u16, &str)> = vec![
        ("half an object", b"{".to_vec(), 400, "invalid_request"),
        ("no body", Vec::new(), 400, "invalid_request"),
        ("not UTF-8", b"{\"input\":\"\xff\xfe\"}".to_vec(), 400, "invalid_request"),
        ("deep nesting", deep.into_bytes(), 400, "invalid_request"),
        ("deep nesting inside", deep_input.into_bytes(), 400, "invalid_request"),
        ("a number for a text", br#"{"input":5}"#.to_vec(), 400, "invalid_request"),
        ("an empty input", br#"{"input":""}"#.to_vec(), 400, "invalid_request"),
        ("an empty list", br#"{"input":[]}"#.to_vec(), 400, "invalid_request"),
        ("no input", b"{}".to_vec(), 400, "invalid_request"),
        ("an array", b"[]".to_vec(), 400, "invalid_request"),
        ("null", b"null".to_vec(), 400, "invalid_request"),
        ("an unknown part", br#"{"input":[{"type":"smell"}]}"#.to_vec(), 400, "invalid_request"),
        ("no such busy mode", br#"{"input":"x","on_busy":"fight"}"#.to_vec(), 400, "invalid_request"),
        ("no such model", br#"{"input":"x","model":"nobody/none"}"#.to_vec(), 400, "unknown_model"),
        ("a bad conversation id", br#"{"input":"x","conversation_id":"'; DROP TABLE runs; --"}"#.to_vec(), 400, "invalid_request"),
        ("10 MB", format!(r#"{{"input":"{}"}}"#, "x".repeat(10 << 20)).into_bytes(), 413, "payload_too_large"),
    ];
    for (what, body, status, code) in bodies {
        let answer = server.request(Method::POST, "/runs").header("content-type", "application/json").body(body).send().await;
        assert_eq!(problem(what, answer.unwrap()).await, (status, code.to_owned()), "{what}");
    }
    let answer = server.request(Method::POST, "/runs").header("content-type", "text/plain").body("{}").send().await.unwrap();
    assert_eq!(problem("plain text", answer).await, (415, "unsupported_media_type".to_owned()));
    let long_key = server.post("/runs", &json!({"input": "x"})).header("idempotency-key", "k".repeat(256)).send().await.unwrap();
    assert_eq!(problem("a long key", long_key).await, (400, "invalid_request".to_owned()));

    let gets: Vec<(String, u16, &str)> = vec![
        (format!("/runs/{MISSING_RUN}"), 404, "not_found"),
        ("/runs/nonsense".to_owned(), 404, "not_found"),
        ("/runs/%00%ff".to_owned(), 404, "not_found"),
        (format!("/runs/{MISSING_RUN}/events"), 404, "not_found"),
        (format!("/runs/{MISSING_RUN}/explain"), 404, "not_found"),
        (format!("/conversations/{MISSING_CONVERSATION}"), 404, "not_found"),
        (format!("/conversations/{MISSING_CONVERSATION}/messages"), 404, "not_found"),
        (format!("/conversations/{MISSING_CONVERSATION}/events"), 404, "not_found"),
        ("/no/such/path".to_owned(), 404, "not_found"),
        ("//no-such-page".to_owned(), 404, "not_found"),
        (format!("/runs/{run}/events?after=x"), 400, "invalid_cursor"),
        (format!("/runs/{run}/events?after=-1"), 400, "invalid_cursor"),
        (format!("/runs/{run}/events?after=99999999999999999999999"), 400, "invalid_cursor"),
        (format!("/runs/{run}/events?after=999999"), 410, "cursor_gone"),
        (format!("/runs/{run}/events?cursor=%F0%9F%92%A9"), 400, "invalid_cursor"),
        ("/conversations?cursor=@@@".to_owned(), 400, "invalid_cursor"),
        // The encoded cursors are U+0000, "abc", "zzz" and "-5".
        ("/conversations?cursor=AAAA".to_owned(), 400, "invalid_cursor"),
        ("/conversations?cursor=YWJj".to_owned(), 400, "invalid_cursor"),
        ("/conversations?cursor=".to_owned(), 400, "invalid_cursor"),
        (format!("/conversations/{conversation}/messages?cursor=AAAA"), 400, "invalid_cursor"),
        (format!("/conversations/{conversation}/messages?cursor=enp6"), 400, "invalid_cursor"),
        (format!("/conversations/{conversation}/messages?cursor=LTU"), 400, "invalid_cursor"),
        ("/conversations?limit=0".to_owned(), 400, "invalid_request"),
        ("/conversations?limit=101".to_owned(), 400, "invalid_request"),
        ("/conversations?limit=ten".to_owned(), 400, "invalid_request"),
    ];
    for (path, status, code) in gets {
        let answer = server.get(&path).send().await.unwrap();
        assert_eq!(problem(&path, answer).await, (status, code.to_owned()), "{path}");
    }
    let answer = server.request(Method::DELETE, "/runs").send().await.unwrap();
    assert_eq!(problem("a wrong method", answer).await, (405, "method_not_allowed".to_owned()));
    let answer = server.get("/conversations").header("host", "evil.example").send().await.unwrap();
    assert_eq!(problem("a foreign host", answer).await, (421, "misdirected_request".to_owned()));
    let answer = server.get(&format!("/runs/{run}/events")).header("accept", "text/event-stream").header("last-event-id", "x");
    assert_eq!(problem("a bad cursor", answer.send().await.unwrap()).await, (400, "invalid_cursor".to_owned()));
    let path = format!("/conversations/{MISSING_CONVERSATION}/messages");
    let answer = server.post(&path, &json!({"content": "x"})).send().await.unwrap();
    assert_eq!(problem("a missing conversation", answer).await, (404, "not_found".to_owned()));
    for action in ["cancel", "resume"] {
        let answer = server.post(&format!("/runs/{MISSING_RUN}/{action}"), &json!({})).send().await.unwrap();
        assert_eq!(problem(action, answer).await, (404, "not_found".to_owned()));
    }
    let answer = server.post(&format!("/runs/{run}/resume"), &json!({})).send().await.unwrap();
    assert_eq!(problem("resume of a finished run", answer).await, (409, "conflict".to_owned()));
    assert_unharmed(&mut server, &site).await;
}

/// U+0000 is legal JSON, but Postgres cannot store it.
#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_null_character_is_no_accident(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) {
    let site = Site::new(kind).await;
    let mut server = site.start().await;
    let (status, answer) = server.post_json("/runs", &json!({"input": "a\u{0}b"})).await;
    assert!(status == 202 || status == 400, "{status} {answer}");
    if status == 202 {
        assert_eq!(server.finished(answer["run"]["id"].as_str().unwrap()).await["status"], "completed");
    }
    let (status, answer) = server.post_json("/conversations", &json!({"title": "a\u{0}b"})).await;
    assert!(status.is_success() || status == 400, "{status} {answer}");
    for query in ["/conversations?q=%00", "/conversations?query=%00", "/conversations?cursor=%00"] {
        let status = server.get(query).send().await.unwrap().status();
        assert!(!status.is_server_error(), "{query}: {status}");
    }
    assert_unharmed(&mut server, &site).await;
}

/// W-20: streams of HTTP/2 that are opened and reset as fast as they can be written ("rapid reset", CVE-2023-44487).
#[tokio::test(flavor = "multi_thread")]
async fn streams_that_are_reset_at_once_end_their_connection_alone() {
    /// Returns a frame as in RFC 9113, section 4.1.
    fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
    }
    let site = Site::new(Kind::Sqlite).await;
    let server = site.start().await;
    let address = server.url.strip_prefix("http://").unwrap().to_owned();
    let mut connection = tokio::net::TcpStream::connect(&address).await.unwrap();
    // Method GET, scheme http and path / as indexed fields of RFC 7541, appendix A, then the authority.
    let mut head = vec![0x82, 0x86, 0x84, 0x41, u8::try_from(address.len()).unwrap()];
    head.extend_from_slice(address.as_bytes());
    let mut flood = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    flood.extend(frame(4, 0, 0, &[]));
    for stream in (1_u32..).step_by(2).take(5_000) {
        // HEADERS that end head and stream, then RST_STREAM with CANCEL.
        flood.extend(frame(1, 0x05, stream, &head));
        flood.extend(frame(3, 0, stream, &8_u32.to_be_bytes()));
    }
    // The server may close the connection during the write.
    let _ = connection.write_all(&flood).await;
    let mut answer = Vec::new();
    let read = tokio::time::timeout(Duration::from_secs(20), connection.read_to_end(&mut answer)).await;
    assert!(read.is_ok(), "the connection stays open after {} bytes of answers", answer.len());
    let run = server.start_run(&json!({"input": "hello"})).await;
    assert_eq!(server.finished(run["id"].as_str().unwrap()).await["status"], "completed");
}

/// Returns the code with which the server closes a WebSocket after these raw bytes, or `None` if it closes without one.
async fn closed_after(url: &str, frame: &[u8]) -> Option<u16> {
    let address = url.strip_prefix("http://").unwrap();
    let mut socket = TcpStream::connect(address).await.unwrap();
    let hello = format!(
        "GET /api/v1/ws HTTP/1.1\r\nhost: {address}\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
         sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\nsec-websocket-extensions: permessage-deflate\r\n\r\n"
    );
    socket.write_all(hello.as_bytes()).await.unwrap();
    socket.write_all(frame).await.unwrap();
    let mut received = Vec::new();
    // The end may arrive as a reset.
    let _ = wait::within("the end", Duration::from_secs(20), socket.read_to_end(&mut received)).await;
    let head = received.windows(4).position(|bytes| bytes == b"\r\n\r\n").unwrap() + 4;
    // The server accepts no compression, so decompression bombs are impossible.
    assert!(!String::from_utf8_lossy(&received[..head]).to_lowercase().contains("deflate"));
    match &received[head..] {
        [0x88, _length, high, low, ..] => Some(u16::from_be_bytes([*high, *low])),
        _ => None,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn web_socket_frames() {
    let site = Site::new(Kind::Sqlite).await;
    let mut server = site.start().await;
    let run = server.start_run(&json!({"input": "hello"})).await;
    let run = run["id"].as_str().unwrap().to_owned();
    server.finished(&run).await;
    let mut socket = WsClient::connect(&server.url, None).await;
    let deep = "[".repeat(50_000);
    let wrong = ["{", "", "null", "[]", "5", r#"{"id":1}"#, r#"{"id":2,"method":5}"#, deep.as_str()];
    for frame in wrong {
        socket.send_text(frame).await;
        let Incoming::Text(answer) = socket.next().await else { panic!("the socket closed after {frame:.40}") };
        let answer: Value = serde_json::from_str(&answer).unwrap();
        assert_eq!(answer["error"]["code"], "invalid_request", "{frame:.40}: {answer}");
    }
    let calls = [
        ("no.such.method", json!({}), "invalid_request"),
        ("subscribe", json!({}), "invalid_request"),
        ("subscribe", json!({"run_id": 5}), "invalid_request"),
        ("subscribe", json!({"run_id": MISSING_RUN}), "not_found"),
        ("subscribe", json!({"run_id": "nonsense"}), "invalid_request"),
        ("subscribe", json!({"conversation_id": MISSING_CONVERSATION}), "not_found"),
        ("subscribe", json!({"run_id": run, "after": -1}), "invalid_cursor"),
        ("run.start", json!({"input": 5}), "invalid_request"),
        ("run.cancel", json!({"run_id": MISSING_RUN}), "not_found"),
    ];
    for (method, params, code) in calls {
        let answer = socket.call(method, params.clone()).await;
        assert_eq!(answer["error"]["code"], code, "{method} {params}: {answer}");
    }
    // The socket still works after all these messages.
    assert!(socket.call("ping", json!({})).await.get("result").is_some());
    let started = socket.call("run.start", json!({"input": "hello again"})).await;
    assert!(started.get("error").is_none(), "{started}");
    let (events, ended) = socket.events(usize::MAX).await;
    assert!(ended && events.len() > 5, "{events:#?}");

    // A frame over the limit closes the socket with its code, and nothing else.
    let mut big = WsClient::connect(&server.url, None).await;
    // The server may close the connection during the write.
    if big.send(Message::text("x".repeat(8 << 20))).await {
        let end = big.next().await;
        assert!(matches!(end, Incoming::Closed(Some(1009)) | Incoming::Broken), "{end:?}");
    }
    assert!(socket.call("ping", json!({})).await.get("result").is_some());

    // Frames that no client library sends. The first bytes are flags and length, and frames of clients are masked.
    let masked = |first: u8, payload: &[u8]| [&[first, 0x80 | u8::try_from(payload.len()).unwrap(), 0, 0, 0, 0], payload].concat();
    let long_ping = [&[0x89, 0xfe, 0, 126, 0, 0, 0, 0], [b'x'; 126].as_slice()].concat();
    let broken = [
        ("not masked", vec![0x81, 2, b'h', b'i'], 1002),
        ("a reserved bit", masked(0xc1, b"hi"), 1002),
        ("a reserved kind", masked(0x83, b"hi"), 1002),
        ("a piece of nothing", masked(0x80, b"hi"), 1002),
        ("a long ping", long_ping, 1002),
        ("half a close code", masked(0x88, b"x"), 1002),
        ("no UTF-8", masked(0x81, &[0xff, 0xfe]), 1007),
        // The server refuses the announced length without waiting for the data.
        ("a hundred MiB", [&[0x81, 0xff], (100_u64 << 20).to_be_bytes().as_slice(), &[0; 4]].concat(), 1009),
    ];
    for (what, frame, code) in broken {
        assert_eq!(closed_after(&server.url, &frame).await, Some(code), "{what}");
    }
    // A close frame is answered with its own code.
    assert_eq!(closed_after(&server.url, &masked(0x88, &1000_u16.to_be_bytes())).await, Some(1000));

    // A fragmented message is one message, also with many pings in between.
    let pieces =
        [(r#"{"id":"whole","#, Data::Text, false), (r#""method":"pi"#, Data::Continue, false), (r#"ng"}"#, Data::Continue, true)];
    for (piece, kind, is_last) in pieces {
        assert!(socket.send(Message::Frame(Frame::message(piece, OpCode::Data(kind), is_last))).await);
    }
    let Incoming::Text(answer) = socket.next().await else { panic!("the socket closed after a message in pieces") };
    assert!(answer.contains("whole") && answer.contains("result"), "{answer}");
    for _ in 0..10_000 {
        assert!(socket.send(Message::Ping("flood".into())).await);
    }
    assert!(socket.call("ping", json!({})).await.get("result").is_some());
    assert_unharmed(&mut server, &site).await;
}

/// The operations whose status depends on another server: an unreachable provider is a documented 502. A 500 or 503 is still a
/// failure.
const ASKS_OTHERS: &str = r#"
[[operations]]
include-operation-id = "list_provider_models"
checks.not_a_server_error.expected-statuses = ["2xx", "3xx", "4xx", "502", "504"]
"#;

/// Returns a place whose servers reach no provider: no process listens at their proxy.
async fn site_without_providers(kind: Kind) -> Site {
    let unreachable = "http://127.0.0.1:1";
    Site::new(kind).await.env("HTTP_PROXY", unreachable).env("HTTPS_PROXY", unreachable)
}

/// Runs schemathesis with a document that the server serves. Fails if it finds a fault, or if the server has failed after it.
async fn run_schemathesis(site: &Site, server: &mut Server, document: &str, arguments: &[&str]) {
    let folder = super::mcp_servers::installed().await;
    let config = site.folder.path().join("schemathesis.toml");
    std::fs::write(&config, ASKS_OTHERS).unwrap();
    let mut command = Command::new(folder.join("venv-openapi/bin/schemathesis"));
    command.arg("--config-file").arg(&config);
    command.args(["run", &format!("{}{document}", server.url), "--url", &server.url]);
    command.args(["--phases", "examples,coverage,fuzzing", "--max-examples", "4", "--seed", "1", "--request-timeout", "10"]);
    // On a busy machine, large documents are generated slowly.
    command.args(["--suppress-health-check", "too_slow"]);
    let checks = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance";
    command.args(["--checks", checks, "--warnings", "off", "--no-color", "--generation-database", "none"]);
    command.args(arguments).current_dir(site.folder.path()).kill_on_drop(true);
    let output = wait::within("schemathesis", Duration::from_secs(570), command.output()).await.unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
    assert!(!server.is_gone());
    let run = server.start_run(&json!({"input": "hello"})).await;
    assert_eq!(server.finished(run["id"].as_str().unwrap()).await["status"], "completed");
}

/// schemathesis tests the served OpenAPI document and finds nothing undocumented. It plays an administrator on a server without
/// keys, and a member on a server with keys. The member sends valid requests only: the server refuses invalid ones before it calls
/// the store, with the same code on both databases.
#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn schemathesis_finds_nothing(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) {
    let site = site_without_providers(kind).await;
    let key = if kind == Kind::Postgres { Some(site.key_of("ada").await) } else { None };
    let mut server = site.start().await;
    if let Some(key) = &key {
        server.set_key(key);
    }
    let run = server.start_run(&json!({"input": "hello"})).await;
    server.finished(run["id"].as_str().unwrap()).await;
    let header = key.map(|key| format!("Authorization: Bearer {key}"));
    // It would find its own key in the list.
    let member =
        header.iter().flat_map(|header| ["--mode", "positive", "--exclude-operation-id", "revoke_api_key", "--header", header]);
    run_schemathesis(&site, &mut server, "/openapi.json", &member.collect::<Vec<_>>()).await;
}

/// schemathesis tests the routes of the other protocols.
#[tokio::test(flavor = "multi_thread")]
async fn schemathesis_finds_nothing_in_other_protocols() {
    let site = site_without_providers(Kind::Sqlite).await;
    let mut server = site.start().await;
    run_schemathesis(&site, &mut server, "/openapi/protocols.json", &[]).await;
}
