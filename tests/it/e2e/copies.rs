//! Edited messages, forks and imports: the model reads exactly the messages of the new conversation.

use rstest::rstest;
use serde_json::{Value, json};

use support::database::Kind;
use support::model::ModelMock;
use support::server::Site;

/// Returns role and text of each message in the first request of this script, without the system prompt.
fn read(model: &ModelMock, id: &str) -> Vec<(String, String)> {
    let asked = model.exchanges(id);
    let messages = asked[0].request["messages"].as_array().unwrap();
    let said = messages.iter().filter(|message| message["role"] != "system");
    said.map(|message| {
        let text = message["content"].as_str().map_or_else(|| message["content"].to_string(), str::to_owned);
        (message["role"].as_str().unwrap().to_owned(), text)
    })
    .collect()
}

const CALLS: &str = r#"[[id:calls]][[call:ledger__append {"text":"x"}]][[next]][[say:noted]]"#;

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn an_edited_message_is_answered_without_what_it_replaces(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) {
    let (model, site, server) = Site::start_scripted(kind).await;
    let first = server.say(None, CALLS).await;
    let conversation = first["conversation_id"].as_str().unwrap();
    server.say(Some(conversation), "[[id:worse]][[say:no]]").await;
    let before = server.messages(conversation).await;
    let path = format!("/conversations/{conversation}/messages/{}/edit", before[4]["id"].as_str().unwrap());

    let edited =
        server.post(&path, &json!({"content": "[[id:better]][[say:yes]]"})).header("prefer", "wait=30").send().await.unwrap();
    assert_eq!(edited.status(), 200);
    let answer: Value = edited.json().await.unwrap();
    let run = &answer["run"];
    assert_eq!(run["status"], "completed", "{run}");
    let after = server.messages(conversation).await;
    assert_eq!((after.len(), &after[..4]), (6, &before[..4]));
    let read = read(&model, "better");
    let roles: Vec<&str> = read.iter().map(|(role, _)| role.as_str()).collect();
    assert_eq!(roles, ["user", "assistant", "tool", "assistant", "user"], "{read:?}");
    assert_eq!((read[3].1.as_str(), read[4].1.as_str()), ("noted", "[[id:better]][[say:yes]]"));
    assert_eq!(site.ledger.count("append", "x"), 1);
    model.assert_history_was_sendable();
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_fork_goes_on_from_what_was_copied(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) {
    let (model, site, server) = Site::start_scripted(kind).await;
    let first = server.say(None, CALLS).await;
    let source = first["conversation_id"].as_str().unwrap();
    server.say(Some(source), "[[id:other]][[say:elsewhere]]").await;
    let (total, before) = (model.total(), server.messages(source).await);
    let (status, made) = server.post_json(&format!("/conversations/{source}/fork"), &json!({"to_run_id": first["id"]})).await;
    assert_eq!(status, 201, "{made}");
    let copy = made["id"].as_str().unwrap();
    assert_eq!(server.messages(copy).await.len(), 4);

    server.say(Some(copy), "[[id:next]][[say:on]]").await;
    let read = read(&model, "next");
    let roles: Vec<&str> = read.iter().map(|(role, _)| role.as_str()).collect();
    assert_eq!(roles, ["user", "assistant", "tool", "assistant", "user"], "{read:?}");
    assert_eq!((read[0].1.as_str(), read[3].1.as_str()), (CALLS, "noted"));
    assert_eq!((model.total(), site.ledger.count("append", "x")), (total + 1, 1), "no tool runs");
    assert_eq!(server.messages(source).await, before);

    // A retry answers a question that was copied without its answer.
    let (_, asked) = server.post_json(&format!("/conversations/{source}/fork"), &json!({"to_message_id": before[4]["id"]})).await;
    let asked = asked["id"].as_str().unwrap();
    let run = server.messages(asked).await[4]["run_id"].as_str().unwrap().to_owned();
    let (status, retried) = server.post_json(&format!("/runs/{run}/retry"), &json!({})).await;
    assert_eq!(status, 202, "{retried}");
    assert_eq!(server.finished(retried["id"].as_str().unwrap()).await["status"], "completed");
    assert_eq!(server.messages(asked).await[5]["parts"][0]["text"], "elsewhere");
    model.assert_history_was_sendable();
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn an_import_goes_on_from_what_the_document_says(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) {
    let (model, site, server) =
        Site::serve(async |model| Site::scripted(kind, model).await.env("CAPSTAN_LIMITS__COPY_MESSAGES", "5")).await;
    let first = server.say(None, CALLS).await;
    let source = first["conversation_id"].as_str().unwrap();
    let mut exported = server.get_json(&format!("/conversations/{source}/export")).await;
    let deleted = server.request(reqwest::Method::DELETE, &format!("/conversations/{source}")).send().await.unwrap();
    assert_eq!(deleted.status(), 204);
    let (status, made) = server.post_json("/conversations/import", &exported).await;
    assert_eq!(status, 201, "{made}");
    let copy = made["id"].as_str().unwrap();
    let total = model.total();
    let again = server.get_json(&format!("/conversations/{copy}/export")).await;
    let said = |document: &Value| -> Vec<Value> {
        let parts = |message: &Value| -> Vec<Value> {
            let parts = message["parts"].as_array().unwrap().iter();
            parts.map(|part| json!([part["type"], part["text"], part["name"], part["arguments"], part["content"]])).collect()
        };
        document["messages"].as_array().unwrap().iter().map(|message| json!([message["role"], parts(message)])).collect()
    };
    assert_eq!(said(&again), said(&exported));
    server.say(Some(copy), "[[id:next]][[say:on]]").await;
    let next = read(&model, "next");
    let roles: Vec<&str> = next.iter().map(|(role, _)| role.as_str()).collect();
    assert_eq!(roles, ["user", "assistant", "tool", "assistant", "user"], "{next:?}");
    assert_eq!((model.total(), site.ledger.count("append", "x")), (total + 1, 1), "no tool runs");

    // A call without a result gets a closing result in the request.
    exported["messages"].as_array_mut().unwrap().truncate(2);
    let (status, made) = server.post_json("/conversations/import", &exported).await;
    assert_eq!(status, 201, "{made}");
    server.say(made["id"].as_str(), "[[id:closed]][[say:on]]").await;
    assert_eq!(site.ledger.count("append", "x"), 1);
    model.assert_history_was_sendable();

    // The limit is a setting and applies to forks, too.
    let (status, _) = server.post_json(&format!("/conversations/{copy}/fork"), &json!({})).await;
    assert_eq!(status, 409);
    let six = server.get_json(&format!("/conversations/{copy}/export")).await;
    assert_eq!(server.post_json("/conversations/import", &six).await.0, 400);
}
