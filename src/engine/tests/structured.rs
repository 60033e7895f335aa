//! Models that answer in JSON objects: clients see the same events as with tool calls.

use std::sync::Arc;

use rstest::rstest;
use serde_json::{Value, json};

use crate::domain::agent::{AgentProfile, OnLimit, OutputMode};
use crate::domain::conversation::message::{Message, Part, Role};
use crate::domain::event::EventBody;
use crate::domain::model::{ModelFinish, ModelOptions, ToolChoice};
use crate::domain::run::record::ClaimCause;
use crate::domain::run::{FinishReason, RunStatus};
use crate::domain::tool::approval::{ApprovalMode, ApprovalPolicy};
use crate::engine::Input;
use crate::engine::tests::world::{Say, World, call};

const READ: &str = r#"{"tool": "read", "arguments": {"n": 1}}"#;
const BYE: &str = r#"{"answer": "It says 7."}"#;

fn profile() -> AgentProfile {
    AgentProfile { output: OutputMode::Structured, ..AgentProfile::default() }
}

/// Returns the events without ids, so that two runs can be compared.
fn shown(world: &World) -> Vec<String> {
    let kept = world.events.iter().filter(|event| !matches!(event, EventBody::PartDelta { .. }));
    kept.map(|event| match event {
        EventBody::PartStarted { kind, name, .. } => format!("{} {kind} {name:?}", event.kind()),
        EventBody::MessageCompleted { message } => format!("{} {:?} {}", event.kind(), message.role, message.text()),
        other => other.kind().to_owned(),
    })
    .collect()
}

fn texts(message: &Message) -> Vec<&str> {
    let parts = message.parts.iter();
    parts.map(|part| if let Part::Text(text) = part { text.text.as_str() } else { panic!("words only: {part:?}") }).collect()
}

#[test]
fn clients_see_what_they_see_of_any_model() {
    let mut structured = World::started(profile());
    structured.says_text(READ);
    structured.tool_says(0, "7");
    structured.says_text(BYE);
    let mut native = World::started(AgentProfile::default());
    native.calls(&[call("read", &json!({"n": 1}))]);
    native.tool_says(0, "7");
    native.says_text("It says 7.");
    assert_eq!(shown(&structured), shown(&native));
    assert_eq!(structured.ended().reason, Some(FinishReason::Stop));
    assert_eq!(structured.rows.calls[0].arguments, json!({"n": 1}));
    structured.check_next_turn();
    structured.followed();
}

