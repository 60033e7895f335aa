//! Cancellation stops the model and the tools, and the conversation stays usable.

use std::time::{Duration, Instant};

use rstest::rstest;
use serde_json::json;

use support::audit;
use support::database::Kind;
use support::model::ModelMock;
use support::server::Site;
use support::sse::{kinds, stored};
use support::wait;

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn closes_the_providers_socket_at_once(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) {
    let (model, site, server) = Site::start_scripted(kind).await;
    let mut stream = server.stream_run(&json!({"input": "[[id:c]][[text:5,10]][[hold]][[text:5,10]]"})).await;
    let begun = stream.until_kind("part.delta").await;
    let run = begun[0].json()["run_id"].as_str().unwrap().to_owned();
    model.wait_for("five tokens", "c", |seen| seen.first().is_some_and(|first| first.sent.len() == 5)).await;

    let (status, answer) = server.post_json(&format!("/runs/{run}/cancel"), &json!({})).await;
    assert!(status.is_success(), "{answer}");
    model.wait_for("the hang-up", "c", |seen| seen.iter().any(|one| one.hung_up.is_some())).await;

    let rest = stored(&stream.all().await);
    assert_eq!(kinds(&rest).last().unwrap(), "run.cancelled");
    let ended = server.finished(&run).await;
    assert_eq!((&ended["status"], &ended["finish_reason"]), (&json!("cancelled"), &json!("cancelled")), "{ended}");

    // The partial text stays, marked as partial, and a strict provider accepts the next request.
    let conversation = ended["conversation_id"].as_str().unwrap();
    let messages = server.messages(conversation).await;
    assert_eq!(messages.last().unwrap()["status"], "partial", "{messages:#?}");
    let next = server.send(conversation, "[[id:next]][[say:after]]", "queue").await;
    assert_eq!(server.finished(next["run"]["id"].as_str().unwrap()).await["status"], "completed");
    let request = &model.exchanges("next")[0].request;
    assert!(request["messages"].to_string().contains("r1t4"), "the partial text is part of the history: {request}");
    // A second cancel changes nothing.
    let (status, _) = server.post_json(&format!("/runs/{run}/cancel"), &json!({})).await;
    assert!(status.is_success(), "{status}");
    site.assert_sound(&model).await;
}

/// The socket closes within 250 ms of the request. Other tests may delay the machine, so one attempt in five may take up to a
/// second. A server that polled for cancellations would be late in most attempts.
#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn closes_the_providers_socket_within_a_quarter_second(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) {
    let (model, site, server) = Site::start_scripted(kind).await;
    let mut took = Vec::new();
    for index in 0..5 {
        let id = format!("q{index}");
        let run = server.start_run(&json!({"input": format!("[[id:{id}]][[text:5,10]][[hold]]")})).await;
        model.wait_for("five tokens", &id, |seen| seen.first().is_some_and(|first| first.sent.len() == 5)).await;
        let asked = Instant::now();
        server.post_json(&format!("/runs/{}/cancel", run["id"].as_str().unwrap()), &json!({})).await;
        let seen = model.wait_for("the hang-up", &id, |seen| seen.iter().any(|one| one.hung_up.is_some())).await;
        took.push(seen[0].hung_up.unwrap().duration_since(asked));
        server.finished(run["id"].as_str().unwrap()).await;
    }
    took.sort();
    let is_soon = took[3] < Duration::from_millis(250) && took[4] < Duration::from_secs(1);
    assert!(is_soon, "the provider's sockets were closed after {took:?}");
    audit::assert_sound(&site.database).await;
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn stops_tools_and_answers_their_calls(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) {
    let (model, site, server) = Site::start_scripted(kind).await;
    let script = r#"[[id:t]][[call:ledger__append {"text":"quick"}]][[call:ledger__slow_append {"text":"slow","ms":60000}]]
        [[next]][[text:3,0]]"#;
    let mut stream = server.stream_run(&json!({"input": script})).await;
    let begun = stream.until_kind("tool.completed").await;
    let run = begun[0].json()["run_id"].as_str().unwrap().to_owned();
    wait::until("the slow tool to act", Duration::from_secs(20), || async {
        (site.ledger.count("slow_append", "slow") == 1).then_some(())
    })
    .await;
    let asked = Instant::now();
    server.post_json(&format!("/runs/{run}/cancel"), &json!({})).await;
    let ended = server.finished(&run).await;
    assert_eq!(ended["status"], "cancelled");
    assert!(asked.elapsed() < Duration::from_secs(10));
    let states = site.database.rows("SELECT state FROM tool_calls ORDER BY position").await;
    assert_eq!(states, [[Some("done".to_owned())], [Some("unknown".to_owned())]]);
    let conversation = ended["conversation_id"].as_str().unwrap();
    let next = server.send(conversation, "[[id:next]][[say:after]]", "queue").await;
    assert_eq!(server.finished(next["run"]["id"].as_str().unwrap()).await["status"], "completed");
    assert_eq!(model.exchanges("t").len(), 1, "no model call after the cancel");
    site.assert_sound(&model).await;
}

/// The cancel request goes to the server that does not work on the run.
#[tokio::test(flavor = "multi_thread")]
async fn reaches_the_worker_from_another_server() {
    let model = ModelMock::start().await;
    let site = Site::scripted(Kind::Postgres, &model).await;
    let worker = site.start_with(&[("CAPSTAN_SERVER__ROLE", "worker")]).await;
    let api = site.start_with(&[("CAPSTAN_SERVER__ROLE", "api")]).await;
    let run = api.start_run(&json!({"input": "[[id:x]][[text:2,0]][[hold]]"})).await;
    model.wait_for("two tokens", "x", |seen| seen.first().is_some_and(|first| first.sent.len() == 2)).await;
    let asked = Instant::now();
    api.post_json(&format!("/runs/{}/cancel", run["id"].as_str().unwrap()), &json!({})).await;
    let seen = model.wait_for("the hang-up", "x", |seen| seen.iter().any(|one| one.hung_up.is_some())).await;
    let took = seen[0].hung_up.unwrap().duration_since(asked);
    assert!(took < Duration::from_secs(5), "the worker reacted after {took:?}");
    assert_eq!(api.finished(run["id"].as_str().unwrap()).await["status"], "cancelled");
    drop(worker);
    audit::assert_sound(&site.database).await;
}

/// The worker is killed after the cancel request: the worker that takes over ends the run and does not resume it.
#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn survives_the_death_of_the_worker(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) {
    let (model, site, mut server) = Site::start_with_failpoint(kind, "C20=kill@1").await;
    let run = server.start_run(&json!({"input": "[[id:d]][[text:2,0]][[hold]]"})).await;
    let run = run["id"].as_str().unwrap();
    model.wait_for("two tokens", "d", |seen| seen.first().is_some_and(|first| first.sent.len() == 2)).await;
    // The answer may be lost: the process is killed as soon as its worker gets the cancellation.
    let _ = server.post(&format!("/runs/{run}/cancel"), &json!({})).send().await;
    server.ended(Duration::from_secs(10)).await;
    let server = site.start().await;
    assert_eq!(server.finished(run).await["status"], "cancelled");
    assert_eq!(model.exchanges("d").len(), 1, "a cancelled run was resumed");
    audit::assert_sound(&site.database).await;
}
