//! Rewinding a conversation, editing a message, and exporting a conversation.

use axum::http::{Method, StatusCode};
use serde_json::{Value, json};

use super::rig::{Rig, new_conversation_id, text};

async fn ids(rig: &Rig, path: &str) -> Vec<String> {
    let listed = rig.get(&format!("{path}/messages")).await.json();
    listed["data"].as_array().unwrap().iter().map(|message| text(&message["id"])).collect()
}

/// Creates a conversation with two answered messages. Returns its path.
async fn two_turns(rig: &Rig) -> String {
    let (id, _) = rig.start("first").await;
    rig.play().await;
    let path = format!("/api/v1/conversations/{id}");
    rig.post(&format!("{path}/messages"), json!({"content": "second `one`"})).await;
    rig.play().await;
    path
}

#[tokio::test]
async fn a_conversation_is_taken_back_while_others_watch() {
    let rig = Rig::with_keys().await;
    let path = two_turns(&rig).await;
    let rewind = format!("{path}/rewind");
    let before = ids(&rig, &path).await;
    let mut live = rig.stream(&format!("{path}/events"), &[]).await;
    live.until("stream.snapshot").await;

    let body = json!({"before_message_id": before[2]});
    let key = [("idempotency-key", "once")];
    let rewound = rig.send(Method::POST, &rewind, &key, Some(body.clone())).await;
    assert_eq!((rewound.status, &rewound.json()["superseded"]), (StatusCode::OK, &json!(before[2..])), "{}", rewound.body);
    assert_eq!(rewound.json()["conversation"]["status"], "idle");
    let told = live.until("conversation.updated").await;
    assert_eq!(told.last().unwrap().json()["data"]["supersedes"], json!(before[2..]));
    assert_eq!(ids(&rig, &path).await, before[..2]);
    let mut late = rig.stream(&format!("{path}/events"), &[]).await;
    let snapshot = late.until("stream.snapshot").await.last().unwrap().json();
    assert_eq!(snapshot["data"]["messages"].as_array().unwrap().len(), 2);

    let again = rig.send(Method::POST, &rewind, &key, Some(body.clone())).await;
    assert_eq!((again.header("idempotent-replayed"), again.json()), ("true", rewound.json()));
    // The message is sent again with another text. A rewind is refused while its run is under way.
    rig.post(&format!("{path}/messages"), json!({"content": "better"})).await;
    assert_eq!(rig.post(&rewind, json!({"to_message_id": before[0]})).await.code(), "run_active");
    rig.play().await;
    assert_eq!(ids(&rig, &path).await.len(), 4);

    assert_eq!(rig.post(&rewind, body.clone()).await.code(), "not_found", "it is no longer part of the conversation");
    for wrong in [json!({}), json!({"to_message_id": before[0], "before_message_id": before[0]}), json!({"to_message_id": 1})] {
        assert_eq!(rig.post(&rewind, wrong.clone()).await.code(), "invalid_request", "{wrong}");
    }
    let theirs = format!("Bearer {}", rig.user("bob").await);
    let theirs = rig.send(Method::POST, &rewind, &[("authorization", &theirs)], Some(json!({"to_message_id": before[0]}))).await;
    assert_eq!(theirs.code(), "not_found");
}

