//! The agent, the model and the last run in a conversation's representation.

use axum::http::{Method, StatusCode};
use capstan::domain::event::EventBody;
use capstan::domain::problem::ProblemCode;
use capstan::domain::run::RunStatus;
use capstan::domain::run::change::Change;
use serde_json::{Value, json};

use super::rig::{Reply, Rig, text};
use super::sockets::connect;

async fn make_agent(rig: &Rig, name: &str) {
    let reply = rig.post("/api/v1/agents", json!({"name": name, "profile": {"system_prompt": "Rhyme."}})).await;
    assert_eq!(reply.status, StatusCode::CREATED, "{}", reply.body);
}

async fn patch(rig: &Rig, conversation: &str, body: Value) -> Reply {
    rig.send(Method::PATCH, &format!("/api/v1/conversations/{conversation}"), &[], Some(body)).await
}

async fn shown(rig: &Rig, conversation: &str) -> Value {
    rig.get(&format!("/api/v1/conversations/{conversation}")).await.json()
}

/// Sends a message and plays its run.
async fn said(rig: &Rig, conversation: &str, mut body: Value) -> Value {
    body["content"] = json!("hello");
    let reply = rig.post(&format!("/api/v1/conversations/{conversation}/messages"), body).await;
    assert_eq!(reply.status, StatusCode::ACCEPTED, "{}", reply.body);
    rig.play().await;
    reply.json()["run"].clone()
}

#[tokio::test]
async fn conversation_keeps_agent_and_model_until_others_are_named() {
    let rig = Rig::new().await;
    make_agent(&rig, "poet").await;
    let made = rig.post("/api/v1/conversations", json!({"agent": "poet", "model": "demo/demo"})).await.json();
    assert_eq!((&made["agent"], &made["model"], made.get("last_run")), (&json!("poet"), &json!("demo/demo"), None));
    let id = text(&made["id"]);
    assert_eq!(shown(&rig, &id).await["agent"], "poet");
    assert_eq!(said(&rig, &id, json!({})).await["agent"], "poet");
    assert_eq!(said(&rig, &id, json!({"agent": "react"})).await["agent"], "react");
    let run = said(&rig, &id, json!({})).await;
    assert_eq!((&run["agent"], &shown(&rig, &id).await["agent"]), (&json!("react"), &json!("react")));
    // Also through the other endpoint, an edit and a WebSocket.
    let reply = rig.post("/api/v1/runs", json!({"input": "x", "conversation_id": id})).await.json();
    rig.play().await;
    assert_eq!(reply["run"]["agent"], "react");
    let edit = format!("/api/v1/conversations/{id}/messages/{}/edit", text(&reply["message"]["id"]));
    assert_eq!(rig.post(&edit, json!({"content": "y"})).await.json()["run"]["agent"], "react");
    rig.play().await;
    assert_eq!(patch(&rig, &id, json!({"agent": "poet@1"})).await.json()["agent"], "poet@1");
    let mut rig = rig;
    let mut socket = connect(&rig.listen().await, &[]).await.unwrap();
    let started = socket.call("run.start", json!({"input": "z", "conversation_id": id})).await;
    assert_eq!(started["result"]["run"]["agent"], "poet", "{started}");
    rig.play().await;
    // Empty strings and null clear the stored names.
    let cleared = patch(&rig, &id, json!({"agent": "", "model": null})).await.json();
    assert_eq!((cleared.get("agent"), cleared.get("model")), (None, None));
    assert_eq!(said(&rig, &id, json!({})).await["agent"], "default");
}

#[tokio::test]
async fn unknown_agent_or_model_of_a_conversation_is_refused() {
    let rig = Rig::new().await;
    let id = text(&rig.post("/api/v1/conversations", json!({})).await.json()["id"]);
    for (body, code) in [(json!({"agent": "poet"}), "invalid_request"), (json!({"model": "no/such"}), "unknown_model")] {
        for reply in [rig.post("/api/v1/conversations", body.clone()).await, patch(&rig, &id, body.clone()).await] {
            assert_eq!((reply.status, reply.code().as_str()), (StatusCode::BAD_REQUEST, code), "{}", reply.body);
            let name = body.as_object().unwrap().values().next().unwrap().as_str().unwrap();
            assert!(text(&reply.json()["detail"]).contains(name), "{}", reply.body);
        }
    }
    let long = patch(&rig, &id, json!({"model": "x".repeat(201)})).await;
    assert_eq!(long.json()["errors"][0]["pointer"], "/model", "{}", long.body);
    assert_eq!((shown(&rig, &id).await.get("agent"), shown(&rig, &id).await.get("model")), (None, None));
}

#[tokio::test]
async fn deleted_agent_of_a_conversation_is_named() {
    let rig = Rig::new().await;
    make_agent(&rig, "poet").await;
    let (conversation, _) = rig.start("hello").await;
    rig.play().await;
    assert_eq!(patch(&rig, &conversation, json!({"agent": "poet"})).await.status, StatusCode::OK);
    assert_eq!(rig.send(Method::DELETE, "/api/v1/agents/poet", &[], None).await.status, StatusCode::NO_CONTENT);
    let path = format!("/api/v1/conversations/{conversation}/messages");
    let reply = rig.post(&path, json!({"content": "more"})).await;
    assert_eq!((reply.status, reply.code().as_str()), (StatusCode::CONFLICT, "conflict"), "{}", reply.body);
    let detail = text(&reply.json()["detail"]);
    assert!(detail.contains("\"poet\"") && detail.contains("PATCH"), "{detail}");
    assert_eq!(said(&rig, &conversation, json!({"agent": "default"})).await["agent"], "default");
    assert_eq!(said(&rig, &conversation, json!({})).await["agent"], "default");
}

