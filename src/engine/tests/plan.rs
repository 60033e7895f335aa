//! Plans: creation, execution and report. If a plan fails, the loop takes over and repeats no effect.

use proptest::prelude::*;
use rstest::rstest;
use serde_json::json;

use crate::domain::agent::prompt::{OwnLayers, PromptPolicy, ProvidedContext};
use crate::domain::agent::{AgentProfile, BreakerAction, LlmRetry, ToolErrorPolicy};
use crate::domain::conversation::message::{Message, Role};
use crate::domain::event::EventBody;
use crate::domain::ids::RunId;
use crate::domain::model::{ModelErrorKind, ModelFinish, ModelOptions, OutputSchema};
use crate::domain::run::context::{Capacity, ContextPolicy, ContextStrategy};
use crate::domain::run::plan::{PlanPhase, PlanPolicy, PlanStepState, RankingFallback, Strategy};
use crate::domain::run::record::ClaimCause;
use crate::domain::run::{FinishReason, RunStatus};
use crate::domain::tool::approval::{ApprovalMode, ApprovalPolicy, OnDeny};
use crate::domain::tool::{ToolCallState, ToolOutcome};
use crate::engine::tests::world::{Say, World, call, done};
use crate::engine::{Input, prompts};

const TWO: &str = "[step(\"files\", \"read a.png\")]\n[step(\"files\", \"write down what step 1 has found\")]\n[done()]";
const APART: &str = "[step(\"files\", \"write one\")] [step(\"files\", \"write two\")] [done()]";

fn planning() -> AgentProfile {
    let plan =
        PlanPolicy { planner: Some("big/planner".to_owned()), router: Some("small/router".to_owned()), ..PlanPolicy::default() };
    AgentProfile {
        model: "main/model".to_owned(),
        strategy: Strategy::PlanExecute,
        plan,
        llm_retry: LlmRetry { delays_ms: Vec::new(), ..LlmRetry::default() },
        duplicate_calls: 0,
        ..AgentProfile::default()
    }
}

/// Returns a run with a plan.
fn planned(plan: &'static str) -> World {
    let mut world = World::started(planning());
    world.says_text(plan);
    world
}

/// Lets the router call a tool, and completes the call.
fn works(world: &mut World, name: &'static str, n: u32) {
    world.calls(&[call(name, &json!({ "n": n }))]);
    world.tool_says(0, "found 7");
}

fn fails(world: &mut World, name: &'static str, n: u32) {
    world.calls(&[call(name, &json!({ "n": n }))]);
    world.tool_fails(0);
}

/// Returns the model that is asked, whether it is offered tools, and its last message.
fn asked(world: &World) -> (&str, bool, String) {
    let request = world.asked.as_ref().expect("a model is asked");
    (&request.model, !request.tools.is_empty(), request.messages.last().unwrap().text())
}

fn ended(world: &World) -> Vec<(u32, PlanStepState)> {
    let ended = world.events.iter().filter_map(|event| match event {
        EventBody::PlanStepCompleted { step, state, .. } => Some((*step, *state)),
        _ => None,
    });
    ended.collect()
}

fn words(messages: &[Message]) -> Vec<String> {
    messages.iter().filter(|message| message.role == Role::Assistant).map(Message::text).filter(|text| !text.is_empty()).collect()
}

#[test]
fn plan_is_made_executed_and_summarized() {
    let mut world = World::started(planning());
    assert_eq!(asked(&world), ("big/planner", false, "What is in the file?".to_owned()));
    assert!(world.asked.as_ref().unwrap().system.contains("- files (3): pay, read, write"));
    world.says_text(TWO);
    assert!(!world.kinds().contains(&"message.started"), "the plan has its event only");
    let (model, has_tools, told) = asked(&world);
    assert_eq!((model, has_tools, world.asked.as_ref().unwrap().messages.len()), ("small/router", true, 1));
    assert!(told.starts_with("The step: read a.png") && !told.contains("What is in the file?"), "{told}");
    works(&mut world, "read", 1);
    assert!(asked(&world).2.contains("Result of step 1: ok: found 7"), "{:?}", asked(&world));
    works(&mut world, "write", 1);
    let (model, has_tools, told) = asked(&world);
    assert_eq!((model, has_tools), ("big/planner", false));
    assert!(told.contains("What is in the file?") && told.contains("1. read a.png - ok: found 7\n2. write down"), "{told}");
    world.says_text("I have found 7 and written it down.");

    assert_eq!((world.ended().status, world.ended().reason), (RunStatus::Completed, Some(FinishReason::Stop)));
    let plan: Vec<_> = world.kinds().into_iter().filter(|kind| kind.starts_with("plan.")).collect();
    let (begun, over) = ("plan.step_started", "plan.step_completed");
    assert_eq!(plan, ["plan.created", begun, over, begun, over]);
    assert_eq!(ended(&world), [(1, PlanStepState::Done), (2, PlanStepState::Done)]);
    // The next run sees every call.
    let calls = world.rows.history.iter().flat_map(Message::tool_calls).count();
    assert_eq!((calls, world.states()), (2, vec![ToolCallState::Done; 2]));
    assert_eq!(world.followed(), world.rows.history[1..]);
    world.check_next_turn();
}

