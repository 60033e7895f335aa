//! Questions of a model to its user.

use serde_json::{Value, json};

use crate::domain::agent::AgentProfile;
use crate::domain::run::WaitReason;
use crate::domain::run::change::ReleaseCause;
use crate::domain::run::question::{InputAnswer, InputKind, InputState};
use crate::domain::run::record::ClaimCause;
use crate::domain::tool::ToolCallState::{Cancelled, Done, Failed, Started};
use crate::domain::tool::{ASK_USER, ReplayClass, ToolDefinition};
use crate::engine::tests::world::{World, call, done, tool};
use crate::engine::{Input, prompts};

fn asked(arguments: &Value) -> World {
    let mut world = World::new(AgentProfile::default());
    world.load(ClaimCause::First);
    let ask = ToolDefinition { server: None, ..tool(ASK_USER, ReplayClass::Read) };
    world.feed(Input::Claimed {
        tools: vec![ask.into(), tool("write", ReplayClass::Unsafe).into()],
        contexts: None,
        finished: Vec::new(),
    });
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
    assert_eq!(world.states(), [Started, Started], "the other call runs meanwhile");
    world.tool_says(0, "written");
    assert_eq!((world.rows.reason, world.state.is_none()), (Some(WaitReason::Input), true));
    assert_eq!(world.released, Some((Some(7 * 24 * 3_600_000), ReleaseCause::Waiting)));
    let question = &world.rows.inputs[0];
    let choices: Vec<&str> = question.question.choices.iter().map(|choice| choice.value.as_str()).collect();
    assert_eq!((question.kind, question.question.text.as_str(), choices), (InputKind::Question, "Which one?", vec!["red", "blue"]));
    // A worker that takes over without an answer keeps waiting.
    world.claim(ClaimCause::Crash);
    assert_eq!(world.rows.inputs.len(), 1);
    answer(&mut world, InputAnswer::new("blue", Some("the dark one".to_owned())));
    assert_eq!((world.states(), world.results()), (vec![Done, Done], vec!["blue\nthe dark one".to_owned(), "written".to_owned()]));
    assert!(world.asked.is_some());
}

#[test]
fn a_form_that_is_filled_in_is_read_as_json() {
    let form = json!({"type": "object", "properties": {"day": {"type": "string"}, "seats": {"type": "integer"}}});
    let mut world = asked(&json!({"question": "When?", "form": form}));
    world.tool_says(0, "written");
    let question = &world.rows.inputs[0].question;
    let choices: Vec<&str> = question.choices.iter().map(|choice| choice.value.as_str()).collect();
    assert_eq!((question.form(), choices), (Some(&form), vec!["accept", "decline"]));
    let filled = InputAnswer { content: Some(json!({"day": "Monday", "seats": 2})), ..InputAnswer::new("accept", None) };
    answer(&mut world, filled);
    assert_eq!(world.results()[0], r#"{"day":"Monday","seats":2}"#);

    let nested = json!({"type": "object", "properties": {"a": {"type": "object"}}});
    for (arguments, reason) in [
        (json!({"question": "When?", "form": nested}), "the field a of the form"),
        (json!({"question": "When?", "form": form, "choices": ["now"]}), prompts::CHOICES_AND_FORM),
    ] {
        let mut world = asked(&arguments);
        world.tool_says(0, "written");
        assert_eq!(world.states(), [Failed, Done]);
        assert!(world.results()[0].contains(reason), "{:?}", world.results());
    }
}

#[test]
fn no_answer_and_no_question_are_errors_of_the_call() {
    let mut world = asked(&json!({"question": "Which one?"}));
    world.tool_says(0, "written");
    world.rows.inputs[0].expires_in_ms = Some(0);
    world.claim(ClaimCause::Timer);
    assert_eq!((world.states(), world.results()[0].as_str()), (vec![Failed, Done], prompts::NO_ANSWER));
    let mut world = asked(&json!({"question": " "}));
    world.tool_says(0, "written");
    assert_eq!((world.states(), world.results()[0].as_str()), (vec![Failed, Done], prompts::NO_QUESTION));
}

#[test]
fn the_end_of_the_run_is_no_answer() {
    let mut world = asked(&json!({"question": "Which one?"}));
    let stopped = world.rows.calls.iter().map(|call| (call.id.clone(), done("late"))).collect();
    world.feed(Input::CancelRequested { by: "user".to_owned(), partial: None, stopped });
    assert_eq!(world.states(), [Cancelled, Done]);
    assert!(world.rows.inputs.is_empty());
}
