//! Responses of OpenAI's API over a WebSocket.

use std::time::Duration;

use axum::http::{Method, StatusCode};
use capstan::http::HttpLimits;
use serde_json::{Value, json};

use super::rig::{Keys, Rig, SOON, text};
use super::sessions::{pair, sign_in};
use super::sockets::{Socket, connect_to};
use support::wait::until;

/// The requests that may wait on a connection.
const MAX_WAITING: usize = 8;

/// Opens a socket with the key of the server.
async fn open(rig: &mut Rig) -> Socket {
    let authorization = rig.key.as_ref().map(|key| format!("Bearer {key}"));
    let headers: Vec<_> = authorization.iter().map(|value| ("authorization", value.as_str())).collect();
    connect_to(&rig.listen().await, "/v1/responses", &headers).await.unwrap()
}

async fn create(socket: &mut Socket, mut body: Value) {
    (body["type"], body["model"]) = (json!("response.create"), json!("default"));
    socket.send(body.to_string()).await;
}

/// Returns the events up to one of this type.
async fn events_until(socket: &mut Socket, kind: &str) -> Vec<Value> {
    let mut events: Vec<Value> = Vec::new();
    while events.last().is_none_or(|event| event["type"] != kind) {
        events.push(socket.next().await.unwrap());
    }
    events
}

/// Returns the events of a stored response.
async fn stored(rig: &Rig, id: &str, query: &str) -> Vec<Value> {
    let reply = rig.exchange(Method::GET, &format!("/v1/responses/{id}?stream=true{query}"), &[], None).await;
    assert_eq!(reply.status, StatusCode::OK, "{}", reply.body);
    let body = reply.body.strip_suffix("data: [DONE]\n\n").unwrap();
    body.lines().filter_map(|line| line.strip_prefix("data: ")).map(|data| serde_json::from_str(data).unwrap()).collect()
}

fn response_id(events: &[Value]) -> String {
    text(&events[0]["response"]["id"])
}

fn run_id(response: &str) -> String {
    response.replace("resp_", "run_")
}

#[tokio::test]
async fn response_socket_answers_requests_in_order() {
    let mut rig = Rig::with_keys().await;
    let mut socket = open(&mut rig).await;
    for input in ["one", "two"] {
        create(&mut socket, json!({ "input": input })).await;
    }
    let (first, ()) = tokio::join!(events_until(&mut socket, "response.completed"), rig.play_next());
    let (second, ()) = tokio::join!(events_until(&mut socket, "response.completed"), rig.play_next());
    let previous = response_id(&second);
    assert_ne!(response_id(&first), previous);
    for events in [&first, &second] {
        assert_eq!(*events, stored(&rig, &response_id(events), "").await);
    }
    create(&mut socket, json!({ "input": "three", "previous_response_id": previous })).await;
    let (third, ()) = tokio::join!(events_until(&mut socket, "response.completed"), rig.play_next());
    let response = &third.last().unwrap()["response"];
    assert_eq!((&response["previous_response_id"], &response["status"]), (&json!(previous), &json!("completed")));
    assert_eq!(response["output"][0]["content"][0]["text"], "Hello\nworld");
    let run = rig.get(&format!("/api/v1/runs/{}", run_id(&response_id(&third)))).await.json();
    let earlier = rig.get(&format!("/api/v1/runs/{}", run_id(&previous))).await.json();
    assert_eq!(run["conversation_id"], earlier["conversation_id"]);
}

#[tokio::test]
async fn failed_response_request_leaves_the_socket_open() {
    let mut rig = Rig::with_keys().await;
    let mut socket = open(&mut rig).await;
    let frame = |field: &str, value: Value| {
        let mut frame = json!({ "type": "response.create", "model": "default", "input": "hi" });
        frame[field] = value;
        frame.to_string()
    };
    for (sent, status, code, param) in [
        ("{".to_owned(), 400, "invalid_request", Value::Null),
        ("[]".to_owned(), 400, "invalid_request", Value::Null),
        (frame("type", json!("session.update")), 400, "invalid_request", json!("type")),
        (frame("input", Value::Null), 400, "invalid_request", json!("input")),
        (frame("generate", json!(false)), 400, "invalid_request", json!("generate")),
        (
            json!({ "type": "response.create", "input": "hi", "stream_id": "main", "generate": false }).to_string(),
            400,
            "invalid_request",
            json!("generate"),
        ),
        (frame("model", json!("unknown")), 404, "model_not_found", json!("model")),
        (
            frame("previous_response_id", json!("resp_01980000000070008000000000000001")),
            404,
            "previous_response_not_found",
            json!("previous_response_id"),
        ),
    ] {
        socket.send(sent.clone()).await;
        let event = socket.next().await.unwrap();
        assert_eq!((&event["type"], &event["status"]), (&json!("error"), &json!(status)), "{sent}: {event}");
        let error = &event["error"];
        assert_eq!((&error["code"], &error["param"]), (&json!(code), &param), "{sent}: {event}");
        assert!(error["message"].is_string() && error["type"] == "invalid_request_error", "{event}");
        let is_of_lane = sent.contains("main");
        assert_eq!(event["stream_id"] == "main", is_of_lane, "{event}");
    }
    socket.send(json!({ "type": "response.steer", "previous_response_id": "resp_1", "input": "faster" }).to_string()).await;
    let refused = socket.next().await.unwrap();
    assert_eq!((&refused["type"], &refused["steer"]["input"]), (&json!("response.steer.failed"), &json!("faster")), "{refused}");
    create(&mut socket, json!({ "input": "hello", "stream_id": "main" })).await;
    let created = socket.next().await.unwrap();
    assert_eq!((&created["type"], &created["stream_id"]), (&json!("response.created"), &json!("main")), "{created}");
}

