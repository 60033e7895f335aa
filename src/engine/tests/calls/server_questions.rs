//! Questions to the user about tool calls of unknown outcome.

use std::sync::Arc;

use rstest::rstest;
use serde_json::json;

use crate::domain::agent::{AgentProfile, OnUnknown};
use crate::domain::event::EventBody;
use crate::domain::run::call_handle::Handle;
use crate::domain::run::change::{Change, ReleaseCause};
use crate::domain::run::question::{InputKind, InputState};
use crate::domain::run::record::ClaimCause;
use crate::domain::run::{RunStatus, WaitReason};
use crate::domain::tool::ToolCallState::{Cancelled, Done, Planned, Started, Unknown};
use crate::domain::tool::{Reconciled, ToolCallState, ToolOutcome};
use crate::engine::tests::world::{World, call, done, tools};
use crate::engine::{Input, prompts};

fn profile() -> AgentProfile {
    AgentProfile { on_unknown: OnUnknown::Ask, tool_parallelism: 1, ..AgentProfile::default() }
}

/// Returns a run whose worker crashed during the first of two calls, and which waits for an answer about it.
fn waiting() -> World {
    let mut world = World::started(profile());
    world.calls(&[call("write", &json!({"n": 1})), call("write", &json!({"n": 2}))]);
    world.die();
    world.claim(ClaimCause::Crash);
    assert_eq!(world.states(), [Started, Started], "the other call runs without a question");
    world.tool_says(0, "second");
    assert_eq!(world.states(), [Started, Done]);
    assert_eq!((world.rows.status, world.rows.reason), (RunStatus::Waiting, Some(WaitReason::Input)));
    let in_a_week = Some(7 * 24 * 3_600_000);
    assert_eq!(world.released, Some((in_a_week, ReleaseCause::Waiting)), "a waiting run holds no lease");
    assert!(world.state.is_none());
    world
}

#[test]
fn the_question_says_what_it_is_about() {
    let world = waiting();
    let [asked] = world.rows.inputs.as_slice() else { panic!("one question: {:?}", world.rows.inputs) };
    assert_eq!((asked.kind, asked.call_id.as_ref()), (InputKind::UnknownOutcome, Some(&world.rows.calls[0].id)));
    assert_eq!((asked.question.tool.as_deref(), &asked.question.arguments), (Some("write"), &Some(json!({"n": 1}))));
    let choices: Vec<_> = asked.question.choices.iter().map(|choice| choice.value.as_str()).collect();
    assert_eq!(choices, ["happened", "did_not_happen", "skip"]);
    let of_question = world.events.iter().filter(|event| event.kind() == "input.requested").count();
    assert_eq!(of_question, 1);
    let waits = EventBody::RunWaiting { reason: WaitReason::Input, id: Some(asked.id.to_string()), detail: None };
    assert!(world.events.contains(&waits));
}

#[rstest]
#[case("happened", Done, 1, prompts::CONFIRMED_BY_HUMAN)]
#[case("skip", Unknown, 1, prompts::LEFT_UNCLEAR)]
fn an_answer_becomes_the_outcome(#[case] choice: &str, #[case] state: ToolCallState, #[case] runs: u32, #[case] text: &str) {
    let mut world = waiting();
    assert!(world.human_says(choice));
    world.claim(ClaimCause::Request);
    assert_eq!(world.states(), [state, Done]);
    assert_eq!(world.results(), [format!("{text}. They say: I looked"), "second".to_owned()]);
    assert_eq!(world.executions[&world.rows.calls[0].id], runs);
    assert!(world.rows.inputs.is_empty() && world.asked.is_some());
}

#[test]
fn an_answer_counts_once() {
    let mut world = waiting();
    world.human_says("did_not_happen");
    world.claim(ClaimCause::Request);
    assert_eq!(world.executions[&world.rows.calls[0].id], 2);
    assert_eq!(world.states(), [Started, Done]);
    // The next worker crashes during the call: its outcome is unknown again.
    world.die();
    world.claim(ClaimCause::Crash);
    assert_eq!(world.executions[&world.rows.calls[0].id], 2);
    assert_eq!(world.rows.inputs.len(), 1);
    assert_eq!(world.rows.inputs[0].state, InputState::Pending);
}

/// A repeated call starts without the old task handle, because that task is gone.
#[test]
fn a_call_that_is_made_again_forgets_what_its_server_worked_on() {
    let mut world = World::started(profile());
    world.calls(&[call("write", &json!({"n": 1}))]);
    Arc::make_mut(&mut world.rows.calls[0]).handle = Some(Handle::Task("task-1".to_owned()));
    world.die();
    world.claim(ClaimCause::Crash);
    let id = world.rows.calls[0].id.clone();
    let gone = ToolOutcome { state: Unknown, ..ToolOutcome::failed("no such task", 0) };
    world.feed(Input::ToolFinished(id.clone(), gone));
    assert!(world.human_says("did_not_happen"));
    let again = world.claim(ClaimCause::Request);
    assert!(again.changes.contains(&Change::SetHandle(id, None)));
    assert_eq!((world.under_way.len(), &world.under_way[0].handle, &world.rows.calls[0].handle), (1, &None, &None));
}

#[test]
fn a_run_that_is_woken_without_an_answer_waits_on() {
    let mut world = waiting();
    let asked = world.rows.inputs.clone();
    world.claim(ClaimCause::Timer);
    assert_eq!(world.rows.inputs, asked, "no second question");
    assert_eq!(world.rows.reason, Some(WaitReason::Input));
    assert!(world.state.is_none());
}

