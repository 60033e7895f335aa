//! Forks and imports of conversations.

use axum::http::{Method, StatusCode};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::rig::{Rig, text};
use support::documents::PNG;

/// Creates a conversation with two answered messages. Returns its path and messages.
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

/// Returns the messages without their ids.
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

    // Its streams work like those of any conversation: a snapshot, a cursor, and an ended run.
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
    let long = rig.post(&fork, json!({"title": "é".repeat(255)})).await.json();
    assert_eq!(long["title"], "é".repeat(255));
    for (body, code) in [
        (json!({"to_message_id": before[1]["id"], "to_run_id": before[1]["run_id"]}), "invalid_request"),
        (json!({"to_message_id": 1}), "invalid_request"),
        (json!({"title": "x".repeat(256)}), "invalid_request"),
        (json!({"to_run_id": run}), "not_found"),
    ] {
        assert_eq!(rig.post(&fork, body.clone()).await.code(), code, "{body}");
    }
    let queued = rig.post(&format!("{path}/messages"), json!({"content": "third"})).await.json();
    assert_eq!(rig.post(&fork, json!({"to_message_id": queued["message"]["id"]})).await.code(), "run_active");
    let theirs = format!("Bearer {}", rig.user("bob").await);
    assert_eq!(rig.send(Method::POST, &fork, &[("authorization", &theirs)], None).await.code(), "not_found");
}

/// Returns a message of a document.
fn message(number: u32, run: u32, role: &str, parts: &Value) -> Value {
    json!({
        "id": format!("msg_{number:032x}"), "conversation_id": format!("conv_{:032x}", 1), "run_id": format!("run_{run:032x}"),
        "role": role, "status": "complete", "parts": parts, "created_at": "2026-01-01T00:00:00.000Z",
    })
}

fn words(text: &str) -> Value {
    json!([{"type": "text", "id": format!("part_{:032x}", 1), "text": text}])
}

fn call(number: u32) -> Value {
    json!({"type": "tool_call", "id": format!("part_{:032x}", 2), "call_id": format!("call_{number:032x}"), "name": "count", "arguments": {"n": 1}})
}

fn result(number: u32) -> Value {
    json!({"type": "tool_result", "id": format!("part_{:032x}", 3), "call_id": format!("call_{number:032x}"), "name": "count",
        "content": [{"type": "text", "text": "1"}], "is_error": false, "state": "done"})
}

fn document(messages: &[Value]) -> Value {
    json!({"format": "capstan.conversation", "version": 1, "conversation": {"title": "Old"}, "messages": messages})
}

const IMPORT: &str = "/api/v1/conversations/import";

#[tokio::test]
async fn exported_conversation_is_imported_by_another_user() {
    let rig = Rig::with_keys().await;
    let (path, before) = two_turns(&rig).await;
    rig.send(Method::PATCH, &path, &[], Some(json!({"tags": ["work"], "system_prompt": "OWN", "pinned": true}))).await;
    let exported = rig.get(&format!("{path}/export")).await.json();

    let bob = format!("Bearer {}", rig.user("bob").await);
    let theirs = [("authorization", bob.as_str()), ("idempotency-key", "once")];
    let imported = rig.send(Method::POST, IMPORT, &theirs, Some(exported.clone())).await;
    assert_eq!(imported.status, StatusCode::CREATED, "{}", imported.body);
    let made = imported.json();
    let copy = format!("/api/v1/conversations/{}", text(&made["id"]));
    assert_eq!(imported.header("location"), copy);
    let shown = [&made["title"], &made["tags"], &made["system_prompt"], &made["pinned"], &made["status"], &made["forked_from"]];
    assert_eq!(json!(shown), json!(["first", ["work"], "OWN", false, "idle", null]));
    let again = rig.send(Method::POST, IMPORT, &theirs, Some(exported.clone())).await;
    assert_eq!((again.header("idempotent-replayed"), again.json()), ("true", made));

    let read = rig.send(Method::GET, &format!("{copy}/export"), &theirs[..1], None).await.json();
    let listed = read["messages"].as_array().unwrap();
    assert_eq!(said(listed), said(&before));
    assert!(listed.iter().zip(&before).all(|(new, old)| new["id"] != old["id"] && new["run_id"] != old["run_id"]));
    assert_eq!(rig.get(&copy).await.code(), "not_found", "it belongs to them alone");
}

