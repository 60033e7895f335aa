//! Plans at the wire: a planner, a router for each step, and what is told of them; the loop where that leads nowhere.

use rstest::rstest;
use serde_json::{Value, json};

use crate::support::audit;
use crate::support::database::Kind;
use crate::support::model::ModelMock;
use crate::support::server::Site;

async fn planning(kind: Kind, model: &ModelMock) -> Site {
    let site = Site::scripted(kind, model).await;
    let site = site.env("CAPSTAN_AGENT__STRATEGY", "plan_execute").env("CAPSTAN_AGENT__DUPLICATE_CALLS", "0");
    site.env("CAPSTAN_AGENT__PLAN__PLANNER", "openai/large").env("CAPSTAN_AGENT__PLAN__ROUTER", "openai/small")
}

/// Events of plans: type and data.
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
    let site = planning(kind, &model).await;
    let server = site.start().await;
    let script = format!("[[id:both]][[say:{} {} [done()] ]]", pay("rent"), pay("gas"));
    let run = server.start_run(&json!({"input": script})).await;
    let id = run["id"].as_str().unwrap();
    let run = server.finished(id).await;
    assert_eq!(run["status"], "completed", "{run}");
    assert_eq!((site.ledger.count("pay", "rent"), site.ledger.count("pay", "gas")), (1, 1));

    let (planned, steps, told) = (model.exchanges("both"), model.exchanges(".step"), model.exchanges("both.told"));
    assert_eq!((planned.len(), steps.len(), told.len()), (1, 2, 1));
    let asked = [&planned[0], &steps[0], &steps[1], &told[0]].map(|seen| seen.request["model"].as_str().unwrap());
    assert_eq!(asked, ["large", "small", "small", "large"]);
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
    model.assert_history_was_sendable();
    audit::assert_sound(&site.database).await;
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn the_loop_takes_over_and_repeats_no_effect(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) {
    let model = ModelMock::start().await;
    let site = planning(kind, &model).await;
    let server = site.start().await;
    let broken = r#"[step("use calculate {\"expression\":\"(\"}")]"#;
    let plan = format!("{} {broken} [step(\"pay what step 2 says\")] [done()] ", pay("rent"));
    // Two answers are given by then.
    let rest = r#"[[next]][[next]][[call:ledger__pay {"text":"rent"}]][[next]][[say:it was paid]]"#;
    let run = server.start_run(&json!({"input": format!("[[id:left]][[say:{plan}]]{rest}")})).await;
    let id = run["id"].as_str().unwrap();
    let run = server.finished(id).await;
    assert_eq!(run["status"], "completed", "{run}");
    assert_eq!(site.ledger.count("pay", "rent"), 1, "what the plan has paid is not paid again");
    let events = server.run_events_json(id).await;
    let ended: Vec<_> = of_plan(&events).into_iter().filter_map(|(_, data)| data["state"].as_str()).collect();
    assert_eq!(ended, ["done", "failed", "skipped"]);
    let messages = server.messages(run["conversation_id"].as_str().unwrap()).await;
    assert_eq!(messages.last().unwrap()["parts"][0]["text"], "it was paid");
    model.assert_history_was_sendable();
    audit::assert_sound(&site.database).await;
}