#[rstest]
#[case::whole(200, 200)]
#[case::cut(201, 150)]
fn a_longer_result_is_cut_for_the_next_step(#[case] length: usize, #[case] shown: usize) {
    let mut world = planned(TWO);
    world.calls(&[call("read", &json!({ "n": 1 }))]);
    world.tool_says(0, &"\u{e9}".repeat(length));
    let told = asked(&world).2;
    let result = told.split_once("\nResult of step 1: ok: ").unwrap().1;
    assert_eq!(result, "\u{e9}".repeat(shown));
}

/// The forced answer of the breaker allows no further tool calls, so the plan ends, too.
#[test]
fn broken_tool_ends_the_plan_if_a_forced_answer_is_set() {
    let mut world = World::started(AgentProfile {
        breaker_action: BreakerAction::ForceFinal,
        breaker_failures: 1,
        error_rounds: 0,
        ..planning()
    });
    world.says_text(APART);
    fails(&mut world, "write", 1);
    let (model, has_tools, _) = asked(&world);
    assert_eq!((model, has_tools), ("main/model", false));
    assert!(world.hints().contains(&prompts::FORCED_BREAKER.to_owned()), "{:?}", world.hints());
}

/// A retry run has no message of its own.
#[test]
fn a_plan_that_is_made_again_knows_what_was_asked() {
    let mut world = World::new(planning());
    let asked_before = world.user("Read a.png and write down what it says.");
    world.rows.history = vec![Message { run_id: RunId::generate(&world.ids), ..asked_before }];
    world.claim(ClaimCause::First);
    world.says_text(ONE);
    assert!(world.asked.as_ref().unwrap().system.contains("Plan again"), "the request has two wishes");
    world.says_text(TWO);
    works(&mut world, "read", 1);
    works(&mut world, "write", 1);
    let told = asked(&world).2;
    assert!(told.starts_with("The user has asked:\nRead a.png and write down what it says.\n"), "{told}");
}

/// The tools of a step cannot be ranked by vectors.
#[test]
fn without_vectors_words_decide_or_the_loop_takes_over() {
    for (without_vectors, expected) in [(RankingFallback::Words, "small/router"), (RankingFallback::Loop, "main/model")] {
        let plan = PlanPolicy { k: 1, without_vectors, ..planning().plan };
        let mut world = World::started(AgentProfile { plan, ..planning() });
        world.says_text(TWO);
        assert_eq!(asked(&world).0, expected);
        let is_left = without_vectors == RankingFallback::Loop;
        assert!(!is_left || world.asked.as_ref().unwrap().tools.len() == 3, "all tools are offered");
        let skipped = [(1, PlanStepState::Skipped), (2, PlanStepState::Skipped)];
        assert_eq!(ended(&world), if is_left { &skipped[..] } else { &[] });
    }
}

#[test]
fn a_planner_reads_the_examples_of_its_agent() {
    let plan = PlanPolicy { examples: "\"Tidy up\" is [step(\"files\", \"list all\")]".to_owned(), ..planning().plan };
    let world = World::started(AgentProfile { plan, ..planning() });
    let system = &world.asked.as_ref().unwrap().system;
    assert!(system.contains("Examples:\n\"Tidy up\" is [step"), "{system}");
}

