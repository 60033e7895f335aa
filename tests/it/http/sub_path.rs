//! A server under a path of its host, behind a proxy that removes the path.

use axum::http::{Method, StatusCode};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use capstan::http::HttpLimits;
use serde_json::json;

use super::rig::{Keys, Rig, text};
use support::documents::PNG;

async fn rig(public_url: &'static str) -> Rig {
    Rig::with(HttpLimits::default(), |options| options.public_url = Some(public_url.to_owned()), Keys::None).await
}

#[tokio::test]
async fn links_of_server_under_a_path_begin_with_it() {
    let rig = rig("https://example.org/capstan/").await;
    let reply = rig.post("/api/v1/runs", json!({"input": "hello"})).await;
    let run = text(&reply.json()["run"]["id"]);
    assert_eq!(reply.header("location"), format!("/capstan/api/v1/runs/{run}"));
    rig.post("/api/v1/runs", json!({"input": "again"})).await;
    let page = rig.get("/api/v1/runs?limit=1").await;
    assert!(page.header("link").starts_with("</capstan/api/v1/runs?limit=1&"), "{}", page.header("link"));
    let docs = rig.get("/docs").await;
    assert!(docs.status.is_redirection() && docs.header("location") == "/capstan/docs/", "{:?}", docs.header("location"));
    let initializer = rig.get("/docs/swagger-initializer.js").await;
    assert!(initializer.body.contains("\"../openapi.json\""), "{}", initializer.body);
    let document = rig.get("/openapi.json").await.json();
    assert_eq!(document["servers"], json!([{"url": "/capstan"}]));
}

#[tokio::test]
async fn links_of_server_at_the_root_have_no_prefix() {
    let rig = rig("https://example.org").await;
    let reply = rig.send(Method::POST, "/api/v1/conversations", &[], Some(json!({}))).await;
    assert_eq!(reply.status, StatusCode::CREATED);
    assert!(reply.header("location").starts_with("/api/v1/conversations/"), "{}", reply.header("location"));
    assert_eq!(rig.get("/openapi.json").await.json()["servers"], json!([{"url": "/"}]));
}

#[tokio::test]
async fn links_in_bodies_and_events_begin_with_the_path() {
    let rig = rig("https://example.org/capstan").await;
    let url = format!("data:image/png;base64,{}", STANDARD.encode(PNG));
    let image = json!({"type": "image", "media_type": "image/png", "url": url});
    // The text of a user is no link of the server.
    let words = "\"url\":\"/api/v1/files/file_1\"";
    let reply = rig.post("/api/v1/runs", json!({"input": [image, {"type": "text", "text": words}]})).await.json();
    let parts = &reply["message"]["parts"];
    let url = text(&parts[0]["url"]);
    assert!(url.starts_with("/capstan/api/v1/files/file_") && url.ends_with("/content"), "{reply}");
    assert_eq!(parts[1]["text"], json!(words));
    let conversation = text(&reply["run"]["conversation_id"]);
    let mut stream = rig.stream(&format!("/api/v1/conversations/{conversation}/events"), &[]).await;
    let snapshot = stream.next().await.unwrap().json();
    assert_eq!(snapshot["data"]["messages"][0]["parts"][0]["url"], json!(url), "{snapshot}");
    // A client may send the part back as it got it.
    let again = json!({"input": [{"type": "image", "file_id": parts[0]["file_id"], "url": url}]});
    assert_eq!(rig.post("/api/v1/runs", again).await.json()["message"]["parts"][0]["url"], json!(url));
    let missing = rig.get("/api/v1/runs/run_1").await;
    assert_eq!(missing.json()["type"], "/capstan/docs/errors/not_found");
    let served = rig.exchange(Method::HEAD, url.trim_start_matches("/capstan"), &[], None).await;
    assert_eq!(served.status, StatusCode::OK);
}
