//! Each dialect with the whole server: a tool round, a crash during it, the next run, and a search for leaked keys.

use std::collections::HashSet;
use std::path::Path;

use rstest::rstest;
use serde_json::{Value, json};

use support::audit;
use support::database::Kind;
use support::dialects::{Dialect, Says};
use support::server::{Server, Site};
use support::wait;
use support::wire::{Answer, Step, Wire};

const FIRST: &str = "EqQBCkYIBxgCKkD+/first==";
const SECOND: &str = "EqQBCkYIBxgCKkD+/second==";

/// Runs one message to the end of its run.
async fn turn(server: &Server, dialect: Dialect, conversation: &Value, input: &str) -> Value {
    let run = server.start_run(&json!({"input": input, "model": dialect.model(), "conversation_id": conversation})).await;
    server.finished(run["id"].as_str().unwrap()).await
}

/// Asserts that no file of the site holds a key: neither the database nor a log.
fn assert_no_key(folder: &Path) {
    for entry in std::fs::read_dir(folder).unwrap().flatten() {
        if entry.file_type().unwrap().is_dir() {
            assert_no_key(&entry.path());
            continue;
        }
        let bytes = std::fs::read(entry.path()).unwrap();
        let found = bytes.windows(6).position(|window| window == b"canary");
        let near = found.map(|at| String::from_utf8_lossy(&bytes[at.saturating_sub(80)..(at + 40).min(bytes.len())]).into_owned());
        assert_eq!(near, None, "a key is in {}", entry.path().display());
    }
}

#[rstest]
#[case::openai(Dialect::Openai, Kind::Sqlite)]
#[case::openrouter(Dialect::Openrouter, Kind::Sqlite)]
#[case::responses(Dialect::Responses, Kind::Sqlite)]
#[case::anthropic(Dialect::Anthropic, Kind::Sqlite)]
#[case::anthropic_postgres(Dialect::Anthropic, Kind::Postgres)]
#[case::gemini(Dialect::Gemini, Kind::Sqlite)]
#[case::ollama(Dialect::Ollama, Kind::Sqlite)]
#[tokio::test(flavor = "multi_thread")]
async fn a_tool_round_over_a_crash_and_the_next_turn(#[case] dialect: Dialect, #[case] kind: Kind) {
    let signature = |signature: &'static str| if dialect.signs() { signature } else { "" };
    let arguments = json!({"text": "größer"});
    let call = Some(("call_1", "ledger__append_keyed", &arguments));
    let wire = Wire::play(vec![
        dialect.answer(Says { signature: signature(FIRST), text: "Ich sehe nach. 👩‍🚀", call }),
        Answer::events(vec![Step::Hang]),
        dialect.answer(Says { signature: signature(SECOND), text: "Es ist da.", call: None }),
        dialect.answer(Says { text: "Bis bald.", ..Says::default() }),
        Answer::json(401, &format!(r#"{{"error":{{"message":"Incorrect API key provided: {}","code":401}}}}"#, dialect.key())),
    ])
    .await;
    let mut site = Site::new(kind).await.short_leases().env("CAPSTAN_MODEL", dialect.model());
    for (name, value) in dialect.environment(&wire.base_url) {
        site = site.env(name, &value);
    }
    let ledger = site.ledger.mcp_config();
    let site = site.mcp(ledger);

    // The server is killed while the model reads the result of its call.
    let mut server = site.start().await;
    let run = server.start_run(&json!({"input": "Look."})).await;
    let id = run["id"].as_str().unwrap().to_owned();
    wait::until("the second request", std::time::Duration::from_secs(30), || async { (wire.asked().len() == 2).then_some(()) })
        .await;
    server.kill9().await;
    let server = site.start().await;
    let ended = server.finished(&id).await;
    assert_eq!((&ended["status"], &ended["finish_reason"]), (&json!("completed"), &json!("stop")), "{ended}");
    assert_eq!(ended["model"], json!(dialect.model()));
    // Its result may not have been stored yet. The call is keyed, so it may run again with the same key.
    let keys: HashSet<String> = site.ledger.entries().iter().map(|entry| entry.arguments["key"].to_string()).collect();
    assert!(keys.len() == 1 && site.ledger.count("append_keyed", "größer") <= 2, "{:?}", site.ledger.entries());
    // The provider bills the interrupted call, and its usage is an estimate. If its step was not stored yet, the usage of the
    // run does not include it.
    let usage = &ended["usage"];
    let abandoned = usage["abandoned_calls"].as_u64().unwrap_or_default();
    assert!(abandoned <= 1 && usage["estimated"] == (abandoned == 1), "{ended}");
    assert!(usage["input_tokens"].as_u64() >= Some(22), "{ended}");

    let asked = wire.asked();
    let (key, path) = dialect.head();
    for one in &asked {
        assert!(one.head.starts_with(path) && key.as_ref().is_none_or(|key| one.head.contains(key)), "{}", one.head);
        assert_eq!(one.head.matches("canary").count(), usize::from(key.is_some()), "{}", one.head);
    }
    assert!(dialect.offered(&asked[0].json()).contains(&"ledger__append_keyed".to_owned()));
    let history = dialect.history(&asked[1]);
    assert_eq!(history[0], format!("call ledger__append_keyed {arguments}"));
    assert!(history.len() == 2 && history[1].starts_with("result "), "{history:?}");
    assert_eq!(asked[1].json(), asked[2].json(), "the request after the crash is the same");
    let count = |at: usize, signature: &str| String::from_utf8_lossy(&asked[at].body).matches(signature).count();
    let signed = usize::from(dialect.signs());
    assert_eq!([count(0, FIRST), count(1, FIRST), count(2, FIRST)], [0, signed, signed]);

    let events = server.run_events_json(&id).await;
    let deltas = events.iter().filter(|event| event["type"] == "part.delta");
    let streamed: String = deltas.filter_map(|event| event["data"]["delta"].as_str()).collect();
    assert!(streamed.contains("👩‍🚀") && streamed.contains("Es ist da."), "{streamed}");
    assert!(events.iter().any(|event| event["type"] == "run.resumed" && event["data"]["cause"] == "crash"));

    let conversation = &ended["conversation_id"];
    assert_eq!(turn(&server, dialect, conversation, "And now?").await["status"], "completed");
    let asked = wire.asked();
    assert_eq!(dialect.history(&asked[3]), history);
    let count = |signature: &str| String::from_utf8_lossy(&asked[3].body).matches(signature).count();
    assert_eq!([count(FIRST), count(SECOND)], [signed, signed]);

    let failed = turn(&server, dialect, conversation, "Once more.").await;
    assert_eq!((&failed["status"], &failed["error"]["code"]), (&json!("failed"), &json!("provider_auth")), "{failed}");
    let shown = [
        failed.to_string(),
        json!(server.run_events_json(failed["id"].as_str().unwrap()).await).to_string(),
        json!(server.messages(conversation.as_str().unwrap()).await).to_string(),
    ];
    assert!(shown.iter().all(|text| !text.contains("canary")), "{shown:#?}");
    audit::assert_sound(&site.database).await;
    drop(server);
    assert_no_key(site.folder.path());
}