#[test]
fn the_end_of_the_run_closes_the_question() {
    let mut world = waiting();
    let id = world.rows.inputs[0].id.clone();
    world.rows.cancel_requested_by = Some("user".to_owned());
    let decision = world.claim(ClaimCause::Request);
    assert!(decision.changes.contains(&Change::CloseInput { id: id.clone(), state: InputState::Cancelled }));
    let closed = EventBody::InputResolved { id, state: InputState::Cancelled, answer: None, by: None };
    assert!(decision.events.contains(&closed));
    assert_eq!(world.states(), [Unknown, Done]);
    assert_eq!(world.ended().status, RunStatus::Cancelled);
    world.check_next_turn();
}

#[test]
fn waiting_ends_with_the_time_of_the_run() {
    let mut world = World::started(AgentProfile { max_run_ms: 1_000, ..profile() });
    world.calls(&[call("write", &json!({}))]);
    world.die();
    world.elapsed_ms = 400;
    world.claim(ClaimCause::Crash);
    assert_eq!(world.released, Some((Some(600), ReleaseCause::Waiting)));
    world.elapsed_ms = 1_000;
    world.claim(ClaimCause::Timer);
    assert_eq!(world.error_code(), "run_timeout");
}

#[test]
fn unanswered_question_times_out() {
    let mut world = World::started(AgentProfile { ask_expires_ms: 500, max_run_ms: 10_000, ..profile() });
    world.calls(&[call("write", &json!({}))]);
    world.die();
    world.claim(ClaimCause::Crash);
    assert_eq!(world.released, Some((Some(500), ReleaseCause::Waiting)));
    world.rows.inputs[0].expires_in_ms = Some(20);
    world.claim(ClaimCause::Timer);
    assert_eq!(world.released, Some((Some(20), ReleaseCause::Waiting)), "woken too early, it keeps waiting");
    let id = world.rows.inputs[0].id.clone();
    world.rows.inputs[0].expires_in_ms = Some(0);
    let decision = world.claim(ClaimCause::Timer);
    let expired = EventBody::InputResolved { id: id.clone(), state: InputState::Expired, answer: None, by: None };
    assert!(decision.events.contains(&expired));
    assert!(decision.changes.contains(&Change::CloseInput { id, state: InputState::Expired }));
    assert_eq!((world.states(), world.results()), (vec![Unknown], vec![prompts::UNANSWERED.to_owned()]));
    assert!(world.asked.is_some(), "the model is told");

    // An answer that arrived in time counts, however late it is processed.
    let mut world = waiting();
    world.human_says("happened");
    world.rows.inputs[0].expires_in_ms = Some(0);
    world.claim(ClaimCause::Request);
    assert_eq!(world.states(), [Done, Done]);
}

#[test]
fn reconcile_without_an_answer_asks_a_human() {
    // First case: a reconciliation without a clear answer.
    let mut world = World::started(profile());
    world.calls(&[call("pay", &json!({}))]);
    world.die();
    world.claim(ClaimCause::Crash);
    world.server_says(0, Reconciled::Unclear("who knows".to_owned()));
    assert_eq!((world.states(), world.rows.inputs.len()), (vec![Started], 1));
    // The server is not asked again while the user is.
    world.claim(ClaimCause::Timer);
    assert!(world.in_question.is_empty());

    // Second case: the connection to a tool breaks while the worker is alive.
    let unknown = || ToolOutcome { state: Unknown, ..ToolOutcome::failed("gone", 1) };
    let mut world = World::started(profile());
    world.calls(&[call("write", &json!({"n": 1})), call("write", &json!({"n": 2}))]);
    let lost = world.under_way.remove(0);
    world.feed(Input::ToolFinished(lost.id.clone(), unknown()));
    assert_eq!(world.states(), [Started, Started]);
    world.feed(Input::CancelRequested { by: "user".to_owned(), partial: None, stopped: vec![(lost.id, unknown())] });
    assert_eq!(world.states(), [Unknown, Unknown]);

    // Third case: the same, and the next write fails.
    let mut world = World::started(profile());
    world.calls(&[call("write", &json!({}))]);
    let id = world.rows.calls[0].id.clone();
    world.die();
    world.load(ClaimCause::Crash);
    world.feed(Input::Claimed { tools: tools(), contexts: None, finished: vec![(id.clone(), unknown())] });
    assert_eq!((world.states(), world.rows.inputs.len()), (vec![Started], 1));
    world.load(ClaimCause::Crash);
    world.feed(Input::Claimed { tools: tools(), contexts: None, finished: vec![(id, done("after all"))] });
    assert_eq!(world.states(), [Done]);
}

#[test]
fn a_worker_that_drains_lets_the_run_wait() {
    let mut world = World::started(profile());
    world.calls(&[call("write", &json!({"n": 1})), call("write", &json!({"n": 2}))]);
    world.state.as_mut().unwrap().learn(&Input::Draining);
    let lost = world.under_way.remove(0);
    world.feed(Input::ToolFinished(lost.id, ToolOutcome { state: Unknown, ..ToolOutcome::failed("gone", 1) }));
    assert_eq!(world.states(), [Started, Planned]);
    assert_eq!(world.released, Some((Some(0), ReleaseCause::Drain)));
    world.claim(ClaimCause::HandedBack);
    world.tool_says(0, "second");
    assert_eq!(world.rows.reason, Some(WaitReason::Input));
    world.rows.cancel_requested_by = Some("user".to_owned());
    world.claim(ClaimCause::Request);
    assert_eq!(world.states(), [Unknown, Done]);
    assert!(!world.states().contains(&Cancelled));
}
