//! MCP servers that return `input_required` and are called again with the answers: over restarts, on other nodes, and with
//! several requests at once.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use reqwest::StatusCode;
use rstest::rstest;
use serde_json::{Value, json};

use super::elicitation::{Asking, asked, asking, path, script, told};
use support::audit;
use support::database::Kind;
use support::server::Server;
use support::wait;

/// Returns the input responses and the state of each call to the tool.
fn calls(asking: &Asking) -> Vec<(Value, Value)> {
    let log = std::fs::read_to_string(asking.folder.path().join("log")).unwrap_or_default();
    let entries = log.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    entries
        .filter(|entry| entry.get("responses").is_some())
        .map(|entry| (entry["responses"].clone(), entry["state"].clone()))
        .collect()
}

async fn status(server: &Server, run: &Value) -> (Value, Value) {
    let run = server.get_json(&format!("/runs/{}", run["id"].as_str().unwrap())).await;
    (run["status"].clone(), run["reason"].clone())
}

async fn waits(server: &Server, run: &Value) {
    wait::until("the run to wait", Duration::from_secs(20), || async {
        (status(server, run).await.0 == json!("waiting")).then_some(())
    })
    .await;
}

fn red() -> Value {
    json!({"action": "accept", "content": {"colour": "red"}})
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_waits_for_its_user_survives_restarts(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) {
    let all = asking(kind, &["stateless"], json!({"elicitation": true})).await;
    let mut server = all.site.start().await;
    let run = server.start_run(&script(r#"s__staged {"text":"two"}"#)).await;
    waits(&server, &run).await;
    let open = server.get_json("/input-requests?status=pending").await["data"].as_array().unwrap().clone();
    let texts: BTreeSet<&str> = open.iter().map(|question| question["question"]["text"].as_str().unwrap()).collect();
    assert_eq!(texts, BTreeSet::from(["Which colour?", "And which other?"]), "both questions are asked at once");
    assert_eq!(status(&server, &run).await, (json!("waiting"), json!("input")), "a waiting run holds no lease");

    server.kill9().await;
    let mut server = all.site.start().await;
    let is_first = |question: &&Value| question["question"]["text"] == "Which colour?";
    let first = open.iter().find(is_first).unwrap();
    assert_eq!(server.post_json(&path(first), &red()).await.0, StatusCode::OK, "the question is the same after a restart");
    waits(&server, &run).await;
    // An answer that no worker has processed yet survives, too.
    server.kill9().await;
    let server = all.site.start().await;
    let second = asked(&server).await;
    assert_eq!(second["question"]["text"], "And which other?");
    assert_eq!(server.post_json(&path(&second), &json!({"action": "decline"})).await.0, StatusCode::OK);
    let said: Value = serde_json::from_str(&told(&server, &run).await).unwrap();
    let given = json!({"colour": red(), "other": {"action": "decline"}});
    assert_eq!(said, json!([given, "opaque"]));
    assert_eq!(
        calls(&all),
        [(Value::Null, Value::Null), (given, json!("opaque"))],
        "two calls: one without answers, one with them"
    );
    let events = server.run_events_json(run["id"].as_str().unwrap()).await;
    assert_eq!(events.iter().filter(|event| event["type"] == "tool.started").count(), 1);
    all.model.assert_history_was_sendable();
    audit::assert_sound(&all.site.database).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn another_node_takes_a_call_up_that_waits_for_its_user() {
    let all = asking(Kind::Postgres, &["stateless"], json!({"elicitation": true})).await;
    let mut one = all.site.start().await;
    let run = one.start_run(&script("s__staged {}")).await;
    waits(&one, &run).await;
    let question = asked(&one).await;
    let other = all.site.start().await;
    one.kill9().await;
    let (path, answer) = (path(&question), red());
    let (first, second) = tokio::join!(other.post_json(&path, &answer), other.post_json(&path, &answer));
    let mut statuses = [first.0.as_u16(), second.0.as_u16()];
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 409], "{} {}", first.1, second.1);
    let said: Value = serde_json::from_str(&told(&other, &run).await).unwrap();
    assert_eq!(said, json!([{"colour": red()}, "opaque"]));
    assert_eq!(calls(&all).len(), 2);
    audit::assert_sound(&all.site.database).await;
}

/// The server process is killed during the second request: the outcome is unknown, and no further question is asked.
#[rstest]
#[case(json!({"elicitation": true}), "may or may not")]
#[case(json!({"elicitation": true, "replay": {"staged": "read"}}), "may be repeated")]
#[tokio::test(flavor = "multi_thread")]
async fn replay_class_decides_a_call_after_its_answers(#[case] capstan: Value, #[case] words: &str) {
    let all = asking(Kind::Sqlite, &["stateless"], capstan).await;
    let server = all.site.start().await;
    let run = server.start_run(&script(r#"s__staged {"text":"dies"}"#)).await;
    let question = asked(&server).await;
    assert_eq!(server.post_json(&path(&question), &red()).await.0, StatusCode::OK);
    let said = told(&server, &run).await;
    assert!(said.contains(words) || said.contains("may have taken effect"), "{said}");
    assert_eq!((said.contains("may be repeated"), calls(&all).len()), (words == "may be repeated", 2), "{said}");
    assert_eq!(server.get_json("/input-requests").await["data"].as_array().unwrap().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn rounds_are_bounded() {
    let all = asking(Kind::Sqlite, &["stateless"], json!({"elicitation": true})).await;
    let server = all.site.start().await;
    // A round without a question, then two with one each.
    let run = server.start_run(&script(r#"s__staged {"text":"rounds"}"#)).await;
    for _ in 0..2 {
        let question = asked(&server).await;
        assert_eq!(server.post_json(&path(&question), &red()).await.0, StatusCode::OK);
    }
    let said: Value = serde_json::from_str(&told(&server, &run).await).unwrap();
    assert_eq!(said, json!([{"colour": red()}, "3"]));

    let run = server.start_run(&script(r#"s__staged {"text":"again"}"#)).await;
    for _ in 0..5 {
        let question = asked(&server).await;
        assert_eq!(server.post_json(&path(&question), &json!({"action": "decline"})).await.0, StatusCode::OK);
    }
    assert!(told(&server, &run).await.contains("input that is not allowed"), "more than five questions are refused");
    for (how, reason) in [
        ("many", "input that is not allowed"),
        ("large", "its request_state has 70000 bytes, and at most 65536 are stored"),
        ("endless", "asks for input again after 10 rounds"),
    ] {
        let (before, began) = (calls(&all).len(), Instant::now());
        let run = server.start_run(&script(&format!(r#"s__staged {{"text":"{how}"}}"#))).await;
        let said = told(&server, &run).await;
        assert!(said.contains(reason), "{how}: {said}");
        let calls = &calls(&all)[before..];
        if how == "endless" {
            // It asks for nothing, so it gets only its state back, after a pause.
            assert!(calls.len() == 11 && calls.iter().all(|(responses, _)| responses.is_null()), "{calls:?}");
            assert!(began.elapsed() > Duration::from_secs(5), "{:?}", began.elapsed());
        }
    }
}

/// Roots that the entry lists need no question.
#[rstest]
#[case(json!({"roots": ["/data"]}), r#"{"folders": {"roots": [{"uri": "file:///data"}]}}"#)]
#[case(json!({"elicitation": true}), "input that is not allowed")]
#[tokio::test(flavor = "multi_thread")]
async fn folders_are_given_in_rounds_too(#[case] capstan: Value, #[case] words: &str) {
    let all = asking(Kind::Sqlite, &["stateless"], capstan).await;
    let server = all.site.start().await;
    let run = server.start_run(&script(r#"s__staged {"text":"roots"}"#)).await;
    let said = told(&server, &run).await;
    assert!(said.contains(words), "{said}");
    assert_eq!(server.get_json("/input-requests").await["data"], json!([]));
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn two_simultaneous_questions_are_asked_in_turn(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) {
    let all = asking(kind, &[], json!({"elicitation": true})).await;
    let server = all.site.start().await;
    let run = server.start_run(&script("s__both {}")).await;
    let mut colours = Vec::new();
    for colour in ["red", "green"] {
        let question = asked(&server).await;
        assert_eq!(server.get_json("/input-requests?status=pending").await["data"].as_array().unwrap().len(), 1);
        let asks_first = question["question"]["text"] == "Both, 0?";
        colours.insert(if asks_first { 0 } else { colours.len() }, json!({"colour": colour}));
        let answer = json!({"action": "accept", "content": {"colour": colour}});
        assert_eq!(server.post_json(&path(&question), &answer).await.0, StatusCode::OK);
    }
    let said: Value = serde_json::from_str(&told(&server, &run).await).unwrap();
    assert_eq!(said, json!(colours), "each request has its own answer");
    audit::assert_sound(&all.site.database).await;
}

/// A stdio server ends with the process that it asks through. The call's replay class decides whether the call is repeated.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_may_be_repeated_asks_again_after_a_crash() {
    let all = asking(Kind::Sqlite, &[], json!({"elicitation": true, "replay": {"form": "read"}})).await;
    let mut server = all.site.start().await;
    let run = server.start_run(&script("s__form {}")).await;
    let lost = asked(&server).await;
    server.kill9().await;
    let server = all.site.start().await;
    let question = wait::until("the next question", Duration::from_secs(30), || async {
        Some(asked(&server).await).filter(|question| question["id"] != lost["id"])
    })
    .await;
    assert_eq!(server.get_json(&path(&lost)).await["state"], "cancelled");
    assert_eq!(server.post_json(&path(&lost), &red()).await.0, StatusCode::CONFLICT);
    assert_eq!(server.post_json(&path(&question), &red()).await.0, StatusCode::OK);
    let said: Value = serde_json::from_str(&told(&server, &run).await).unwrap();
    assert_eq!(said, red());
    audit::assert_sound(&all.site.database).await;
}
