//! JSON repair and name repair: off by default, and each repaired call shows the original.

use rstest::rstest;
use serde_json::{Value, json};

use support::database::Kind;
use support::model::ModelMock;
use support::server::Site;

const INPUT: &str = r#"[[id:repair]][[wrote:Pay {'text': 'rent',}]][[next]][[say:bye]]"#;

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_is_nearly_right_is_made_and_shown_as_written(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) {
    let model = ModelMock::start().await;
    let site = Site::scripted(kind, &model).await;
    let site = site.env("CAPSTAN_AGENT__REPAIR__NAMES", "unique").env("CAPSTAN_AGENT__REPAIR__ARGUMENTS", "true");
    let server = site.start().await;
    let run = server.start_run(&json!({"input": INPUT})).await;
    let run = run["id"].as_str().unwrap();
    let ended = server.finished(run).await;
    assert_eq!(ended["status"], "completed", "{ended}");
    assert_eq!(site.ledger.count("pay", "rent"), 1);

    let events = server.run_events_json(run).await;
    let started = events.iter().find(|event| event["type"] == "tool.started").unwrap();
    let data = &started["data"];
    assert_eq!((&data["name"], &data["arguments"]), (&json!("ledger__pay"), &json!({"text": "rent"})));
    let repair = json!({"name": "Pay", "matched_by": "prefix", "arguments": ["single_quotes", "trailing_comma"]});
    assert_eq!(data["repair"], repair);
    let messages = server.messages(ended["conversation_id"].as_str().unwrap()).await;
    let wrote = &messages[1]["parts"][0];
    assert_eq!((&wrote["name"], &wrote["arguments"]), (&json!("Pay"), &json!({"_raw": "{'text': 'rent',}"})));
    let told = messages[2]["parts"][0]["content"][0]["text"].as_str().unwrap();
    assert!(told.contains("ledger__pay was called"), "{told}");
    site.assert_sound(&model).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn default_repairs_no_name_but_suggests_similar_ones() {
    let (_model, site, server) = Site::start_scripted(Kind::Sqlite).await;
    let run = server.start_run(&json!({"input": INPUT})).await;
    let ended = server.finished(run["id"].as_str().unwrap()).await;
    assert_eq!(site.ledger.count("pay", "rent"), 0);
    let messages = server.messages(ended["conversation_id"].as_str().unwrap()).await;
    let told = messages[2]["parts"][0]["content"][0]["text"].as_str().unwrap();
    assert!(told.contains("Did you mean ledger__pay"), "{told}");
}

// A fallback, a repair, a breaker and a shortened offer are in the events of the run.
#[tokio::test(flavor = "multi_thread")]
async fn help_that_a_run_needed_is_in_its_events() {
    let (_model, _site, server) = Site::start_scripted(Kind::Sqlite).await;
    let profile = json!({
        "fallbacks": ["openai/other"], "llm_retry": {"delays_ms": []},
        "repair": {"names": "unique", "arguments": true}, "breaker_failures": 1, "breaker_action": "drop_tool",
        "tool_filter": {"mode": "semantic", "k": 2},
    });
    let (status, made) = server.post_json("/agents", &json!({"name": "helped", "profile": profile})).await;
    assert_eq!(status, 201, "{made}");
    let fails = r#"[[call:calculate {"expression":"1/"}]]"#;
    let input = format!("[[id:helped]][[flaky:1,503]][[wrote:Pay {{'text': 'rent',}}]][[next]]{fails}[[next]][[say:bye]]");
    let run = server.start_run(&json!({"input": input, "agent": "helped"})).await;
    let ended = server.finished(run["id"].as_str().unwrap()).await;
    assert_eq!(ended["status"], "completed", "{ended}");

    let events = server.run_events_json(run["id"].as_str().unwrap()).await;
    let first = |kind: &str| {
        let found = events.iter().find(|event| event["type"] == kind);
        found.map_or(Value::Null, |event| event["data"].clone())
    };
    let (fallback, breaker, offer) = (first("run.retrying"), first("tool.breaker_opened"), first("step.started"));
    assert_eq!((&fallback["model"], &fallback["after_ms"]), (&json!("openai/other"), &json!(0)), "{fallback}");
    assert_eq!(first("tool.started")["repair"]["name"], "Pay");
    assert_eq!((&breaker["name"], &breaker["action"]), (&json!("calculate"), &json!("drop_tool")), "{breaker}");
    let counts = [&offer["tools"]["offered"], &offer["tools"]["of"]].map(|count| count.as_u64().unwrap_or_default());
    assert!(0 < counts[0] && counts[0] < counts[1], "{offer}");
}
