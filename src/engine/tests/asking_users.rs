//! A model asks its user.

use serde_json::{Value, json};

use super::world::{World, call, done, tool};
use crate::domain::agent::AgentProfile;
use crate::domain::change::ReleaseCause;
use crate::domain::input::{InputAnswer, InputKind, InputState};
use crate::domain::record::ClaimCause;
use crate::domain::run::WaitReason;
use crate::domain::tool::ToolCallState::{Cancelled, Done, Failed, Started};
use crate::domain::tool::{ASK_USER, ReplayClass, ToolDefinition};
use crate::engine::{Input, texts};

fn asked(arguments: &Value) -> World {
    let mut world = World::new(AgentProfile::default());
    world.load(ClaimCause::First);
    let ask = ToolDefinition { server: None, ..tool(ASK_USER, ReplayClass::Read) };
    world.feed(Input::Claimed { tools: vec![ask.into(), tool("write", ReplayClass::Unsafe).into()], finished: Vec::new() });
    world.calls(&[call(ASK_USER, arguments), call("write", &json!({}))]);
    world
}

fn answer(world: &mut World, answer: InputAnswer) {
    (world.rows.inputs[0].state, world.rows.inputs[0].answer) = (InputState::Answered, Some(answer));
    world.claim(ClaimCause::Request);
}

#[test]
fn the_answer_is_what_the_model_reads() {
    let mut world = asked(&json!({"question": "Which one?", "choices": ["red", "blue", 7]}));
    assert_eq!(world.states(), [Started, Started], "the call beside it is made meanwhile");
    world.tool_says(0, "written");
    assert_eq!((world.rows.reason, world.state.is_none()), (Some(WaitReason::Input), true));
    assert_eq!(world.released, Some((Some(7 * 24 * 3_600_000), ReleaseCause::Waiting)));
    let question = &world.rows.inputs[0];
    let choices: Vec<&str> = question.question.choices.iter().map(|choice| choice.value.as_str()).collect();
    assert_eq!((question.kind, question.question.text.as_str(), choices), (InputKind::Question, "Which one?", vec!["red", "blue"]));
    // A worker that takes it up without an answer waits on.
    world.claim(ClaimCause::Crash);
    assert_eq!(world.rows.inputs.len(), 1);
    answer(&mut world, InputAnswer::new("blue", Some("the dark one".to_owned())));
    assert_eq!((world.states(), world.results()), (vec![Done, Done], vec!["blue\nthe dark one".to_owned(), "written".to_owned()]));
    assert!(world.asked.is_some());
}

#[test]
fn no_answer_and_no_question_are_errors_of_the_call() {
    let mut world = asked(&json!({"question": "Which one?"}));
    world.tool_says(0, "written");
    world.rows.inputs[0].expires_in_ms = Some(0);
    world.claim(ClaimCause::Timer);
    assert_eq!((world.states(), world.results()[0].as_str()), (vec![Failed, Done], texts::NO_ANSWER));
    let mut world = asked(&json!({"question": " "}));
    world.tool_says(0, "written");
    assert_eq!((world.states(), world.results()[0].as_str()), (vec![Failed, Done], texts::NO_QUESTION));
}

#[test]
fn the_end_of_the_run_is_no_answer() {
    let mut world = asked(&json!({"question": "Which one?"}));
    let stopped = world.rows.calls.iter().map(|call| (call.id.clone(), done("late"))).collect();
    world.feed(Input::CancelRequested { by: "user".to_owned(), partial: None, stopped });
    assert_eq!(world.states(), [Cancelled, Done]);
    assert!(world.rows.inputs.is_empty());
}
