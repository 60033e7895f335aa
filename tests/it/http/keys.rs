//! API keys: their creation, lists and revocation over HTTP.

use axum::http::{Method, StatusCode};
use capstan::domain::access::principal::UserRole;
use serde_json::{Value, json};

use super::rig::{MAX_KEYS, Rig, text};

async fn keys(rig: &Rig) -> Vec<Value> {
    rig.get("/api/v1/keys").await.json()["data"].as_array().unwrap().clone()
}

async fn revoke(rig: &Rig, id: &Value) -> StatusCode {
    rig.send(Method::DELETE, &format!("/api/v1/keys/{}", text(id)), &[], None).await.status
}

#[tokio::test]
async fn member_manages_only_own_keys() {
    let mut rig = Rig::with_keys().await;
    let first = rig.key.clone();
    let created = rig.post("/api/v1/keys", json!({"label": " laptop "})).await;
    assert_eq!((created.status, created.header("cache-control")), (StatusCode::CREATED, "no-store"), "{}", created.body);
    let laptop = created.json();
    assert_eq!((&laptop["label"], &laptop["user"]), (&json!("laptop"), &json!("ann")));
    rig.key = Some(text(&laptop["key"]));
    let listed = keys(&rig).await;
    assert_eq!(listed.iter().map(|key| &key["id"]).collect::<Vec<_>>()[0], &laptop["id"], "newest first");
    assert!(listed.len() == 2 && listed.iter().all(|key| key.get("key").is_none()), "{listed:?}");

    let ann = rig.key.replace(rig.user("bob").await);
    assert_eq!(keys(&rig).await.len(), 1);
    let foreign = rig.send(Method::DELETE, &format!("/api/v1/keys/{}", text(&laptop["id"])), &[("x-request-id", "a")], None).await;
    let missing =
        rig.send(Method::DELETE, "/api/v1/keys/key_01980000000070008000000000000009", &[("x-request-id", "a")], None).await;
    assert_eq!((foreign.status, &foreign.body), (StatusCode::NOT_FOUND, &missing.body));
    let of_ann = rig.get(&format!("/api/v1/keys?user_id={}", text(&laptop["user_id"]))).await;
    assert_eq!((of_ann.status, of_ann.code().as_str()), (StatusCode::FORBIDDEN, "forbidden"));
    for body in [json!({"user": "carl"}), json!({"role": "admin"})] {
        let refused = rig.post("/api/v1/keys", body).await;
        assert_eq!(refused.status, StatusCode::FORBIDDEN, "{}", refused.body);
    }

    rig.key = ann;
    assert_eq!(revoke(&rig, &laptop["id"]).await, StatusCode::NO_CONTENT, "a key can revoke itself");
    assert_eq!(rig.get("/api/v1/me").await.status, StatusCode::UNAUTHORIZED, "at once");
    rig.key = first;
    let listed = keys(&rig).await;
    assert!(listed[0]["revoked_at"].is_string() && listed[1].get("revoked_at").is_none(), "{listed:?}");
    assert_eq!(revoke(&rig, &laptop["id"]).await, StatusCode::NO_CONTENT, "a repeated revocation changes nothing");
    assert_eq!(keys(&rig).await, listed);
}

#[tokio::test]
async fn repeated_creation_shows_no_key() {
    let rig = Rig::with_keys().await;
    let create = async |label: &str| {
        rig.send(Method::POST, "/api/v1/keys", &[("idempotency-key", "once")], Some(json!({"label": label}))).await
    };
    let first = create("ci").await;
    assert_eq!(first.status, StatusCode::CREATED, "{}", first.body);
    let again = create("ci").await;
    assert_eq!((again.status, again.code().as_str()), (StatusCode::CONFLICT, "conflict"));
    assert!(again.body.contains(&text(&first.json()["id"])) && !again.body.contains("cap_"), "{}", again.body);
    assert_eq!(create("other").await.status, StatusCode::UNPROCESSABLE_ENTITY);
    assert_eq!(keys(&rig).await.len(), 2);
}

