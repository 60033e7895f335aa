//! The WebSocket transport.

use std::time::Duration;

use axum::http::StatusCode;
use base64::Engine as _;
use capstan::http::HttpLimits;
use futures_util::{SinkExt as _, StreamExt as _};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;
use tokio_tungstenite::tungstenite::{Error, Message};
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream, connect_async};

use super::rig::{Keys, Rig, SOON, text};

pub struct Socket(WebSocketStream<MaybeTlsStream<TcpStream>>);

/// Opens a socket. Returns the status if the handshake is refused.
pub async fn connect(address: &str, headers: &[(&str, &str)]) -> Result<Socket, StatusCode> {
    connect_with(address, "", headers).await
}

/// Opens a socket with a query in its URL.
pub async fn connect_with(address: &str, query: &str, headers: &[(&str, &str)]) -> Result<Socket, StatusCode> {
    connect_to(address, &format!("/api/v1/ws{query}"), headers).await
}

/// Opens a socket with this path.
pub async fn connect_to(address: &str, path: &str, headers: &[(&str, &str)]) -> Result<Socket, StatusCode> {
    let mut request = format!("ws://{address}{path}").into_client_request().unwrap();
    for (name, value) in headers {
        let name: axum::http::HeaderName = name.parse().unwrap();
        request.headers_mut().insert(name, value.parse().unwrap());
    }
    match connect_async(request).await {
        Ok((socket, _)) => Ok(Socket(socket)),
        Err(Error::Http(response)) => Err(response.status()),
        Err(error) => panic!("{error}"),
    }
}

impl Socket {
    pub async fn send(&mut self, text: impl Into<String>) {
        self.0.send(Message::text(text.into())).await.unwrap();
    }

    pub async fn next(&mut self) -> Result<Value, u16> {
        loop {
            match tokio::time::timeout(SOON, self.0.next()).await.expect("something comes") {
                Some(Ok(Message::Text(text))) => return Ok(serde_json::from_str(&text).unwrap()),
                Some(Ok(Message::Close(Some(frame)))) => return Err(frame.code.into()),
                Some(Ok(Message::Ping(_) | Message::Pong(_))) => {}
                other => panic!("{other:?}"),
            }
        }
    }

    pub async fn call(&mut self, method: &str, params: Value) -> Value {
        self.send(json!({"id": method, "method": method, "params": params}).to_string()).await;
        let reply = self.next().await.unwrap();
        assert_eq!(reply["id"], method, "{reply}");
        reply
    }

    /// Returns the envelopes up to the first of this kind, inclusive.
    async fn until(&mut self, kind: &str) -> Vec<Value> {
        let mut envelopes = Vec::new();
        loop {
            envelopes.push(self.next().await.unwrap());
            if envelopes.last().unwrap()["type"] == kind {
                return envelopes;
            }
        }
    }
}

/// W-17.
#[tokio::test]
async fn a_run_is_started_followed_and_followed_again() {
    let mut rig = Rig::new().await;
    let address = rig.listen().await;
    let mut socket = connect(&address, &[]).await.unwrap();
    let started = socket.call("run.start", json!({"input": "hello", "idempotency_key": "k"})).await;
    let run = text(&started["result"]["run"]["id"]);
    rig.play().await;
    let seen = socket.until("stream.end").await;
    let logged = rig.get(&format!("/api/v1/runs/{run}/events?limit=100")).await.json()["data"].as_array().unwrap().clone();
    assert_eq!(seen[..seen.len() - 1], logged);

    // Cut after every event.
    let mut pieces = Vec::new();
    for after in 0..logged.len() {
        let mut socket = connect(&address, &[]).await.unwrap();
        let after = if after == 0 { 0 } else { logged[after - 1]["seq"].as_i64().unwrap() };
        socket.call("subscribe", json!({"run_id": run, "after": after})).await;
        pieces.push(socket.next().await.unwrap());
    }
    assert_eq!(pieces, logged);
    let last = logged.last().unwrap()["seq"].clone();
    let reply = socket.call("subscribe", json!({"run_id": run, "after": last})).await;
    assert_eq!(reply["result"]["head"], last);
    assert_eq!(socket.next().await.unwrap()["type"], "stream.end");

    // The repeated command, also over the other transport.
    let again = socket.call("run.start", json!({"input": "hello", "idempotency_key": "k"})).await;
    assert_eq!((&again["result"]["run"]["id"], &again["result"]["replayed"]), (&json!(run), &json!(true)));
    socket.until("stream.end").await;
    let headers = [("idempotency-key", "k")];
    let over_http = rig.send(axum::http::Method::POST, "/api/v1/runs", &headers, Some(json!({"input": "hello"}))).await;
    assert_eq!(over_http.header("idempotent-replayed"), "true", "{}", over_http.body);
}

