//! Conversations that are made of what was said before.

use axum::http::{Method, StatusCode};
use serde_json::{Value, json};

use super::rig::{Rig, text};

/// A conversation with two turns: its path, and its messages.
async fn two_turns(rig: &Rig) -> (String, Vec<Value>) {
    let (id, _) = rig.start("first").await;
    rig.play().await;
    let path = format!("/api/v1/conversations/{id}");
    rig.post(&format!("{path}/messages"), json!({"content": "second"})).await;
    rig.play().await;
    let said = messages(rig, &path).await;
    (path, said)
}

async fn messages(rig: &Rig, path: &str) -> Vec<Value> {
    rig.get(&format!("{path}/messages")).await.json()["data"].as_array().unwrap().clone()
}

/// What is said, without the ids.
fn said(messages: &[Value]) -> Vec<Value> {
    let texts =
        |message: &Value| -> Vec<Value> { message["parts"].as_array().unwrap().iter().map(|part| part["text"].clone()).collect() };
    messages.iter().map(|message| json!([message["role"], texts(message), message["created_at"]])).collect()
}

#[tokio::test]
async fn a_conversation_is_forked() {
    let rig = Rig::with_keys().await;
    let (path, before) = two_turns(&rig).await;
    let patch = json!({"tags": ["work"], "system_prompt": "OWN", "instructions": "French", "pinned": true});
    rig.send(Method::PATCH, &path, &[], Some(patch)).await;
    let fork = format!("{path}/fork");
    let key = [("idempotency-key", "once")];
    let forked = rig.send(Method::POST, &fork, &key, None).await;
    assert_eq!(forked.status, StatusCode::CREATED, "{}", forked.body);
    let made = forked.json();
    let copy = format!("/api/v1/conversations/{}", text(&made["id"]));
    assert_eq!((forked.header("location"), &rig.get(&copy).await.json()), (copy.as_str(), &made));
    let last = text(&before[3]["id"]);
    assert_eq!(made["forked_from"], json!({"conversation_id": path.rsplit('/').next().unwrap(), "message_id": last}));
    let shown = [&made["title"], &made["tags"], &made["system_prompt"], &made["instructions"], &made["pinned"]];
    assert_eq!(json!(shown), json!(["first", ["work"], "OWN", "French", false]));
    assert_eq!(said(&messages(&rig, &copy).await), said(&before));
    let again = rig.send(Method::POST, &fork, &key, None).await;
    assert_eq!((again.header("idempotent-replayed"), again.json()), ("true", made.clone()));

    // Its streams are those of any conversation: a snapshot, a cursor, and a run that is over.
    let mut live = rig.stream(&format!("{copy}/events"), &[]).await;
    let snapshot = live.until("stream.snapshot").await.last().unwrap().json();
    assert_eq!(snapshot["data"]["messages"].as_array().unwrap().len(), 4);
    let log = rig.get(&format!("{copy}/events?after=2")).await.json();
    assert_eq!((&log["data"][0]["seq"], &log["data"][0]["type"]), (&json!(3), &json!("message.created")));
    let run = text(&messages(&rig, &copy).await[0]["run_id"]);
    let over = rig.stream(&format!("/api/v1/runs/{run}/events"), &[]).await.rest().await;
    let kinds: Vec<String> = over.iter().map(|frame| frame.kind()).filter(|kind| kind != "stream.ping").collect();
    assert_eq!(kinds, ["message.created", "run.queued", "message.created", "run.completed", "stream.end"]);

    let short = rig.post(&fork, json!({"to_message_id": before[1]["id"], "title": "Half"})).await.json();
    assert_eq!(short["title"], "Half");
    for (body, code) in [
        (json!({"to_message_id": before[1]["id"], "to_run_id": before[1]["run_id"]}), "invalid_request"),
        (json!({"to_message_id": 1}), "invalid_request"),
        (json!({"title": "x".repeat(201)}), "invalid_request"),
        (json!({"to_run_id": run}), "not_found"),
    ] {
        assert_eq!(rig.post(&fork, body.clone()).await.code(), code, "{body}");
    }
    let queued = rig.post(&format!("{path}/messages"), json!({"content": "third"})).await.json();
    assert_eq!(rig.post(&fork, json!({"to_message_id": queued["message"]["id"]})).await.code(), "run_active");
    let theirs = format!("Bearer {}", rig.user("bob").await);
    assert_eq!(rig.send(Method::POST, &fork, &[("authorization", &theirs)], None).await.code(), "not_found");
}
