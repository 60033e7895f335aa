//! A run that kills whoever works on it. What a death costs at each point is for the matrix to say.

use std::time::Duration;

use rstest::rstest;
use serde_json::json;

use crate::support::audit;
use crate::support::database::Kind;
use crate::support::model::ModelMock;
use crate::support::server::Site;

/// D-11.
#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_kills_its_worker_is_given_up(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) {
    let model = ModelMock::start().await;
    let site = Site::scripted(kind, &model).await.short_leases();
    let mut server = site.start_with(&[("CAPSTAN_FAILPOINTS", "C06=kill@1")]).await;
    let run = server.start_run(&json!({"input": "[[id:poison]][[text:1,0]]"})).await;
    let run = run["id"].as_str().unwrap();
    server.ended(Duration::from_secs(10)).await;
    for _ in 0..2 {
        // The run is claimed as soon as the server runs, so it may die before it is seen ready.
        let mut server = site.spawn(&[("CAPSTAN_FAILPOINTS", "C06=kill@1")]);
        server.ended(Duration::from_secs(30)).await;
    }
    let server = site.start().await;
    let ended = server.finished(run).await;
    assert_eq!((&ended["status"], &ended["error"]["code"]), (&json!("failed"), &json!("poison")), "{ended}");
    assert_eq!(model.total(), 3);
    // The conversation stays usable.
    let conversation = ended["conversation_id"].as_str().unwrap();
    let next = server.send(conversation, "[[id:next]][[text:2,0]]", "queue").await;
    assert_eq!(server.finished(next["run"]["id"].as_str().unwrap()).await["status"], "completed");
    model.assert_history_was_sendable();
    audit::assert_sound(&site.database).await;
}