#[tokio::test]
async fn response_socket_limits_the_requests_that_wait() {
    let mut rig = Rig::new().await;
    let mut socket = open(&mut rig).await;
    create(&mut socket, json!({ "input": "first" })).await;
    let begun = events_until(&mut socket, "response.in_progress").await;
    for _ in 0..=MAX_WAITING {
        create(&mut socket, json!({ "input": "later" })).await;
    }
    let refused = socket.next().await.unwrap();
    assert_eq!((&refused["status"], &refused["error"]["code"]), (&json!(429), &json!("too_many_requests")), "{refused}");
    assert_eq!(rig.get("/api/v1/runs").await.json()["data"].as_array().unwrap().len(), 1, "no other run begins");
    rig.play_next().await;
    let rest = events_until(&mut socket, "response.completed").await;
    assert_eq!(rest.last().unwrap()["response"]["id"], response_id(&begun));
    let next = events_until(&mut socket, "response.created").await;
    assert_eq!(next.len(), 1, "{next:?}");
}

#[tokio::test]
async fn response_socket_answers_its_streams_at_the_same_time() {
    let limits = HttpLimits { ws_max_subscriptions: 2, ..HttpLimits::default() };
    let mut rig = Rig::with(limits, |_| {}, Keys::None).await;
    let mut socket = open(&mut rig).await;
    create(&mut socket, json!({ "input": "one", "stream_id": "a" })).await;
    let first = events_until(&mut socket, "response.in_progress").await;
    create(&mut socket, json!({ "input": "later", "stream_id": "a" })).await;
    create(&mut socket, json!({ "input": "two" })).await;
    let second = events_until(&mut socket, "response.in_progress").await;
    assert!(first.iter().all(|event| event["stream_id"] == "a"), "{first:?}");
    assert!(second.iter().all(|event| event.get("stream_id").is_none()), "{second:?}");
    for (stream, code, status) in [("b", "websocket_stream_limit_reached", 429), ("a b", "invalid_stream_id", 400)] {
        create(&mut socket, json!({ "input": "refused", "stream_id": stream })).await;
        let refused = socket.next().await.unwrap();
        assert_eq!((&refused["error"]["code"], &refused["status"]), (&json!(code), &json!(status)), "{refused}");
        assert_eq!(refused["stream_id"], stream, "{refused}");
    }
    // The next response of a stream begins after the end of the one before it.
    assert_eq!(rig.get("/api/v1/runs").await.json()["data"].as_array().unwrap().len(), 2);
    rig.play_next().await;
    let rest = events_until(&mut socket, "response.completed").await;
    assert_eq!((rest.last().unwrap()["response"]["id"].clone(), &rest[0]["stream_id"]), (json!(response_id(&first)), &json!("a")));
    let next = events_until(&mut socket, "response.created").await;
    assert_eq!(next.last().unwrap()["stream_id"], "a", "{next:?}");
    // A stream without a response under way does not count.
    for _ in 0..2 {
        rig.play_next().await;
        events_until(&mut socket, "response.completed").await;
    }
    create(&mut socket, json!({ "input": "three", "stream_id": "b" })).await;
    assert_eq!(socket.next().await.unwrap()["type"], "response.created");
}

/// A response that is not stored and waits for its client occupies its stream, so that the socket holds a limited number of them.
#[tokio::test]
async fn suspended_response_occupies_its_stream() {
    let limits = HttpLimits { ws_max_subscriptions: 1, ..HttpLimits::default() };
    let mut rig = Rig::with(limits, |_| {}, Keys::None).await;
    let mut socket = open(&mut rig).await;
    let tools = json!([{ "type": "function", "name": "look" }]);
    create(&mut socket, json!({ "input": "look", "store": false, "tools": tools, "stream_id": "a" })).await;
    events_until(&mut socket, "response.in_progress").await;
    let call = rig.asks_client(&rig.claim().await).await;
    let first = events_until(&mut socket, "response.completed").await;
    create(&mut socket, json!({ "input": "other", "stream_id": "b" })).await;
    assert_eq!(socket.next().await.unwrap()["error"]["code"], "websocket_stream_limit_reached");
    let input = json!([{ "type": "function_call_output", "call_id": call, "output": "a door" }]);
    let previous = first.last().unwrap()["response"]["id"].clone();
    create(&mut socket, json!({ "input": input, "previous_response_id": previous, "stream_id": "a" })).await;
    let (second, ()) = tokio::join!(events_until(&mut socket, "response.completed"), rig.play_next());
    assert_eq!((response_id(&second), &second[0]["stream_id"]), (format!("{}_1", text(&previous)), &json!("a")));
}

