//! The record of a tool call: its outcome and its complete result.

use rstest::rstest;
use serde_json::{Value, json};

use support::database::Kind;
use support::model::ModelMock;
use support::server::{Server, Site};

async fn ended(server: &Server, input: &str) -> String {
    let run = server.start_run(&json!({"input": input})).await;
    let id = run["id"].as_str().unwrap().to_owned();
    assert_eq!(server.finished(&id).await["status"], "completed");
    id
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_result_that_was_cut_is_read_whole(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) {
    let model = ModelMock::start().await;
    let site = Site::scripted(kind, &model).await;
    let (ann, bob) = (site.key_of("ann").await, site.key_of("bob").await);
    let mut server = site.start().await;
    server.set_key(&ann);
    let arguments = json!({"text": "x".repeat(10_000)});
    let run = ended(&server, &format!("[[id:cut]][[call:ledger__append {arguments}]][[next]][[say:bye]]")).await;
    let events = server.run_events_json(&run).await;
    let completed = events.iter().find(|event| event["type"] == "tool.completed").unwrap();
    let (shown, call) = (&completed["data"]["content"], completed["data"]["call_id"].as_str().unwrap());
    let whole = format!("recorded {}", "x".repeat(10_000));
    assert!(completed["data"]["truncated"] == true && shown[0]["text"].as_str().unwrap().len() <= 6_000, "{shown}");

    let path = format!("/runs/{run}/tool-calls/{call}");
    let record = server.get_json(&path).await;
    assert_eq!(record["content"], json!([{"type": "text", "text": whole}]));
    assert_eq!((&record["id"], &record["run_id"], &record["state"]), (&json!(call), &json!(run), &json!("done")));
    assert_eq!(
        (&record["name"], &record["server"], &record["tool"]),
        (&json!("ledger__append"), &json!("ledger"), &json!("append"))
    );
    assert_eq!((&record["arguments"], &record["edited"], &record["is_error"]), (&arguments, &json!(false), &json!(false)));
    assert_eq!(record["duration_ms"], completed["data"]["duration_ms"]);
    assert!(record["started_at"].is_string() && record["finished_at"].is_string(), "{record}");

    let other = ended(&server, "[[say:hello]]").await;
    let missing = [
        format!("/runs/{run}/tool-calls/call_01980000000070008000000000000003"),
        format!("/runs/{run}/tool-calls/x"),
        format!("/runs/{other}/tool-calls/{call}"),
    ];
    for missing in &missing {
        assert_eq!(server.get(missing).send().await.unwrap().status(), 404, "{missing}");
    }
    server.set_key(&bob);
    let foreign = server.get(&path).send().await.unwrap();
    assert_eq!(foreign.status(), 404, "another user");
    let problem: Value = foreign.json().await.unwrap();
    assert_eq!(problem["code"], "not_found", "{problem}");
}