#[tokio::test]
async fn impossible_transcript_is_refused() {
    let rig = Rig::new().await;
    let asked = message(1, 1, "user", &words("hello"));
    let calls = message(2, 1, "assistant", &json!([call(1)]));
    let file = |file: Value| {
        let mut part = json!({"type": "file", "id": format!("part_{:032x}", 4), "media_type": "text/plain"});
        part.as_object_mut().unwrap().extend(file.as_object().unwrap().clone());
        message(2, 1, "user", &json!([part]))
    };
    let refused = [
        (vec![asked.clone(), message(2, 1, "tool", &json!([result(1)]))], "/messages/1/parts/0/call_id"),
        (vec![asked.clone(), calls.clone(), calls.clone()], "/messages/2/parts/0/call_id"),
        (vec![calls.clone(), message(3, 1, "tool", &json!([result(1), result(1)]))], "/messages/1/parts/1/call_id"),
        (vec![message(1, 1, "user", &json!([call(1)]))], "/messages/0/parts/0/type"),
        (vec![message(1, 1, "tool", &words("x"))], "/messages/0/parts/0/type"),
        (vec![file(json!({"url": "file:///etc/passwd"}))], "/messages/0/parts/0/url"),
        (vec![file(json!({"url": "data:text/plain,hello"}))], "/messages/0/parts/0/url"),
        (
            vec![file(json!({"type": "image", "media_type": "image/png", "url": "data:image/png;base64,AAAA"}))],
            "/messages/0/parts/0/url",
        ),
        (vec![file(json!({"type": "image", "url": "https://a.example/b"}))], "/messages/0/parts/0/media_type"),
        (vec![file(json!({"url": "https://a.example", "file_id": format!("file_{:032x}", 1)}))], "/messages/0/parts/0"),
        (vec![file(json!({"file_id": "../x"}))], "/messages/0/parts/0/file_id"),
    ];
    for (messages, pointer) in refused {
        let answer = rig.post(IMPORT, document(&messages)).await;
        assert_eq!(answer.json()["errors"][0]["pointer"], pointer, "{}", answer.body);
    }
    let mut wrong = vec![json!({}), json!({"format": "x"}), document(&[json!({"role": "user"})])];
    for (field, value) in [("format", json!("chatgpt")), ("version", json!(2)), ("messages", json!({})), ("more", json!(1))] {
        let mut body = document(std::slice::from_ref(&asked));
        body[field] = value;
        wrong.push(body);
    }
    let mut six_files = document(&[]);
    six_files["messages"] = (1..=6).map(|number| file(json!({"file_id": format!("file_{number:032x}")}))).collect();
    wrong.push(six_files);
    let many: Vec<Value> = (1..=10_001).map(|number| message(number, number, "user", &words("x"))).collect();
    wrong.push(document(&many));
    let mut long = document(&[]);
    long["conversation"]["title"] = json!("x".repeat(256));
    wrong.push(long);
    for body in wrong {
        let answer = rig.post(IMPORT, body).await;
        assert_eq!(answer.code(), "invalid_request", "{}", answer.body);
    }
    let large = document(&[message(1, 1, "user", &words(&"x".repeat(17 << 20)))]);
    assert_eq!(rig.post(IMPORT, large).await.code(), "payload_too_large");
    assert_eq!(rig.get("/api/v1/conversations?archived=any").await.json()["data"], json!([]));

    // A call of unknown outcome is accepted, as an interrupted run. A reference to a missing file looks like a deleted file.
    let mut open = document(&[asked, calls, file(json!({"file_id": format!("file_{:032x}", 1), "text_chars": 9}))]);
    open["messages"][0]["parts"][0]["text"] = json!("nul \u{0}");
    let made = rig.post(IMPORT, open).await;
    assert_eq!(made.status, StatusCode::CREATED, "{}", made.body);
    let kept = messages(&rig, &format!("/api/v1/conversations/{}", text(&made.json()["id"]))).await;
    assert_eq!((kept.len(), &kept[2]["parts"][0]["text_chars"]), (3, &Value::Null));
    let run = rig.get(&format!("/api/v1/runs/{}", text(&kept[0]["run_id"]))).await.json();
    assert_eq!(run["status"], "cancelled");
}

