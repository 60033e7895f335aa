//! A conversation keeps its agent and its model until a message or a change names others.

use reqwest::Method;
use rstest::rstest;
use serde_json::{Value, json};

use support::database::Kind;
use support::model::ModelMock;
use support::server::{Server, Site};

/// Sends a message and returns its finished run, and the request that the model got.
async fn said(server: &Server, model: &ModelMock, conversation: Option<&str>, id: &str, names: &Value) -> (Value, Value) {
    let mut body = names.clone();
    body["input"] = json!(format!("[[id:{id}]] hello"));
    if let Some(conversation) = conversation {
        body["conversation_id"] = json!(conversation);
    }
    let run = server.start_run(&body).await;
    let run = server.finished(run["id"].as_str().unwrap()).await;
    assert_eq!(run["status"], "completed", "{run}");
    (run, model.exchanges(id)[0].request.clone())
}

async fn request(server: &Server, method: Method, path: &str, body: &Value) -> Value {
    let answer = server.request(method, path).json(body).send().await.unwrap();
    assert!(answer.status().is_success(), "{path}: {}", answer.status());
    answer.json().await.unwrap_or_default()
}

fn prompt(request: &Value) -> &str {
    request["messages"][0]["content"].as_str().unwrap()
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn later_messages_go_to_the_agent_of_the_conversation(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) {
    let (model, _site, server) = Site::serve(async |model| Site::new(kind).await.with_model(model)).await;
    request(&server, Method::POST, "/agents", &json!({"name": "poet", "profile": {"system_prompt": "Rhyme."}})).await;
    let named = json!({"agent": "poet", "model": "openai/other"});
    let (first, asked) = said(&server, &model, None, "first", &named).await;
    assert_eq!((prompt(&asked).contains("Rhyme."), &asked["model"]), (true, &json!("other")));
    let conversation = first["conversation_id"].as_str().unwrap();
    let path = format!("/conversations/{conversation}");

    // Without a version, the agent's name means its current version.
    request(&server, Method::PATCH, "/agents/poet", &json!({"profile": {"system_prompt": "Hum."}})).await;
    let (second, asked) = said(&server, &model, Some(conversation), "second", &json!({})).await;
    assert_eq!((&second["agent"], &second["agent_version"], &asked["model"]), (&json!("poet"), &json!(2), &json!("other")));
    assert!(prompt(&asked).contains("Hum."), "{asked}");
    let shown = server.get_json(&path).await;
    assert_eq!((&shown["agent"], &shown["model"]), (&json!("poet"), &json!("openai/other")));

    // A version that is named stays.
    let (third, _) = said(&server, &model, Some(conversation), "third", &json!({"agent": "poet@1"})).await;
    let (fourth, asked) = said(&server, &model, Some(conversation), "fourth", &json!({})).await;
    assert_eq!((&third["agent_version"], &fourth["agent_version"]), (&json!(1), &json!(1)));
    assert!(prompt(&asked).contains("Rhyme."), "{asked}");

    // A fork keeps both, and so does a retry of the last run.
    let fork = request(&server, Method::POST, &format!("{path}/fork"), &json!({})).await;
    let (forked, asked) = said(&server, &model, fork["id"].as_str(), "forked", &json!({})).await;
    assert_eq!((&forked["agent"], &forked["agent_version"], &asked["model"]), (&json!("poet"), &json!(1), &json!("other")));
    let again = request(&server, Method::POST, &format!("/runs/{}/retry", fourth["id"].as_str().unwrap()), &json!({})).await;
    assert_eq!(server.finished(again["id"].as_str().unwrap()).await["agent"], "poet");

    // PATCH, and then a message, name others.
    let changed = request(&server, Method::PATCH, &path, &json!({"agent": "default", "model": ""})).await;
    assert_eq!((&changed["agent"], changed.get("model")), (&json!("default"), None));
    let (fifth, asked) = said(&server, &model, Some(conversation), "fifth", &json!({})).await;
    assert_eq!((&fifth["agent"], &asked["model"]), (&json!("default"), &json!("mock")));
    // The choice of one conversation does not affect another.
    let (elsewhere, _) = said(&server, &model, None, "elsewhere", &json!({})).await;
    assert_eq!(elsewhere["agent"], "default");
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn steering_message_sets_the_agent_of_later_runs(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) {
    let (model, _site, server) = Site::serve(async |model| Site::new(kind).await.with_model(model)).await;
    request(&server, Method::POST, "/agents", &json!({"name": "poet", "profile": {"system_prompt": "Rhyme."}})).await;
    let script = "[[id:held]][[call:calculate {\"expression\":\"1\"}]][[hold]]";
    let held = server.start_run(&json!({"input": script})).await;
    model.wait_for("the run", "held", |seen| !seen.is_empty()).await;
    let conversation = held["conversation_id"].as_str().unwrap();
    let path = format!("/conversations/{conversation}/messages");
    let steered = request(&server, Method::POST, &path, &json!({"content": "more", "on_busy": "steer", "agent": "poet"})).await;
    assert_eq!((&steered["run"]["id"], &steered["run"]["agent"]), (&held["id"], &json!("default")));
    model.release("held");
    assert_eq!(server.finished(held["id"].as_str().unwrap()).await["status"], "completed");
    assert_eq!(said(&server, &model, Some(conversation), "next", &json!({})).await.0["agent"], "poet");
}