#[test]
fn a_planner_that_needs_no_tools_answers() {
    let world = planned("[answer(\"Seven.\")]");
    assert_eq!(world.ended().status, RunStatus::Completed);
    assert_eq!(words(&world.rows.history), ["Seven."]);
    assert_eq!(world.followed(), world.rows.history[1..]);
}

/// The planner's text cannot follow a schema for the answer.
#[test]
fn an_answer_that_is_to_have_a_shape_is_the_loop_s() {
    let wanted = OutputSchema { name: "answer".to_owned(), schema: json!({"type": "object"}), strict: false };
    let shaped = || {
        let options = ModelOptions { output_schema: Some(wanted.clone()), ..ModelOptions::default() };
        World::started(AgentProfile { options, ..planning() })
    };
    let is_wanted = |world: &World| world.asked.as_ref().unwrap().options.output_schema.is_some();
    let mut world = shaped();
    assert!(!is_wanted(&world), "the plan has its own schema");
    world.says_text("[answer(\"Seven.\")]");
    assert_eq!(asked(&world), ("main/model", true, "What is in the file?".to_owned()));
    assert!(is_wanted(&world) && words(&world.rows.history).is_empty());
    world.says_text("{\"n\": 7}");
    assert_eq!(words(&world.rows.history), ["{\"n\": 7}"]);

    for has_failed in [true, false] {
        let mut world = shaped();
        world.says_text(APART);
        fails(&mut world, "write", 1);
        works(&mut world, "write", 2);
        assert_eq!((asked(&world).0, is_wanted(&world)), ("big/planner", true));
        if has_failed {
            world.fails(ModelErrorKind::Overloaded);
        } else {
            world.says(&[Say::Reasoning("Hm.")], ModelFinish::Stop);
        }
        // All steps are done: the agent's own model reads the results and gets no tools.
        assert_eq!(asked(&world), ("main/model", false, prompts::PLAN_DONE.to_owned()));
        assert!(is_wanted(&world));
        assert_eq!(ended(&world), [(1, PlanStepState::Failed), (2, PlanStepState::Done)]);
        world.says_text("{\"n\": 7}");
        assert_eq!((world.ended().status, world.ended().reason), (RunStatus::Completed, Some(FinishReason::Stop)));
        assert_eq!(words(&world.rows.history), ["{\"n\": 7}"]);
        world.check_next_turn();
    }
}

const ONE: &str = "[step(\"files\", \"read a.png\")] [done()]";

/// A user with two wishes gets a plan for both, if the planner writes one on the second attempt.
#[rstest]
#[case::longer(TWO, 2)]
#[case::no_longer("[step(\"files\", \"read b.png\")] [done()]", 1)]
#[case::no_plan("I would read it.", 1)]
#[case::an_answer("[answer(\"Seven.\")]", 1)]
fn a_plan_of_one_step_for_two_wishes_is_made_once_more(#[case] second: &'static str, #[case] steps: usize) {
    let mut world = World::new(planning());
    world.rows.history = vec![world.user("Read a.png and write down what it says.")];
    world.claim(ClaimCause::First);
    assert!(!world.asked.as_ref().unwrap().system.contains("Plan again"));
    world.says_text(ONE);
    assert!(!world.kinds().contains(&"plan.created"));
    world.die();
    world.claim(ClaimCause::Crash);
    let (model, _, told) = asked(&world);
    assert_eq!((model, told.as_str()), ("big/planner", "Read a.png and write down what it says."));
    assert!(world.asked.as_ref().unwrap().system.ends_with("That step was: read a.png"));
    world.says_text(second);
    let planned: Vec<_> = world
        .events
        .iter()
        .filter_map(|event| match event {
            EventBody::PlanCreated { steps } => Some(steps.iter().map(|step| step.description.as_str()).collect::<Vec<_>>()),
            _ => None,
        })
        .collect();
    assert_eq!(planned.len(), 1, "the short plan has no event");
    assert_eq!((planned[0].len(), planned[0][0]), (steps, "read a.png"));
    assert_eq!(asked(&world).0, "small/router");
}

#[test]
fn a_plan_of_one_step_for_one_wish_is_carried_out() {
    let world = planned(ONE);
    assert_eq!(asked(&world).0, "small/router");
}

