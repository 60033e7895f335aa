//! The routes of the AI SDK.

use axum::http::{Method, StatusCode};
use capstan::domain::conversation::message::{Message, Part, Role, TextPart};
use capstan::domain::event::EventBody;
use capstan::domain::ids::{MessageId, PartId};
use capstan::domain::run::change::Change;
use capstan::domain::run::{RunStatus, WaitReason};
use capstan::support::ids::UuidIds;
use serde_json::{Value, json};

use super::rig::{Reply, Rig, new_conversation_id, text};
use super::sockets::{Socket, connect_to};

fn message(id: &str, words: &str) -> Value {
    json!({ "id": id, "role": "user", "parts": [{ "type": "text", "text": words }] })
}

fn submit(chat: &str, id: &str, words: &str) -> Value {
    json!({ "id": chat, "trigger": "submit-message", "messages": [message(id, words)] })
}

/// Returns the chunks of a complete stream.
fn chunks(reply: &Reply) -> Vec<Value> {
    assert_eq!(reply.status, StatusCode::OK, "{}", reply.body);
    assert_eq!(reply.headers["x-vercel-ai-ui-message-stream"], "v1");
    assert!(reply.body.ends_with("data: [DONE]\n\n"), "{}", reply.body);
    let lines = reply.body.lines().filter_map(|line| line.strip_prefix("data: ")).filter(|data| *data != "[DONE]");
    lines.map(|line| serde_json::from_str(line).unwrap()).collect()
}

async fn post(rig: &Rig, body: Value) -> Reply {
    rig.exchange(Method::POST, "/api/chat", &[], Some(body)).await
}

fn said(chunks: &[Value]) -> String {
    chunks.iter().filter(|chunk| chunk["type"] == "text-delta").map(|chunk| text(&chunk["delta"])).collect()
}

/// Posts a chat request, and plays the run that it starts.
async fn played(rig: &Rig, body: Value) -> Vec<Value> {
    let (reply, ()) = tokio::join!(rig.post("/api/chat", body), rig.play_next());
    chunks(&reply)
}

#[tokio::test]
async fn chat_streams_an_answer_and_lists_its_messages() {
    let rig = Rig::new().await;
    let sent = played(&rig, submit("chat-1", "m1", "hello")).await;
    assert_eq!((said(&sent).as_str(), &sent[0]["type"]), ("Hello\nworld", &json!("start")));
    let run = text(&sent[0]["messageId"]);
    assert!(run.starts_with("run_"), "{run}");

    let list = rig.get("/api/chat/chat-1/messages").await.json();
    let roles: Vec<&Value> = list.as_array().unwrap().iter().map(|message| &message["role"]).collect();
    assert_eq!(roles, ["user", "assistant"]);
    assert_eq!((&list[1]["id"], &list[1]["parts"][1]["text"]), (&json!(run), &json!("Hello\nworld")));
    assert_eq!(rig.get("/api/chat/chat-1/stream").await.status, StatusCode::NO_CONTENT);
}

#[tokio::test]
async fn null_in_a_chat_request_is_an_absent_field() {
    let rig = Rig::new().await;
    let nulls = json!({ "trigger": null, "messageId": null, "agent": null, "model": null, "options": null, "tools": null });
    let mut whole = submit("chat-1", "m1", "hello");
    let mut newest = json!({ "id": "chat-2", "messages": null, "message": message("m1", "hello") });
    (whole["message"], newest["message"]["metadata"]) = (Value::Null, Value::Null);
    for mut body in [whole, newest] {
        body.as_object_mut().unwrap().extend(nulls.as_object().unwrap().clone());
        assert_eq!(said(&played(&rig, body).await), "Hello\nworld");
    }
    let mut tools = submit("chat-3", "m1", "hello");
    tools["tools"] = json!({ "look": { "name": null, "description": null, "inputSchema": null } });
    assert_eq!(said(&played(&rig, tools).await), "Hello\nworld");
}

