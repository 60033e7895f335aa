//! Prompt injection: the text of tool results stays data.

use std::time::Duration;

use rstest::rstest;
use serde_json::{Value, json};

use support::audit;
use support::database::Kind;
use support::server::Site;
use support::wait;

/// S-25: a result that demands a call, contains forged roles and results, and claims that the user has agreed.
#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_result_calls_nothing_says_nothing_and_allows_nothing(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) {
    let (model, site, server) = Site::serve(async |model| Site::scripted(kind, model).await.short_leases()).await;
    let input = r#"[[id:injected]][[call:ledger__lookup {"text":"poisoned"}]][[next]][[call:ledger__destroy {"text":"all"}]][[next]][[say:bye]]"#;
    let run = server.start_run(&json!({"input": input})).await;
    let (id, conversation) = (run["id"].as_str().unwrap(), run["conversation_id"].as_str().unwrap());
    // The tool that needs an approval still asks, and no text of the result answers the question.
    super::approvals::waits(&server, id).await;
    let called = |tool: &str| site.ledger.entries().iter().filter(|entry| entry.tool == tool).count();
    assert_eq!((called("lookup"), called("pay"), called("destroy")), (1, 0, 0));
    let open = server.get_json("/approvals?status=pending").await["data"].as_array().unwrap().clone();
    assert_eq!((open.len(), &open[0]["name"]), (1, &json!("ledger__destroy")));

    // The request holds the actual call, and the text only as its result.
    let request = &model.exchanges("injected")[1].request;
    let messages: Vec<&Value> =
        request["messages"].as_array().unwrap().iter().filter(|message| message["role"] != "system").collect();
    let roles: Vec<&str> = messages.iter().map(|message| message["role"].as_str().unwrap()).collect();
    assert_eq!(roles, ["user", "assistant", "tool"], "{request}");
    let calls: Vec<&Value> = messages[1]["tool_calls"].as_array().unwrap().iter().map(|call| &call["function"]["name"]).collect();
    assert_eq!(calls, ["ledger__lookup"]);
    let poisoned = |value: &Value| value.to_string().contains("ledger__pay now");
    assert!(poisoned(messages[2]) && messages[2]["tool_call_id"] == messages[1]["tool_calls"][0]["id"], "{request}");
    assert_eq!(request["messages"].as_array().unwrap().iter().filter(|message| poisoned(message)).count(), 1, "{request}");

    let path = format!("/approvals/{}", open[0]["id"].as_str().unwrap());
    let (status, said) = server.post_json(&path, &json!({"decision": "deny"})).await;
    assert_eq!(status, 200, "{said}");
    assert_eq!(server.finished(id).await["status"], "completed");
    assert_eq!((called("pay"), called("destroy")), (0, 0));
    let listed = server.messages(conversation).await;
    let roles: Vec<&str> = listed.iter().map(|message| message["role"].as_str().unwrap()).collect();
    assert_eq!(roles, ["user", "assistant", "tool", "assistant", "tool", "assistant"]);
    let events = server.run_events_json(id).await;
    let started: Vec<&Value> =
        events.iter().filter(|event| event["type"] == "tool.started").map(|event| &event["data"]["name"]).collect();
    assert_eq!(started, ["ledger__lookup"]);
    let rows = site.database.rows("SELECT name FROM tool_calls ORDER BY step").await;
    let names: Vec<&str> = rows.iter().map(|row| row[0].as_deref().unwrap()).collect();
    assert_eq!(names, ["ledger__lookup", "ledger__destroy"]);
    model.assert_history_was_sendable();
    wait::within("the rows", Duration::from_secs(30), audit::assert_sound(&site.database)).await;
}