#[rstest]
#[case::no_plan("I would read the file.")]
#[case::too_long(
    "[step(\"a\")][step(\"a\")][step(\"a\")][step(\"a\")][step(\"a\")][step(\"a\")][step(\"a\")][step(\"a\")][step(\"a\")][step(\"a\")][step(\"a\")]"
)]
#[case::nothing("[done()]")]
fn without_a_plan_the_loop_answers(#[case] says: &'static str) {
    let mut world = planned(says);
    assert_eq!(asked(&world), ("main/model", true, "What is in the file?".to_owned()));
    assert!(world.hints().is_empty() && !world.kinds().contains(&"plan.created"));
    world.says_text("7");
    assert_eq!(words(&world.rows.history), ["7"]);
}

#[rstest]
#[case(0)]
#[case(1)]
fn a_model_of_the_plan_that_fails_is_done_without(#[case] steps: u32) {
    let mut world = World::started(planning());
    if steps > 0 {
        world.says_text(APART);
        works(&mut world, "write", 1);
    }
    world.fails(ModelErrorKind::Auth);
    let (model, has_tools, told) = asked(&world);
    assert_eq!((model, has_tools), ("main/model", true));
    assert_eq!(told == prompts::PLAN_GIVEN_UP, steps > 0, "{told}");
}

#[test]
fn failed_dependency_ends_the_plan_without_repeated_calls() {
    let mut world =
        planned("[step('files', 'write x')] [step('files', 'read y')] [step('files', 'write what step 2 said')] [done()]");
    works(&mut world, "write", 1);
    fails(&mut world, "read", 1);
    assert_eq!(ended(&world), [(1, PlanStepState::Done), (2, PlanStepState::Failed), (3, PlanStepState::Skipped)]);
    assert_eq!(asked(&world), ("main/model", true, prompts::PLAN_GIVEN_UP.to_owned()));
    let seen = &world.asked.as_ref().unwrap().messages;
    assert_eq!(seen.iter().flat_map(Message::tool_calls).count(), 2, "the loop sees the completed calls");
    // Even an agent without the duplicate guard quotes the calls of the plan.
    world.calls(&[call("write", &json!({"n": 1}))]);
    assert!(world.under_way.is_empty());
    assert!(world.results()[0].contains("not carried out again") && world.results()[0].contains("found 7"));
    world.says_text("Done what could be done.");
    assert_eq!(world.ended().status, RunStatus::Completed);
    world.check_next_turn();
}

#[test]
fn plan_reads_again_after_a_change() {
    let mut world = planned(
        "[step('files', 'read x')] [step('files', 'write x')] [step('files', 'read x')] [step('files', 'read x')] [done()]",
    );
    works(&mut world, "read", 1);
    works(&mut world, "write", 1);
    works(&mut world, "read", 1);
    assert_eq!(world.executions.len(), 3, "the third step sees the change of the second one");
    world.calls(&[call("read", &json!({"n": 1}))]);
    assert!(world.under_way.is_empty() && world.results()[0].contains("not carried out again"), "no write in between");
    assert_eq!(ended(&world).last(), Some(&(4, PlanStepState::Done)));
}

#[rstest]
#[case::in_the_plan(true)]
#[case::in_the_loop(false)]
fn call_with_possible_effect_is_not_repeated(#[case] in_plan: bool) {
    let plan = if in_plan { APART } else { "[step('files', 'write x')] [step('files', 'read what step 1 has written')] [done()]" };
    let mut world = planned(plan);
    world.calls(&[call("write", &json!({"n": 1}))]);
    world.tool_ends(0, ToolOutcome { state: ToolCallState::Unknown, ..ToolOutcome::failed("gone", 1) });
    assert_eq!(asked(&world).0, if in_plan { "small/router" } else { "main/model" });
    world.calls(&[call("write", &json!({"n": 1}))]);
    assert_eq!((world.executions.len(), world.results()), (1, vec![prompts::UNKNOWN_BEFORE.to_owned()]));
    assert_eq!(world.states(), [ToolCallState::Unknown, ToolCallState::Cancelled]);
    if !in_plan {
        world.calls(&[call("write", &json!({"n": 2}))]);
        assert_eq!(world.executions.len(), 2, "other arguments make another call");
    }
}

