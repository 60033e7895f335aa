//! Frames stay below the limits of common clients, and each shortened event can be read in full over HTTP.

use axum::http::{Method, StatusCode};
use capstan::domain::conversation::message::Role;
use capstan::domain::event::{EventBody, NewEvent};
use capstan::domain::ids::{MessageId, PartId};
use capstan::domain::run::record::{Fence, RunWrite};
use capstan::support::clock::UnixMillis;
use capstan::support::ids::UuidIds;
use futures_util::StreamExt as _;
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::Message;

use super::rig::{Frame, Rig, text};

const MAX_FRAME: usize = 512 * 1024;
const MAX_MESSAGES: usize = 256 * 1024;

/// Returns the size of a frame as sent.
fn bytes(frame: &Frame) -> usize {
    let id = frame.id.map_or(0, |id| format!("id: {id}\n").len());
    id + "data: \n\n".len() + frame.data.len()
}

fn assert_small(frames: &[Frame]) {
    for frame in frames {
        assert!(bytes(frame) <= MAX_FRAME, "{} has {} bytes", frame.kind(), bytes(frame));
    }
}

/// Stores and publishes events in the form of an older version.
async fn store(rig: &Rig, fence: &Fence, events: &[(&'static str, String)]) {
    let run_id = Some(fence.run_id.clone());
    let events = events.iter().map(|(kind, data)| NewEvent {
        kind,
        run_id: run_id.clone(),
        attempt: 1,
        at: UnixMillis(1_000),
        data: data.clone(),
    });
    let write = RunWrite { fence: fence.clone(), events: events.collect(), changes: Vec::new(), after: 0 };
    let first = rig.store.commit(&[write]).await.unwrap().remove(0).expect("the fence holds").first_seq;
    let mut cursor = first - 1;
    loop {
        let events = rig.store.events(&rig.local.user_id, &fence.conversation_id, cursor, 1_000).await.unwrap();
        let Some(last) = events.last() else { break };
        cursor = last.seq;
        rig.hub.publish(&fence.conversation_id, &events.into_iter().map(std::sync::Arc::new).collect::<Vec<_>>());
    }
}

/// Returns events that exceed a frame, each for another reason.
fn large_events() -> Vec<(&'static str, String)> {
    let long = "é\"".repeat(300_000);
    let base64 = "QUJD".repeat(1_000_000);
    let message = |role: &str, parts: Value| {
        json!({"message": {"id": "msg_1", "conversation_id": "conv_1", "run_id": "run_1", "role": role, "status": "complete", "parts": parts,
            "usage": {"input_tokens": 7, "output_tokens": 9}, "created_at": "2026-01-01T00:00:00.000Z"}})
        .to_string()
    };
    let numbers: Vec<u32> = (100_000..300_000).collect();
    // The media type comes before the data, as in stored events.
    let image = format!("{{\"type\":\"image\",\"media_type\":\"image/png\",\"data\":\"{base64}\"}}");
    vec![
        ("message.created", message("user", json!([{"type": "text", "id": "part_1", "text": long}]))),
        (
            "message.completed",
            message("assistant", json!([{"type": "reasoning", "id": "part_1", "text": long, "raw": {"signature": long}}])),
        ),
        ("part.delta", json!({"part_id": "part_1", "delta": long}).to_string()),
        ("part.completed", json!({"message_id": "msg_1", "part": {"type": "text", "id": "part_1", "text": long}}).to_string()),
        ("tool.started", json!({"call_id": "call_1", "name": "write", "arguments": {"path": "a", "text": long}}).to_string()),
        ("tool.started", json!({"call_id": "call_1", "name": "sum", "arguments": {"numbers": numbers}}).to_string()),
        (
            "tool.completed",
            format!(
                "{{\"call_id\":\"call_1\",\"state\":\"done\",\"content\":[{{\"type\":\"text\",\"text\":\"seen\"}},{image}],\"duration_ms\":5}}"
            ),
        ),
        (
            "plan.created",
            json!({"steps": (1..=10).map(|step| json!({"step": step, "description": &long[..90_000]})).collect::<Vec<_>>()})
                .to_string(),
        ),
        ("run.waiting", json!({"reason": "backoff", "detail": long}).to_string()),
        ("of.a.later.version", json!({"strange": {long.clone(): [long]}}).to_string()),
    ]
}

#[tokio::test]
async fn large_event_has_one_short_form_live_and_replayed() {
    let rig = Rig::new().await;
    let (conversation, run) = rig.start("hello").await;
    let path = format!("/api/v1/conversations/{conversation}/events");
    let fence = rig.claim().await;
    let head = rig.store.log_bounds(&rig.local.user_id, &fence.conversation_id).await.unwrap().unwrap().head;
    let mut live = rig.stream(&format!("{path}?after={head}"), &[]).await;
    let events = large_events();
    store(&rig, &fence, &events).await;
    let mut frames = Vec::new();
    for _ in &events {
        frames.push(live.next_event().await.unwrap());
    }
    assert_small(&frames);
    let mut replay = rig.stream(&format!("{path}?after={head}"), &[]).await;
    let mut of_run = rig.stream(&format!("/api/v1/runs/{run}/events?after={head}"), &[]).await;
    for frame in &frames {
        assert_eq!(replay.next_event().await.as_ref(), Some(frame));
        assert_eq!(of_run.next_event().await.as_ref(), Some(frame));
    }
    for (frame, (kind, data)) in frames.iter().zip(&events) {
        let shown = frame.json();
        assert_eq!((text(&shown["type"]), shown["seq"].as_i64()), ((*kind).to_owned(), frame.id));
        let whole = rig.get(&text(&shown["shortened"]["url"])).await.json()["data"][0].clone();
        assert_eq!((&whole["seq"], &whole["data"]), (&shown["seq"], &serde_json::from_str(data).unwrap()), "{kind}");
        for kept in ["/run_id", "/attempt", "/at", "/data/call_id", "/data/message/usage", "/data/part/id", "/data/duration_ms"] {
            assert_eq!(shown.pointer(kept), whole.pointer(kept), "{kind} {kept}");
        }
    }
    let image = &frames[6].json()["data"]["content"][1];
    let url = frames[6].json()["shortened"]["url"].clone();
    assert_eq!(image, &json!({"type": "image", "media_type": "image/png", "size": 3_000_000, "url": url}));
}

#[tokio::test]
async fn snapshot_is_bounded_and_pages_backwards() {
    let rig = Rig::new().await;
    let messages: Vec<Value> = (0..60_usize)
        .map(|at| {
            let role = if at % 2 == 0 { "user" } else { "assistant" };
            let long = if at == 7 { 600_000 } else { 10_000 };
            json!({"id": format!("msg_{at:032x}"), "conversation_id": format!("conv_{:032x}", 1), "role": role, "status": "complete",
                "run_id": format!("run_{:032x}", at / 2), "created_at": "2026-01-01T00:00:00.000Z",
                "parts": [{"type": "text", "id": format!("part_{at:032x}"), "text": format!("{at} {}", "x".repeat(long))}]})
        })
        .collect();
    let document = json!({"format": "capstan.conversation", "version": 1, "conversation": {"title": "Long"}, "messages": messages});
    let conversation = text(&rig.post("/api/v1/conversations/import", document).await.json()["id"]);
    let list = format!("/api/v1/conversations/{conversation}/messages");
    let snapshot = rig.stream(&format!("/api/v1/conversations/{conversation}/events"), &[]).await.next().await.unwrap();
    assert_small(std::slice::from_ref(&snapshot));
    let data = snapshot.json()["data"].clone();
    let shown = data["messages"].as_array().unwrap();
    let size = data["messages"].to_string().len();
    assert!(size <= MAX_MESSAGES && size > MAX_MESSAGES - 11_000, "{size} bytes");
    assert_eq!(data["truncated"], true);

    let mut found = shown.clone();
    let mut before = data["before"].clone();
    while let Some(cursor) = before.as_str() {
        let page = rig.get(&format!("{list}?limit=9&before={cursor}")).await;
        assert_eq!(page.status, StatusCode::OK, "{}", page.body);
        before = page.json()["next_cursor"].clone();
        let link = before.as_str().map(|next| format!("<{list}?limit=9&before={next}>; rel=\"next\""));
        assert_eq!(page.headers.get("link").map(|link| link.to_str().unwrap().to_owned()), link);
        found.splice(0..0, page.json()["data"].as_array().unwrap().clone());
    }
    let texts = |messages: &[Value]| messages.iter().map(|message| text(&message["parts"][0]["text"])).collect::<Vec<_>>();
    assert_eq!(texts(&found), texts(&messages));
}

#[tokio::test]
async fn messages_are_paged_backwards_by_one_cursor() {
    let (rig, conversation, _) = Rig::with_played_run("one").await;
    let list = format!("/api/v1/conversations/{conversation}/messages");
    rig.post(&list, json!({"content": "two"})).await;
    let newest = rig.get(&format!("{list}?limit=2&before=")).await.json();
    assert_eq!((&newest["data"][0]["role"], &newest["data"][1]["parts"][0]["text"]), (&json!("assistant"), &json!("two")));
    let next = text(&newest["next_cursor"]);
    // A generic list client, which knows only `cursor`, pages in the same direction.
    for name in ["before", "cursor"] {
        let rest = rig.get(&format!("{list}?limit=2&{name}={next}")).await.json();
        assert_eq!((&rest["data"][0]["parts"][0]["text"], &rest["next_cursor"]), (&json!("one"), &Value::Null), "{name}");
    }
    let both = rig.get(&format!("{list}?before={next}&cursor={next}")).await;
    assert_eq!((both.status, both.code().as_str()), (StatusCode::BAD_REQUEST, "invalid_request"));
    let forwards = text(&rig.get(&format!("{list}?limit=1")).await.json()["next_cursor"]);
    for bad in ["x", "!", forwards.as_str()] {
        assert_eq!(rig.get(&format!("{list}?before={bad}")).await.code(), "invalid_cursor", "{bad}");
    }
    let user = rig.get(&format!("{list}?before=&internal=false")).await.json();
    assert_eq!(user["data"].as_array().unwrap().len(), 3);
}

#[tokio::test]
async fn large_partial_message_is_replayed_after_the_snapshot() {
    let rig = Rig::new().await;
    let (conversation, run) = rig.start("hello").await;
    let fence = rig.claim().await;
    let (message_id, part_id) = (MessageId::generate(&UuidIds), PartId::generate(&UuidIds));
    rig.write(&fence, &[EventBody::StepStarted { step: 1, kind: "model".into(), tools: None }], Vec::new()).await;
    let begun = EventBody::MessageStarted { message_id: message_id.clone(), role: Role::Assistant };
    let kind = "text".to_owned();
    let part = EventBody::PartStarted { message_id, part_id: part_id.clone(), index: 0, kind, call_id: None, name: None };
    rig.write(&fence, &[begun, part], Vec::new()).await;
    for _ in 0..80 {
        rig.write(&fence, &[EventBody::PartDelta { part_id: part_id.clone(), delta: "x".repeat(10_000) }], Vec::new()).await;
    }
    // Stored while the message is being written: the stream contains it.
    rig.post(&format!("/api/v1/conversations/{conversation}/messages"), json!({"content": "more"})).await;
    let mut stream = rig.stream(&format!("/api/v1/conversations/{conversation}/events"), &[]).await;
    let frames = stream.until("run.queued").await;
    assert_small(&frames);
    let snapshot = frames[0].json()["data"].clone();
    assert_eq!(snapshot["active_run"]["run"]["id"], run.as_str());
    assert!(snapshot["active_run"].get("partial_message").is_none());
    assert_eq!(snapshot["messages"].as_array().unwrap().len(), 1);
    let kinds: Vec<_> = frames.iter().map(Frame::kind).collect();
    assert_eq!((kinds[1].as_str(), kinds[83].as_str()), ("message.started", "message.created"));
    let seqs: Vec<_> = frames.iter().map(|frame| frame.id.unwrap()).collect();
    assert!(seqs.is_sorted_by(|a, b| a + 1 == *b), "{seqs:?}");
}

#[tokio::test]
async fn large_question_is_shortened_in_the_snapshot() {
    let rig = Rig::new().await;
    let (conversation, _) = rig.start("hello").await;
    let fence = rig.claim().await;
    let long = "x".repeat(600_000);
    let ids: Vec<String> = (0..3).map(|n| format!("input_0198000000007000800000000000000{n}")).collect();
    let approval = |id: &str| {
        json!({"id": id, "name": "write", "tool": "write", "description": "Writes", "arguments": {"path": "a", "text": long},
            "arguments_hash": "0", "preview": "", "destructive": true, "undoable": false, "scopes": ["once"]})
    };
    let asked =
        json!({"id": ids[2], "kind": "question", "question": {"text": long, "choices": [{"value": "yes", "label": "Yes"}]}});
    let events = [
        ("approval.requested", approval(&ids[0]).to_string()),
        ("approval.requested", approval(&ids[1]).to_string()),
        ("input.requested", asked.to_string()),
    ];
    store(&rig, &fence, &events).await;
    let snapshot = rig.stream(&format!("/api/v1/conversations/{conversation}/events"), &[]).await.next().await.unwrap();
    assert_small(std::slice::from_ref(&snapshot));
    let data = &snapshot.json()["data"];
    for (id, approval) in ids.iter().zip(data["pending_approvals"].as_array().unwrap()) {
        assert_eq!((&approval["id"], &approval["destructive"], &approval["scopes"]), (&json!(id), &json!(true), &json!(["once"])));
        assert_eq!(approval["shortened"]["url"], format!("/api/v1/approvals/{id}"));
        assert!(long.starts_with(approval["arguments"]["text"].as_str().unwrap()));
    }
    let question = &data["pending_inputs"][0];
    assert_eq!(question["question"]["choices"][0]["value"], "yes");
    assert_eq!(question["shortened"]["url"], format!("/api/v1/input-requests/{}", ids[2]));
    assert_eq!(data["messages"].as_array().unwrap().len(), 1);
    assert!(snapshot.json().get("shortened").is_none());
}

#[tokio::test]
async fn large_websocket_reply_fits_into_a_frame() {
    let mut rig = Rig::new().await;
    let address = rig.listen().await;
    let (mut socket, _) = tokio_tungstenite::connect_async(format!("ws://{address}/api/v1/ws")).await.unwrap();
    // Each character takes six bytes in JSON.
    let input = "\u{1}".repeat(100_000);
    let request = json!({"id": 1, "method": "run.start", "params": {"input": input}}).to_string();
    futures_util::SinkExt::send(&mut socket, Message::text(request)).await.unwrap();
    let mut frames = Vec::new();
    while frames.len() < 3 {
        if let Message::Text(frame) = socket.next().await.unwrap().unwrap() {
            assert!(frame.len() <= MAX_FRAME, "{} bytes", frame.len());
            frames.push(serde_json::from_str::<Value>(&frame).unwrap());
        }
    }
    let reply = &frames[0];
    assert_eq!((&reply["id"], &reply["result"]["replayed"]), (&json!(1), &json!(false)));
    assert_eq!((&frames[1]["type"], &frames[2]["type"]), (&json!("message.created"), &json!("run.queued")));
    assert_eq!(reply["shortened"]["url"], frames[1]["shortened"]["url"]);
    let whole =
        rig.send(Method::GET, &text(&reply["shortened"]["url"]), &[], None).await.json()["data"][0]["data"]["message"].clone();
    assert_eq!((&whole["id"], &whole["parts"][0]["text"]), (&reply["result"]["message"]["id"], &json!(input)));
}
