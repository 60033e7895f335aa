//! Calls that were under way when the process was killed, by replay class. The ledger counts their effects.

use std::time::Duration;

use rstest::rstest;
use serde_json::{Value, json};

use support::audit;
use support::database::Kind;
use support::model::ModelMock;
use support::server::{Server, Site};

/// Starts a run with this call on a server that is killed at the point. Returns the run.
async fn killed_at(site: &Site, point: &str, call: &str) -> String {
    let mut server = site.start_with(&[("CAPSTAN_FAILPOINTS", &format!("{point}=kill"))]).await;
    let run = server.start_run(&json!({"input": format!("[[id:replay]][[call:{call}]][[next]][[say:bye]]")})).await;
    server.ended(Duration::from_secs(20)).await;
    run["id"].as_str().unwrap().to_owned()
}

/// Waits for the end of a run with one call. Returns the call's state and the result that the model got.
async fn outcome(site: &Site, server: &Server, run: &str) -> (String, String) {
    let ended = server.finished(run).await;
    assert_eq!(ended["status"], "completed", "{ended}");
    let rows = site.database.rows("SELECT state FROM tool_calls").await;
    let messages = server.messages(ended["conversation_id"].as_str().unwrap()).await;
    let results: Vec<&Value> = messages.iter().filter(|message| message["role"] == "tool").collect();
    let [message] = results.as_slice() else { panic!("one message with results: {messages:#?}") };
    let text = message["parts"][0]["content"][0]["text"].as_str().unwrap().to_owned();
    audit::assert_sound(&site.database).await;
    (rows[0][0].clone().unwrap(), text)
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_can_be_asked_about_takes_effect_once(
    #[values("C10", "C13")] point: &str,
    #[values(Kind::Sqlite, Kind::Postgres)] kind: Kind,
) {
    let model = ModelMock::start().await;
    let site = Site::scripted(kind, &model).await.short_leases();
    let run = killed_at(&site, point, r#"ledger__pay {"text":"rent"}"#).await;
    let had_happened = point == "C13";
    assert_eq!(site.ledger.count("pay", "rent"), usize::from(had_happened));

    // The process that reconciles is killed while it asks, and the next one asks again.
    let mut asking = site.start_with(&[("CAPSTAN_FAILPOINTS", "reconciled=kill")]).await;
    asking.ended(Duration::from_secs(30)).await;
    let server = site.start().await;
    let (state, told) = outcome(&site, &server, &run).await;
    assert_eq!(state, "done");
    assert_eq!(told, if had_happened { "paid rent" } else { "recorded rent" });
    assert_eq!(site.ledger.count("pay", "rent"), 1);
    let entries = site.ledger.entries();
    let questions: Vec<_> = entries.iter().filter(|entry| entry.tool == "paid").collect();
    // One more question for each lease that is lost meanwhile: asking has no effect.
    assert!(questions.len() >= 2, "{entries:?}");
    let call = site.database.rows("SELECT id FROM tool_calls").await[0][0].clone().unwrap();
    for question in questions {
        assert_eq!(question.arguments, json!({"key": call, "tool": "pay", "arguments": {"text": "rent"}}));
    }
    let paid = entries.iter().find(|entry| entry.tool == "pay").unwrap();
    assert_eq!(paid.meta["capstan/key"], call.as_str());
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_of_no_use_leaves_the_outcome_unknown(#[values("unclear", "fail", "hang")] text: &str) {
    let model = ModelMock::start().await;
    let mut site = Site::scripted(Kind::Sqlite, &model).await.short_leases();
    let mut entry = site.ledger.mcp_server();
    entry["capstan"]["timeout"] = json!("3s");
    site = site.mcp(json!({"mcpServers": {"ledger": entry}}));
    let run = killed_at(&site, "C13", &format!(r#"ledger__pay {{"text":"{text}"}}"#)).await;
    let server = site.start().await;
    let (state, told) = outcome(&site, &server, &run).await;
    assert_eq!(state, "unknown");
    assert!(told.contains("may or may not have taken effect") && told.contains("its server was asked"), "{told}");
    assert_eq!(site.ledger.count("pay", text), 1);
}

/// A run that fails after a crash leaves two calls: one was under way, and one had not begun. `resume` makes them by their class.
#[rstest]
#[case::unsafe_one("append", "tell_model", &["unknown", "done"], &["one", "two"])]
#[case::rerun("append", "rerun", &["done", "done"], &["one", "one", "two"])]
#[case::keyed("append_meta", "tell_model", &["done", "done"], &["one", "one", "two"])]
#[tokio::test(flavor = "multi_thread")]
async fn resume_of_an_interrupted_run_makes_its_pending_calls(
    #[case] tool: &str,
    #[case] on_unknown: &str,
    #[case] states: &[&str],
    #[case] texts: &[&str],
    #[values(Kind::Sqlite, Kind::Postgres)] kind: Kind,
) {
    let model = ModelMock::start().await;
    let site = Site::scripted(kind, &model).await.short_leases();
    let site = site.env("CAPSTAN_AGENT__ON_INTERRUPT", "fail").env("CAPSTAN_AGENT__TOOL_PARALLELISM", "1");
    let site = site.env("CAPSTAN_AGENT__ON_UNKNOWN", on_unknown);
    let calls = format!(r#"ledger__{tool} {{"text":"one"}}]][[call:ledger__{tool} {{"text":"two"}}"#);
    let run = killed_at(&site, "C13", &calls).await;
    let server = site.start().await;
    let failed = server.finished(&run).await;
    assert_eq!((&failed["status"], &failed["error"]["code"]), (&json!("failed"), &json!("interrupted")), "{failed}");
    let (status, resumed) = server.post_json(&format!("/runs/{run}/resume"), &json!({})).await;
    assert!(status.is_success(), "{resumed}");
    let id = resumed["run"]["id"].as_str().or(resumed["id"].as_str()).unwrap();
    let ended = server.finished(id).await;
    assert_eq!(ended["status"], "completed", "{ended}");
    let rows = site.database.rows(&format!("SELECT state FROM tool_calls WHERE run_id = '{id}' ORDER BY position")).await;
    assert_eq!(rows.iter().map(|row| row[0].as_deref().unwrap()).collect::<Vec<_>>(), states);
    let entries = site.ledger.entries();
    let made: Vec<&str> = entries.iter().map(|entry| entry.arguments["text"].as_str().unwrap()).collect();
    assert_eq!(made, texts);
    let keys: Vec<&Value> = entries.iter().map(|entry| &entry.meta["example.com/key"]).collect();
    assert!(tool == "append" || keys[0] == keys[1], "the call has the same key both times: {keys:?}");
    // The model is asked once more, with the results.
    assert_eq!(model.exchanges("replay").len(), 2);
    model.assert_history_was_sendable();
    audit::assert_sound(&site.database).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tool_call_names_its_run_conversation_and_user() {
    let (_model, site, server) = Site::start_scripted(Kind::Sqlite).await;
    let run = server.start_run(&json!({"input": r#"[[id:who]][[call:ledger__append {"text":"one"}]][[next]][[say:done]]"#})).await;
    let run = server.finished(run["id"].as_str().unwrap()).await;
    let user = site.database.rows("SELECT owner_id FROM runs").await[0][0].clone().unwrap();
    let meta = &site.ledger.entries()[0].meta;
    let named = ["run_id", "conversation_id", "user_id"].map(|name| meta[format!("capstan/{name}")].clone());
    assert_eq!(named, [run["id"].clone(), run["conversation_id"].clone(), json!(user)], "{meta}");
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_key_beside_the_arguments_is_the_same_each_time(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) {
    let model = ModelMock::start().await;
    let site = Site::scripted(kind, &model).await.short_leases();
    let run = killed_at(&site, "C13", r#"ledger__append_meta {"text":"one"}"#).await;
    let server = site.start().await;
    assert_eq!(outcome(&site, &server, &run).await.0, "done");
    let call = site.database.rows("SELECT id FROM tool_calls").await[0][0].clone().unwrap();
    let entries = site.ledger.entries();
    let keys: Vec<&Value> = entries.iter().map(|entry| &entry.meta["example.com/key"]).collect();
    assert_eq!(keys, [call.as_str(), call.as_str()], "both times with the same key");
}