#[test]
fn loop_after_plan_repeats_reads_but_no_writes() {
    let mut world = planned(
        "[step('files', 'read x')] [step('files', 'write x')] [step('files', 'write y')] [step('files', 'read what step 3 wrote')] [done()]",
    );
    works(&mut world, "read", 1);
    works(&mut world, "write", 1);
    fails(&mut world, "write", 2);
    assert_eq!(asked(&world).0, "main/model");
    world.calls(&[call("read", &json!({"n": 1})), call("write", &json!({"n": 1})), call("write", &json!({"n": 2}))]);
    let made: Vec<_> = world.under_way.iter().map(|call| call.name.as_str()).collect();
    assert_eq!(made, ["read", "write"], "completed calls are quoted, and failed ones run again");
    world.tool_says(0, "found 8");
    world.tool_says(0, "ok");
    assert!(world.results()[1].contains("not carried out again"), "{:?}", world.results());
}

#[test]
fn calls_that_were_refused_are_none() {
    let mut world = planned(APART);
    for _ in 0..2 {
        world.says(&[Say::Call("write", "{\"n\":".to_owned())], ModelFinish::ToolCalls);
    }
    assert_eq!(ended(&world), [(1, PlanStepState::Failed), (2, PlanStepState::Failed)]);
    assert_eq!(asked(&world), ("main/model", true, prompts::PLAN_GIVEN_UP.to_owned()));
}

#[test]
fn every_model_that_speaks_with_the_user_knows_the_layers() {
    let prompt = PromptPolicy { server: "SERVER".to_owned(), ..PromptPolicy::default() };
    let mut world = World::new(AgentProfile { prompt, system_prompt: "AGENT".to_owned(), ..planning() });
    world.rows.own_layers = OwnLayers { system_prompt: "CONVERSATION".to_owned(), instructions: "USER".to_owned() };
    world.load(ClaimCause::First);
    let contexts = Some(vec![ProvidedContext { name: "page".to_owned(), text: "PAGE".to_owned() }]);
    world.feed(Input::Claimed { tools: crate::engine::tests::world::tools(), contexts, finished: Vec::new() });
    let knows = |world: &World| {
        let system = &world.asked.as_ref().unwrap().system;
        ["SERVER", "AGENT", "USER", "CONVERSATION", "PAGE"].iter().filter(|layer| system.contains(**layer)).count()
    };
    assert_eq!(knows(&world), 5, "the planner");
    world.says_text("[step('write it')] [done()]");
    assert_eq!(knows(&world), 0, "the router sees its step");
    works(&mut world, "write", 1);
    assert_eq!(knows(&world), 5, "the report");
}

/// The run ends while the first of two steps runs.
#[rstest]
#[case::cancelled(0, PlanStepState::Failed)]
#[case::failed(1, PlanStepState::Failed)]
#[case::denied(2, PlanStepState::Failed)]
#[case::out_of_time(3, PlanStepState::Done)]
fn the_steps_of_a_plan_end_with_the_run(#[case] how: u8, #[case] first: PlanStepState) {
    let on_deny = if how == 2 { OnDeny::EndTurn } else { OnDeny::FeedBack };
    let mode = if how == 2 { ApprovalMode::Ask } else { ApprovalMode::Auto };
    let tools = [("write".to_owned(), mode)].into();
    let approval = ApprovalPolicy { tools, on_deny, ..ApprovalPolicy::default() };
    let tool_error = if how == 1 { ToolErrorPolicy::FailRun } else { ToolErrorPolicy::FeedBack };
    let mut world = World::started(AgentProfile { approval, tool_error, ..planning() });
    world.says_text(APART);
    world.calls(&[call("write", &json!({"n": 1}))]);
    match how {
        0 => world.feed(Input::CancelRequested { by: "user".to_owned(), partial: None, stopped: Vec::new() }),
        1 => world.tool_fails(0),
        2 => {
            assert!(world.human_decides("deny", None));
            world.claim(ClaimCause::Timer)
        }
        _ => {
            let stopped = vec![(world.under_way.remove(0).id, done("ok"))];
            world.feed(Input::TimedOut { partial: None, stopped })
        }
    };
    assert!(world.ending.is_some(), "{:?}", world.kinds());
    assert_eq!(ended(&world), [(1, first), (2, PlanStepState::Skipped)]);
    assert_eq!(world.rows.counters.plan.as_ref().unwrap().phase, PlanPhase::Over);
    world.check_next_turn();
}

