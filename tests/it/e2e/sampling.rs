//! Sampling: MCP servers that request a model answer in the middle of a call.

use rstest::rstest;
use serde_json::{Value, json};

use super::elicitation::told;
use support::audit;
use support::database::Kind;
use support::mcp::entry;
use support::model::ModelMock;
use support::server::Site;

/// M-22. Sampling is limited, uses the run's model, and is charged to the run's owner.
#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_server_has_the_model_of_the_run_say_something(#[values(Kind::Sqlite, Kind::Postgres)] kind: Kind) {
    let model = ModelMock::start().await;
    let folder = tempfile::tempdir().unwrap();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/mcp/server.py");
    let site = Site::scripted(kind, &model).await;
    let site = site.mcp(json!({"mcpServers": {"s": {
        "command": "python3", "args": [script, folder.path(), "samples"], "env": {"API_TOKEN": "token-canary"},
        "capstan": {"sampling": {"max_calls": 2, "max_tokens": 50}}
    }}}));
    let server = site.start().await;
    let run = server.start_run(&json!({"input": "[[id:paints]][[call:s__sample {}]][[next]][[say:bye]]"})).await;
    let said: Value = serde_json::from_str(&told(&server, &run).await).unwrap();
    for answer in &said.as_array().unwrap()[..2] {
        assert_eq!((&answer["role"], &answer["stopReason"]), (&json!("assistant"), &json!("endTurn")), "{said}");
        assert_eq!(answer["content"]["text"].as_str().unwrap().trim(), "blue sky");
    }
    assert!(said[2]["message"].as_str().unwrap().contains("limit of 2 sampling requests"), "{said}");
    let asked = &model.exchanges("inner-0")[0].request;
    assert_eq!((&asked["max_tokens"], &asked["model"]), (&json!(50), &model.exchanges("paints")[0].request["model"]));
    assert!(asked["tools"].is_null(), "{asked}");
    let messages = asked["messages"].to_string();
    assert!(messages.contains("You are a painter.") && messages.contains("[redacted:API_TOKEN]"), "{messages}");
    assert!(!messages.contains("canary") && model.exchanges("inner-2").is_empty(), "{messages}");
    let ended = server.finished(run["id"].as_str().unwrap()).await;
    assert_eq!(ended["usage"]["model_calls"], 4, "two of the run, two of the server: {ended}");
    let conversation = server.messages(ended["conversation_id"].as_str().unwrap()).await;
    assert_eq!(conversation.len(), 4, "sampling messages are not part of the conversation: {conversation:?}");
    audit::assert_sound(&site.database).await;
}

/// The reference server offers that tool only to clients with the sampling capability.
#[tokio::test(flavor = "multi_thread")]
async fn server_everything_asks_if_it_may() {
    let model = ModelMock::start().await;
    let everything = |capstan: Value| json!({"command": "node", "args": [entry("server-everything"), "stdio"], "capstan": capstan});
    let site = Site::scripted(Kind::Sqlite, &model).await;
    let site = site.mcp(json!({"mcpServers": {"may": everything(json!({"sampling": true})), "not": everything(json!({}))}}));
    let server = site.start().await;
    let input = r#"[[id:asks]][[call:may__trigger-sampling-request {"prompt":"Say something","maxTokens":20}]][[next]][[say:bye]]"#;
    let run = server.start_run(&json!({ "input": input })).await;
    let said = told(&server, &run).await;
    assert!(said.contains("stopReason") && said.contains("\"role\": \"assistant\""), "{said}");
    let offered = model.exchanges("asks")[0].request["tools"].to_string();
    assert!(offered.contains("may__trigger-sampling-request") && !offered.contains("not__trigger-sampling-request"), "{offered}");
}
