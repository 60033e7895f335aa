//! Rows that cannot be read.

use rstest::rstest;
use serde_json::json;

use crate::support::database::Kind;
use crate::support::model::ModelMock;
use crate::support::server::Site;

/// What joined a run cannot be read any more: that run ends as one whose rows cannot be read, and nobody else's requests are lost
/// meanwhile.
#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_cannot_be_read_costs_its_run_only(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) {
    let model = ModelMock::start().await;
    let site = Site::scripted(kind, &model).await;
    let server = site.start().await;
    let one = server.start_run(&json!({"input": "[[id:one]][[text:2,0]][[hold]]"})).await;
    let two = server.start_run(&json!({"input": "[[id:two]][[text:2,0]][[hold]]"})).await;
    for id in ["one", "two"] {
        model.wait_for("two tokens", id, |seen| seen.first().is_some_and(|first| first.sent == 2)).await;
    }
    let conversation = one["conversation_id"].as_str().unwrap();
    server.send(conversation, "[[id:joined]]", "steer").await;
    let joined = format!("conversation_id = '{conversation}' AND role = 'user'");
    let newest = format!("position = (SELECT max(position) FROM messages WHERE {joined})");
    site.database.rows(&format!("UPDATE messages SET body = '{{' WHERE {joined} AND {newest}")).await;
    let two = two["id"].as_str().unwrap();
    server.post_json(&format!("/runs/{two}/cancel"), &json!({})).await;
    assert_eq!(server.finished(two).await["status"], "cancelled");
    let failed = server.finished(one["id"].as_str().unwrap()).await;
    assert_eq!((&failed["status"], &failed["error"]["code"]), (&json!("failed"), &json!("internal_error")), "{failed}");
    assert_eq!(site.database.count("SELECT CAST(count(*) AS text) FROM run_leases").await, 0);
}

/// A cause that this version does not know makes nobody wait for ever.
#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_was_queued_for_an_unknown_cause_is_carried_out(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) {
    let model = ModelMock::start().await;
    let site = Site::scripted(kind, &model).await;
    let server = site.start().await;
    let one = server.start_run(&json!({"input": "[[id:one]][[text:2,0]][[hold]]"})).await;
    model.wait_for("two tokens", "one", |seen| seen.first().is_some_and(|first| first.sent == 2)).await;
    let second = server.send(one["conversation_id"].as_str().unwrap(), "[[id:two]][[text:2,0]]", "queue").await;
    let second = second["run"]["id"].as_str().unwrap();
    site.database.rows(&format!("UPDATE runs SET claim_cause = 'of a later version' WHERE id = '{second}'")).await;
    model.release("one");
    assert_eq!(server.finished(second).await["status"], "completed");
}

/// One conversation is lost, as it is; it must not keep a slot, nor be tried for ever.
#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_run_whose_rows_cannot_be_read_fails(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) {
    let model = ModelMock::start().await;
    let site = Site::scripted(kind, &model).await;
    let server = site.start().await;
    let run = server.start_run(&json!({"input": "[[id:one]][[text:2,0]][[hold]]"})).await;
    let conversation = run["conversation_id"].as_str().unwrap().to_owned();
    model.wait_for("two tokens", "one", |seen| seen.first().is_some_and(|first| first.sent == 2)).await;
    let second = server.send(&conversation, "[[id:two]][[text:2,0]]", "queue").await;
    site.database.rows("UPDATE messages SET body = '{' WHERE role = 'user'").await;
    model.release("one");
    let failed = server.finished(second["run"]["id"].as_str().unwrap()).await;
    assert_eq!((&failed["status"], &failed["error"]["code"]), (&json!("failed"), &json!("internal_error")), "{failed}");
    assert!(model.exchanges("two").is_empty());
    assert_eq!(site.database.count("SELECT CAST(count(*) AS text) FROM run_leases").await, 0);
    let other = server.start_run(&json!({"input": "[[id:three]][[text:2,0]]"})).await;
    assert_eq!(server.finished(other["id"].as_str().unwrap()).await["status"], "completed");
}