#[test]
fn a_plan_for_which_no_tool_is_called_is_the_loop_s() {
    let mut world = planned(APART);
    for tries in 0..6 {
        assert_eq!(asked(&world).0, "small/router");
        assert_eq!(asked(&world).2.contains("You have called no tool"), tries % 3 > 0);
        world.says_text("I would write it.");
    }
    assert_eq!(ended(&world), [(1, PlanStepState::Failed), (2, PlanStepState::Failed)]);
    assert_eq!(asked(&world), ("main/model", true, "What is in the file?".to_owned()));
    assert!(words(&world.rows.history).is_empty(), "an answer of the router without a call is not stored");
    assert_eq!(world.followed(), world.rows.history[1..]);
}

#[test]
fn failed_plan_is_reported_without_a_model_answer() {
    for has_words in [true, false] {
        let mut world = planned(APART);
        fails(&mut world, "write", 1);
        works(&mut world, "write", 2);
        assert!(asked(&world).2.contains("1. write one - failed: it broke\n2. write two - ok: found 7"), "{:?}", asked(&world));
        if has_words {
            world.says(&[Say::Reasoning("Hm.")], ModelFinish::Stop);
        } else {
            world.fails(ModelErrorKind::Overloaded);
        }
        assert_eq!(words(&world.rows.history), ["- write one: failed (it broke)\n- write two: ok"]);
        assert_eq!(world.ended().status, RunStatus::Completed);
        world.check_next_turn();
    }
}

#[test]
fn plan_step_is_one_call() {
    let mut world = planned(APART);
    world.calls(&[call("write", &json!({"n": 1})), call("write", &json!({"n": 2}))]);
    assert_eq!(world.under_way.len(), 1);
    world.tool_says(0, "ok");
    assert!(world.results()[1].contains("at most 1 call"), "{:?}", world.results());
    assert_eq!(ended(&world), [(1, PlanStepState::Done)]);
}

#[test]
fn a_step_is_offered_the_tools_that_fit_it() {
    let plan = PlanPolicy { k: 1, ..PlanPolicy::default() };
    let mut world = World::started(AgentProfile { plan, ..planning() });
    world.says_text("[step(\"read it\")] [step(\"write it\")] [done()]");
    assert_eq!(world.asked.as_ref().unwrap().tools.len(), 1);
    works(&mut world, "write", 1);
    assert_eq!(world.executions.len(), 1, "a tool that was not offered can still be called");
    assert_eq!(world.asked.as_ref().unwrap().tools.len(), 1);
}

#[test]
fn a_message_that_joins_gives_the_run_to_the_loop() {
    let mut world = planned(APART);
    world.calls(&[call("write", &json!({"n": 1}))]);
    world.join("And stop then.");
    world.tool_says(0, "ok");
    let (model, _, told) = asked(&world);
    assert_eq!(model, "main/model");
    assert!(told.contains(prompts::PLAN_GIVEN_UP), "{told}");
    assert_eq!(ended(&world), [(1, PlanStepState::Done), (2, PlanStepState::Skipped)]);
    world.says_text("Stopped.");
    assert_eq!(world.ended().status, RunStatus::Completed);

    let mut world = planned(APART);
    world.join("No, something else.");
    world.says_text("I would write it.");
    assert_eq!(asked(&world).0, "big/planner", "no step has run, and a new plan is made");
    assert!(asked(&world).2.contains("No, something else."));
}

/// A completed step may be requested again. A step of unknown outcome is not repeated before its user knows.
#[rstest]
#[case::done(done("found 7"), true)]
#[case::unknown(ToolOutcome { state: ToolCallState::Unknown, ..ToolOutcome::failed("gone", 1) }, false)]
fn a_message_that_joins_may_have_a_step_done_again(#[case] outcome: ToolOutcome, #[case] is_made: bool) {
    let mut world = planned(APART);
    world.calls(&[call("write", &json!({"n": 1}))]);
    world.join("And then once more.");
    world.tool_ends(0, outcome);
    world.die();
    world.claim(ClaimCause::Crash);
    world.calls(&[call("write", &json!({"n": 1}))]);
    assert_eq!(world.under_way.len() == 1, is_made, "{:?}", world.results());
    if is_made {
        world.tool_says(0, "found 8");
        world.calls(&[call("write", &json!({"n": 2}))]);
        assert_eq!(world.under_way.len(), 1, "other arguments make another call");
    } else {
        assert_eq!(world.results(), [prompts::UNKNOWN_BEFORE]);
    }
}