#[tokio::test]
async fn socket_follows_several_subscriptions() {
    let mut rig = Rig::new().await;
    let address = rig.listen().await;
    let mut socket = connect(&address, &[]).await.unwrap();
    let (first, _) = rig.start("one").await;
    let (second, run) = rig.start("two").await;
    let reply = socket.call("subscribe", json!({"conversation_id": first})).await;
    assert_eq!(reply["result"]["conversation_id"], first.as_str());
    assert_eq!(socket.next().await.unwrap()["type"], "stream.snapshot");
    socket.call("subscribe", json!({"run_id": run})).await;
    rig.play().await;
    rig.play().await;
    let seen = socket.until("stream.end").await;
    for conversation in [&first, &second] {
        let seqs: Vec<_> =
            seen.iter().filter(|e| e["conversation_id"] == conversation.as_str()).filter_map(|e| e["seq"].as_i64()).collect();
        assert!(seqs.len() > 5 && seqs.windows(2).all(|pair| pair[0] < pair[1]), "{seqs:?}");
    }
    let gone = socket.call("unsubscribe", json!({"conversation_id": first})).await;
    assert_eq!(gone["result"]["unsubscribed"], true);
    let reset = socket.call("subscribe", json!({"conversation_id": first, "after": 999})).await;
    assert_eq!(reset["result"]["head"], 14);
    assert_eq!(socket.next().await.unwrap()["type"], "stream.reset");
    assert_eq!(socket.next().await.unwrap()["type"], "stream.snapshot");
    let reset = socket.call("subscribe", json!({"run_id": run, "after": 999})).await;
    assert_eq!(reset["result"]["head"], 14);
    socket.until("stream.end").await;
    let cancelled = socket.call("run.cancel", json!({"run_id": run})).await;
    assert_eq!(cancelled["result"]["run"]["status"], "completed");
}

#[tokio::test]
async fn existing_subscription_is_not_restarted() {
    let mut rig = Rig::new().await;
    let address = rig.listen().await;
    let (conversation, run) = rig.start("hello").await;
    let fence = rig.claim().await;
    let act = rig.play_half(&fence).await;
    let mut socket = connect(&address, &[]).await.unwrap();
    // Both requests are stored before the first event can be read.
    let joining = json!({"input": "more", "conversation_id": conversation, "on_busy": "steer"});
    for (method, params) in [("subscribe", json!({"run_id": run})), ("run.start", joining)] {
        let frame = json!({"id": method, "method": method, "params": params}).to_string();
        socket.0.feed(Message::text(frame)).await.unwrap();
    }
    socket.0.flush().await.unwrap();
    let mut seen = Vec::new();
    let mut replies = Vec::new();
    while replies.len() < 2 || seen.len() < 2 {
        let value = socket.next().await.unwrap();
        if value.get("type").is_some() { seen.push(value) } else { replies.push(value) }
    }
    assert_eq!(replies[1]["result"]["run"]["id"], run.as_str(), "the message joined the run: {replies:?}");
    socket.send(json!({"id": "again", "method": "subscribe", "params": {"run_id": run}}).to_string()).await;
    loop {
        let value = socket.next().await.unwrap();
        if value.get("type").is_none() {
            assert_eq!((&value["id"], &value["result"]["run_id"]), (&json!("again"), &json!(run)));
            break;
        }
        seen.push(value);
    }
    rig.play_rest(&fence, act).await;
    seen.extend(socket.until("stream.end").await);
    let logged = rig.get(&format!("/api/v1/runs/{run}/events?limit=100")).await.json()["data"].as_array().unwrap().clone();
    assert_eq!(seen[..seen.len() - 1], logged);

    // With a cursor the stream restarts at that position.
    let (_, run) = rig.start("again").await;
    for _ in 0..2 {
        socket.call("subscribe", json!({"run_id": run, "after": 0})).await;
        assert_eq!(socket.next().await.unwrap()["type"], "message.created");
        while socket.next().await.unwrap()["type"] != "run.queued" {}
    }
}

