//! Authentication, and resources of other owners.

use axum::body::Body;
use axum::http::{Method, Request, StatusCode};
use capstan::http::{HttpLimits, openapi};
use serde_json::{Value, json};

use super::rig::{Keys, Rig};

fn operations() -> Vec<(Method, String)> {
    let document = openapi();
    let mut operations = Vec::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for method in item.as_object().unwrap().keys().filter(|key| *key != "parameters") {
            operations.push((method.to_uppercase().parse().unwrap(), path.clone()));
        }
    }
    operations
}

#[tokio::test]
async fn no_api_route_answers_without_a_key() {
    let rig = Rig::with_keys().await;
    let operations = operations();
    assert!(operations.len() >= 19, "{operations:?}");
    // Signing in is how a browser shows its key. A shared conversation needs the token of its share.
    let needs_key = |path: &str| path.starts_with("/api/") && !["/api/v1/session", "/api/v1/shared"].contains(&path);
    for (method, path) in operations.into_iter().filter(|(_, path)| needs_key(path)) {
        let path = path.replace("{id}", "run_01980000000070008000000000000001");
        for authorization in ["", "Bearer", "Bearer ", "Bearer cap_wrong", "Basic Zm9vOmJhcg==", "cap_wrong"] {
            let mut request = Request::builder().method(method.clone()).uri(&path);
            if !authorization.is_empty() {
                request = request.header("authorization", authorization);
            }
            let response = rig.raw(request.body(Body::empty()).unwrap()).await;
            assert_eq!(response.status(), StatusCode::UNAUTHORIZED, "{method} {path} {authorization}");
            assert_eq!(response.headers().get("www-authenticate").unwrap(), "Bearer");
        }
    }
    // A key in the URL is ignored.
    let key = rig.key.clone().unwrap();
    let request = Request::get(format!("/api/v1/tools?key={key}&token={key}")).body(Body::empty()).unwrap();
    assert_eq!(rig.raw(request).await.status(), StatusCode::UNAUTHORIZED);
    assert_eq!(rig.get("/api/v1/tools").await.status, StatusCode::OK);
}

#[tokio::test]
async fn foreign_resource_looks_missing() {
    let mut rig = Rig::with_keys().await;
    let (conversation, run) = rig.start("mine").await;
    rig.play().await;
    let head = rig.get(&format!("/api/v1/conversations/{conversation}")).await.json()["last_seq"].clone();
    let shared = rig.post(&format!("/api/v1/conversations/{conversation}/shares"), json!({})).await.json();
    let share = shared["id"].as_str().unwrap().to_owned();
    let ann = rig.key.clone();
    rig.key = Some(rig.user("bob").await);
    let other = |path: &str| {
        path.replace(&conversation, "conv_01980000000070008000000000000009").replace(&run, "run_01980000000070008000000000000009")
    };
    let message = json!({"content": "x"});
    let rename = json!({"title": "x"});
    let requests: Vec<(Method, String, Option<Value>)> = vec![
        (Method::GET, format!("/api/v1/runs/{run}"), None),
        (Method::GET, format!("/api/v1/runs/{run}/events"), None),
        (Method::GET, format!("/api/v1/runs/{run}/explain"), None),
        (Method::GET, format!("/api/v1/runs/{run}/steps/1/request"), None),
        (Method::GET, format!("/api/v1/runs/{run}/tool-calls/call_01980000000070008000000000000009"), None),
        (Method::POST, format!("/api/v1/runs/{run}/cancel"), None),
        (Method::POST, format!("/api/v1/runs/{run}/resume"), None),
        (Method::GET, format!("/api/v1/conversations/{conversation}"), None),
        (Method::PATCH, format!("/api/v1/conversations/{conversation}"), Some(rename)),
        (Method::DELETE, format!("/api/v1/conversations/{conversation}"), None),
        (Method::GET, format!("/api/v1/conversations/{conversation}/messages"), None),
        (Method::POST, format!("/api/v1/conversations/{conversation}/messages"), Some(message)),
        (Method::GET, format!("/api/v1/conversations/{conversation}/events"), None),
        (Method::POST, format!("/api/v1/conversations/{conversation}/shares"), Some(json!({}))),
        (Method::GET, format!("/api/v1/conversations/{conversation}/shares"), None),
        (Method::DELETE, format!("/api/v1/conversations/{conversation}/shares/{share}"), None),
    ];
    for (method, path, body) in requests {
        for accept in ["application/json", "text/event-stream"] {
            let headers = [("accept", accept), ("x-request-id", "same")];
            let theirs = rig.send(method.clone(), &path, &headers, body.clone()).await;
            let missing = rig.send(method.clone(), &other(&path), &headers, body.clone()).await;
            assert_eq!(theirs.status, StatusCode::NOT_FOUND, "{method} {path}");
            assert_eq!(theirs.body, missing.body, "{method} {path}");
        }
    }
    let taken = rig.post("/api/v1/runs", json!({"input": "x", "conversation_id": conversation})).await;
    assert_eq!(taken.status, StatusCode::NOT_FOUND, "{}", taken.body);
    for list in ["conversations", "shares"] {
        assert_eq!(rig.get(&format!("/api/v1/{list}")).await.json()["data"], json!([]), "{list}");
    }
    rig.key = ann;
    assert_eq!(rig.get(&format!("/api/v1/conversations/{conversation}")).await.json()["last_seq"], head);
    let shares = rig.get(&format!("/api/v1/conversations/{conversation}/shares")).await.json();
    assert_eq!(shares["data"][0]["id"], share.as_str());
}

#[tokio::test]
async fn a_page_of_another_origin_changes_nothing_on_an_open_server() {
    let rig =
        Rig::with(HttpLimits::default(), |options| options.cors_origins = vec!["https://app.example".into()], Keys::None).await;
    let (_, run) = rig.start("hello").await;
    let path = format!("/api/v1/runs/{run}/cancel");
    for (origin, status) in [
        ("https://evil.example", 403),
        ("null", 403),
        ("http://localhost.evil.example", 403),
        ("http://localhost:1", 403),
        ("https://app.example", 202),
        ("http://localhost", 202),
        ("", 202),
    ] {
        let reply = rig.send(Method::POST, &path, &[("origin", origin)], None).await;
        assert_eq!(reply.status.as_u16(), status, "{origin}");
        let allowed = reply.header("access-control-allow-origin");
        assert_eq!(allowed, if origin == "https://app.example" { origin } else { "" });
    }
    // HTTP/2 has no Host header: the host is part of the URI.
    for (origin, status) in [("http://localhost:8080", 202), ("http://evil.example", 403)] {
        let uri = format!("http://localhost:8080{path}");
        let request = Request::post(uri).header("origin", origin).body(Body::empty()).unwrap();
        assert_eq!(rig.raw(request).await.status().as_u16(), status, "{origin}");
    }
}
