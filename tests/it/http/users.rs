//! Users as administrators see and change them over HTTP.

use axum::http::{Method, StatusCode};
use capstan::domain::access::principal::UserRole;
use serde_json::{Value, json};

use super::rig::{Reply, Rig, text};

async fn users(rig: &Rig) -> Vec<Value> {
    rig.get("/api/v1/users").await.json()["data"].as_array().unwrap().clone()
}

async fn id_of(rig: &Rig, name: &str) -> String {
    text(&users(rig).await.iter().find(|user| user["name"] == name).unwrap()["id"])
}

async fn update(rig: &Rig, id: &str, body: Value) -> Reply {
    rig.send(Method::PATCH, &format!("/api/v1/users/{id}"), &[], Some(body)).await
}

#[tokio::test]
async fn users_are_for_administrators_only() {
    let mut rig = Rig::with_keys().await;
    let me = text(&rig.get("/api/v1/me").await.json()["id"]);
    let refused = [rig.get("/api/v1/users").await, update(&rig, &me, json!({"role": "admin"})).await];
    for reply in refused {
        assert_eq!((reply.status, reply.code().as_str()), (StatusCode::FORBIDDEN, "forbidden"));
        assert!(reply.body.contains("only an administrator"), "{}", reply.body);
    }
    rig.key = Some(rig.user_as("root", UserRole::Admin).await);
    let listed = users(&rig).await;
    let shown: Vec<_> = listed.iter().map(|user| (user["name"].as_str().unwrap(), user["role"].as_str().unwrap())).collect();
    assert_eq!(shown, [("ann", "member"), ("local", "admin"), ("root", "admin")]);
    let first = rig.get("/api/v1/users?limit=2").await;
    let next = first.header("link").trim_start_matches('<').split('>').next().unwrap().to_owned();
    assert_eq!(rig.get(&next).await.json(), json!({"data": [listed[2]], "next_cursor": null}));
}

#[tokio::test]
async fn administrator_sets_groups() {
    let mut rig = Rig::with_keys().await;
    let ann = rig.key.replace(rig.user_as("root", UserRole::Admin).await);
    let id = id_of(&rig, "ann").await;
    let changed = update(&rig, &id, json!({"groups": ["staff", "editors", "staff"]})).await;
    assert_eq!(changed.json()["groups"], json!(["editors", "staff"]), "{}", changed.body);
    assert_eq!(update(&rig, &id, json!({})).await.json()["groups"], json!(["editors", "staff"]), "nothing changes");
    assert_eq!(update(&rig, &id, json!({"groups": ["No!"]})).await.status, StatusCode::BAD_REQUEST);
    let unknown = update(&rig, "user_01980000000070008000000000000009", json!({"groups": []})).await;
    assert_eq!(unknown.status, StatusCode::NOT_FOUND);
    rig.key = ann;
    assert_eq!(rig.get("/api/v1/me").await.json()["groups"], json!(["editors", "staff"]));
}

#[tokio::test]
async fn changed_role_applies_to_the_keys_of_the_user() {
    let mut rig = Rig::with_keys().await;
    let ann = rig.key.replace(rig.user_as("root", UserRole::Admin).await);
    let root = rig.key.clone();
    let (id, own) = (id_of(&rig, "ann").await, id_of(&rig, "root").await);
    for (role, status) in [("admin", StatusCode::OK), ("member", StatusCode::FORBIDDEN)] {
        rig.key = root.clone();
        let changed = update(&rig, &id, json!({"role": role})).await;
        assert_eq!((changed.status, &changed.json()["role"]), (StatusCode::OK, &json!(role)), "{}", changed.body);
        rig.key = ann.clone();
        assert_eq!(rig.get("/api/v1/users").await.status, status, "{role}");
    }
    rig.key = root;
    assert_eq!(update(&rig, &own, json!({"role": "member"})).await.status, StatusCode::CONFLICT, "one administrator remains");
}
