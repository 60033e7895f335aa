//! Conversations that exceed their token budget, seen through the API.

use rstest::rstest;
use serde_json::{Value, json};

use support::database::Kind;
use support::dialects::{Dialect, Says};
use support::server::{Server, Site};
use support::wire::{Answer, Wire};

async fn site(kind: Kind, wire: &Wire) -> Site {
    let mut site = Site::new(kind).await.env("CAPSTAN_MODEL", Dialect::Openai.model());
    for (name, value) in Dialect::Openai.environment(&wire.base_url) {
        site = site.env(name, &value);
    }
    site.env("CAPSTAN_AGENT__CONTEXT__LIMIT", "8000").env("CAPSTAN_AGENT__CONTEXT__KEEP_LAST", "2")
}

fn answers(count: usize) -> Vec<Answer> {
    (0..count).map(|_| Dialect::Openai.answer(Says { text: "I see.", ..Says::default() })).collect()
}

async fn ask(server: &Server, conversation: &Value, input: &str) -> Value {
    let run = server.start_run(&json!({"input": input, "conversation_id": conversation})).await;
    let ended = server.finished(run["id"].as_str().unwrap()).await;
    assert_eq!(ended["status"], "completed", "{ended}");
    ended
}

async fn told(server: &Server, run: &Value, kind: &str) -> Vec<Value> {
    let events = server.run_events_json(run["id"].as_str().unwrap()).await;
    events.into_iter().filter(|event| event["type"] == kind).map(|event| event["data"].clone()).collect()
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_summary_outlives_its_run_and_its_server(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) {
    let wire = Wire::play(answers(4)).await;
    let site = site(kind, &wire).await;
    let mut server = site.start().await;
    let mut conversation = Value::Null;
    let mut last = Value::Null;
    for word in ["first", "second", "third"] {
        last = ask(&server, &conversation, &format!("{word} {}", "word ".repeat(800))).await;
        conversation = last["conversation_id"].clone();
    }
    let budget = told(&server, &last, "context.budget").await;
    let [budget] = budget.as_slice() else { panic!("one for each step: {budget:?}") };
    assert_eq!((&budget["unit"], &budget["window"]), (&json!("tokens"), &json!(8_000)));
    assert_eq!(budget["tokenizer"], "o200k_base", "{budget}");
    let (used, remaining) = (budget["used"].as_i64().unwrap(), budget["remaining"].as_i64().unwrap());
    assert_eq!(used + remaining, 8_000 - 2_768);
    let compacted = told(&server, &last, "context.compacted").await;
    let [compacted] = compacted.as_slice() else { panic!("said once: {compacted:?}") };
    let summary = compacted["summary"].as_str().unwrap();
    assert!(summary.contains("\nuser: first word") && compacted["through"].is_string(), "{compacted}");

    // Another process and another run start from the stored summary.
    server.kill9().await;
    let server = site.start().await;
    ask(&server, &conversation, "fourth").await;
    let asked = wire.asked();
    assert_eq!(asked.len(), 4);
    let body: Value = serde_json::from_slice(&asked[3].body).unwrap();
    let messages = body["messages"].as_array().unwrap();
    let system = messages[0]["content"].as_str().unwrap();
    assert!(system.contains("user: first word"), "{body}");
    let rest = serde_json::to_string(&messages[1..]).unwrap();
    assert!(!rest.contains("first word") && rest.contains("fourth"), "{rest}");
    // A request may ask for a smaller budget.
    let id = conversation.as_str().unwrap();
    let path = format!("/conversations/{id}/compact");
    let (status, body) = server.post_json(&path, &json!({})).await;
    assert_eq!((status.as_u16(), &body["messages"], &body["left_out"]), (200, &json!(1), &json!(6)), "{body}");
    assert!(body["summary"].as_str().unwrap().contains("user: third word"), "{body}");
    let (status, _) = server.post_json("/conversations/conv_00000000-0000-7000-8000-000000000000/compact", &json!({})).await;
    assert_eq!(status, 404);
    // Stored messages stay whole.
    let page = server.get_json(&format!("/conversations/{id}/messages?limit=100")).await;
    assert_eq!(page["data"].as_array().unwrap().len(), 8);
    assert!(page["data"][0]["parts"][0]["text"].as_str().unwrap().len() > 4_000);
}
