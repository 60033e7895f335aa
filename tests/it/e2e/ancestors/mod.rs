//! The documents of Capstan's ancestors, top to bottom: what each promises, asked of the agent that bears its name.

mod chat;
mod cms;
mod desktop;
mod desktop_plans;
mod docker_tools;
mod react;

use serde_json::{Value, json};

use crate::support::server::Server;

/// A run of an agent, from its message to its end.
async fn run_of(server: &Server, agent: &str, input: &str) -> Value {
    let run = server.start_run(&json!({"input": input, "agent": agent})).await;
    server.finished(run["id"].as_str().unwrap()).await
}

/// So many rounds that call a tool, each in another way.
fn rounds(id: &str, count: usize) -> String {
    let round = |n: usize| format!(r#"[[call:calculate {{"expression":"{n}+1"}}]]"#);
    format!("go on [[id:{id}]]{}", (0..count).map(round).collect::<Vec<_>>().join("[[next]]"))
}

/// What events of a type say, in order.
fn said<'e>(events: &'e [Value], kind: &str) -> Vec<&'e Value> {
    events.iter().filter(|event| event["type"] == kind).map(|event| &event["data"]).collect()
}

/// What the messages of a conversation hold: role and types of parts.
async fn shape(server: &Server, conversation: &str) -> Vec<(String, Vec<String>)> {
    let word = |value: &Value| value.as_str().unwrap().to_owned();
    let parts = |message: &Value| message["parts"].as_array().unwrap().iter().map(|part| word(&part["type"])).collect();
    server.messages(conversation).await.iter().map(|message| (word(&message["role"]), parts(message))).collect()
}
