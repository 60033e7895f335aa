//! Messages to a conversation whose run is under way: `queue`, `interrupt` and `steer`.

use rstest::rstest;
use serde_json::{Value, json};

use support::database::Kind;
use support::model::ModelMock;
use support::server::{Server, Site};

const HELD: &str = r#"[[id:one]][[text:2,0]][[hold]][[call:ledger__append {"text":"x"}]][[next]][[text:2,0]]"#;

/// Starts a conversation whose run is in the middle of a model call.
async fn busy(server: &Server, model: &ModelMock) -> (String, String) {
    let run = server.start_run(&json!({"input": HELD})).await;
    model.wait_for("two tokens", "one", |seen| seen.first().is_some_and(|first| first.sent.len() == 2)).await;
    (run["conversation_id"].as_str().unwrap().to_owned(), run["id"].as_str().unwrap().to_owned())
}

fn id(answer: &Value) -> &str {
    answer["run"]["id"].as_str().unwrap()
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn queue_runs_one_after_the_other(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) {
    let (model, site, server) = Site::start_scripted(kind).await;
    let (conversation, first) = busy(&server, &model).await;
    let second = server.send(&conversation, "[[id:two]][[text:2,0]]", "queue").await;
    let third = server.send(&conversation, "[[id:three]][[text:2,0]]", "queue").await;
    assert_eq!(server.get_json(&format!("/runs/{}", id(&third))).await["status"], "queued");
    let why = server.get_json(&format!("/runs/{}/explain", id(&second))).await;
    assert!(why.to_string().contains(&first), "{why}");
    assert!(model.exchanges("two").is_empty());
    model.release("one");
    for run in [first.as_str(), id(&second), id(&third)] {
        assert_eq!(server.finished(run).await["status"], "completed");
    }
    let roles: Vec<Value> = server.messages(&conversation).await.iter().map(|message| message["role"].clone()).collect();
    assert_eq!(roles.last().unwrap(), "assistant");
    // The third run's request contains the answer of the second, in order.
    let history = model.exchanges("three")[0].request["messages"].to_string();
    assert!(history.find("[[id:two]]") < history.find("[[id:three]]"), "{history}");
    site.assert_sound(&model).await;
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn reject_changes_nothing(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) {
    let (model, site, server) = Site::start_scripted(kind).await;
    let (conversation, first) = busy(&server, &model).await;
    let body = json!({"content": "[[id:two]]", "on_busy": "reject"});
    let (status, problem) = server.post_json(&format!("/conversations/{conversation}/messages"), &body).await;
    assert_eq!((status.as_u16(), &problem["code"]), (409, &json!("run_active")));
    model.release("one");
    assert_eq!(server.finished(&first).await["status"], "completed");
    assert_eq!(site.database.count("SELECT CAST(count(*) AS text) FROM runs").await, 1);
    let (status, answer) = server.post_json(&format!("/conversations/{conversation}/messages"), &body).await;
    assert_eq!(status, 202);
    server.finished(id(&answer)).await;
    site.assert_sound(&model).await;
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn interrupt_cancels_and_starts_the_next_run(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) {
    let (model, site, server) = Site::start_scripted(kind).await;
    let (conversation, first) = busy(&server, &model).await;
    let queued = server.send(&conversation, "[[id:queued]]", "queue").await;
    let second = server.send(&conversation, "[[id:two]][[text:2,0]]", "interrupt").await;
    assert_eq!(server.finished(id(&second)).await["status"], "completed");
    assert_eq!(server.finished(&first).await["status"], "cancelled");
    assert_eq!(server.finished(id(&queued)).await["status"], "cancelled");
    // The hang-up may arrive after the end of the run.
    model.wait_for("the hang-up", "one", |seen| seen.first().is_some_and(|first| first.hung_up.is_some())).await;
    assert_eq!(site.ledger.entries().len(), 0);
    site.assert_sound(&model).await;
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn steer_joins_the_turn(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) {
    let (model, site, server) = Site::start_scripted(kind).await;
    let (conversation, first) = busy(&server, &model).await;
    let steered = server.send(&conversation, "rather do it politely", "steer").await;
    assert_eq!(id(&steered), first);
    model.release("one");
    assert_eq!(server.finished(&first).await["status"], "completed");
    let asked = model.exchanges("one");
    // The worker gets the message before its second call, or during it. In the second case it makes a third call.
    assert!((2..=3).contains(&asked.len()), "{asked:#?}");
    assert!(!asked[0].request["messages"].to_string().contains("politely"));
    let last = &asked.last().unwrap().request;
    assert!(last["messages"].to_string().contains("politely"), "{last:#?}");
    assert_eq!(site.database.count("SELECT CAST(count(*) AS text) FROM runs").await, 1);
    site.assert_sound(&model).await;
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_joins_has_a_call_made_once_more(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) {
    let (model, site, server) = Site::start_scripted(kind).await;
    let again = r#"[[call:ledger__append {"text":"x"}]][[next]]"#;
    let run = server.start_run(&json!({"input": format!("[[id:first]]{again}[[text:2,0]][[hold]]")})).await;
    model.wait_for("x to be written", "first", |seen| seen.get(1).is_some_and(|second| second.sent.len() == 2)).await;
    // The held answer ends first. The user asks for one repetition, so the second one is a duplicate call and does not run.
    let steer = format!("x once more [[id:more]][[next]]{again}{again}[[say:twice]]");
    let steered = server.send(run["conversation_id"].as_str().unwrap(), &steer, "steer").await;
    assert_eq!(id(&steered), run["id"].as_str().unwrap());
    model.release("first");
    assert_eq!(server.finished(id(&steered)).await["status"], "completed");
    assert_eq!(site.ledger.count("append", "x"), 2);
    let last = model.exchanges("more").pop().unwrap().request;
    assert!(last["messages"].to_string().contains("not carried out again"), "{last}");
    site.assert_sound(&model).await;
}