#[tokio::test]
async fn a_message_is_edited_and_answered_in_one_request() {
    let rig = Rig::with_keys().await;
    let path = two_turns(&rig).await;
    let before = ids(&rig, &path).await;
    let edit = |message: &str| format!("{path}/messages/{message}/edit");
    let key = [("idempotency-key", "once")];
    let body = json!({"content": "better"});
    let edited = rig.send(Method::POST, &edit(&before[2]), &key, Some(body.clone())).await;
    assert_eq!(edited.status, StatusCode::ACCEPTED, "{}", edited.body);
    assert_eq!(edited.header("location"), format!("/api/v1/runs/{}", text(&edited.json()["run"]["id"])));
    assert_eq!(edited.json()["message"]["parts"][0]["text"], "better");
    assert_eq!(ids(&rig, &path).await, [&before[..2], &[text(&edited.json()["message"]["id"])]].concat());
    let again = rig.send(Method::POST, &edit(&before[2]), &key, Some(body.clone())).await;
    assert_eq!((again.header("idempotent-replayed"), again.json()), ("true", edited.json()));
    assert_eq!(rig.post(&edit(&before[0]), body.clone()).await.code(), "run_active");
    rig.play().await;

    // As a stream, from the new message on.
    let mut live = rig.post_stream(&edit(&before[0]), &[], body.clone()).await;
    let first = live.until("message.created").await;
    assert_eq!(first.last().unwrap().json()["data"]["message"]["parts"][0]["text"], "better");
    rig.play().await;
    live.until("run.completed").await;
    let left = ids(&rig, &path).await;
    assert_eq!(left.len(), 2);

    assert_eq!(rig.post(&edit(&before[0]), body.clone()).await.code(), "not_found", "the message is gone");
    let answer = rig.post(&edit(&left[1]), body.clone()).await;
    assert_eq!(answer.code(), "conflict", "{}", answer.body);
    for wrong in [json!({}), json!({"content": ""}), json!({"content": "x", "on_busy": "queue"})] {
        assert_eq!(rig.post(&edit(&left[0]), wrong.clone()).await.code(), "invalid_request", "{wrong}");
    }
    let theirs = format!("Bearer {}", rig.user("bob").await);
    let theirs = rig.send(Method::POST, &edit(&left[0]), &[("authorization", &theirs)], Some(body)).await;
    assert_eq!(theirs.code(), "not_found");
    assert_eq!(ids(&rig, &path).await, left);
}

#[tokio::test]
async fn a_conversation_is_taken_out_as_a_document() {
    let rig = Rig::with_keys().await;
    let path = two_turns(&rig).await;
    let id = path.rsplit('/').next().unwrap();
    let json = rig.get(&format!("{path}/export")).await;
    assert_eq!((json.status, json.header("content-type")), (StatusCode::OK, "application/json"));
    assert_eq!(json.header("content-disposition"), format!("attachment; filename=\"{id}.json\""));
    let document = json.json();
    assert_eq!((&document["format"], &document["version"]), (&json!("capstan.conversation"), &json!(1)));
    assert_eq!(document["conversation"], rig.get(&path).await.json());
    assert_eq!(document["messages"], rig.get(&format!("{path}/messages")).await.json()["data"]);

    let markdown = rig.get(&format!("{path}/export?format=markdown")).await;
    assert_eq!(markdown.header("content-type"), "text/markdown; charset=utf-8");
    assert!(markdown.body.starts_with("# first\n"), "{}", markdown.body);
    assert!(markdown.body.contains("## User\n\nsecond `one`\n\n## Assistant (demo/demo)\n\nHello\nworld\n"), "{}", markdown.body);

    assert_eq!(rig.get(&format!("{path}/export?format=pdf")).await.code(), "invalid_request");
    assert_eq!(rig.get(&format!("/api/v1/conversations/{}/export", new_conversation_id())).await.code(), "not_found");
    let theirs = format!("Bearer {}", rig.user("bob").await);
    let theirs = rig.send(Method::GET, &format!("{path}/export"), &[("authorization", &theirs)], None).await;
    assert_eq!(theirs.code(), "not_found");
}

#[tokio::test]
async fn a_document_of_many_pages_is_whole() {
    let rig = Rig::new().await;
    let (id, _) = rig.start("0").await;
    for n in 1..130 {
        let path = format!("/api/v1/conversations/{id}/messages");
        let sent = rig.post(&path, json!({"content": n.to_string(), "on_busy": "steer"})).await;
        assert_eq!(sent.status, StatusCode::ACCEPTED, "{}", sent.body);
    }
    let document = rig.get(&format!("/api/v1/conversations/{id}/export")).await.json();
    let texts: Vec<&Value> = document["messages"].as_array().unwrap().iter().map(|message| &message["parts"][0]["text"]).collect();
    assert_eq!(json!(texts), json!((0..130).map(|n| n.to_string()).collect::<Vec<_>>()));
}
