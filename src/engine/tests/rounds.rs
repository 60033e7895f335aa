//! MCP servers that return `input_required` and are called again with the answers.

use std::collections::BTreeMap;

use rstest::rstest;
use serde_json::json;

use crate::domain::agent::{AgentProfile, OnUnknown};
use crate::domain::run::call_handle::{Handle, InputRequired, Round};
use crate::domain::run::change::ReleaseCause;
use crate::domain::run::question::{Elicitation, InputKind, InputState};
use crate::domain::run::record::ClaimCause;
use crate::domain::run::{RunStatus, WaitReason};
use crate::domain::tool::ToolCallState::{Done, Started, Unknown};
use crate::engine::Input;
use crate::engine::tests::world::{World, call};

fn pause(asks: &[&str], number: u32) -> InputRequired {
    let elicitation = || Elicitation { server: "s".to_owned(), requested_schema: None, url: None };
    let asks = asks.iter().map(|key| ((*key).to_owned(), (format!("Which {key}?"), elicitation()))).collect();
    InputRequired { state: Some("opaque".to_owned()), given: BTreeMap::new(), asks, number }
}

fn pauses(world: &mut World, asks: &[&str]) {
    let id = world.rows.calls[0].id.clone();
    let number = world.rows.calls[0].handle.as_ref().and_then(Handle::round).map_or(1, |round| round.number + 1);
    world.under_way.clear();
    world.feed(Input::ToolPauses(id, pause(asks, number)));
}

fn round(world: &World) -> &Round {
    world.rows.calls[0].handle.as_ref().and_then(Handle::round).expect("a round")
}

/// Returns a run with one call, whose server asks for a colour and a size.
fn asked(name: &'static str, profile: AgentProfile) -> World {
    let mut world = World::started(profile);
    world.calls(&[call(name, &json!({"n": 1}))]);
    pauses(&mut world, &["colour", "size"]);
    world
}

#[test]
fn a_run_waits_for_all_answers_and_holds_nothing() {
    let mut world = asked("write", AgentProfile::default());
    assert_eq!((world.rows.status, world.rows.reason), (RunStatus::Waiting, Some(WaitReason::Input)));
    assert!(world.state.is_none() && world.released.is_some_and(|(_, cause)| cause == ReleaseCause::Waiting));
    assert!(world.rows.inputs.iter().all(|question| question.kind == InputKind::Elicitation), "{:?}", world.rows.inputs);
    assert!(world.human_says("accept"));
    world.claim(ClaimCause::Request);
    assert_eq!((world.states(), world.under_way.len(), world.rows.inputs.len()), (vec![Started], 0, 2));
    assert_eq!(world.rows.status, RunStatus::Waiting, "it waits for the other answer");
    // A crash of a worker that has the run meanwhile has no effect on the call, because the call is not under way.
    world.claim(ClaimCause::Crash);
    assert_eq!(world.rows.status, RunStatus::Waiting);

    assert!(world.human_says("decline"));
    world.claim(ClaimCause::Request);
    let [made] = world.under_way.as_slice() else { panic!("it is called again: {:?}", world.under_way) };
    let choices = |round: &Round| -> BTreeMap<String, String> {
        round.answers.iter().flatten().map(|(key, answer)| (key.clone(), answer.choice.clone())).collect()
    };
    let round = made.handle.as_ref().and_then(Handle::round).unwrap();
    let given = BTreeMap::from([("colour", "accept"), ("size", "decline")].map(|(a, b)| (a.to_owned(), b.to_owned())));
    assert_eq!((round.state.as_deref(), choices(round), round.questions, round.number), (Some("opaque"), given, 2, 1));
    assert!(world.rows.inputs.is_empty());
    let started = world.kinds().into_iter().filter(|kind| *kind == "tool.started").count();
    assert_eq!(started, 1, "clients see no second start");
    world.tool_says(0, "painted");
    assert_eq!((world.states(), world.results()), (vec![Done], vec!["painted".to_owned()]));
}

/// No question is asked twice.
#[rstest]
#[case("read", OnUnknown::TellModel, Started, 3)]
#[case("write", OnUnknown::TellModel, Unknown, 2)]
#[case("write", OnUnknown::Rerun, Started, 3)]
fn after_the_answers_a_call_is_judged_by_its_class(
    #[case] name: &'static str,
    #[case] on_unknown: OnUnknown,
    #[case] state: crate::domain::tool::ToolCallState,
    #[case] runs: u32,
) {
    let mut world = asked(name, AgentProfile { on_unknown, ..AgentProfile::default() });
    world.human_says("accept");
    world.human_says("accept");
    world.claim(ClaimCause::Request);
    assert!(round(&world).answers.is_some());
    world.die();
    world.claim(ClaimCause::Crash);
    assert_eq!((world.states(), world.executions[&world.rows.calls[0].id]), (vec![state], runs));
    assert!(world.rows.inputs.is_empty());
    if state == Started {
        let again = world.under_way[0].handle.as_ref().and_then(Handle::round).unwrap();
        assert_eq!(again.answers.as_ref().map(BTreeMap::len), Some(2), "with the same answers");
    }
}

#[test]
fn timely_answers_extend_the_call_timeout() {
    let mut world = asked("write", AgentProfile::default());
    world.human_says("accept");
    world.rows.inputs.iter_mut().for_each(|question| question.expires_in_ms = Some(0));
    world.claim(ClaimCause::Timer);
    let answers = round(&world).answers.clone().unwrap();
    assert_eq!((answers["colour"].choice.as_str(), answers["size"].choice.as_str()), ("accept", "cancel"));
    let closed = world.events.iter().filter_map(|event| match event {
        crate::domain::event::EventBody::InputResolved { state, .. } => Some(*state),
        _ => None,
    });
    assert_eq!(closed.collect::<Vec<_>>(), [InputState::Expired], "the answered question has its event already");
}

#[test]
fn server_may_request_a_bare_retry_and_several_rounds() {
    let mut world = World::started(AgentProfile::default());
    world.calls(&[call("write", &json!({"n": 1}))]);
    pauses(&mut world, &[]);
    assert_eq!((world.under_way.len(), round(&world).number, round(&world).questions), (1, 1, 0));
    pauses(&mut world, &["colour"]);
    assert_eq!((world.rows.status, round(&world).number, round(&world).questions), (RunStatus::Waiting, 2, 1));
    // The end of the run closes open questions.
    world.rows.cancel_requested_by = Some("user".to_owned());
    world.claim(ClaimCause::Request);
    assert_eq!((world.states(), world.ended().status), (vec![Unknown], RunStatus::Cancelled));
    assert!(world.rows.inputs.is_empty());
}

#[test]
fn handed_back_run_keeps_the_server_question() {
    let mut world = World::started(AgentProfile::default());
    world.calls(&[call("write", &json!({"n": 1}))]);
    world.under_way.clear();
    let id = world.rows.calls[0].id.clone();
    world.state.as_mut().unwrap().learn(&Input::Draining);
    world.feed(Input::Drain { stopped: Vec::new(), paused: vec![(id, pause(&["colour"], 1))] });
    assert!(world.released.is_some_and(|(_, cause)| cause == ReleaseCause::Drain));
    assert_eq!((world.states(), world.rows.inputs.len()), (vec![Started], 1));
    world.claim(ClaimCause::HandedBack);
    assert_eq!((world.rows.status, world.rows.reason), (RunStatus::Waiting, Some(WaitReason::Input)));
    assert!(world.human_says("accept"));
    world.claim(ClaimCause::Request);
    assert_eq!((world.states(), world.under_way.len()), (vec![Started], 1), "it is called again");
}
