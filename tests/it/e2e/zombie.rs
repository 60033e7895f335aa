//! A worker that was stopped past its lease writes nothing after it resumes.

use std::time::Duration;

use rstest::rstest;
use serde_json::json;

use support::audit;
use support::database::{Database, Kind};
use support::model::ModelMock;
use support::server::Site;
use support::wait;

/// Returns the number of events of the run's conversation.
async fn log_size(database: &Database, run: &str) -> i64 {
    let conversation = format!("(SELECT conversation_id FROM runs WHERE id = '{run}')");
    database.count(&format!("SELECT CAST(count(*) AS text) FROM events WHERE conversation_id = {conversation}")).await
}

/// Stops a worker in the middle of `script`, lets another one finish, and resumes the first.
async fn zombie(site: Site, model: &ModelMock, script: &str, id: &str) {
    // The model's answers pass through the test's mock, which tells the attempts apart.
    let first = site.start_with(&[("CAPSTAN_SERVER__ROLE", "all")]).await;
    let run = first.start_run(&json!({"input": script})).await;
    let run = run["id"].as_str().unwrap().to_owned();
    model.wait_for("the first attempt", id, |seen| seen.iter().any(|one| one.sent.len() == 2)).await;
    first.signal("STOP").await;
    model.release(id);
    let second = site.start().await;
    let ended = second.finished(&run).await;
    // A stall of the machine as long as the second worker's short lease adds an attempt.
    assert!(ended["status"] == "completed" && ended["attempt"].as_u64() >= Some(2), "{ended}");
    let size = log_size(&site.database, &run).await;
    let epoch_of = format!(
        "SELECT CAST(epoch AS text) FROM conversation_heads WHERE conversation_id = (SELECT conversation_id FROM runs WHERE id = '{run}')"
    );
    let epoch = site.database.count(&epoch_of).await;

    first.signal("CONT").await;
    // Its answer proves that it resumed. It has noticed the lost lease when it serves requests and finishes other runs.
    let next = json!({"input": format!("[[id:{id}-after]][[text:1,0]]")});
    let after = wait::until("the zombie to answer", Duration::from_secs(20), || async {
        let answer = first.post("/runs", &next).header("idempotency-key", "after").send().await.ok()?;
        answer.json::<serde_json::Value>().await.ok()?["run"]["id"].as_str().map(str::to_owned)
    })
    .await;
    assert_eq!(first.finished(&after).await["status"], "completed");
    assert_eq!(log_size(&site.database, &run).await, size, "rows of the old epoch");
    assert_eq!(site.database.count(&epoch_of).await, epoch, "no further claim, and no raised fence");
    site.assert_sound(model).await;
}

/// D-03.
#[rstest]
#[case::while_streaming("[[id:z]][[text:2,0]][[hold]][[text:40,1]]", "z")]
#[case::before_a_tool(r#"[[id:z]][[text:2,0]][[hold]][[call:ledger__append {"text":"z"}]][[next]][[text:2,0]]"#, "z")]
#[tokio::test(flavor = "multi_thread")]
async fn short_leases(#[case] script: &str, #[case] id: &str) {
    let model = ModelMock::start().await;
    let site = Site::scripted(Kind::Postgres, &model).await.short_leases();
    zombie(site, &model, script, id).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn default_leases() {
    let model = ModelMock::start().await;
    let site = Site::scripted(Kind::Postgres, &model).await;
    zombie(site, &model, "[[id:z]][[text:2,0]][[hold]][[text:40,1]]", "z").await;
}

/// Stopped between the commit of `started` and the first byte to the tool: after it resumes, it must not send the call.
#[tokio::test(flavor = "multi_thread")]
async fn a_tool_is_not_called_by_who_slept_before_the_call() {
    let model = ModelMock::start().await;
    let site = Site::scripted(Kind::Postgres, &model).await.short_leases();
    let first = site.start_with(&[("CAPSTAN_FAILPOINTS", "C09=stop@1")]).await;
    let run = first.start_run(&json!({"input": r#"[[id:s]][[call:ledger__append {"text":"s"}]][[next]][[text:2,0]]"#})).await;
    let second = site.start().await;
    let ended = second.finished(run["id"].as_str().unwrap()).await;
    assert!(ended["status"] == "completed" && ended["attempt"].as_u64() >= Some(2), "{ended}");
    let states = site.database.rows("SELECT state FROM tool_calls").await;
    let ran = site.ledger.count("append", "s");
    first.signal("CONT").await;
    let next = json!({"input": "[[id:s-after]][[text:1,0]]"});
    let after = wait::until("the zombie to answer", Duration::from_secs(20), || async {
        let answer = first.post("/runs", &next).header("idempotency-key", "after").send().await.ok()?;
        answer.json::<serde_json::Value>().await.ok()?["run"]["id"].as_str().map(str::to_owned)
    })
    .await;
    first.finished(&after).await;
    assert_eq!(site.ledger.count("append", "s"), ran, "the stopped worker called the tool, whose call was {states:?}");
    audit::assert_sound(&site.database).await;
}