#[tokio::test]
async fn repeated_message_starts_no_second_run() {
    let rig = Rig::new().await;
    let first = played(&rig, submit("chat-1", "m1", "hello")).await;
    let again = rig.post("/api/chat", submit("chat-1", "m1", "hello")).await;
    assert_eq!(chunks(&again), first);
    assert_eq!(rig.get("/api/v1/runs").await.json()["data"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn message_repeated_after_a_day_starts_no_second_run() {
    let rig = Rig::new().await;
    played(&rig, submit("chat-1", "m1", "one")).await;
    let first = played(&rig, submit("chat-1", "m2", "two")).await;
    assert!(rig.store.remove_expired_idempotency(0).await.unwrap() > 0);
    let again = rig.post("/api/chat", submit("chat-1", "m2", "two")).await;
    assert_eq!(chunks(&again), first);
    assert_eq!(rig.get("/api/v1/runs").await.json()["data"].as_array().unwrap().len(), 2);
    // An edit says so, and a new message has a new id.
    let mut edit = submit("chat-1", "m2", "two");
    edit["messageId"] = json!("m2");
    assert_ne!(played(&rig, edit).await[0]["messageId"], first[0]["messageId"]);
    played(&rig, submit("chat-1", "m3", "two")).await;
    assert_eq!(rig.get("/api/chat/chat-1/messages").await.json().as_array().unwrap().len(), 6);
    // Another text under an old id is not lost.
    assert!(rig.store.remove_expired_idempotency(0).await.unwrap() > 0);
    played(&rig, submit("chat-1", "m3", "three")).await;
    assert_eq!(rig.get("/api/chat/chat-1/messages").await.json().as_array().unwrap().len(), 8);
}

#[tokio::test]
async fn edited_message_replaces_the_later_ones() {
    let rig = Rig::new().await;
    played(&rig, submit("chat-1", "m1", "one")).await;
    played(&rig, submit("chat-1", "m2", "two")).await;
    for words in ["first", "second"] {
        let mut edit = submit("chat-1", "m1", words);
        edit["messageId"] = json!("m1");
        played(&rig, edit).await;
        let list = rig.get("/api/chat/chat-1/messages").await.json();
        assert_eq!((list.as_array().unwrap().len(), &list[0]["parts"][0]["text"]), (2, &json!(words)));
    }
}

#[tokio::test]
async fn regenerated_answer_has_a_new_id() {
    let rig = Rig::new().await;
    let first = played(&rig, submit("chat-1", "m1", "one")).await;
    played(&rig, submit("chat-1", "m2", "two")).await;
    let regenerate = |id: Value| json!({ "id": "chat-1", "trigger": "regenerate-message", "messageId": id, "messages": [] });
    let newest = played(&rig, regenerate(Value::Null)).await;
    assert_eq!(rig.get("/api/chat/chat-1/messages").await.json().as_array().unwrap().len(), 4);
    // An older answer takes the later messages with it.
    let older = played(&rig, regenerate(first[0]["messageId"].clone())).await;
    let list = rig.get("/api/chat/chat-1/messages").await.json();
    assert_eq!((list.as_array().unwrap().len(), &list[0]["parts"][0]["text"]), (2, &json!("one")));
    assert_eq!(list[1]["id"], older[0]["messageId"]);
    assert_ne!(newest[0]["messageId"], older[0]["messageId"]);
}

#[tokio::test]
async fn regenerate_sends_a_message_that_never_arrived() {
    let rig = Rig::new().await;
    let first = played(&rig, submit("chat-1", "m1", "one")).await;
    let answer = json!({ "id": first[0]["messageId"], "role": "assistant", "parts": [] });
    let messages = [message("m1", "one"), answer, message("m2", "two")];
    for named in [Value::Null, json!("m3")] {
        let mut retry = json!({ "id": "chat-1", "trigger": "regenerate-message", "messageId": named, "messages": messages });
        if !named.is_null() {
            retry["messages"][2] = message("m3", "three");
        }
        let before = rig.get("/api/chat/chat-1/messages").await.json().as_array().unwrap().len();
        let sent = played(&rig, retry.clone()).await;
        let list = rig.get("/api/chat/chat-1/messages").await.json();
        assert_eq!((list.as_array().unwrap().len(), &list[1]["id"]), (before + 2, &first[0]["messageId"]), "{list}");
        assert_eq!(list[before + 1]["id"], sent[0]["messageId"]);
        // The message is known now.
        let again = played(&rig, retry).await;
        let list = rig.get("/api/chat/chat-1/messages").await.json();
        assert_eq!((list.as_array().unwrap().len(), &list[before + 1]["id"]), (before + 2, &again[0]["messageId"]), "{list}");
    }
    let only = json!({ "id": "chat-2", "trigger": "regenerate-message", "messages": [message("m1", "one")] });
    played(&rig, only).await;
    assert_eq!(rig.get("/api/chat/chat-2/messages").await.json().as_array().unwrap().len(), 2);
}

#[tokio::test]
async fn active_run_is_replayed_from_its_beginning() {
    let (rig, conversation, run, fence, act) = Rig::with_half_played_run("hello").await;
    let path = format!("/api/chat/{conversation}/stream");
    let reply = rig.begin(Method::GET, &path, &[], None).await;
    rig.play_rest(&fence, act).await;
    let sent = chunks(&reply.rest().await);
    assert_eq!((&sent[0]["messageId"], said(&sent)), (&json!(run), "Hello\nworld".to_owned()));
}

#[tokio::test]
async fn paused_run_has_no_active_stream() {
    let rig = Rig::new().await;
    let (conversation, _) = rig.start("hello").await;
    let fence = rig.claim().await;
    rig.waits(&fence, WaitReason::Approval, None).await;
    assert_eq!(rig.get(&format!("/api/chat/{conversation}/stream")).await.status, StatusCode::NO_CONTENT);
}

#[tokio::test]
async fn queued_message_is_listed_after_the_earlier_answer() {
    let rig = Rig::new().await;
    let mut replies = Vec::new();
    for (id, words) in [("m1", "one"), ("m2", "two")] {
        replies.push(rig.begin(Method::POST, "/api/chat", &[], Some(submit("chat-1", id, words))).await);
    }
    rig.play_next().await;
    rig.play_next().await;
    let mut ids = Vec::new();
    for reply in replies {
        ids.push(chunks(&reply.rest().await)[0]["messageId"].clone());
    }
    let list = rig.get("/api/chat/chat-1/messages").await.json();
    let words = |place: usize| &list[place]["parts"][0]["text"];
    assert_eq!((words(0), &list[1]["id"], words(2), &list[3]["id"]), (&json!("one"), &ids[0], &json!("two"), &ids[1]), "{list}");
}

#[tokio::test]
async fn message_after_a_result_joins_the_waiting_run() {
    let (rig, conversation, run, fence, act) = Rig::with_half_played_run("hello").await;
    let of = (fence.run_id.clone(), fence.conversation_id.clone());
    let words = Part::Text(TextPart { id: PartId::generate(&UuidIds), text: "I look.".to_owned() });
    let first = Message::new(MessageId::generate(&UuidIds), of, Role::Assistant, vec![words]);
    rig.write(&fence, &[EventBody::MessageCompleted { message: first.clone() }], vec![Change::AddMessage(first)]).await;
    let call = rig.asks_client(&fence).await;
    let part = json!({ "type": "tool-look", "toolCallId": call, "state": "output-available", "input": {}, "output": "a red door" });
    let answer = json!({ "id": run, "role": "assistant", "parts": [part] });
    let mut body = submit(&conversation, "m2", "which colour?");
    body["messages"] = json!([answer, body["messages"][0]]);
    let reply = rig.begin(Method::POST, "/api/chat", &[], Some(body.clone())).await;
    let runs = rig.get("/api/v1/runs").await.json();
    let status = &runs["data"][0]["status"];
    assert!(runs["data"].as_array().unwrap().len() == 1 && *status != json!("cancelled"), "{runs}");
    // The result is stored, so a worker can claim the run.
    let fence = rig.claim().await;
    let resumes = EventBody::RunResumed { cause: "request".to_owned() };
    rig.write(&fence, &[resumes], vec![Change::SetStatus(RunStatus::Processing, None)]).await;
    let resumed = rig.begin(Method::GET, &format!("/api/chat/{conversation}/stream"), &[], None).await;
    let list = async || {
        let messages = rig.get(&format!("/api/chat/{conversation}/messages")).await.json();
        messages.as_array().unwrap().iter().map(|message| text(&message["id"])).collect::<Vec<_>>()
    };
    assert_eq!(list().await.len(), 3, "the first answer is listed, and the stream has the second one");
    rig.play_rest(&fence, act).await;
    let sent = chunks(&reply.rest().await);
    let id = text(&sent[0]["messageId"]);
    assert!(id.starts_with(&format!("{run}.msg_")), "another message of the same run: {id}");
    assert_eq!(said(&sent), "Hello\nworld");
    // The stream of the active run, and the request that is sent again, have the same message.
    for same in [resumed.rest().await, post(&rig, body).await] {
        let same = chunks(&same);
        assert_eq!((text(&same[0]["messageId"]), said(&same)), (id.clone(), "Hello\nworld".to_owned()));
    }
    let before = list().await;
    assert_eq!((before.len(), &before[1], &before[3]), (4, &run, &id));
    // Another answer to the second message keeps the first one.
    let regenerate = json!({ "id": conversation, "trigger": "regenerate-message", "messageId": id, "messages": [] });
    let again = played(&rig, regenerate).await;
    let after = list().await;
    assert_eq!((after.len(), &after[1], &after[3]), (4, &run, &text(&again[0]["messageId"])));
}

#[tokio::test]
async fn message_without_the_result_cancels_the_waiting_run() {
    let (rig, conversation, run, fence, _) = Rig::with_half_played_run("hello").await;
    let call = rig.asks_client(&fence).await;
    let part = json!({ "type": "tool-look", "toolCallId": call, "state": "input-available", "input": {} });
    let mut body = submit(&conversation, "m2", "never mind");
    body["messages"] = json!([{ "id": run, "role": "assistant", "parts": [part] }, body["messages"][0]]);
    let _reply = rig.begin(Method::POST, "/api/chat", &[], Some(body)).await;
    assert_eq!(rig.get("/api/v1/runs").await.json()["data"].as_array().unwrap().len(), 2);
}

#[tokio::test]
async fn stop_cancels_the_active_run() {
    let rig = Rig::new().await;
    let (conversation, run) = rig.start("hello").await;
    let stopped = rig.send(Method::POST, &format!("/api/chat/{conversation}/stop"), &[], None).await;
    assert_eq!(stopped.status, StatusCode::NO_CONTENT);
    assert_eq!(rig.get(&format!("/api/v1/runs/{run}")).await.json()["status"], "cancelled");
    assert_eq!(rig.send(Method::POST, "/api/chat/unknown/stop", &[], None).await.status, StatusCode::NO_CONTENT);
}

#[tokio::test]
async fn error_is_one_sentence() {
    let rig = Rig::new().await;
    let bad = [
        (json!({ "id": "chat-1", "messages": [] }), 400),
        (json!({ "id": "", "messages": [message("m1", "hi")] }), 400),
        (json!({ "id": "chat-1", "messages": [message("m1", "")] }), 400),
        (
            json!({ "id": "chat-1", "messages": [{ "id": "s1", "role": "system", "parts": [{ "type": "text", "text": "hi" }] }] }),
            400,
        ),
        (json!({ "id": "chat-1", "model": "no/model", "messages": [message("m1", "hi")] }), 400),
        (json!({ "id": new_conversation_id(), "messages": [{ "id": "x", "role": "assistant", "parts": [] }] }), 400),
        (json!({ "messages": [message("m1", "hi")] }), 400),
    ];
    for (body, status) in bad {
        let reply = post(&rig, body.clone()).await;
        assert_eq!(
            (reply.status.as_u16(), reply.headers["content-type"].to_str().unwrap()),
            (status, "text/plain; charset=utf-8"),
            "{body}"
        );
        assert!(!reply.body.is_empty() && !reply.body.contains(['{', '\n']), "{body}: {}", reply.body);
    }
    assert_eq!(
        rig.exchange(Method::POST, "/api/chat?v=8", &[], Some(submit("chat-1", "m1", "hi"))).await.status,
        StatusCode::BAD_REQUEST
    );
}

#[tokio::test]
async fn chat_of_another_user_does_not_exist() {
    let mut rig = Rig::with_keys().await;
    let (conversation, run) = rig.start("hello").await;
    let approval = "input_00000000000000000000000000000001";
    rig.key = Some(rig.user("bob").await);
    let answer = json!({
        "id": run, "role": "assistant",
        "parts": [{ "type": "dynamic-tool", "toolName": "x", "toolCallId": "call_1", "state": "approval-responded",
                    "approval": { "id": approval, "approved": true } }],
    });
    let base = format!("/api/chat/{conversation}");
    let rig = &rig;
    let missing = |method, path: String| async move { rig.exchange(method, &path, &[], None).await };
    let replies = [
        post(rig, submit(&conversation, "m1", "hi")).await,
        post(rig, json!({ "id": conversation, "messages": [answer] })).await,
        post(rig, json!({ "id": conversation, "trigger": "regenerate-message", "messages": [] })).await,
        post(rig, json!({ "id": "mine", "trigger": "regenerate-message", "messageId": run, "messages": [] })).await,
        missing(Method::GET, format!("{base}/stream")).await,
        missing(Method::GET, format!("{base}/messages")).await,
        missing(Method::POST, format!("{base}/stop")).await,
    ];
    for (at, reply) in replies.iter().enumerate() {
        assert_eq!(reply.status, StatusCode::NOT_FOUND, "{at}: {}", reply.body);
    }
}

#[tokio::test]
async fn equal_names_of_two_users_are_two_chats() {
    let mut rig = Rig::with_keys().await;
    played(&rig, submit("same", "m1", "hello")).await;
    rig.key = Some(rig.user("bob").await);
    assert_eq!(rig.get("/api/chat/same/messages").await.json(), json!([]));
    played(&rig, submit("same", "m1", "hello")).await;
    assert_eq!(rig.get("/api/chat/same/messages").await.json().as_array().unwrap().len(), 2);
}

/// Returns a frame of the WebSocket transport.
fn frame(kind: &str, request: &str, chat: &str, key: &str) -> String {
    let (headers, messages) = (json!({ "authorization": format!("Bearer {key}") }), [message("m1", "hello")]);
    let (trigger, body) = ("submit-message", json!({}));
    json!({ "type": kind, "requestId": request, "id": chat, "trigger": trigger, "messages": messages, "headers": headers, "body": body })
        .to_string()
}

/// Returns the frames up to the end of a response.
async fn response(socket: &mut Socket) -> Vec<Value> {
    let mut frames: Vec<Value> = Vec::new();
    while !frames.last().is_some_and(|frame| ["end", "error", "no-active"].contains(&frame["type"].as_str().unwrap())) {
        frames.push(socket.next().await.unwrap());
    }
    frames
}

#[tokio::test]
async fn chat_socket_streams_numbered_chunks() {
    let mut rig = Rig::with_keys().await;
    let address = rig.listen().await;
    let key = rig.key.clone().unwrap();
    let authorization = format!("Bearer {key}");
    let mut socket = connect_to(&address, "/api/chat", &[("authorization", &authorization)]).await.unwrap();
    socket.send(frame("send", "r1", "chat-1", "")).await;
    let (frames, ()) = tokio::join!(response(&mut socket), rig.play_next());
    assert!(frames.iter().all(|frame| frame["requestId"] == "r1"), "{frames:?}");
    assert_eq!((&frames[0]["type"], &frames[frames.len() - 1]["type"]), (&json!("start"), &json!("end")));
    let numbers: Vec<u64> = frames.iter().filter_map(|frame| frame["sequence"].as_u64()).collect();
    assert!(numbers.iter().copied().eq(0..frames.len() as u64 - 2), "{numbers:?}");
    let sent: Vec<Value> = frames.iter().filter_map(|frame| frame.get("chunk").cloned()).collect();
    let over_http = rig.exchange(Method::POST, "/api/chat?v=7", &[], Some(submit("chat-1", "m1", "hello"))).await;
    assert_eq!(sent, chunks(&over_http));

    socket.send(frame("resume", "r2", "chat-1", "")).await;
    assert_eq!(response(&mut socket).await, [json!({ "type": "no-active", "requestId": "r2" })]);
    socket.send(frame("send", "r3", "", "")).await;
    assert_eq!(response(&mut socket).await[0]["type"], "error");
    // The client leaves a response: its run goes on, and the socket stays.
    socket.send(frame("send", "r4", "chat-2", "")).await;
    assert_eq!(socket.next().await.unwrap()["type"], "start");
    socket.send(json!({ "type": "abort", "requestId": "r4" }).to_string()).await;
    socket.send(frame("resume", "r5", "chat-3", "")).await;
    assert_eq!(response(&mut socket).await.last().unwrap(), &json!({ "type": "no-active", "requestId": "r5" }));
    rig.play_next().await;
    assert_eq!(rig.get("/api/chat/chat-2/messages").await.json().as_array().unwrap().len(), 2);
    socket.send(r#"{"type":"send"}"#).await;
    assert_eq!(socket.next().await.unwrap_err(), 1008);
}

#[tokio::test]
async fn chat_socket_takes_the_key_from_its_first_frame() {
    let mut rig = Rig::with_keys().await;
    let address = rig.listen().await;
    for first in [frame("resume", "r1", "chat-1", "cap_wrong"), "{}".to_owned()] {
        let mut socket = connect_to(&address, "/api/chat", &[]).await.unwrap();
        socket.send(first).await;
        assert_eq!(socket.next().await.unwrap_err(), 4401);
    }
    let mut socket = connect_to(&address, "/api/chat", &[]).await.unwrap();
    socket.send(frame("resume", "r1", "chat-1", rig.key.as_ref().unwrap())).await;
    assert_eq!(socket.next().await.unwrap()["type"], "no-active");
    rig.revoke_all().await;
    assert_eq!(socket.next().await.unwrap_err(), 4401);
}

#[tokio::test]
async fn shutdown_cuts_the_stream_without_an_end() {
    let rig = Rig::new().await;
    let (conversation, _) = rig.start("hello").await;
    let mut stream = rig.stream(&format!("/api/chat/{conversation}/stream"), &[]).await;
    let fence = rig.claim().await;
    rig.play_half(&fence).await;
    assert_eq!(stream.next().await.unwrap().kind(), "start");
    rig.shutdown.cancel();
    assert!(stream.is_cut().await, "a clean end would look like success");
}
