//! Calls that the client of a run executes.

use serde_json::json;

use crate::domain::agent::AgentProfile;
use crate::domain::conversation::message::ToolContent;
use crate::domain::event::EventBody;
use crate::domain::run::WaitReason;
use crate::domain::run::change::ReleaseCause;
use crate::domain::run::question::{InputAnswer, InputKind, InputState};
use crate::domain::run::record::ClaimCause;
use crate::domain::tool::ReplayClass;
use crate::domain::tool::ToolCallState::{Done, Failed, Started, Unknown};
use crate::domain::tool::client_tool::{ClientTool, client_answer};
use crate::engine::tests::world::{World, call, done, tool};
use crate::engine::{Input, prompts};

fn client_tool(name: &str) -> ClientTool {
    ClientTool { name: name.to_owned(), description: "Reads the screen.".to_owned(), parameters: None }
}

/// Returns a run whose model has called the client tool `look` twice, and `write` of a server.
fn requested() -> World {
    requested_within(None)
}

fn requested_within(max_server_calls: Option<u32>) -> World {
    let profile = AgentProfile {
        max_server_calls,
        client_tools: vec![client_tool("look"), client_tool("point")],
        tools: Some(vec!["write".to_owned()]),
        tool_parallelism: 1,
        ..AgentProfile::default()
    };
    let mut world = World::new(profile);
    world.load(ClaimCause::First);
    // The server's tool `look` is left out, because a client tool has the same name.
    let tools = vec![tool("write", ReplayClass::Unsafe).into(), tool("look", ReplayClass::Unsafe).into()];
    world.feed(Input::Claimed { tools, contexts: None, finished: Vec::new() });
    let offered: Vec<(String, bool)> =
        world.asked.as_ref().unwrap().tools.iter().map(|tool| (tool.name.clone(), tool.by_client)).collect();
    assert_eq!(offered, [("write".to_owned(), false), ("look".to_owned(), true), ("point".to_owned(), true)]);
    world.calls(&[call("write", &json!({})), call("look", &json!({"at": 1})), call("point", &json!({"at": 2}))]);
    world
}

fn answer(world: &mut World, at: usize, answer: InputAnswer) {
    (world.rows.inputs[at].state, world.rows.inputs[at].answer) = (InputState::Answered, Some(answer));
}

fn result(text: &str) -> InputAnswer {
    client_answer(&[ToolContent::text(text)], false)
}

#[test]
fn client_call_is_requested_beside_server_calls() {
    let mut world = requested();
    assert_eq!((world.states(), world.under_way.len()), (vec![Started, Started, Started], 1));
    let requests = world.events.iter().filter_map(|event| match event {
        EventBody::ToolRequested { call } => Some((call.name.as_str(), call.arguments.clone(), call.expires_at.is_some())),
        _ => None,
    });
    assert_eq!(requests.collect::<Vec<_>>(), [("look", json!({"at": 1}), true), ("point", json!({"at": 2}), true)]);
    world.tool_says(0, "written");
    assert_eq!((world.rows.reason, world.state.is_none()), (Some(WaitReason::ClientTool), true));
    assert_eq!(world.released, Some((Some(7 * 24 * 3_600_000), ReleaseCause::Waiting)));
    let waiting =
        EventBody::RunWaiting { reason: WaitReason::ClientTool, id: Some(world.rows.calls[1].id.to_string()), detail: None };
    assert!(world.events.contains(&waiting));
    assert!(world.rows.inputs.iter().all(|request| request.kind == InputKind::ClientTool));
}

#[test]
fn client_results_are_outcomes_each_once() {
    let mut world = requested();
    world.tool_says(0, "written");
    // A worker that takes over without a result keeps waiting.
    world.claim(ClaimCause::Crash);
    assert_eq!((world.rows.inputs.len(), world.rows.reason), (2, Some(WaitReason::ClientTool)));
    answer(&mut world, 0, result("a door"));
    world.claim(ClaimCause::Request);
    assert_eq!((world.states(), world.rows.inputs.len()), (vec![Done, Done, Started], 1), "the other one is still open");
    assert!(world.asked.is_none());
    answer(&mut world, 0, client_answer(&[ToolContent::text("no finger")], true));
    world.claim(ClaimCause::Request);
    assert_eq!(world.states(), [Done, Done, Failed]);
    assert_eq!(world.results(), ["written", "a door", "no finger"]);
    assert!(world.asked.is_some());
    assert!(world.executions.values().all(|times| *times == 1), "the server executes only its own call");
}

#[test]
fn client_results_restart_the_limit_of_server_calls() {
    let mut world = requested_within(Some(1));
    world.tool_says(0, "written");
    for at in [0, 1] {
        answer(&mut world, at, result("a door"));
    }
    world.claim(ClaimCause::Request);
    let offers = |world: &World| world.asked.as_ref().unwrap().tools.iter().any(|tool| tool.name == "write");
    assert!(offers(&world));
    world.calls(&[call("write", &json!({"more": true}))]);
    world.tool_says(0, "written");
    assert!(!offers(&world));
}

#[test]
fn client_call_without_result_expires() {
    let mut world = requested();
    world.tool_says(0, "written");
    for request in &mut world.rows.inputs {
        request.expires_in_ms = Some(0);
    }
    world.claim(ClaimCause::Timer);
    assert_eq!(world.states(), [Done, Failed, Failed]);
    assert_eq!(world.results()[1], prompts::NO_CLIENT_RESULT);
}

#[test]
fn cancelled_client_call_has_unknown_outcome() {
    let mut world = requested();
    world.tool_says(0, "written");
    world.claim(ClaimCause::Crash);
    world.load(ClaimCause::Request);
    let stopped = world.rows.calls.iter().map(|call| (call.id.clone(), done("late"))).collect();
    world.feed(Input::CancelRequested { by: "user".to_owned(), partial: None, stopped });
    assert_eq!(world.states(), [Done, Unknown, Unknown]);
    assert!(world.rows.inputs.is_empty());
}