#[tokio::test]
async fn response_socket_refuses_ids_of_another_user() {
    let mut rig = Rig::with_keys().await;
    let mut socket = open(&mut rig).await;
    create(&mut socket, json!({ "input": "mine" })).await;
    let (events, ()) = tokio::join!(events_until(&mut socket, "response.completed"), rig.play_next());
    let response = response_id(&events);
    let run = rig.get(&format!("/api/v1/runs/{}", run_id(&response))).await.json();
    rig.key = Some(rig.user("bob").await);
    let mut foreign = open(&mut rig).await;
    for body in [json!({ "previous_response_id": response }), json!({ "conversation": run["conversation_id"] })] {
        let mut body = body;
        body["input"] = json!("theirs");
        create(&mut foreign, body.clone()).await;
        let event = foreign.next().await.unwrap();
        assert_eq!((&event["type"], &event["status"]), (&json!("error"), &json!(404)), "{body}: {event}");
    }
    assert_eq!(rig.get("/api/v1/runs").await.json()["data"], json!([]));
}

#[tokio::test]
async fn response_of_a_lost_socket_is_read_later() {
    let mut rig = Rig::with_keys().await;
    let mut socket = open(&mut rig).await;
    create(&mut socket, json!({ "input": "hello" })).await;
    let mut seen = events_until(&mut socket, "response.in_progress").await;
    let fence = rig.claim().await;
    let act = rig.play_half(&fence).await;
    seen.extend(events_until(&mut socket, "response.output_text.delta").await);
    drop(socket);
    rig.play_rest(&fence, act).await;
    let id = response_id(&seen);
    let last = seen.last().unwrap()["sequence_number"].as_i64().unwrap();
    seen.extend(stored(&rig, &id, &format!("&starting_after={last}")).await);
    assert_eq!(seen, stored(&rig, &id, "").await);
    assert_eq!(seen.last().unwrap()["type"], "response.completed");
}

#[tokio::test]
async fn response_that_is_not_stored_ends_with_its_socket() {
    let limits = HttpLimits { completion_grace: Duration::ZERO, ..HttpLimits::default() };
    let mut rig = Rig::with(limits, |_| {}, Keys::None).await;
    let mut socket = open(&mut rig).await;
    create(&mut socket, json!({ "input": "hello", "store": false })).await;
    let run = run_id(&response_id(&events_until(&mut socket, "response.created").await));
    drop(socket);
    until("the run without its client to be cancelled", SOON, || async {
        (rig.get(&format!("/api/v1/runs/{run}")).await.json()["status"] == "cancelled").then_some(())
    })
    .await;
}

#[tokio::test]
async fn response_socket_authenticates_in_the_handshake() {
    let mut rig = Rig::with_keys().await;
    let address = rig.listen().await;
    let cookie = sign_in(&rig, rig.key.as_ref().unwrap()).await;
    let own = format!("http://{address}");
    let path = "/v1/responses";
    for headers in
        [vec![], vec![("authorization", "Bearer cap_wrong")], vec![("cookie", pair(&cookie)), ("origin", "https://other.example")]]
    {
        let refused = connect_to(&address, path, &headers).await.err();
        assert_eq!(refused, Some(StatusCode::UNAUTHORIZED), "{headers:?}");
    }
    let mut page = connect_to(&address, path, &[("cookie", pair(&cookie)), ("origin", &own)]).await.unwrap();
    create(&mut page, json!({ "input": "hello" })).await;
    assert_eq!(page.next().await.unwrap()["type"], "response.created");
    for (key, status, kind) in [("", 401, "authentication_error"), (rig.key.as_ref().unwrap(), 400, "invalid_request_error")] {
        let authorization = if key.is_empty() { String::new() } else { format!("Bearer {key}") };
        let reply = rig.exchange(Method::GET, path, &[("authorization", &authorization)], None).await;
        assert_eq!((reply.status.as_u16(), &reply.json()["error"]["type"]), (status, &json!(kind)), "{}", reply.body);
    }

    let mut socket = open(&mut rig).await;
    rig.revoke_all().await;
    assert_eq!(socket.next().await, Err(4401));

    let mut unlocked = Rig::new().await;
    let address = unlocked.listen().await;
    let refused = connect_to(&address, path, &[("origin", "https://other.example")]).await.err();
    assert_eq!(refused, Some(StatusCode::FORBIDDEN));
    let mut socket = open(&mut unlocked).await;
    unlocked.shutdown.cancel();
    assert_eq!(socket.next().await, Err(1012));
}