#[test]
fn limits_end_a_plan_as_they_end_the_loop() {
    let mut world = World::started(AgentProfile { max_run_tokens: 30, ..planning() });
    world.says_text(APART);
    works(&mut world, "write", 1);
    let (model, has_tools, _) = asked(&world);
    assert_eq!((model, has_tools), ("main/model", false), "the last call, without tools");
    world.says_text("One is written.");
    assert_eq!(world.ended().reason, Some(FinishReason::Budget));
    let mut world = World::started(AgentProfile { max_rounds: 1, ..planning() });
    world.says_text(APART);
    assert_eq!(asked(&world).0, "main/model", "a plan has at most as many steps as the run has rounds");
}

/// The worker crashes before or after each commit of the whole run.
#[rstest]
fn a_crash_at_any_point_goes_on_with_the_plan(#[values(0, 1, 2, 3, 4, 5)] at: usize, #[values(true, false)] is_committed: bool) {
    let mut world = World::started(AgentProfile { max_crashes: 100, ..planning() });
    for step in 0..12 {
        if world.ending.is_some() {
            break;
        }
        if let Some(call) = world.under_way.first().cloned() {
            // An unsafe call that was under way never runs again.
            let input = crate::engine::Input::ToolFinished(call.id, crate::engine::tests::world::done("found 7"));
            world.under_way.clear();
            feed(&mut world, input, step == at, is_committed);
            continue;
        }
        let phase = world.rows.counters.plan.as_ref().unwrap().phase;
        let input = match phase {
            PlanPhase::Planning => world.answer(&[Say::Text(APART)], ModelFinish::Stop),
            PlanPhase::Executing => {
                let n = world.rows.counters.plan.as_ref().unwrap().at;
                world.answer(&[call("write", &json!({ "n": n }))], ModelFinish::ToolCalls)
            }
            PlanPhase::Telling => world.answer(&[Say::Text("Both are written.")], ModelFinish::Stop),
            PlanPhase::Over => panic!("the plan is not given up"),
        };
        feed(&mut world, input, step == at, is_committed);
    }
    assert_eq!(world.ended().status, RunStatus::Completed);
    assert_eq!(words(&world.rows.history), ["Both are written."]);
    assert!(world.executions.values().all(|times| *times == 1), "{:?}", world.executions);
    let begun = world.kinds().into_iter().filter(|kind| *kind == "plan.step_started").count();
    assert_eq!((begun, ended(&world).len()), (2, 2), "each step has its events once");
    assert_eq!(world.followed(), world.rows.history[1..]);
}

fn feed(world: &mut World, input: crate::engine::Input, dies: bool, is_committed: bool) {
    match (dies, is_committed) {
        (false, _) => {
            world.feed(input);
            return;
        }
        (true, true) => world.feed_and_die(input),
        (true, false) => {
            world.decide(input);
            world.die();
        }
    }
    if world.ending.is_none() {
        world.claim(ClaimCause::Crash);
    }
}

#[test]
fn a_run_that_goes_on_from_one_that_has_acted_makes_no_plan() {
    let mut before = planned(TWO);
    works(&mut before, "read", 1);
    let mut world = World::new(planning());
    world.rows.history = before.rows.history;
    world.claim(ClaimCause::First);
    // A planner reads no calls, and would repeat the step.
    let (model, has_tools, _) = asked(&world);
    assert_eq!((model, has_tools), ("main/model", true));
}

fn within(limit: u64) -> AgentProfile {
    let context = ContextPolicy { limit: Some(limit), ..ContextPolicy::default() };
    AgentProfile { context, breaker_failures: 0, ..planning() }
}

/// Returns the remaining tokens of each request so far.
fn left(world: &World) -> Vec<i64> {
    let told = world.events.iter().filter_map(|event| match event {
        EventBody::ContextBudget { remaining, .. } => Some(*remaining),
        _ => None,
    });
    told.collect()
}

#[test]
fn each_request_of_a_plan_says_what_is_left_of_its_budget() {
    let mut world = World::started(within(8_000));
    world.says_text(APART);
    works(&mut world, "write", 1);
    works(&mut world, "write", 2);
    world.says_text("Both are written.");
    assert_eq!((world.ended().status, left(&world).len()), (RunStatus::Completed, 4));
}

