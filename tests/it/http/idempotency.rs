//! Idempotency keys: a repeated request has the effect of one.

use std::collections::HashSet;

use axum::http::{Method, StatusCode};
use futures_util::future::join_all;
use serde_json::json;

use super::rig::{Rig, text};

#[tokio::test]
async fn fifty_times_at_once_is_one_run() {
    let rig = Rig::new().await;
    let key = [("idempotency-key", "k1")];
    let replies = join_all((0..50).map(|_| rig.send(Method::POST, "/api/v1/runs", &key, Some(json!({"input": "a"}))))).await;
    for reply in &replies {
        assert_eq!(reply.status, StatusCode::ACCEPTED, "{}", reply.body);
    }
    let runs: HashSet<_> = replies.iter().map(|reply| text(&reply.json()["run"]["id"])).collect();
    assert_eq!(runs.len(), 1);
    assert_eq!(replies.iter().filter(|reply| reply.header("idempotent-replayed") == "true").count(), 49);
    let same = rig.send(Method::POST, "/api/v1/runs", &key, Some(json!({"input": "a"}))).await;
    assert_eq!(same.json(), replies[0].json());
}

#[tokio::test]
async fn a_key_belongs_to_one_body_and_one_path() {
    let rig = Rig::new().await;
    let key = [("idempotency-key", "k1")];
    let first = rig.send(Method::POST, "/api/v1/runs", &key, Some(json!({"input": "a", "agent": "default"}))).await;
    let run = text(&first.json()["run"]["id"]);
    // The order of fields and white space do not matter.
    let request = axum::http::Request::post("/api/v1/runs")
        .header("idempotency-key", "k1")
        .header("content-type", "application/json")
        .body(r#" { "agent":"default", "input" : "a" } "#.into())
        .unwrap();
    assert_eq!(rig.raw(request).await.headers().get("idempotent-replayed").unwrap(), "true");
    for (path, body) in [
        ("/api/v1/runs".to_owned(), json!({"input": "b"})),
        ("/api/v1/conversations".to_owned(), json!({"title": "a"})),
        (format!("/api/v1/runs/{run}/cancel"), json!({})),
    ] {
        let reply = rig.send(Method::POST, &path, &key, Some(body)).await;
        assert_eq!((reply.status.as_u16(), reply.code().as_str()), (422, "idempotency_mismatch"), "{path}");
    }
    let long = "x".repeat(256);
    let reply = rig.send(Method::POST, "/api/v1/runs", &[("idempotency-key", &long)], Some(json!({"input": "a"}))).await;
    assert_eq!(reply.code(), "invalid_request");
}

#[tokio::test]
async fn every_post_can_be_repeated() {
    let rig = Rig::new().await;
    let (conversation, run) = rig.start("hello").await;
    let posts = [
        ("/api/v1/conversations".to_owned(), json!({"title": "a"})),
        (format!("/api/v1/conversations/{conversation}/messages"), json!({"content": "b"})),
        (format!("/api/v1/runs/{run}/cancel"), json!({})),
        (format!("/api/v1/conversations/{conversation}/fork"), json!({})),
        ("/api/v1/agents".to_owned(), json!({"name": "helper"})),
    ];
    for (path, body) in posts {
        let key = [("idempotency-key", path.as_str())];
        let first = rig.send(Method::POST, &path, &key, Some(body.clone())).await;
        let second = rig.send(Method::POST, &path, &key, Some(body)).await;
        assert!(first.status.is_success(), "{path}: {}", first.body);
        assert_eq!((first.status, first.json()), (second.status, second.json()), "{path}");
        assert_eq!((first.header("idempotent-replayed"), second.header("idempotent-replayed")), ("", "true"), "{path}");
    }
}

#[tokio::test]
async fn replayed_request_of_a_deleted_run_is_an_error() {
    let rig = Rig::new().await;
    let key = [("idempotency-key", "k1")];
    let reply = rig.send(Method::POST, "/api/v1/runs", &key, Some(json!({"input": "a"}))).await.json();
    let (conversation, run) = (text(&reply["run"]["conversation_id"]), text(&reply["run"]["id"]));
    let cancel = format!("/api/v1/runs/{run}/cancel");
    let cancelling = [("idempotency-key", "k2")];
    rig.send(Method::POST, &cancel, &cancelling, Some(json!({}))).await;
    let path = format!("/api/v1/conversations/{conversation}");
    assert_eq!(rig.send(Method::DELETE, &path, &[], None).await.status, StatusCode::NO_CONTENT);
    for how in [("accept", ""), ("prefer", "wait=1"), ("accept", "text/event-stream")] {
        let again = rig.send(Method::POST, "/api/v1/runs", &[key[0], how], Some(json!({"input": "a"}))).await;
        assert_eq!((again.status, again.code().as_str()), (StatusCode::NOT_FOUND, "not_found"), "{how:?}");
    }
    let again = rig.send(Method::POST, &cancel, &cancelling, Some(json!({}))).await;
    assert_eq!(again.status, StatusCode::NOT_FOUND);

    let key = [("idempotency-key", "k3")];
    let made = rig.send(Method::POST, "/api/v1/conversations", &key, Some(json!({}))).await;
    let path = format!("/api/v1/conversations/{}", text(&made.json()["id"]));
    rig.send(Method::DELETE, &path, &[], None).await;
    let again = rig.send(Method::POST, "/api/v1/conversations", &key, Some(json!({}))).await;
    assert_eq!(again.status, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn a_repeated_stream_is_the_stream_of_the_same_run() {
    let rig = Rig::new().await;
    let key = [("idempotency-key", "k1")];
    let first = rig.post_stream("/api/v1/runs", &key, json!({"input": "a"})).await;
    rig.play().await;
    let second = rig.post_stream("/api/v1/runs", &key, json!({"input": "a"})).await;
    assert_eq!(second.headers.get("idempotent-replayed").unwrap(), "true");
    assert_eq!(first.headers.get("content-location"), second.headers.get("content-location"));
    let without_time = |frames: Vec<super::rig::Frame>| frames.into_iter().filter(|frame| frame.id.is_some()).collect::<Vec<_>>();
    assert_eq!(without_time(first.rest().await), without_time(second.rest().await));
}
