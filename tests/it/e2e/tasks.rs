//! MCP tasks outlive the process that started them. The ledger counts the effects. M-31.

use std::time::Duration;

use rstest::rstest;
use serde_json::{Value, json};

use support::audit;
use support::database::Kind;
use support::server::{Server, Site};
use support::wait;

fn script(ms: u32) -> Value {
    json!({"input": format!(r#"[[id:t]][[call:ledger__labour {{"text":"house","ms":{ms}}}]][[next]][[say:bye]]"#)})
}

fn asked(site: &Site) -> usize {
    site.ledger.count("tasks/get", "house")
}

async fn at_work(site: &Site) {
    wait::until("the task to be asked for", Duration::from_secs(20), || async { (asked(site) > 0).then_some(()) }).await;
}

/// Waits for the end of a run with one task call. Asserts that the call ran once and has its result.
async fn is_built_once(site: &Site, server: &Server, run: &str) {
    let ended = server.finished(run).await;
    assert_eq!(ended["status"], "completed", "{ended}");
    let messages = server.messages(ended["conversation_id"].as_str().unwrap()).await;
    let result = messages.iter().find(|message| message["role"] == "tool").unwrap();
    assert_eq!(result["parts"][0]["content"][0]["text"], "done house");
    assert_eq!(site.ledger.count("labour", "house"), 1);
    assert_eq!(site.ledger.count("tasks/cancel", "house"), 0);
    let events = server.run_events_json(run).await;
    let of_kind = |kind: &str| events.iter().filter(|event| event["type"] == kind).count();
    assert_eq!((of_kind("tool.started"), of_kind("tool.completed"), of_kind("tool.outcome_unknown")), (1, 1, 0), "{events:#?}");
    audit::assert_sound(&site.database).await;
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_killed_process_leaves_its_task_to_the_next_one(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) {
    let (_model, site, mut server) = Site::start_with_failpoint(kind, "handle=kill").await;
    let run = server.start_run(&script(100)).await["id"].as_str().unwrap().to_owned();
    server.ended(Duration::from_secs(20)).await;
    assert_eq!((site.ledger.count("labour", "house"), asked(&site)), (1, 0));

    // The MCP server's process is new, too, as with every stdio server.
    let server = site.start().await;
    is_built_once(&site, &server, &run).await;
    assert!(asked(&site) > 0);
}

/// The time of a deploy does not depend on how long tasks take.
#[tokio::test(flavor = "multi_thread")]
async fn a_deploy_waits_for_no_task() {
    let (_model, site, mut one) = Site::start_scripted(Kind::Postgres).await;
    let run = one.start_run(&script(15_000)).await["id"].as_str().unwrap().to_owned();
    at_work(&site).await;
    let other = site.start().await;
    one.signal("TERM").await;
    let status = one.ended(Duration::from_secs(10)).await;
    assert!(status.success(), "{status}");
    is_built_once(&site, &other, &run).await;
    let events = other.run_events_json(&run).await;
    let resumed: Vec<_> =
        events.iter().filter(|event| event["type"] == "run.resumed").map(|event| &event["data"]["cause"]).collect();
    assert_eq!(resumed, ["handed_back"], "a deploy is no crash");
}

#[tokio::test(flavor = "multi_thread")]
async fn cancelled_run_cancels_its_task() {
    let (_model, site, server) = Site::start_scripted(Kind::Sqlite).await;
    let run = server.start_run(&script(60_000)).await["id"].as_str().unwrap().to_owned();
    at_work(&site).await;
    let (status, _) = server.post_json(&format!("/runs/{run}/cancel"), &json!({})).await;
    assert!(status.is_success(), "{status}");
    assert_eq!(server.finished(&run).await["status"], "cancelled");
    assert_eq!(site.ledger.count("tasks/cancel", "house"), 1);
    audit::assert_sound(&site.database).await;
}
