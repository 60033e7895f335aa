//! Plan-execute runs: a planner, a router for each step, and the final report. If the plan fails, the loop takes over.

use std::time::Duration;

use rstest::rstest;
use serde_json::{Value, json};

use support::audit;
use support::database::Kind;
use support::model::ModelMock;
use support::server::{Server, Site};
use support::wait;

async fn planning(kind: Kind, model: &ModelMock) -> Site {
    let site = Site::scripted(kind, model).await;
    let site = site.env("CAPSTAN_AGENT__STRATEGY", "plan_execute").env("CAPSTAN_AGENT__DUPLICATE_CALLS", "0");
    site.env("CAPSTAN_AGENT__PLAN__PLANNER", "openai/large").env("CAPSTAN_AGENT__PLAN__ROUTER", "openai/small")
}

/// Returns type and data of the plan events.
fn of_plan(events: &[Value]) -> Vec<(&str, &Value)> {
    let events = events.iter().map(|event| (event["type"].as_str().unwrap(), &event["data"]));
    events.filter(|(kind, _)| kind.starts_with("plan.")).collect()
}

fn pay(what: &str) -> String {
    format!(r#"[step("ledger", "use ledger__pay {{\"text\":\"{what}\"}}")]"#)
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_plan_is_carried_out_step_by_step(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) {
    let model = ModelMock::start().await;
    let site = planning(kind, &model).await.env("CAPSTAN_AGENT__PROMPT__SERVER", "HOUSE");
    let server = site.start().await;
    let (_, conversation) = server.post_json("/conversations", &json!({"instructions": "Answer in French."})).await;
    let script = format!("[[id:both]][[say:{} {} [done()] ]]", pay("rent"), pay("gas"));
    let run = server.start_run(&json!({"input": script, "conversation_id": conversation["id"]})).await;
    let id = run["id"].as_str().unwrap();
    let run = server.finished(id).await;
    assert_eq!(run["status"], "completed", "{run}");
    assert_eq!((site.ledger.count("pay", "rent"), site.ledger.count("pay", "gas")), (1, 1));

    let (planned, steps, told) = (model.exchanges("both"), model.exchanges(".step"), model.exchanges("both.told"));
    assert_eq!((planned.len(), steps.len(), told.len()), (1, 2, 1));
    let asked = [&planned[0], &steps[0], &steps[1], &told[0]].map(|seen| seen.request["model"].as_str().unwrap());
    assert_eq!(asked, ["large", "small", "small", "large"]);
    let knows = [&planned[0], &steps[0], &told[0]].map(|seen| {
        let system = seen.request["messages"][0]["content"].as_str().unwrap();
        ["HOUSE", "Answer in French."].map(|layer| system.contains(layer))
    });
    assert_eq!(knows, [[true; 2], [false; 2], [true; 2]], "only the planner and the report get the prompt layers");
    assert!(planned[0].request["tools"].is_null() && told[0].request["tools"].is_null());
    assert_eq!(steps[1].request["messages"].as_array().unwrap().len(), 2, "no history: {}", steps[1].request);

    let events = server.run_events_json(id).await;
    let (begun, over) = ("plan.step_started", "plan.step_completed");
    let kinds: Vec<_> = of_plan(&events).into_iter().map(|(kind, _)| kind).collect();
    assert_eq!(kinds, ["plan.created", begun, over, begun, over]);
    assert_eq!(of_plan(&events)[0].1["steps"][1]["server"], "ledger");
    assert_eq!(of_plan(&events)[4].1["state"], "done");
    let messages = server.messages(run["conversation_id"].as_str().unwrap()).await;
    let roles: Vec<_> = messages.iter().map(|message| message["role"].as_str().unwrap()).collect();
    assert_eq!(roles, ["user", "assistant", "tool", "assistant", "tool", "assistant"], "every step is in the transcript");
    assert_eq!(messages[5]["parts"][0]["text"], "told: ok, ok");
    site.assert_sound(&model).await;
}

/// A retry run has no message of its own.
#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_plan_that_is_made_again_knows_what_was_asked(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) {
    let (model, site, server) = Site::serve(async |model| planning(kind, model).await).await;
    let script = format!("Pay the rent and say so. [[id:again]][[say:{} [done()] ]]", pay("rent"));
    let run = server.start_run(&json!({"input": script})).await;
    assert_eq!(server.finished(run["id"].as_str().unwrap()).await["status"], "completed");
    let path = format!("/runs/{}/retry", run["id"].as_str().unwrap());
    let (status, retried) = server.post_json(&path, &json!({})).await;
    assert_eq!(status, 202, "{retried}");
    let retried = server.finished(retried["id"].as_str().unwrap()).await;
    assert_eq!(retried["status"], "completed", "{retried}");

    // Each of the two runs plans twice, because a single step does not cover an "and".
    let (planned, told) = (model.exchanges("again"), model.exchanges("again.told"));
    assert_eq!((planned.len(), told.len()), (4, 2));
    for seen in &told {
        let asked = seen.request["messages"].as_array().unwrap().last().unwrap()["content"].as_str().unwrap();
        assert!(asked.starts_with("The user has asked:\nPay the rent and say so."), "{asked}");
    }
    site.assert_sound(&model).await;
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn the_loop_takes_over_and_repeats_no_effect(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) {
    let (model, site, server) = Site::serve(async |model| planning(kind, model).await).await;
    let broken = r#"[step("use calculate {\"expression\":\"(\"}")]"#;
    let plan = format!("{} {broken} [step(\"pay what step 2 says\")] [done()] ", pay("rent"));
    // The mock has given two answers by then.
    let rest = r#"[[next]][[next]][[call:ledger__pay {"text":"rent"}]][[next]][[say:it was paid]]"#;
    let run = server.start_run(&json!({"input": format!("[[id:left]][[say:{plan}]]{rest}")})).await;
    let id = run["id"].as_str().unwrap();
    let run = server.finished(id).await;
    assert_eq!(run["status"], "completed", "{run}");
    assert_eq!(site.ledger.count("pay", "rent"), 1, "a payment of the plan is not repeated");
    let events = server.run_events_json(id).await;
    let ended: Vec<_> = of_plan(&events).into_iter().filter_map(|(_, data)| data["state"].as_str()).collect();
    assert_eq!(ended, ["done", "failed", "skipped"]);
    let messages = server.messages(run["conversation_id"].as_str().unwrap()).await;
    assert_eq!(messages.last().unwrap()["parts"][0]["text"], "it was paid");
    site.assert_sound(&model).await;
}

/// Waits for the approval that is asked for.
async fn asked_for(server: &Server) -> Value {
    wait::until("an approval", Duration::from_secs(30), || async {
        server.get_json("/approvals?status=pending").await["data"].as_array().unwrap().first().cloned()
    })
    .await
}

#[rstest]
#[case::allowed("allow", "told: ok, ok", 1)]
#[case::denied("deny", "told: failed, ok", 0)]
#[tokio::test(flavor = "multi_thread")]
async fn a_step_waits_for_its_human_over_a_crash(
    #[case] decision: &str,
    #[case] told: &str,
    #[case] paid: usize,
    #[values(Kind::Sqlite, Kind::Postgres)] kind: Kind,
) {
    let model = ModelMock::start().await;
    let site = planning(kind, &model).await.short_leases();
    let mut entry = site.ledger.mcp_server();
    entry["capstan"]["approval"] = json!({"pay": "ask"});
    let site = site.mcp(json!({"mcpServers": {"ledger": entry}}));
    let mut server = site.start().await;
    let script = format!("[[id:asks]][[say:{} {} [done()] ]]", pay("rent"), pay("gas"));
    let run = server.start_run(&json!({"input": script})).await;
    let id = run["id"].as_str().unwrap();
    for (text, decision) in [("rent", decision), ("gas", "allow")] {
        let asked = asked_for(&server).await;
        assert_eq!((&asked["name"], &asked["arguments"]), (&json!("ledger__pay"), &json!({"text": text})));
        assert_eq!(site.ledger.count("pay", text), 0, "no call runs before its approval");
        server.kill9().await;
        server = site.start().await;
        let path = format!("/approvals/{}", asked["id"].as_str().unwrap());
        let (status, answer) = server.post_json(&path, &json!({"decision": decision, "reason": "so be it"})).await;
        assert_eq!(status, 200, "{answer}");
    }
    let run = server.finished(id).await;
    assert_eq!(run["status"], "completed", "{run}");
    assert_eq!((site.ledger.count("pay", "rent"), site.ledger.count("pay", "gas")), (paid, 1));
    let messages = server.messages(run["conversation_id"].as_str().unwrap()).await;
    assert_eq!(messages.last().unwrap()["parts"][0]["text"], told);
    let events = server.run_events_json(id).await;
    let ended: Vec<_> = of_plan(&events).into_iter().filter_map(|(_, data)| data["state"].as_str()).collect();
    assert_eq!(ended, [if paid == 1 { "done" } else { "failed" }, "done"]);
    site.assert_sound(&model).await;
}

#[rstest]
#[case::before_the_router("C05=kill@2")]
#[case::before_the_call("C09=kill@1")]
#[case::after_the_call("C13=kill@1")]
#[case::before_the_next_step("C15=kill@1")]
#[tokio::test(flavor = "multi_thread")]
async fn a_plan_outlives_its_server(#[case] point: &str, #[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) {
    let model = ModelMock::start().await;
    let site = planning(kind, &model).await.short_leases();
    let mut server = site.start_with(&[("CAPSTAN_FAILPOINTS", point)]).await;
    let script = format!("[[id:dies]][[say:{} {} [done()] ]]", pay("rent"), pay("gas"));
    let run = server.start_run(&json!({"input": script})).await;
    let id = run["id"].as_str().unwrap();
    server.ended(Duration::from_secs(30)).await;
    let server = site.start().await;
    let run = server.finished(id).await;
    assert_eq!(run["status"], "completed", "{run}");
    assert_eq!((site.ledger.count("pay", "rent"), site.ledger.count("pay", "gas")), (1, 1));
    let events = server.run_events_json(id).await;
    let (begun, over) = ("plan.step_started", "plan.step_completed");
    let kinds: Vec<_> = of_plan(&events).into_iter().map(|(kind, _)| kind).collect();
    assert_eq!(kinds, ["plan.created", begun, over, begun, over], "each event occurs once");
    site.assert_sound(&model).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plan_that_is_stopped_closes_its_steps() {
    let (_model, site, server) = Site::serve(async |model| planning(Kind::Sqlite, model).await).await;
    let slow = r#"[step("ledger", "use ledger__slow_append {\"text\":\"rent\",\"ms\":60000}")]"#;
    let run = server.start_run(&json!({"input": format!("[[id:stop]][[say:{slow} {} [done()] ]]", pay("gas"))})).await;
    let id = run["id"].as_str().unwrap();
    wait::until("the call to be made", Duration::from_secs(30), || async {
        (site.ledger.count("slow_append", "rent") == 1).then_some(())
    })
    .await;
    assert!(server.post_json(&format!("/runs/{id}/cancel"), &json!({})).await.0.is_success());
    assert_eq!(server.finished(id).await["status"], "cancelled");
    let events = server.run_events_json(id).await;
    let ended: Vec<_> = of_plan(&events).into_iter().filter_map(|(_, data)| data["state"].as_str()).collect();
    assert_eq!(ended, ["failed", "skipped"]);
    audit::assert_sound(&site.database).await;
}