/// The loop can compact a request, and a plan cannot.
#[rstest]
#[case::the_loop(ContextStrategy::Summarize, "main/model")]
#[case::as_it_is(ContextStrategy::None, "small/router")]
fn a_step_that_is_too_long_for_its_router_is_the_loop_s(#[case] strategy: ContextStrategy, #[case] model: &str) {
    let profile = within(30_000);
    let context = ContextPolicy { strategy, ..profile.context };
    let mut world = World::new(AgentProfile { context, ..profile });
    // The models have different context windows.
    let capacity = Capacity { window: Some(4_700), ..Capacity::default() };
    world.capacities = vec![("small/router".to_owned(), capacity)];
    world.claim(ClaimCause::First);
    let step = format!("[step(\"files\", \"write {}\")]", "\u{20ac}".repeat(1_990));
    world.says(&[Say::Words(format!("{step} [done()]"))], ModelFinish::Stop);
    assert_eq!(asked(&world).0, model);
}

proptest! {
    // A case has up to ten steps with long texts, and takes a fifth of a second.
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// For any outcome of the steps, and any size of the budget.
    #[test]
    fn plan_report_fits_and_names_every_failed_step(
        limit in 5_000..9_000_u64,
        wish in "[xy\u{e9} ]{0,6000}",
        steps in prop::collection::vec((any::<bool>(), 0..1_900_usize, "[a-z\u{e9}{\\[\n ]{0,2000}"), 1..=10),
    ) {
        let mut world = World::new(within(limit));
        world.rows.history = vec![world.user(&format!("do it {wish}"))];
        world.claim(ClaimCause::First);
        let planned = |(n, (_, length, _)): (usize, &(bool, usize, String))| {
            format!("[step(\"files\", \"chore {n} {}\")]\n", "x".repeat(*length))
        };
        let plan: String = (1..).zip(&steps).map(planned).collect();
        world.says(&[Say::Words(format!("{plan}[done()]"))], ModelFinish::Stop);
        for (n, (fails, _, text)) in steps.iter().enumerate() {
            world.calls(&[call("write", &json!({ "n": n }))]);
            let outcome = if *fails { ToolOutcome::failed(text, 1) } else { done(text) };
            world.tool_ends(0, outcome);
        }
        let (model, _, told) = asked(&world);
        prop_assert_eq!(model, "big/planner");
        prop_assert!(left(&world).iter().all(|left| *left >= 0), "{:?}", left(&world));
        for (n, (fails, ..)) in (1..).zip(&steps) {
            let (_, line) = told.split_once(&format!("\n{n}. chore {n}")).expect("each step has its line");
            let (_, word) = line.split_once(" - ").expect("each line says what came of it");
            prop_assert_eq!(word.starts_with("failed: "), *fails, "{}", told);
        }
    }
}

fn rejections(world: &World) -> Vec<&str> {
    let reasons = world.events.iter().filter_map(|event| match event {
        EventBody::PlanRejected { reason } => Some(reason.as_str()),
        _ => None,
    });
    reasons.collect()
}

#[test]
fn plan_that_is_discarded_leaves_an_event() {
    let steps = |n: usize| format!("{}[done()]", "[step(\"files\", \"write\")] ".repeat(n));
    let world = planned(Box::leak(steps(11).into_boxed_str()));
    assert_eq!(rejections(&world), ["the plan has 11 steps, and the agent carries out at most 10"]);
    let world = planned("I will do it.");
    assert_eq!(rejections(&world), ["the planner's answer holds no steps"]);
    // A tool that does not exist.
    let mut world = planned("[step(\"files\", \"fly\")] [done()]");
    world.calls(&[call("fly", &json!({}))]);
    assert_eq!(rejections(&world), ["none of its steps called a tool that exists"]);
    let mut world = planned(TWO);
    fails(&mut world, "read", 1);
    assert_eq!(rejections(&world), ["step 1 failed, and a later step needs it"]);
    let mut world = planned(TWO);
    works(&mut world, "read", 1);
    works(&mut world, "write", 1);
    world.says_text("Done.");
    assert!(rejections(&world).is_empty());
}