#[tokio::test]
async fn last_key_of_the_server_is_not_revoked() {
    let rig = Rig::with_keys().await;
    let only = keys(&rig).await.remove(0);
    assert_eq!(revoke(&rig, &only["id"]).await, StatusCode::CONFLICT);
    assert_eq!(rig.post("/api/v1/keys", json!({})).await.status, StatusCode::CREATED);
    assert_eq!(revoke(&rig, &only["id"]).await, StatusCode::NO_CONTENT);
}

#[tokio::test]
async fn user_has_limited_number_of_valid_keys() {
    let mut rig = Rig::with_keys().await;
    for _ in 1..MAX_KEYS {
        assert_eq!(rig.post("/api/v1/keys", json!({})).await.status, StatusCode::CREATED);
    }
    let refused = rig.post("/api/v1/keys", json!({})).await;
    assert_eq!((refused.status, refused.code().as_str()), (StatusCode::CONFLICT, "conflict"));
    assert!(refused.body.contains("limits.max_keys_per_owner"), "{}", refused.body);
    let newest = keys(&rig).await.remove(0);
    assert_eq!(revoke(&rig, &newest["id"]).await, StatusCode::NO_CONTENT);
    assert_eq!(rig.post("/api/v1/keys", json!({})).await.status, StatusCode::CREATED, "a revoked key does not count");
    rig.key = Some(rig.user_as("root", UserRole::Admin).await);
    let of_ann = rig.post("/api/v1/keys", json!({"user": "ann"})).await;
    assert!(of_ann.status == StatusCode::CONFLICT && of_ann.body.contains("ann"), "{}", of_ann.body);
    assert_eq!(rig.post("/api/v1/keys", json!({})).await.status, StatusCode::CREATED, "each user has a limit");
}

#[tokio::test]
async fn open_server_creates_no_key() {
    let rig = Rig::new().await;
    let refused = rig.post("/api/v1/keys", json!({})).await;
    assert_eq!(refused.status, StatusCode::CONFLICT);
    assert!(refused.body.contains("capstan keys create"), "{}", refused.body);
    assert!(keys(&rig).await.is_empty());
}

#[tokio::test]
async fn administrator_creates_and_revokes_keys_of_users() {
    let mut rig = Rig::with_keys().await;
    rig.key = Some(rig.user_as("root", UserRole::Admin).await);
    let created = rig.post("/api/v1/keys", json!({"user": "carl", "role": "admin"})).await;
    assert_eq!(created.status, StatusCode::CREATED, "{}", created.body);
    let carl = created.json();
    assert!(text(&carl["key"]).starts_with(&text(&carl["label"])), "{carl}");
    for (body, status) in [
        (json!({"user": "carl"}), 201),
        (json!({"user": "carl", "role": "admin"}), 201),
        (json!({"user": "carl", "role": "member"}), 409),
        (json!({"role": "admin"}), 400),
        (json!({"user": " "}), 400),
        (json!({"label": "x".repeat(101)}), 400),
    ] {
        let reply = rig.post("/api/v1/keys", body.clone()).await;
        assert_eq!(reply.status.as_u16(), status, "{body} {}", reply.body);
    }
    assert_eq!(keys(&rig).await.len(), 5, "those of ann, root and carl");
    let of_carl = rig.get(&format!("/api/v1/keys?limit=2&user_id={}", text(&carl["user_id"]))).await;
    let next = of_carl.header("link").trim_start_matches('<').split('>').next().unwrap().to_owned();
    let rest = rig.get(&next).await.json();
    assert_eq!(rest["data"].as_array().unwrap().iter().map(|key| &key["id"]).collect::<Vec<_>>(), [&carl["id"]], "the oldest");

    let root = rig.key.replace(text(&carl["key"]));
    assert_eq!(rig.get("/api/v1/users").await.status, StatusCode::OK, "carl is an administrator");
    let carls = rig.key.take();
    rig.key = root;
    assert_eq!(revoke(&rig, &carl["id"]).await, StatusCode::NO_CONTENT);
    rig.key = carls;
    assert_eq!(rig.get("/api/v1/me").await.status, StatusCode::UNAUTHORIZED);
}
