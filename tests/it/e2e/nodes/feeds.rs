//! The feed of a user's list at one server, about changes that another one makes.

use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};

use support::database::Kind;
use support::model::ModelMock;
use support::server::Site;
use support::wait;
use support::ws::{Incoming, WsClient};

async fn next(feed: &mut WsClient) -> Value {
    match feed.next().await {
        Incoming::Text(text) => serde_json::from_str(&text).unwrap(),
        end => panic!("{end:?}"),
    }
}

/// Returns the first change of a conversation that `is` accepts.
async fn changed(feed: &mut WsClient, is: impl Fn(&Value) -> bool) -> Value {
    loop {
        let event = next(feed).await;
        if event["type"] == "owner.changed" && is(&event["data"]) {
            return event["data"].clone();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn feed_carries_changes_of_other_nodes() {
    let model = ModelMock::start().await;
    let site = Site::scripted(Kind::Postgres, &model).await.env("CAPSTAN_TOOLS__ENABLE", r#"["ask_user"]"#);
    let api = site.start_with(&[("CAPSTAN_SERVER__ROLE", "api")]).await;
    let other = site.start().await;
    let mut feed = WsClient::connect(&api.url, None).await;
    feed.call("subscribe", json!({"scope": "owner"})).await;

    // A server notifies others once it knows of them.
    let first = async {
        loop {
            let made = other.post_json("/conversations", &json!({"title": "elsewhere"})).await.1;
            let shown = changed(&mut feed, |data| data["conversation"]["id"] == made["id"]);
            if tokio::time::timeout(Duration::from_secs(1), shown).await.is_ok() {
                return made;
            }
        }
    };
    let made = wait::within("the first change", Duration::from_secs(20), first).await;

    let question = r#"{"question":"Which one?","choices":["red","blue"]}"#;
    let input = format!("[[id:ask]][[call:ask_user {question}]][[next]][[say:bye]]");
    let run = other.start_run(&json!({"input": input})).await;
    let is_asking =
        |data: &Value| data["conversation"]["id"] == run["conversation_id"] && data["open_questions"][0]["id"].is_string();
    let item = changed(&mut feed, is_asking).await;
    let id = item["open_questions"][0]["id"].as_str().unwrap().to_owned();
    let open = other.get_json("/input-requests?status=pending").await;
    assert_eq!((&open["data"][0]["id"], &item["open_questions"][0]["kind"]), (&json!(id), &json!("question")));
    let (status, answer) = other.post_json(&format!("/input-requests/{id}"), &json!({"choice": "red"})).await;
    assert_eq!(status, 200, "{answer}");
    let item = changed(&mut feed, |data| data["conversation"]["last_run"]["status"] == "completed").await;
    assert_eq!((&item["conversation"]["status"], &item["open_questions"]), (&json!("idle"), &json!([])));

    let path = format!("/conversations/{}", made["id"].as_str().unwrap());
    other.request(Method::DELETE, &path).send().await.unwrap();
    let removed = loop {
        let event = next(&mut feed).await;
        if event["type"] != "owner.changed" {
            break event;
        }
    };
    assert_eq!((&removed["type"], &removed["data"]["conversation_id"]), (&json!("owner.removed"), &made["id"]));
}

/// Behind a pooler, no server hears of the changes of others, so each client reads its list periodically.
#[tokio::test(flavor = "multi_thread")]
async fn feed_behind_a_pooler_is_reset_periodically() {
    let model = ModelMock::start().await;
    let (site, _pooler) = super::site(&model, true).await;
    let server = site.start().await;
    let mut feed = WsClient::connect(&server.url, None).await;
    feed.call("subscribe", json!({"scope": "owner"})).await;
    for _ in 0..2 {
        assert_eq!(next(&mut feed).await["type"], "owner.reset");
    }
}
