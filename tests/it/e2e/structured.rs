//! A model without tool calls: it gets the tools as text, answers in JSON objects, and clients see calls.

use serde_json::{Value, json};

use support::database::Kind;
use support::server::Site;

#[tokio::test(flavor = "multi_thread")]
async fn a_model_without_calls_uses_tools() {
    let (model, site, server) =
        Site::serve(async |model| Site::scripted(Kind::Sqlite, model).await.env("CAPSTAN_AGENT__OUTPUT", "structured")).await;
    let script = r#"[[id:s]][[say:{"tool":"ledger__pay",]][[say:"arguments":{"text":"rent"}}]][[next]][[say:{"answer":"Paid \]][[say:u00fc the rent."}]]"#;
    let run = server.start_run(&json!({"input": script})).await;
    let ended = server.finished(run["id"].as_str().unwrap()).await;
    assert_eq!(ended["status"], "completed", "{ended}");
    assert_eq!(site.ledger.count("pay", "rent"), 1);

    let messages = server.messages(ended["conversation_id"].as_str().unwrap()).await;
    let roles: Vec<&Value> = messages.iter().map(|message| &message["role"]).collect();
    assert_eq!(roles, ["user", "assistant", "tool", "assistant"]);
    assert_eq!(messages[1]["parts"][0]["type"], "tool_call");
    assert_eq!(messages[1]["parts"][0]["arguments"], json!({"text": "rent"}));
    let words = messages[3]["parts"][0]["text"].as_str().unwrap();
    assert!(words.starts_with("Paid ü the rent."), "{words}");
    let events = server.run_events_json(run["id"].as_str().unwrap()).await;
    let deltas: String = events.iter().filter(|event| event["type"] == "part.delta").map(Value::to_string).collect();
    assert!(!deltas.contains("answer") && !deltas.contains("tool"), "clients do not see the objects: {deltas}");

    let asked = model.exchanges("s");
    assert_eq!(asked.len(), 2);
    let last = &asked[1].request;
    assert!(last.get("tools").is_none(), "{last}");
    assert_eq!(last["response_format"]["type"], "json_schema", "{last}");
    let told = last["messages"].as_array().unwrap();
    assert_eq!(told.last().unwrap()["role"], "user", "there is no tool role: {told:?}");
    site.assert_sound(&model).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_that_keeps_to_no_form_fails_its_run() {
    let (model, site, server) =
        Site::serve(async |model| Site::scripted(Kind::Sqlite, model).await.env("CAPSTAN_AGENT__OUTPUT", "structured")).await;
    let run = server.start_run(&json!({"input": r#"[[id:s]][[say:{"answer":"I paid", ]][[say:and that is it]]"#})).await;
    let ended = server.finished(run["id"].as_str().unwrap()).await;
    assert_eq!((&ended["status"], &ended["error"]["code"]), (&json!("failed"), &json!("invalid_output")), "{ended}");
    assert_eq!(model.exchanges("s").len(), 3);
    site.assert_sound(&model).await;
}
