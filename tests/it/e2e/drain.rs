//! Drain: the process gets the signal to stop while runs are under way.

use std::time::Duration;

use rstest::rstest;
use serde_json::json;

use support::database::Kind;
use support::server::Site;
use support::sse::{Next, kinds, stored};
use support::wait;

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn hands_runs_back_and_none_fails(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) {
    let (model, site, mut server) = Site::start_scripted(kind).await;
    let script = r#"[[id:d]][[text:3,0]][[hold]][[call:ledger__append {"text":"x"}]][[next]][[text:3,0]]"#;
    let mut stream = server.stream_run(&json!({"input": script})).await;
    let mut frames = stream.until_kind("part.delta").await;
    let run = frames[0].json()["run_id"].as_str().unwrap().to_owned();
    server.signal("TERM").await;
    // The step under way may finish. Then the run is handed back between steps.
    model.release("d");
    let status = server.ended(Duration::from_secs(15)).await;
    assert!(status.success(), "{status}");
    while let Next::Frame(frame) = stream.next().await {
        frames.push(frame);
    }
    let mut frames = stored(&frames);
    let crashes = site.database.count("SELECT CAST(max(crashes) AS text) FROM runs").await;
    assert_eq!(crashes, 0, "a drain does not count as a crash");

    let server = site.start().await;
    let last = frames.last().unwrap().id.clone();
    if let Some(rest) = server.run_events_after(&run, last.as_deref()).await {
        frames.extend(stored(&rest.all().await));
    }
    assert_eq!(server.finished(&run).await["status"], "completed");
    assert_eq!(server.get_json(&format!("/runs/{run}/explain")).await["crashes"], 0);
    assert_eq!(frames, stored(&server.run_events(&run).await.all().await));
    assert!(!kinds(&frames).iter().any(|kind| kind == "run.failed" || kind == "tool.outcome_unknown"));
    assert_eq!(site.ledger.count("append", "x"), 1);
    site.assert_sound(&model).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn another_server_goes_on_at_once() {
    // With leases of a minute, a fast continuation proves that the run was handed back and no lease had to expire.
    let (model, site, mut one) = Site::serve(async |model| {
        Site::scripted(Kind::Postgres, model)
            .await
            .env("CAPSTAN_WORKER__LEASE_MS", "60000")
            .env("CAPSTAN_WORKER__SELF_STOP_MS", "50000")
            .env("CAPSTAN_WORKER__DRAIN_GRACE_MS", "500")
    })
    .await;
    let run = one.start_run(&json!({"input": "[[id:h]][[text:3,0]][[hold]][[text:3,0]]"})).await;
    model.wait_for("the first attempt", "h", |seen| seen.iter().any(|one| one.sent.len() == 3)).await;
    let two = site.start().await;
    one.signal("TERM").await;
    assert!(one.ended(Duration::from_secs(15)).await.success());
    model.release("h");
    let ended = two.finished(run["id"].as_str().unwrap()).await;
    assert_eq!(ended["status"], "completed");
    let log = two.run_events_json(run["id"].as_str().unwrap()).await;
    assert!(log.iter().any(|event| event["type"] == "step.reset" && event["data"]["reason"] == "handed_back"), "{log:#?}");
    site.assert_sound(&model).await;
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_second_signal_does_not_wait(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) {
    let (model, site, mut server) = Site::start_scripted(kind).await;
    let script = r#"[[id:q]][[call:ledger__slow_append {"text":"slow","ms":60000}]][[next]][[text:2,0]]"#;
    let run = server.start_run(&json!({"input": script})).await;
    support::wait::until("the slow tool to act", Duration::from_secs(20), || async {
        (site.ledger.entries().len() == 1).then_some(())
    })
    .await;
    server.signal("TERM").await;
    support::wait::until("the server to refuse connections", Duration::from_secs(5), || async {
        server.get("//healthz").send().await.is_err().then_some(())
    })
    .await;
    assert!(!server.is_gone(), "a tool call is under way, so the first signal waits");
    server.signal("TERM").await;
    server.ended(Duration::from_secs(8)).await;
    let server = site.start().await;
    let ended = server.finished(run["id"].as_str().unwrap()).await;
    assert_eq!(ended["status"], "completed", "{ended}");
    assert_eq!(site.ledger.count("slow_append", "slow"), 1, "an unsafe call that had started never runs again");
    assert_eq!(site.database.rows("SELECT state FROM tool_calls").await, [[Some("unknown".to_owned())]]);
    site.assert_sound(&model).await;
}

/// Load balancers send requests for a while after the signal: none of them is refused.
#[tokio::test(flavor = "multi_thread")]
async fn drain_delay_answers_requests_and_is_not_ready() {
    let (_model, _site, mut server) =
        Site::serve(async |model| Site::scripted(Kind::Sqlite, model).await.env("CAPSTAN_SERVER__DRAIN_DELAY_MS", "60000")).await;
    server.signal("TERM").await;
    wait::until("readiness to end", Duration::from_secs(10), || async {
        let answer = server.get("//readyz").send().await.expect("connections are accepted");
        (answer.status() == reqwest::StatusCode::SERVICE_UNAVAILABLE).then_some(())
    })
    .await;
    let run = server.start_run(&json!({"input": "[[id:late]][[say:yes]]"})).await;
    assert_eq!(server.finished(run["id"].as_str().unwrap()).await["status"], "completed");
    assert!(!server.is_gone());
    // Another signal ends the delay.
    server.signal("TERM").await;
    assert!(server.ended(Duration::from_secs(20)).await.success());
}