#[tokio::test]
async fn binary_content_of_imported_results_is_stored() {
    let rig = Rig::new().await;
    let picture = STANDARD.encode(PNG);
    let mut answer = result(1);
    answer["content"] = json!([
        {"type": "text", "text": "1"},
        {"type": "image", "media_type": "text/html", "data": "x"},
        {"type": "image", "media_type": "image/png", "data": picture[..40]},
        {"type": "image", "media_type": "image/jpeg", "data": picture},
    ]);
    let asked = message(1, 1, "user", &words("hello"));
    let document = document(&[asked, message(2, 1, "assistant", &json!([call(1)])), message(3, 1, "tool", &json!([answer]))]);
    let made = rig.post(IMPORT, document).await;
    assert_eq!(made.status, StatusCode::CREATED, "{}", made.body);
    let kept = messages(&rig, &format!("/api/v1/conversations/{}", text(&made.json()["id"]))).await;
    let content = kept[2]["parts"][0]["content"].as_array().unwrap();
    let no_base64 = "[file, text/html, 0 bytes: it cannot be read, because the tool sent invalid base64]";
    assert_eq!((&content[0]["text"], &content[1]["text"]), (&json!("1"), &json!(no_base64)));
    let kind = |at: usize| (content[at]["type"].as_str().unwrap(), content[at]["media_type"].as_str().unwrap());
    assert_eq!((kind(2), &content[2]["size"]), (("file", "application/octet-stream"), &json!(30)), "a truncated image");
    assert_eq!(kind(3), ("image", "image/png"));
    let id = content[3]["file_id"].as_str().unwrap();
    assert_eq!(content[3]["url"], format!("/api/v1/files/{id}/content"));
    let kept = rig.get(&format!("/api/v1/files/{id}")).await.json();
    assert_eq!((&kept["size"], &kept["origin"]), (&json!(PNG.len()), &json!("content")));
}

#[tokio::test]
async fn names_of_tools_that_a_model_made_up_are_imported() {
    let rig = Rig::new().await;
    let long = format!("{}\n{}", "é".repeat(150), "é".repeat(149));
    let written = ["", long.as_str(), "\u{1}\u{7f}", "count\tthem"];
    let named = |mut part: Value, name: &str| {
        part["name"] = json!(name);
        part
    };
    let parts = |part: fn(u32) -> Value| -> Value { (1..).zip(written).map(|(number, name)| named(part(number), name)).collect() };
    let said = [
        message(1, 1, "user", &words("hello")),
        message(2, 1, "assistant", &parts(call)),
        message(3, 1, "tool", &parts(result)),
        message(4, 1, "assistant", &words("done")),
    ];
    let made = rig.post(IMPORT, document(&said)).await;
    assert_eq!(made.status, StatusCode::CREATED, "{}", made.body);
    let path = format!("/api/v1/conversations/{}", text(&made.json()["id"]));
    let kept = messages(&rig, &path).await;
    let first = "é".repeat(200);
    for message in &kept[1..3] {
        let names: Vec<Value> = message["parts"].as_array().unwrap().iter().map(|part| part["name"].clone()).collect();
        assert_eq!(json!(names), json!(["unknown", first, "unknown", "countthem"]));
    }

    // The conversation can continue, and its export can be imported again.
    let next = rig.post(&format!("{path}/messages"), json!({"content": "again"})).await;
    assert_eq!(next.status, StatusCode::ACCEPTED, "{}", next.body);
    rig.play().await;
    let run = rig.get(&format!("/api/v1/runs/{}", text(&next.json()["run"]["id"]))).await.json();
    assert_eq!(run["status"], "completed", "{run}");
    let exported = rig.get(&format!("{path}/export")).await.json();
    let again = rig.post(IMPORT, exported).await;
    assert_eq!(again.status, StatusCode::CREATED, "{}", again.body);
}
