//! JSON repair and name repair: off by default, and each repaired call shows the original.

use rstest::rstest;
use serde_json::json;

use crate::support::audit;
use crate::support::database::Kind;
use crate::support::model::ModelMock;
use crate::support::server::Site;

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
    model.assert_history_was_sendable();
    audit::assert_sound(&site.database).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn by_default_nothing_is_mended_and_the_model_is_told_what_it_may_have_meant() {
    let model = ModelMock::start().await;
    let site = Site::scripted(Kind::Sqlite, &model).await;
    let server = site.start().await;
    let run = server.start_run(&json!({"input": INPUT})).await;
    let ended = server.finished(run["id"].as_str().unwrap()).await;
    assert_eq!(site.ledger.count("pay", "rent"), 0);
    let messages = server.messages(ended["conversation_id"].as_str().unwrap()).await;
    let told = messages[2]["parts"][0]["content"][0]["text"].as_str().unwrap();
    assert!(told.contains("Did you mean ledger__pay"), "{told}");
}
