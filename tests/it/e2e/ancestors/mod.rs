//! The documents of Capstan's ancestors: each test checks one promise against the agent of the same name.

mod chat;
mod cms;
mod desktop;
mod desktop_plans;
mod docker_tools;
mod react;

use std::time::Duration;

use serde_json::{Value, json};

use support::database::Kind;
use support::ledger::Ledger;
use support::model::ModelMock;
use support::server::{Server, Site};
use support::wait;

/// Runs the agent with this message and returns the finished run.
async fn run_of(server: &Server, agent: &str, input: &str) -> Value {
    let run = server.start_run(&json!({"input": input, "agent": agent})).await;
    server.finished(run["id"].as_str().unwrap()).await
}

/// Returns a script of `count` rounds, each with a different tool call.
fn rounds(id: &str, count: usize) -> String {
    let round = |n: usize| format!(r#"[[call:calculate {{"expression":"{n}+1"}}]]"#);
    format!("go on [[id:{id}]]{}", (0..count).map(round).collect::<Vec<_>>().join("[[next]]"))
}

/// Returns the data of the events of one kind, in order.
fn said<'e>(events: &'e [Value], kind: &str) -> Vec<&'e Value> {
    events.iter().filter(|event| event["type"] == kind).map(|event| &event["data"]).collect()
}

/// Returns role and part types of each message.
async fn shape(server: &Server, conversation: &str) -> Vec<(String, Vec<String>)> {
    let word = |value: &Value| value.as_str().unwrap().to_owned();
    let parts = |message: &Value| message["parts"].as_array().unwrap().iter().map(|part| word(&part["type"])).collect();
    server.messages(conversation).await.iter().map(|message| (word(&message["role"]), parts(message))).collect()
}

/// Returns the ledger as the entry of an untrusted server.
fn untrusted(ledger: &Ledger) -> Value {
    let mut entry = ledger.mcp_server();
    entry["capstan"].as_object_mut().unwrap().remove("trusted");
    entry
}

/// Returns a site whose only server is untrusted.
async fn site_of_a_stranger(model: &ModelMock) -> Site {
    let site = Site::scripted(Kind::Sqlite, model).await;
    let entry = untrusted(&site.ledger);
    site.mcp(json!({"mcpServers": {"ledger": entry}}))
}

fn ledger_of(site: &Site, name: &str) -> Ledger {
    let folder = site.folder.path().join(name);
    std::fs::create_dir(&folder).unwrap();
    Ledger::new(&folder)
}

/// Waits for the approval that the run asks for.
async fn asked(server: &Server, run: &str) -> Value {
    wait::until("somebody to be asked", Duration::from_secs(30), || async {
        let pending = server.get_json("/approvals?status=pending").await["data"].as_array().unwrap().clone();
        pending.into_iter().find(|approval| approval["run_id"] == run)
    })
    .await
}

async fn decide(server: &Server, approval: &Value, decision: &Value) {
    let (status, answered) = server.post_json(&format!("/approvals/{}", approval["id"].as_str().unwrap()), decision).await;
    assert_eq!(status, 200, "{answered}");
}