#[tokio::test]
async fn a_deleted_conversation_says_so_to_its_subscribers() {
    let mut rig = Rig::new().await;
    let address = rig.listen().await;
    let (conversation, run) = rig.start("hello").await;
    let mut socket = connect(&address, &[]).await.unwrap();
    socket.call("subscribe", json!({"run_id": run, "after": 3})).await;
    socket.call("subscribe", json!({"conversation_id": conversation, "after": 3})).await;
    rig.send(axum::http::Method::DELETE, &format!("/api/v1/conversations/{conversation}"), &[], None).await;
    let mut ends = vec![socket.next().await.unwrap(), socket.next().await.unwrap()];
    ends.sort_by_key(|end| end["run_id"].is_null());
    assert_eq!(ends[0]["run_id"], run.as_str());
    for end in ends {
        assert_eq!((&end["type"], &end["data"]), (&json!("stream.end"), &json!({"last_seq": 3, "reason": "deleted"})));
    }
    for target in [json!({"run_id": run}), json!({"conversation_id": conversation})] {
        assert_eq!(socket.call("unsubscribe", target.clone()).await["result"]["unsubscribed"], false);
        assert_eq!(socket.call("subscribe", target).await["error"]["code"], "not_found");
    }
}

#[tokio::test]
async fn a_socket_without_room_starts_no_run() {
    let limits = HttpLimits { ws_max_subscriptions: 1, ..HttpLimits::default() };
    let mut rig = Rig::with(limits, |_| {}, Keys::None).await;
    let address = rig.listen().await;
    let (conversation, run) = rig.start("hello").await;
    let mut socket = connect(&address, &[]).await.unwrap();
    socket.call("subscribe", json!({"conversation_id": conversation, "after": 3})).await;
    for (method, params) in [("run.start", json!({"input": "one too many"})), ("subscribe", json!({"run_id": run}))] {
        assert_eq!(socket.call(method, params).await["error"]["code"], "too_many_requests", "{method}");
    }
    let made = rig.get("/api/v1/conversations?q=too%20many").await.json();
    assert_eq!(made["data"], json!([]));
    socket.call("unsubscribe", json!({"conversation_id": conversation})).await;
    let started = socket.call("run.start", json!({"input": "one too many"})).await;
    assert!(started["result"]["run"]["id"].is_string(), "{started}");
}