#[tokio::test]
async fn lost_model_of_a_conversation_is_named() {
    let rig = Rig::new().await;
    let provider = json!({"name": "mine", "kind": "openai", "base_url": "https://mine.example/v1"});
    let reply = rig.post("/api/v1/providers", provider).await;
    assert_eq!(reply.status, StatusCode::CREATED, "{}", reply.body);
    let id = text(&rig.post("/api/v1/conversations", json!({"model": "mine/one"})).await.json()["id"]);
    assert_eq!(said(&rig, &id, json!({})).await["model"], "mine/one");
    let path = format!("/api/v1/providers/{}", text(&reply.json()["id"]));
    assert_eq!(rig.send(Method::DELETE, &path, &[], None).await.status, StatusCode::NO_CONTENT);
    let reply = rig.post(&format!("/api/v1/conversations/{id}/messages"), json!({"content": "more"})).await;
    assert_eq!(reply.status, StatusCode::CONFLICT, "{}", reply.body);
    assert!(text(&reply.json()["detail"]).contains("\"mine/one\""), "{}", reply.body);
    assert_eq!(said(&rig, &id, json!({"model": "demo/demo"})).await["model"], "demo/demo");
}

#[tokio::test]
async fn conversation_of_another_user_is_not_changed() {
    let rig = Rig::with_keys().await;
    let (conversation, _) = rig.start("mine").await;
    let bob = format!("Bearer {}", rig.user("bob").await);
    let path = format!("/api/v1/conversations/{conversation}");
    for body in [json!({"agent": "react"}), json!({"agent": "no-such"}), json!({"model": "no/such"})] {
        let reply = rig.send(Method::PATCH, &path, &[("authorization", &bob)], Some(body)).await;
        assert_eq!(reply.code(), "not_found", "{}", reply.body);
    }
    assert_eq!(shown(&rig, &conversation).await["agent"], "default");
}

#[tokio::test]
async fn failed_conversation_names_its_run_and_error() {
    let rig = Rig::new().await;
    let (conversation, run) = rig.start("hello").await;
    let path = format!("/api/v1/conversations/{conversation}");
    let before = rig.get(&path).await;
    assert_eq!(before.json()["last_run"], json!({"id": run, "status": "queued"}));
    let error = ProblemCode::ProviderQuota.body("nothing left");
    let end = Change::Finish { status: RunStatus::Failed, finish_reason: None, error: Some(error.clone()), joined: None };
    rig.write(&rig.claim().await, &[EventBody::RunFailed { error: error.clone() }], vec![end]).await;
    let after = rig.send(Method::GET, &path, &[("if-none-match", before.header("etag"))], None).await;
    assert_eq!(after.status, StatusCode::OK, "the entity tag changed");
    let told = json!({"id": run, "status": "failed", "error": error});
    assert_eq!((&after.json()["status"], &after.json()["last_run"]), (&json!("failed"), &told));
    assert_eq!(rig.get("/api/v1/conversations").await.json()["data"][0]["last_run"], told);
    // A change returns it, too, and a fork has its own.
    assert_eq!(patch(&rig, &conversation, json!({"title": "x"})).await.json()["last_run"], told);
    let fork = rig.post(&format!("{path}/fork"), json!({})).await.json();
    let own = rig.get(&format!("/api/v1/conversations/{}", text(&fork["id"]))).await.json();
    assert_eq!(fork["last_run"], own["last_run"]);
    assert_eq!((&own["last_run"]["status"], &own["last_run"]["error"]), (&json!("failed"), &told["error"]));
    assert_ne!(own["last_run"]["id"], told["id"]);
    // The next run replaces it.
    let next = rig.post(&format!("{path}/messages"), json!({"content": "again"})).await.json();
    assert_eq!(shown(&rig, &conversation).await["last_run"], json!({"id": next["run"]["id"], "status": "queued"}));
}

#[tokio::test]
async fn fork_and_import_keep_agent_and_model() {
    let rig = Rig::new().await;
    make_agent(&rig, "poet").await;
    let (conversation, _) = rig.start("hello").await;
    rig.play().await;
    assert_eq!(patch(&rig, &conversation, json!({"agent": "poet", "model": "demo/demo"})).await.status, StatusCode::OK);
    let path = format!("/api/v1/conversations/{conversation}");
    let fork = rig.post(&format!("{path}/fork"), json!({})).await.json();
    let document = rig.get(&format!("{path}/export")).await.json();
    let import = rig.post("/api/v1/conversations/import", document.clone()).await.json();
    for copy in [&fork, &import] {
        assert_eq!((&copy["agent"], &copy["model"]), (&json!("poet"), &json!("demo/demo")), "{copy}");
        assert_eq!(said(&rig, &text(&copy["id"]), json!({})).await["agent"], "poet");
    }
    let runs = rig.get(&format!("/api/v1/conversations/{}/runs", text(&import["id"]))).await.json();
    assert_eq!(runs["data"][1]["agent"], "poet", "earlier messages are answered again by that agent");
    // A document of another server may name an agent that is missing here: the next message reports it.
    let mut foreign = document;
    foreign["conversation"]["agent"] = json!("stranger");
    let reply = rig.post("/api/v1/conversations/import", foreign.clone()).await;
    assert_eq!((reply.status, &reply.json()["agent"]), (StatusCode::CREATED, &json!("stranger")), "{}", reply.body);
    let path = format!("/api/v1/conversations/{}/messages", text(&reply.json()["id"]));
    let refused = rig.post(&path, json!({"content": "more"})).await;
    assert!(refused.code() == "conflict" && refused.body.contains("stranger"), "{}", refused.body);
    foreign["conversation"]["agent"] = json!("a\nb");
    assert_eq!(rig.post("/api/v1/conversations/import", foreign).await.status, StatusCode::BAD_REQUEST);
}
