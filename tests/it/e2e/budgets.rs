//! Budgets: concurrent runs stay within a limit, also over a crash, and the API reports the remainder.

use std::time::Duration;

use rstest::rstest;
use serde_json::{Value, json};

use support::database::Kind;
use support::model::ModelMock;
use support::server::{Server, Site};
use support::wait;

async fn waits_for_budget(server: &Server, run: &str) {
    wait::until("the run to wait for its budget", Duration::from_secs(20), || async {
        let run = server.get_json(&format!("/runs/{run}")).await;
        (run["status"] == "waiting" && run["reason"] == "budget").then_some(())
    })
    .await;
}

fn id(run: &Value) -> &str {
    run["id"].as_str().unwrap()
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn runs_side_by_side_keep_within_the_day_over_a_crash(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) {
    let model = ModelMock::start().await;
    // A call reserves a few hundred tokens for its request and 3,000 for its answer, so the budget has room for one call at a
    // time.
    let site = Site::scripted(kind, &model).await.short_leases().env("CAPSTAN_AGENT__OPTIONS__MAX_OUTPUT_TOKENS", "3000");
    // A lease must end because of the kill, not because the machine stalls for a moment.
    let site = site.env("CAPSTAN_WORKER__LEASE_MS", "8000").env("CAPSTAN_WORKER__SELF_STOP_MS", "6000");
    let mut server = site.start().await;
    let of_day = |input: &str, tokens: u64| json!({"input": input, "limits": {"max_day_tokens": tokens}});
    let first = server.start_run(&of_day("[[id:a]][[text:2,0]][[hold]]", 6_000)).await;
    model.wait_for("the first call", "a", |exchanges| !exchanges.is_empty()).await;
    let second = server.start_run(&of_day("[[id:b]][[say:ok]]", 6_000)).await;
    waits_for_budget(&server, id(&second)).await;
    let said = server.get_json(&format!("/runs/{}/explain", id(&second))).await;
    let summary = said["summary"].as_str().unwrap();
    assert!(summary.starts_with("The run waits for the budget of the day") && said["moving"] == true, "{said}");
    assert!(model.exchanges("b").is_empty(), "the model was not asked");
    model.release("a");
    for run in [&first, &second] {
        let run = server.finished(id(run)).await;
        assert_eq!((&run["status"], &run["usage"]["abandoned_calls"]), (&json!("completed"), &Value::Null), "{run}");
    }

    // The usage of the killed process's call is unknown: its whole reservation counts.
    let third = server.start_run(&of_day("[[id:c]][[text:2,0]][[hold]]", 9_000)).await;
    model.wait_for("the third call", "c", |exchanges| !exchanges.is_empty()).await;
    server.kill9().await;
    let server = site.start().await;
    model.wait_for("the third call again", "c", |exchanges| exchanges.len() >= 2).await;
    model.release("c");
    let third = server.finished(id(&third)).await;
    assert_eq!((&third["status"], &third["usage"]["abandoned_calls"]), (&json!("completed"), &json!(1)), "{third}");
    assert!(third["usage"]["output_tokens"].as_u64().unwrap() > 3_000, "{third}");
    let fourth = server.start_run(&of_day("[[id:d]][[say:ok]]", 6_000)).await;
    waits_for_budget(&server, id(&fourth)).await;
    let said = server.get_json(&format!("/runs/{}/explain", id(&fourth))).await;
    assert!(said["claimable_in_ms"].as_i64().unwrap() > 5_700 || model.exchanges("d").is_empty(), "{said}");
    let events = server.run_events_json(id(&second)).await;
    let waited = events.iter().filter(|event| event["type"] == "run.waiting" && event["data"]["reason"] == "budget");
    assert!(waited.clone().count() > 0, "{events:#?}");
    assert!(waited.into_iter().all(|event| event["data"]["detail"].is_string()), "{events:#?}");
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn exhausted_budget_waits_refuses_or_has_no_price(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) {
    let (model, _site, server) = Site::start_scripted(kind).await;
    let run = async |limits: Value| server.start_run(&json!({"input": "[[id:x]][[say:ok]]", "limits": limits})).await;
    let waiting = run(json!({"max_day_tokens": 5})).await;
    waits_for_budget(&server, id(&waiting)).await;
    let said = server.get_json(&format!("/runs/{}/explain", id(&waiting))).await;
    let left = said["claimable_in_ms"].as_i64().unwrap();
    assert!(left > 0 && left <= 86_405_000, "until the end of the day: {said}");
    let (status, _) = server.post_json(&format!("/runs/{}/cancel", id(&waiting)), &json!({})).await;
    assert!(status.is_success(), "{status}");
    assert_eq!(server.finished(id(&waiting)).await["status"], "cancelled");

    let refused = run(json!({"max_conversation_tokens": 5})).await;
    let refused = server.finished(id(&refused)).await;
    assert_eq!((&refused["status"], &refused["error"]["code"]), (&json!("failed"), &json!("budget_spent")), "{refused}");
    let unpriced = run(json!({"max_run_usd": 0.5})).await;
    let unpriced = server.finished(id(&unpriced)).await;
    assert_eq!(unpriced["error"]["code"], "unpriced_model", "{unpriced}");
    assert!(model.exchanges("x").is_empty(), "the model was not asked");
    let enough = run(json!({"max_conversation_tokens": 100_000, "max_day_tokens": 100_000})).await;
    assert_eq!(server.finished(id(&enough)).await["status"], "completed");
    let (status, problem) = server.post_json("/runs", &json!({"input": "x", "limits": {"max_run_usd": 0}})).await;
    assert_eq!((status.as_u16(), &problem["errors"][0]["pointer"]), (400, &json!("/limits/max_run_usd")), "{problem}");
}