#[tokio::test]
async fn invalid_frame_is_answered_and_the_socket_stays_open() {
    let mut rig = Rig::new().await;
    let address = rig.listen().await;
    let mut socket = connect(&address, &[]).await.unwrap();
    for (sent, id, code) in [
        ("{", Value::Null, "invalid_request"),
        ("[1]", Value::Null, "invalid_request"),
        (r#"{"id":7,"method":"explode"}"#, json!(7), "invalid_request"),
        (r#"{"id":"a","method":"subscribe"}"#, json!("a"), "invalid_request"),
        (r#"{"id":1,"method":"subscribe","params":{"run_id":"x"}}"#, json!(1), "invalid_request"),
        (r#"{"id":1,"method":"subscribe","params":{"run_id":"run_01980000000070008000000000000001"}}"#, json!(1), "not_found"),
        (r#"{"id":1,"method":"run.start","params":{"input":""}}"#, json!(1), "invalid_request"),
        (r#"{"id":1,"method":"run.start","params":{"input":"a","model":"x/y"}}"#, json!(1), "unknown_model"),
        (r#"{"id":1,"method":"run.start","params":{"input":"a","model":"demo/\u0000"}}"#, json!(1), "invalid_request"),
        (r#"{"id":1,"method":"run.start","params":{"input":"a","idempotency_key":"\u0000"}}"#, json!(1), "invalid_request"),
        (r#"{"id":1,"method":"run.cancel","params":{"run_id":"run_01980000000070008000000000000001"}}"#, json!(1), "not_found"),
        (
            r#"{"id":1,"method":"approval.resolve","params":{"id":"input_01980000000070008000000000000009","decision":"allow"}}"#,
            json!(1),
            "not_found",
        ),
        (r#"{"id":1,"method":"input.resolve"}"#, json!(1), "invalid_request"),
    ] {
        socket.send(sent).await;
        let reply = socket.next().await.unwrap();
        assert_eq!((&reply["id"], &reply["error"]["code"]), (&id, &json!(code)), "{sent}: {reply}");
        assert!(reply["error"]["request_id"].as_str().unwrap().starts_with("req_"));
    }
    let (_, run) = rig.start("a").await;
    let reply = socket.call("subscribe", json!({"run_id": run, "after": -1})).await;
    assert_eq!(reply["error"]["code"], "invalid_cursor");
    socket.0.send(Message::binary(vec![0, 159, 146, 150])).await.unwrap();
    assert_eq!(socket.next().await.unwrap()["error"]["code"], "invalid_request");
    assert!(socket.call("ping", json!({})).await["result"]["at"].is_string());
}

/// W-16.
#[tokio::test]
async fn abuse_closes_the_socket() {
    let mut rig = Rig::new().await;
    let address = rig.listen().await;
    let mut socket = connect(&address, &[]).await.unwrap();
    for _ in 0..21 {
        socket.send("nonsense").await;
    }
    let code = loop {
        if let Err(code) = socket.next().await {
            break code;
        }
    };
    assert_eq!(code, 4400);
    for size in [1024 * 1024 + 1, 3 * 1024 * 1024] {
        let mut socket = connect(&address, &[]).await.unwrap();
        // The server may close the connection while the message is sent.
        let _ = socket.0.send(Message::text("x".repeat(size))).await;
        assert_eq!(socket.next().await, Err(1009), "{size}");
    }
    let mut socket = connect(&address, &[]).await.unwrap();
    assert!(socket.call("ping", json!({})).await["result"].is_object(), "the server is unharmed");
}

#[tokio::test]
async fn a_restart_closes_sockets_with_a_reason() {
    let mut rig = Rig::new().await;
    let address = rig.listen().await;
    let mut socket = connect(&address, &[]).await.unwrap();
    socket.call("ping", json!({})).await;
    rig.shutdown.cancel();
    assert_eq!(socket.next().await, Err(1012));
}

#[tokio::test]
async fn a_silent_peer_is_left() {
    // Silence is noticed at its deadline, not at the next ping.
    let limits =
        HttpLimits { ws_ping: Duration::from_secs(3_600), ws_silence: Duration::from_millis(100), ..HttpLimits::default() };
    let mut rig = Rig::with(limits, |_| {}, Keys::None).await;
    let address = rig.listen().await;
    // A manual handshake, after which the client sends nothing.
    let mut silent = TcpStream::connect(&address).await.unwrap();
    let hello = format!(
        "GET /api/v1/ws HTTP/1.1\r\nhost: {address}\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
         sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    );
    tokio::io::AsyncWriteExt::write_all(&mut silent, hello.as_bytes()).await.unwrap();
    let mut received = Vec::new();
    let reading = tokio::io::AsyncReadExt::read_to_end(&mut silent, &mut received);
    // The end may arrive as a reset.
    let _ = tokio::time::timeout(SOON, reading).await.expect("the server ends the connection");
    assert!(received.starts_with(b"HTTP/1.1 101"), "{}", String::from_utf8_lossy(&received));
}

#[tokio::test]
async fn socket_needs_a_key_or_ticket() {
    let limits = HttpLimits { ws_auth_timeout: Duration::from_secs(2), ws_max_per_principal: 2, ..HttpLimits::default() };
    let mut rig = Rig::with(limits, |_| {}, Keys::One).await;
    let address = rig.listen().await;
    let key = rig.key.clone().unwrap();
    let encoded = base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(&key);

    let by_header = format!("Bearer {key}");
    let mut socket = connect(&address, &[("authorization", &by_header)]).await.unwrap();
    assert!(socket.call("ping", json!({})).await["result"].is_object());

    // A browser page of any origin may connect if it has the key. The answer echoes only the protocol.
    let protocols = format!("capstan.v1, bearer.{encoded}");
    let headers = [("sec-websocket-protocol", protocols.as_str()), ("origin", "https://other.example")];
    let mut second = connect(&address, &headers).await.unwrap();
    assert!(second.call("ping", json!({})).await["result"].is_object());

    let mut third = connect(&address, &[("authorization", &by_header)]).await.unwrap();
    assert_eq!(third.next().await, Err(4429));
    drop((socket, second));

    for (name, value) in [("authorization", "Bearer wrong"), ("sec-websocket-protocol", "capstan.v1, bearer.d3Jvbmc")] {
        let mut socket = connect(&address, &[(name, value)]).await.unwrap();
        assert_eq!(socket.next().await, Err(4401), "{name}");
    }
    let mut late = connect(&address, &[]).await.unwrap();
    assert_eq!(late.next().await, Err(4408));
    let mut rude = connect(&address, &[]).await.unwrap();
    rude.send(r#"{"id":1,"method":"ping"}"#).await;
    assert_eq!(rude.next().await, Err(4401));

    // A browser sends no credentials by itself here, so any origin may connect. The first frame must authenticate.
    let cleo = rig.user("cleo").await;
    for origin in ["https://other.example", "null"] {
        for frame in [r#"{"id":1,"method":"ping"}"#, r#"{"id":1,"method":"auth","params":{"token":"wrong"}}"#] {
            let mut page = connect(&address, &[("origin", origin)]).await.unwrap();
            page.send(frame).await;
            assert_eq!(page.next().await, Err(4401), "{origin}");
        }
        let mut page = connect(&address, &[("origin", origin)]).await.unwrap();
        assert_eq!(page.call("auth", json!({"token": cleo})).await["result"]["authenticated"], true, "{origin}");
    }

    let origin = format!("http://{address}");
    let mut first_frame = connect(&address, &[("origin", &origin)]).await.unwrap();
    assert_eq!(first_frame.call("auth", json!({"token": key})).await["result"]["authenticated"], true);
    assert!(first_frame.call("ping", json!({})).await["result"].is_object());
    // A second `auth` is answered correctly, and the socket keeps its user.
    assert_eq!(first_frame.call("auth", json!({"token": key})).await["result"]["authenticated"], true);
    let bob = rig.user("bob").await;
    for (token, code) in [("nonsense", "unauthorized"), (bob.as_str(), "conflict")] {
        assert_eq!(first_frame.call("auth", json!({"token": token})).await["error"]["code"], code);
    }
    assert!(first_frame.call("ping", json!({})).await["result"].is_object());

    // Resources of another owner look missing here, too.
    let (conversation, run) = rig.start("mine").await;
    let other = format!("Bearer {bob}");
    let mut bob = connect(&address, &[("authorization", &other)]).await.unwrap();
    for params in [json!({"run_id": run}), json!({"conversation_id": conversation})] {
        assert_eq!(bob.call("subscribe", params).await["error"]["code"], "not_found");
    }
    assert_eq!(bob.call("run.cancel", json!({"run_id": run})).await["error"]["code"], "not_found");
}