#[test]
fn json_strategy_sends_history_as_objects_without_tools() {
    let mut world = World::started(profile());
    let first = world.asked.clone().unwrap();
    assert!(first.tools.is_empty());
    assert!(first.system.contains("You are a helpful assistant.") && first.system.contains("\nwrite: "), "{}", first.system);
    let schema = first.options.output_schema.unwrap().schema;
    let tools: Vec<&Value> = schema["anyOf"].as_array().unwrap().iter().map(|one| &one["properties"]["tool"]["enum"][0]).collect();
    assert_eq!(tools, [&Value::Null, &json!("pay"), &json!("read"), &json!("write")]);

    world.says_text(READ);
    world.tool_fails(0);
    let request = world.asked.clone().unwrap();
    let roles: Vec<Role> = request.messages.iter().map(|message| message.role).collect();
    assert_eq!(roles, [Role::User, Role::Assistant, Role::User]);
    assert_eq!(texts(&request.messages[1]), [r#"{"tool":"read","arguments":{"n":1}}"#]);
    assert_eq!(texts(&request.messages[2]), [r#"{"tool":"read","error":"it broke"}"#]);

    // Parallel calls of another model are shown one after the other.
    let mut native = World::started(AgentProfile::default());
    native.calls(&[call("read", &json!({"n": 1})), call("write", &json!({}))]);
    native.tool_says(0, "7");
    Arc::make_mut(&mut native.state.as_mut().unwrap().record.profile).output = OutputMode::Structured;
    Arc::make_mut(&mut native.rows.profile).output = OutputMode::Structured;
    native.tool_says(0, "8");
    let told: Vec<String> = native.asked.as_ref().unwrap().messages[1..].iter().map(Message::text).collect();
    assert_eq!(
        told,
        [
            r#"{"tool":"read","arguments":{"n":1}}"#,
            r#"{"tool":"read","result":"7"}"#,
            r#"{"tool":"write","arguments":{}}"#,
            r#"{"tool":"write","result":"8"}"#,
        ]
    );
}

#[rstest]
#[case::words("I will read it.", "begin with")]
#[case::two(r#"{"tool":"write","arguments":{}}{"answer":"done"}"#, "trailing")]
#[case::cut(r#"{"tool":"write","arguments":{"a":"#, "EOF")]
#[case::begun(r#"{"answer":"done", "tool":"write","arguments":{}}"#, "both")]
fn malformed_object_is_corrected_twice_then_fails(#[case] said: &'static str, #[case] reason: &str) {
    let mut world = World::started(profile());
    for corrections in 1..=2 {
        world.says_text(said);
        assert!(world.asked.is_some(), "the model is asked again in the same decision");
        assert_eq!(world.hints().len(), corrections);
        let hint = world.hints().pop().unwrap();
        assert!(hint.contains(reason) && hint.contains(&Value::from(said).to_string()), "{hint}");
    }
    world.says_text(said);
    assert_eq!(world.error_code(), "invalid_output");
    assert!(world.executions.is_empty(), "no part of it is executed");
    assert!(world.followed().iter().all(|message| message.role == Role::User), "the shown parts are reset");
    assert_eq!(world.rows.usage.model_calls, 3);
    world.check_next_turn();
}

#[test]
fn an_answer_of_the_form_gives_the_corrections_back() {
    let mut world = World::started(profile());
    for n in 0..3 {
        world.says_text("No.");
        world.says_text("No.");
        let object = format!(r#"{{"tool":"read","arguments":{{"n":{n}}}}}"#);
        world.says_text(Box::leak(object.into_boxed_str()));
        world.tool_says(0, "ok");
    }
    world.says_text(BYE);
    assert_eq!(world.ended().status, RunStatus::Completed);
}

#[test]
fn a_message_that_joins_gives_the_corrections_back() {
    let mut world = World::started(profile());
    world.says_text("No.");
    world.says_text("No.");
    world.join("And?");
    world.says_text("No.");
    world.says_text(BYE);
    assert_eq!(world.ended().status, RunStatus::Completed);
}

#[test]
fn no_tools_are_offered_at_the_end() {
    let mut world = World::started(AgentProfile { max_rounds: 1, ..profile() });
    world.says_text(READ);
    world.tool_says(0, "7");
    let request = world.asked.clone().unwrap();
    assert_eq!(request.options.output_schema.unwrap().schema["required"], json!(["answer"]));
    assert!(!request.system.contains("write"), "{}", request.system);
    world.says_text(READ);
    assert!(world.hints().pop().unwrap().contains("no tools are available"));
    world.says_text(BYE);
    assert_eq!(world.ended().reason, Some(FinishReason::MaxRounds));
}

#[test]
fn a_forced_call_is_the_only_object_that_is_offered() {
    let options = ModelOptions { tool_choice: Some(ToolChoice::Tool("read".to_owned())), ..ModelOptions::default() };
    let mut world = World::started(AgentProfile { options, ..profile() });
    let first = world.asked.clone().unwrap();
    assert_eq!(first.options.tool_choice, None);
    assert_eq!(first.options.output_schema.unwrap().schema["properties"]["tool"]["enum"], json!(["read"]));
    world.says_text(READ);
    world.tool_says(0, "7");
    world.says_text(BYE);
    assert_eq!(world.ended().status, RunStatus::Completed);
}

#[test]
fn the_shape_of_the_words_stands_in_the_object() {
    let wanted = json!({"type": "object", "properties": {"n": {"type": "integer"}}});
    let output_schema = serde_json::from_value(json!({ "schema": wanted })).unwrap();
    let options = ModelOptions { output_schema, ..ModelOptions::default() };
    let mut world = World::started(AgentProfile { options, ..profile() });
    let schema = world.asked.clone().unwrap().options.output_schema.unwrap().schema;
    assert_eq!(schema["anyOf"][0]["properties"]["answer"], wanted);
    world.says_text(r#"{"answer": {"n": 7}}"#);
    assert_eq!(world.rows.history.last().unwrap().text(), r#"{"n": 7}"#);
}

#[test]
fn arguments_go_through_the_one_door() {
    let mut world = World::started(profile());
    world.says_text(r#"{"tool": "Read", "arguments": {}}"#);
    assert!(world.executions.is_empty());
    assert!(world.results()[0].contains("no tool named"), "{:?}", world.results());
}

#[test]
fn nothing_at_all_is_an_empty_reply_as_of_any_model() {
    let mut world = World::started(profile());
    world.says_text("  ");
    world.says_text(" ");
    world.says_text("\n");
    assert_eq!(world.error_code(), "provider_empty_response");
}

#[test]
fn shown_text_is_kept_after_cancellation() {
    let mut world = World::started(profile());
    world.show(&[Say::Text(r#"{"answer": "It sa"#)]);
    let partial = world.hang_up();
    world.feed(Input::CancelRequested { by: "user".to_owned(), partial, stopped: Vec::new() });
    assert_eq!(world.rows.history.last().unwrap().text(), "It sa");
    let mut world = World::started(profile());
    world.show(&[Say::Text(r#"{"tool": "wri"#)]);
    assert_eq!(world.hang_up(), None, "no text was shown");
}

#[test]
fn words_that_the_limit_has_cut_end_the_turn() {
    let mut world = World::started(profile());
    world.says(&[Say::Text(r#"{"answer": "It says"#)], ModelFinish::Length);
    assert_eq!((world.ended().status, world.ended().reason), (RunStatus::Completed, Some(FinishReason::Length)));
    assert_eq!(world.rows.history.last().unwrap().text(), "It says");
}

/// Corrections have their own limit.
#[rstest]
#[case(OnLimit::Fail)]
#[case(OnLimit::Summarize)]
fn corrections_use_up_no_rounds(#[case] on_limit: OnLimit) {
    let mut world = World::started(AgentProfile { max_rounds: 1, on_limit, ..profile() });
    for _ in 0..2 {
        world.says_text("I will look.");
        let offered = world.asked.as_ref().unwrap().system.contains("\nread: ");
        assert!(offered && world.ending.is_none(), "the first round continues");
    }
    world.says_text(BYE);
    assert_eq!((world.ended().status, world.rows.counters.rounds), (RunStatus::Completed, 1));

    let mut world = World::started(AgentProfile { max_rounds: 1, on_limit, ..profile() });
    for _ in 0..3 {
        world.says_text("I will look.");
    }
    assert_eq!(world.error_code(), "invalid_output");
}

#[test]
fn a_call_is_none_where_the_agent_wants_words() {
    let options = ModelOptions { tool_choice: Some(ToolChoice::None), ..ModelOptions::default() };
    let mut world = World::started(AgentProfile { options, ..profile() });
    world.calls(&[call("write", &json!({"n": 1}))]);
    assert!(world.rows.calls.is_empty() && world.executions.is_empty());
    assert!(world.hints()[0].contains("no tools are available"), "{:?}", world.hints());
    world.says_text(BYE);
    assert_eq!(world.ended().status, RunStatus::Completed);
    world.followed();
}

/// If calls need approval, the model writes the reason of a call in the field `rationale`.
#[test]
fn reason_of_a_call_has_its_field_in_the_object() {
    let approval =
        ApprovalPolicy { rationale: true, tools: [("write".to_owned(), ApprovalMode::Ask)].into(), ..ApprovalPolicy::default() };
    let mut world = World::started(AgentProfile { approval, ..profile() });
    let first = world.asked.clone().unwrap();
    assert!(first.system.contains("in the field \"rationale\"") && first.system.contains("\"rationale\": "), "{}", first.system);
    assert!(!first.system.contains("say in a sentence before it"), "{}", first.system);
    let call = &first.options.output_schema.unwrap().schema["anyOf"][1];
    assert_eq!(call["required"], json!(["tool", "rationale", "arguments"]));

    world.says_text(r#"{"tool": "write", "rationale": "It saves the \"7\".", "arguments": {"n": 1}}"#);
    let question = world.rows.inputs[0].question.approval.clone().unwrap();
    assert_eq!(question.rationale.as_deref(), Some("It saves the \"7\"."));
    assert!(world.human_decides("allow", None));
    world.claim(ClaimCause::Request);
    world.tool_says(0, "ok");
    let told = world.asked.as_ref().unwrap().messages[1].text();
    assert_eq!(told, r#"{"tool":"write","rationale":"It saves the \"7\".","arguments":{"n":1}}"#);
    world.says_text(BYE);
    assert_eq!(world.ended().status, RunStatus::Completed);
    world.followed();
}

fn of_a_shape() -> AgentProfile {
    let output_schema = serde_json::from_value(json!({ "schema": {"type": "object"} })).unwrap();
    AgentProfile { options: ModelOptions { output_schema, ..ModelOptions::default() }, ..AgentProfile::default() }
}

#[test]
fn fence_around_a_shaped_answer_is_removed() {
    let mut world = World::started(of_a_shape());
    world.says_text("```json\n{\"n\": 7}\n```");
    assert_eq!(world.ended().status, RunStatus::Completed);
    assert_eq!(world.rows.history.last().unwrap().text(), "{\"n\": 7}");
    // Clients that follow the log see what is stored.
    assert_eq!(world.followed(), world.rows.history[1..]);
}

#[test]
fn shaped_answer_that_is_no_json_is_corrected_then_fails() {
    let mut world = World::started(of_a_shape());
    for corrections in 1..=2 {
        world.says_text("The answer is {\"n\": 7}.");
        assert_eq!((world.hints().len(), world.ending.is_none()), (corrections, true));
    }
    world.says_text("It is 7.");
    assert_eq!(world.error_code(), "invalid_output");
    let mut world = World::started(of_a_shape());
    world.says_text("It is 7.");
    world.says_text("{\"n\": 7}");
    assert_eq!(world.ended().status, RunStatus::Completed);
    assert_eq!(world.followed().last(), world.rows.history.last());
}
