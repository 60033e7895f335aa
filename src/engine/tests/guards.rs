//! Limits and guards of the engine: each ends a run or informs the model, and none misreports an outcome.

use rstest::rstest;
use serde_json::json;

use crate::domain::agent::{AgentProfile, BreakerAction, NameRepair, OnLimit, OnUnknown, RepairPolicy, ToolErrorPolicy};
use crate::domain::conversation::message::Part;
use crate::domain::event::EventBody;
use crate::domain::model::ModelFinish;
use crate::domain::run::context::ContextPolicy;
use crate::domain::run::record::ClaimCause;
use crate::domain::run::{FinishReason, RunStatus};
use crate::domain::tool::approval::ToolSafety;
use crate::domain::tool::{Repair, ReplayClass, ToolCallState, ToolDefinition, ToolOutcome};
use crate::engine::tests::world::{Say, World, call, tool};
use crate::engine::{Input, prompts};

#[test]
fn unknown_tools_are_answered_with_the_names_on_offer() {
    let mut world = World::started(AgentProfile::default());
    world.calls(&[call("Read", &json!({})), call("read", &json!({}))]);
    assert_eq!(world.executions.len(), 1);
    world.tool_says(0, "ok");
    assert!(world.results()[0].contains("read, write"), "{:?}", world.results());
    assert_eq!(world.states(), [ToolCallState::Failed, ToolCallState::Done]);
}

#[test]
fn arguments_that_are_no_object_are_answered_and_kept() {
    let mut world = World::started(AgentProfile::default());
    let raw = r#"{"path": "a"} please"#;
    world.calls(&[Say::Call("write", raw.to_owned())]);
    assert!(world.executions.is_empty());
    assert!(world.asked.is_some(), "the model is asked again in the same decision");
    assert_eq!(world.rows.calls[0].arguments, json!({ "_raw": raw }));
    assert!(world.results()[0].contains("JSON object"));
    world.calls(&[Say::Call("write", String::new()), Say::Call("read", "null".to_owned())]);
    assert_eq!(world.under_way.len(), 2);
    assert_eq!(world.under_way[0].arguments, json!({}));
}

#[test]
fn calls_are_repaired_if_the_agent_wants_that_and_say_so() {
    let repair = RepairPolicy { names: NameRepair::Unique, arguments: true, ..RepairPolicy::default() };
    let mut world = World::started(AgentProfile { repair, ..AgentProfile::default() });
    let written = "{'path': 'a', 'deep': [1, 2}";
    world.calls(&[Say::Call("functions.Write", written.to_owned()), Say::Call("write", "{'path': 'a".to_owned())]);
    let [call] = world.under_way.as_slice() else { panic!("one runs: {:?}", world.under_way) };
    assert_eq!((call.name.as_str(), &call.arguments), ("write", &json!({"path": "a", "deep": [1, 2]})));
    let repair = Repair {
        name: Some("functions.Write".to_owned()),
        matched_by: Some("spelling".to_owned()),
        arguments: vec!["single_quotes".to_owned(), "closing_bracket".to_owned()],
    };
    assert_eq!(call.repair.as_ref(), Some(&repair));
    let told =
        world.events.iter().any(|event| matches!(event, EventBody::ToolStarted { repair: Some(told), .. } if *told == repair));
    assert!(told);
    world.tool_says(0, "ok");
    let results = world.results();
    assert!(
        results[0].contains("no tool named \"functions.Write\", and write was called") && results[0].ends_with("ok"),
        "{results:?}"
    );
    assert!(!results[0].contains("A person"), "{results:?}");
    assert!(results[1].contains("JSON object"), "truncated arguments are not repaired: {results:?}");
    let calls: Vec<_> = world.rows.history.iter().flat_map(|message| message.tool_calls()).collect();
    assert_eq!(
        (calls[0].name.as_str(), &calls[0].arguments),
        ("functions.Write", &json!({ "_raw": written })),
        "the history keeps the original text"
    );
    world.says(&[Say::Call("write", "{'a': 1}".to_owned())], ModelFinish::Length);
    assert!(world.under_way.is_empty(), "a call that may be truncated is not repaired");
}

#[test]
fn a_tool_that_was_taken_away_is_not_mistaken_for_another_one() {
    let repair = RepairPolicy { names: NameRepair::Similar, ..RepairPolicy::default() };
    let profile = AgentProfile { repair, breaker_failures: 1, ..AgentProfile::default() };
    let mut world = World::started(profile);
    world.calls(&[call("write", &json!({}))]);
    world.tool_fails(0);
    world.calls(&[call("write", &json!({"n": 1})), call("reed", &json!({}))]);
    assert_eq!(world.under_way.iter().map(|call| call.name.as_str()).collect::<Vec<_>>(), ["read"]);
    assert_eq!(world.states()[1], ToolCallState::Cancelled);
}

#[test]
fn foreign_json_depth_is_bounded() {
    let nested = |levels: usize| (0..levels).fold(json!(1), |inner, _| json!({ "a": inner }));
    let mut world = World::started(AgentProfile::default());
    world.calls(&[call("write", &nested(100)), call("write", &nested(60))]);
    assert_eq!(world.under_way.len(), 1);
    let raw = nested(100).to_string();
    assert_eq!(world.rows.calls[0].arguments, json!({ "_raw": raw }));
    let Part::ToolCall(part) = &world.rows.history.last().unwrap().parts[0] else { panic!("the message holds the call") };
    assert_eq!(part.arguments, json!({ "_raw": raw }));
    world.tool_says(0, "ok");
    assert!(world.results()[0].contains("64 levels"), "{:?}", world.results());

    let mut world = World::new(AgentProfile::default());
    world.load(ClaimCause::First);
    let deep = ToolDefinition { parameters: nested(100).into(), ..tool("deep", ReplayClass::Read) };
    world.feed(Input::Claimed {
        tools: vec![deep.into(), tool("read", ReplayClass::Read).into()],
        contexts: None,
        finished: Vec::new(),
    });
    assert_eq!(world.rows.tools.as_ref().unwrap()[0].parameters, json!({ "type": "object" }).into());
}

#[test]
fn calls_cut_at_the_output_limit_never_run() {
    let mut world = World::started(AgentProfile::default());
    for round in 0..3 {
        assert!(world.ending.is_none(), "round {round}");
        world.says(&[call("read", &json!({})), Say::Call("write", "{}".to_owned())], ModelFinish::Length);
    }
    assert!(world.executions.is_empty());
    assert_eq!(world.error_code(), "provider_incomplete_stream");
    world.check_next_turn();
}

#[test]
fn an_answer_in_between_forgives_cut_calls() {
    let mut world = World::started(AgentProfile::default());
    for n in 0..4 {
        world.says(&[call("write", &json!({"n": n}))], ModelFinish::Length);
        world.calls(&[call("write", &json!({"m": n}))]);
        world.tool_says(0, "ok");
    }
    assert!(world.ending.is_none());
}

// L-45
#[test]
fn calls_beyond_the_limit_of_one_answer_get_errors_in_order() {
    let mut world = World::started(AgentProfile { max_parallel_calls: 2, ..AgentProfile::default() });
    let calls: Vec<_> = (0..100).map(|n| call("read", &json!({ "n": n }))).collect();
    world.calls(&calls);
    assert_eq!(world.under_way.len(), 2);
    world.tool_says(0, "0");
    world.tool_says(0, "1");
    let results = world.results();
    assert_eq!(results.len(), 100);
    assert_eq!(&results[..2], ["0", "1"]);
    assert!(results[2..].iter().all(|text| text.contains("at most 2 calls")));
    assert!(world.rows.counters.dropped_tools.is_empty(), "the failure does not count for the tool");
}

// L-44
#[test]
fn repeated_calls_are_quoted_and_then_end_the_run() {
    let mut world = World::started(AgentProfile::default());
    let again = || call("write", &json!({"n": 1}));
    world.calls(&[again()]);
    world.tool_says(0, "written");
    world.calls(&[again()]);
    assert!(world.results()[0].contains("written"));
    assert!(!world.asked.as_ref().unwrap().tools.is_empty());
    world.calls(&[again()]);
    assert_eq!(world.executions.values().sum::<u32>(), 1);
    assert!(world.asked.as_ref().unwrap().tools.is_empty());
    assert_eq!(world.hints(), [prompts::FORCED_DUPLICATES]);
    world.says_text("It was written.");
    assert_eq!(world.ended().reason, Some(FinishReason::Stop));
}

/// A user may ask for one repetition. After it, the guard works as before.
#[rstest]
fn a_message_that_joins_may_have_a_call_made_again(#[values(true, false)] dies: bool) {
    let mut world = World::started(AgentProfile::default());
    let again = || call("write", &json!({"n": 1}));
    world.calls(&[again()]);
    world.join("Write it once more.");
    world.tool_says(0, "written");
    if dies {
        world.die();
        world.claim(ClaimCause::Crash);
    }
    world.calls(&[again()]);
    assert_eq!(world.under_way.len(), 1, "{:?}", world.results());
    world.tool_says(0, "written twice");
    world.calls(&[again()]);
    assert!(world.under_way.is_empty() && world.results()[0].contains("written twice"), "{:?}", world.results());
    world.calls(&[again()]);
    assert_eq!(world.hints(), [prompts::FORCED_DUPLICATES]);
    assert_eq!(world.executions.len(), 2);
}

/// A file may have changed after a write, so reading it again is no duplicate call.
#[test]
fn duplicate_read_after_a_possible_change_runs_again() {
    let mut world = World::started(AgentProfile::default());
    let reads = || call("read", &json!({"path": "a"}));
    world.calls(&[reads()]);
    world.tool_says(0, "one");
    world.calls(&[reads()]);
    assert!(world.under_way.is_empty() && world.results()[0].contains("one"), "no write in between: {:?}", world.results());
    world.calls(&[call("write", &json!({"path": "a"}))]);
    world.tool_says(0, "written");
    world.calls(&[reads()]);
    world.tool_says(0, "two");
    world.calls(&[reads()]);
    assert!(world.under_way.is_empty() && world.results()[0].contains("two"), "{:?}", world.results());
    // A call with an effect is not repeated, even after other calls.
    world.calls(&[call("write", &json!({"path": "b"}))]);
    world.tool_says(0, "written");
    world.calls(&[call("write", &json!({"path": "a"}))]);
    assert!(world.under_way.is_empty());
}

/// Tools of an untrusted server count as unsafe, but its read-only tools may still be called again after a write.
#[test]
fn duplicate_read_of_an_untrusted_server_runs_again() {
    let mut world = World::new(AgentProfile::default());
    let reader =
        ToolDefinition { safety: ToolSafety { says_it_reads: true, ..ToolSafety::default() }, ..tool("read", ReplayClass::Unsafe) };
    let other = ToolDefinition { name: "list".to_owned(), ..reader.clone() };
    let (writer, trusted) = (tool("write", ReplayClass::Unsafe), tool("look", ReplayClass::Read));
    let page = tool("fetch", ReplayClass::Idempotent);
    world.claim_with(ClaimCause::First, vec![reader.into(), other.into(), writer.into(), trusted.into(), page.into()]);
    let (reads, lists) = (|| call("read", &json!({"path": "a"})), || call("list", &json!({})));
    for (calls, made) in [
        (reads(), true),
        (lists(), true),
        (reads(), false),
        (call("write", &json!({"path": "a"})), true),
        (reads(), true),
        (lists(), true),
        (reads(), false),
        // A trusted read-only tool is not affected by the untrusted hints.
        (call("look", &json!({})), true),
        (call("list", &json!({"all": true})), true),
        (call("look", &json!({})), true),
        (call("look", &json!({})), false),
        (call("fetch", &json!({})), true),
        (call("list", &json!({"all": 1})), true),
        (call("fetch", &json!({})), false),
        (call("write", &json!({"path": "b"})), true),
        (call("fetch", &json!({})), true),
        (call("write", &json!({"path": "a"})), false),
    ] {
        world.calls(std::slice::from_ref(&calls));
        assert_eq!(!world.under_way.is_empty(), made, "{calls:?} {:?}", world.results());
        if made {
            world.tool_says(0, "ok");
        }
    }
}

/// A duplicate call is only quoted, so it changes nothing.
#[test]
fn a_model_that_reads_and_writes_in_a_circle_is_stopped() {
    let mut world = World::started(AgentProfile::default());
    let (reads, writes) = (|| call("read", &json!({"path": "a"})), || call("write", &json!({"path": "b"})));
    world.calls(&[reads()]);
    world.tool_says(0, "one");
    world.calls(&[writes()]);
    world.tool_says(0, "written");
    world.calls(&[reads()]);
    world.tool_says(0, "two");
    world.calls(&[writes()]);
    world.calls(&[reads()]);
    assert!(world.results()[0].contains("two") && world.under_way.is_empty(), "{:?}", world.results());
    assert_eq!(world.hints(), [prompts::FORCED_DUPLICATES]);
    assert!(world.asked.as_ref().unwrap().tools.is_empty());
}

/// The execution order of the calls in one answer is not known.
#[test]
fn change_in_the_same_answer_invalidates_reads() {
    let reads = || call("read", &json!({"path": "a"}));
    for (first, second) in [
        (vec![reads()], vec![call("write", &json!({})), reads()]),
        (vec![reads(), call("write", &json!({}))], vec![reads()]),
        (vec![call("write", &json!({})), reads()], vec![reads()]),
    ] {
        let mut world = World::started(AgentProfile::default());
        world.calls(&first);
        first.iter().for_each(|_| _ = world.tool_says(0, "ok"));
        world.calls(&second);
        assert_eq!(world.under_way.len(), second.len(), "all of them run");
    }
    // A quoted result is no new result: the value is outdated.
    let mut world = World::started(AgentProfile::default());
    world.calls(&[reads()]);
    world.tool_says(0, "one");
    world.calls(&[reads(), call("write", &json!({}))]);
    world.tool_says(0, "written");
    world.calls(&[reads()]);
    assert_eq!(world.under_way.len(), 1);
}

#[test]
fn a_call_that_stands_twice_in_an_answer_is_made_once() {
    let twice = || [call("pay", &json!({"to": "ann"})), call("pay", &json!({"to": "bob"})), call("pay", &json!({"to": "ann"}))];
    let mut world = World::started(AgentProfile::default());
    world.calls(&twice());
    assert_eq!(world.states(), [ToolCallState::Started, ToolCallState::Started, ToolCallState::Cancelled]);
    world.tool_says(0, "paid");
    world.tool_says(0, "paid");
    assert!(world.results()[2].contains("made once"), "{:?}", world.results());
    // An agent without the guard allows duplicate calls.
    let mut world = World::started(AgentProfile { duplicate_calls: 0, ..AgentProfile::default() });
    world.calls(&twice());
    assert_eq!(world.under_way.len(), 3);
}

/// Where older results are shortened, a duplicate call is the only way to read one again.
#[test]
fn duplicate_call_quotes_at_most_a_shortened_result() {
    for compress_results in [false, true] {
        let context = ContextPolicy { compress_results, ..ContextPolicy::default() };
        let mut world = World::started(AgentProfile { context, tool_result_chars: 3_000, ..AgentProfile::default() });
        world.calls(&[call("read", &json!({}))]);
        world.tool_says(0, &"x".repeat(5_000));
        world.calls(&[call("read", &json!({}))]);
        let quoted = world.results()[0].chars().filter(|c| *c == 'x').count();
        assert!(if compress_results { quoted > 2_500 } else { quoted == 500 }, "{quoted}");
    }
}

#[test]
fn failed_calls_may_be_repeated() {
    let mut world = World::started(AgentProfile::default());
    world.calls(&[call("read", &json!({}))]);
    world.tool_fails(0);
    world.calls(&[call("read", &json!({}))]);
    assert_eq!(world.under_way.len(), 1);
}

#[test]
fn a_tool_that_keeps_failing_is_taken_away() {
    let mut world = World::started(AgentProfile { error_rounds: 0, ..AgentProfile::default() });
    for n in 0..3 {
        world.calls(&[call("write", &json!({ "n": n }))]);
        world.tool_fails(0);
    }
    assert!(world.results()[0].contains("Stop using it"), "{:?}", world.results());
    let offered: Vec<_> = world.asked.as_ref().unwrap().tools.iter().map(|tool| tool.name.as_str()).collect();
    assert_eq!(offered, ["pay", "read"]);
    world.calls(&[call("write", &json!({}))]);
    assert!(world.results()[0].contains("no longer available"));
    assert_eq!(world.executions.len(), 3);
}

/// A model that repeats a failed call, for example after a lost connection, does not pay twice.
#[test]
fn a_keyed_call_that_failed_is_made_again_under_its_key() {
    let mut world = World::new(AgentProfile { duplicate_calls: 0, error_rounds: 0, ..AgentProfile::default() });
    let keyed = ReplayClass::Keyed { argument: "key".to_owned() };
    world.claim_with(ClaimCause::First, vec![tool("pay", keyed).into(), tool("write", ReplayClass::Unsafe).into()]);
    world.calls(&[call("pay", &json!({"n": 1})), call("write", &json!({"n": 1}))]);
    world.tool_fails(0);
    world.tool_fails(0);
    world.calls(&[call("pay", &json!({"n": 1})), call("pay", &json!({"n": 2})), call("write", &json!({"n": 1}))]);
    for _ in 0..3 {
        world.tool_says(0, "paid");
    }
    // After a success, the same call is a new one.
    world.calls(&[call("pay", &json!({"n": 1}))]);
    let keys: Vec<_> = world.rows.calls.iter().map(|call| call.key().clone()).collect();
    let ids: Vec<_> = world.rows.calls.iter().map(|call| call.id.clone()).collect();
    assert_eq!(keys[2], ids[0], "the same payment");
    assert_eq!((&keys[3..], &keys[..2]), (&ids[3..], &ids[..2]));
}

/// A removed tool is recognized by its dotted name, too, and not taken for another tool.
#[test]
fn a_tool_that_was_taken_away_is_known_by_its_dotted_name() {
    let repair = RepairPolicy { names: NameRepair::Similar, ..RepairPolicy::default() };
    let profile = AgentProfile { breaker_failures: 1, error_rounds: 0, repair, ..AgentProfile::default() };
    let mut world = World::new(profile);
    let tools = ["files__move_file", "files__move_files"].map(|name| tool(name, ReplayClass::Unsafe).into());
    world.claim_with(ClaimCause::First, tools.to_vec());
    world.calls(&[call("files.move_file", &json!({}))]);
    world.tool_fails(0);
    world.calls(&[call("files.move_file", &json!({"n": 2}))]);
    assert_eq!(world.results(), [prompts::dropped_tool("files__move_file")]);
    assert_eq!(world.executions.len(), 1);
}

#[test]
fn a_tool_that_is_taken_away_ends_its_planned_calls() {
    let mut world = World::started(AgentProfile { tool_parallelism: 1, breaker_failures: 1, ..AgentProfile::default() });
    world.calls(&[call("write", &json!({"n": 1})), call("write", &json!({"n": 2})), call("read", &json!({}))]);
    world.tool_fails(0);
    assert_eq!(world.states(), [ToolCallState::Failed, ToolCallState::Cancelled, ToolCallState::Started]);
}

#[test]
fn the_breaker_can_force_the_end() {
    let profile = AgentProfile { breaker_action: BreakerAction::ForceFinal, error_rounds: 0, ..AgentProfile::default() };
    let mut world = World::started(profile);
    for n in 0..3 {
        assert!(!world.asked.as_ref().unwrap().tools.is_empty());
        world.calls(&[call("write", &json!({ "n": n }))]);
        world.tool_fails(0);
    }
    assert!(world.asked.as_ref().unwrap().tools.is_empty());
    assert_eq!(world.hints(), [prompts::FORCED_BREAKER]);
}

/// Failures of earlier runs count, but only another call shows whether the tool is still broken.
#[rstest]
#[case::broken_before(3, 1)]
#[case::once_more(2, 1)]
#[case::twice_more(1, 2)]
#[case::never_before(0, 3)]
fn failures_of_earlier_runs_count(#[case] before: u32, #[case] more: u32, #[values(true, false)] drops: bool) {
    let breaker_action = if drops { BreakerAction::DropTool } else { BreakerAction::ForceFinal };
    let profile = AgentProfile { breaker_action, error_rounds: 0, max_crashes: 0, ..AgentProfile::default() };
    let mut world = World::new(profile);
    world.rows.counters.earlier_failures = [("write".to_owned(), before)].into_iter().filter(|(_, count)| *count > 0).collect();
    world.claim(ClaimCause::First);
    let offers = |world: &World| world.asked.as_ref().unwrap().tools.iter().any(|tool| tool.name == "write");
    for n in 0..more {
        assert!(offers(&world), "it may work again");
        world.calls(&[call("write", &json!({ "n": n }))]);
        world.join("Try again.");
        world.tool_fails(0);
        world.die();
        world.claim(ClaimCause::Crash);
    }
    assert!(!offers(&world), "{:?}", world.results());
}

#[test]
fn tool_success_resets_failures_of_earlier_runs() {
    let breaker_action = BreakerAction::ForceFinal;
    let mut world = World::new(AgentProfile { breaker_action, error_rounds: 0, ..AgentProfile::default() });
    world.rows.counters.earlier_failures = [("write".to_owned(), 2)].into();
    world.claim(ClaimCause::First);
    world.calls(&[call("write", &json!({"n": 0}))]);
    world.tool_says(0, "written");
    for n in 1..=3 {
        assert!(!world.asked.as_ref().unwrap().tools.is_empty());
        world.calls(&[call("write", &json!({ "n": n }))]);
        world.tool_fails(0);
    }
    assert!(world.asked.as_ref().unwrap().tools.is_empty());
}

#[test]
fn rounds_of_errors_bring_a_hint_each() {
    let mut world = World::started(AgentProfile { breaker_failures: 0, ..AgentProfile::default() });
    for n in 0..4 {
        world.calls(&[call("write", &json!({ "n": n }))]);
        world.tool_fails(0);
    }
    assert_eq!(world.hints(), [prompts::ERROR_ROUNDS, prompts::ERROR_ROUNDS]);
}

#[test]
fn empty_answers_are_nudged_then_forced_then_fail() {
    let mut world = World::started(AgentProfile::default());
    world.says(&[], ModelFinish::Stop);
    world.says(&[Say::Reasoning("hm")], ModelFinish::Stop);
    assert_eq!(world.hints(), [prompts::EMPTY_REPLY, prompts::FORCED_EMPTY]);
    assert!(world.asked.as_ref().unwrap().tools.is_empty());
    world.says(&[Say::Text("  \n")], ModelFinish::Stop);
    assert_eq!(world.error_code(), "provider_empty_response");
    world.check_next_turn();

    // The same applies if the finish reason announces calls and the answer has none.
    let mut world = World::started(AgentProfile { empty_replies: 0, ..AgentProfile::default() });
    world.says(&[], ModelFinish::ToolCalls);
    assert_eq!(world.error_code(), "provider_empty_response");
}

#[rstest]
#[case::asked_again(2, 3)]
#[case::at_once(0, 1)]
fn after_empty_answers_the_user_reads_the_last_words(#[case] empty_replies: u32, #[case] answers: usize) {
    let final_text = Some("We are closed.".to_owned());
    let mut world = World::started(AgentProfile { final_text, empty_replies, ..AgentProfile::default() });
    for _ in 0..answers {
        world.says(&[], ModelFinish::ToolCalls);
    }
    assert_eq!((world.ended().status, world.error_code()), (RunStatus::Completed, "provider_empty_response"));
    assert_eq!(world.rows.history.last().unwrap().text(), "We are closed.");
    world.check_next_turn();
}

#[test]
fn an_empty_answer_after_a_result_is_not_the_end() {
    let mut world = World::started(AgentProfile::default());
    world.calls(&[call("read", &json!({}))]);
    world.tool_says(0, "ok");
    world.says(&[], ModelFinish::Stop);
    assert!(world.ending.is_none());
    world.says_text("It is ok.");
    assert_eq!(world.ended().status, RunStatus::Completed);
}

#[test]
fn an_answer_that_only_announces_calls_is_no_answer() {
    let mut world = World::started(AgentProfile::default());
    world.says(&[Say::Text("I will look.")], ModelFinish::ToolCalls);
    assert_eq!(world.hints(), [prompts::HOLLOW_CALLS]);
    world.says(&[Say::Text("I will look.")], ModelFinish::ToolCalls);
    world.says_text("There is nothing.");
    assert_eq!(world.ended().status, RunStatus::Completed);
}

#[test]
fn text_with_announced_calls_is_the_answer_without_nudges() {
    let final_text = Some("We are closed.".to_owned());
    let mut world = World::started(AgentProfile { final_text, empty_replies: 0, ..AgentProfile::default() });
    world.says(&[Say::Text("It is sunny.")], ModelFinish::ToolCalls);
    let ended = world.ended();
    assert_eq!((ended.status, ended.reason), (RunStatus::Completed, Some(FinishReason::Stop)));
    assert_eq!(world.rows.history.last().unwrap().text(), "It is sunny.");
    world.check_next_turn();
}

#[test]
fn calls_in_the_last_answer_are_not_carried_out() {
    let mut world = World::started(AgentProfile { max_rounds: 0, ..AgentProfile::default() });
    world.says(&[Say::Text("In short: nothing."), call("write", &json!({}))], ModelFinish::ToolCalls);
    assert_eq!(world.ended().reason, Some(FinishReason::MaxRounds));
    assert!(world.rows.calls.is_empty());
    world.check_next_turn();
}

/// Calls above the limit are not carried out, and no other tool of the server is on offer after it.
#[test]
fn calls_of_server_tools_end_at_their_limit() {
    let mut world = World::started(AgentProfile { max_server_calls: Some(2), ..AgentProfile::default() });
    world.calls(&[call("read", &json!({ "n": 0 }))]);
    world.tool_says(0, "more");
    world.calls(&[call("read", &json!({ "n": 1 })), call("read", &json!({ "n": 2 }))]);
    assert_eq!(world.states(), [ToolCallState::Done, ToolCallState::Started, ToolCallState::Cancelled]);
    world.tool_says(0, "more");
    assert!(world.asked.as_ref().unwrap().tools.is_empty());
    world.calls(&[call("read", &json!({ "n": 3 }))]);
    assert!(world.under_way.is_empty());
    assert_eq!(world.results().last().unwrap(), prompts::NO_CALLS_LEFT);
    world.says_text("That is all.");
    assert_eq!(world.ended().reason, Some(FinishReason::Stop));
}

fn used_up(on_limit: OnLimit) -> World {
    let mut world = World::started(AgentProfile { max_rounds: 2, on_limit, ..AgentProfile::default() });
    for n in 0..2 {
        world.calls(&[call("read", &json!({ "n": n }))]);
        world.tool_says(0, "more");
    }
    world
}

#[test]
fn used_up_rounds_are_summed_up() {
    let mut world = used_up(OnLimit::Summarize);
    assert!(world.asked.as_ref().unwrap().tools.is_empty());
    assert_eq!(world.hints(), [prompts::FORCED_ROUNDS]);
    world.says_text("So far: more.");
    assert_eq!(world.ended().reason, Some(FinishReason::MaxRounds));
}

#[test]
fn used_up_rounds_can_fail_or_say_a_fixed_text() {
    assert_eq!(used_up(OnLimit::Fail).error_code(), "max_rounds");
    let world = used_up(OnLimit::Message);
    assert_eq!(world.ended().reason, Some(FinishReason::MaxRounds));
    assert_eq!(world.rows.history.last().unwrap().text(), prompts::LIMIT_MESSAGE);
    assert!(world.asked.is_none());
}

#[test]
fn used_up_tokens_are_summed_up() {
    let mut world = World::started(AgentProfile { max_run_tokens: 15, ..AgentProfile::default() });
    world.calls(&[call("read", &json!({}))]);
    world.tool_says(0, "more");
    assert!(world.asked.as_ref().unwrap().tools.is_empty());
    world.says_text("So far: more.");
    assert_eq!(world.ended().reason, Some(FinishReason::Budget));
}

#[test]
fn used_up_time_fails() {
    let profile = AgentProfile { max_run_ms: 1_000, ..AgentProfile::default() };
    let mut world = World::started(profile.clone());
    world.calls(&[call("write", &json!({}))]);
    world.elapsed_ms = 1_000;
    world.tool_says(0, "late");
    assert_eq!(world.error_code(), "run_timeout");
    assert_eq!(world.states(), [ToolCallState::Done]);

    let mut world = World::started(profile);
    world.calls(&[call("write", &json!({})), call("read", &json!({}))]);
    world.feed(Input::TimedOut { partial: None, stopped: Vec::new() });
    assert_eq!(world.error_code(), "run_timeout");
    assert_eq!(world.states(), [ToolCallState::Unknown, ToolCallState::Cancelled]);
    world.check_next_turn();
}

#[test]
fn failed_tools_can_fail_the_run_after_the_others_have_ended() {
    let profile = AgentProfile { tool_error: ToolErrorPolicy::FailRun, tool_parallelism: 2, ..AgentProfile::default() };
    let mut world = World::started(profile);
    world.calls(&[call("read", &json!({"n": 1})), call("read", &json!({"n": 2})), call("write", &json!({}))]);
    world.tool_fails(0);
    assert!(world.ending.is_none());
    world.tool_says(0, "ok");
    assert_eq!(world.error_code(), "tool_failed");
    assert_eq!(world.states(), [ToolCallState::Failed, ToolCallState::Done, ToolCallState::Cancelled]);
    world.check_next_turn();
}

#[test]
fn an_unknown_outcome_of_a_living_tool_follows_the_policy() {
    let unknown = || ToolOutcome { state: ToolCallState::Unknown, ..ToolOutcome::failed("the server died", 9) };
    let mut world = World::started(AgentProfile::default());
    world.calls(&[call("write", &json!({}))]);
    world.tool_ends(0, unknown());
    assert!(world.kinds().contains(&"tool.outcome_unknown"));
    assert!(world.asked.is_some());

    let mut world = World::started(AgentProfile { on_unknown: OnUnknown::Fail, ..AgentProfile::default() });
    world.calls(&[call("write", &json!({}))]);
    world.tool_ends(0, unknown());
    assert_eq!(world.error_code(), "tool_outcome_unknown");
}

#[test]
fn null_of_an_optional_argument_is_repaired() {
    let parameters = json!({"type": "object", "properties": {"query": {"type": "string"}, "limit": {"type": "integer"}}});
    let search = ToolDefinition { parameters: parameters.into(), ..tool("search", ReplayClass::Read) };
    for arguments in [false, true] {
        let repair = RepairPolicy { arguments, ..RepairPolicy::default() };
        let mut world = World::new(AgentProfile { repair, ..AgentProfile::default() });
        world.claim_with(ClaimCause::First, vec![search.clone().into()]);
        world.calls(&[call("search", &json!({"query": "x", "limit": null}))]);
        let made = &world.under_way[0];
        let repairs = made.repair.as_ref().map(|repair| repair.arguments.clone());
        match arguments {
            false => assert_eq!((&made.arguments, repairs), (&json!({"query": "x", "limit": null}), None)),
            true => assert_eq!((&made.arguments, repairs), (&json!({"query": "x"}), Some(vec!["null".to_owned()]))),
        }
        world.tool_says(0, "found");
        assert_eq!(world.results()[0].contains("optional arguments that were null were left out"), arguments);
    }
}

#[test]
fn failure_without_words_says_that_it_failed() {
    for content in [vec![], vec![crate::domain::conversation::message::ToolContent::text(" ")]] {
        let mut world = World::started(AgentProfile::default());
        world.calls(&[call("read", &json!({}))]);
        world.tool_ends(0, ToolOutcome { content, ..ToolOutcome::failed("", 1) });
        assert_eq!(world.results(), [prompts::FAILED_SILENTLY]);
    }
}

#[test]
fn call_written_as_text_is_answered_with_a_nudge() {
    let worded = "<tool_call>{\"name\": \"read\", \"arguments\": {}}</tool_call>";
    let mut world = World::started(AgentProfile::default());
    world.says_text(worded);
    assert!(world.executions.is_empty() && world.ending.is_none());
    assert_eq!(world.hints().last().unwrap(), prompts::WORDED_CALL);
    world.calls(&[call("read", &json!({}))]);
    world.tool_says(0, "7");
    world.says_text("It says 7.");
    assert_eq!(world.ended().status, RunStatus::Completed);
    assert!(world.followed().iter().all(|message| message.internal || !message.text().contains("tool_call")));

    // An empty answer counts the same.
    let mut world = World::started(AgentProfile::default());
    world.says_text(worded);
    world.says_text(worded);
    assert!(world.asked.as_ref().unwrap().tools.is_empty(), "the third answer is forced");
    world.says_text(worded);
    assert_eq!(world.error_code(), "provider_empty_response");
    // A call of a tool that does not exist is an answer.
    let mut world = World::started(AgentProfile::default());
    world.says_text("{\"name\": \"Ada\", \"arguments\": []}");
    assert_eq!(world.ended().status, RunStatus::Completed);
}

#[test]
fn message_with_calls_has_their_finish_reason() {
    let mut world = World::started(AgentProfile::default());
    world.says(&[Say::Text("I look."), call("read", &json!({}))], ModelFinish::Stop);
    let reason = |world: &World| world.rows.history.iter().rfind(|message| message.finish_reason.is_some()).unwrap().finish_reason;
    assert_eq!(reason(&world), Some(FinishReason::ToolCalls));
    world.tool_says(0, "7");
    world.says_text("It says 7.");
    assert_eq!((reason(&world), world.ended().reason), (Some(FinishReason::Stop), Some(FinishReason::Stop)));
}

fn breaker_events(world: &World) -> Vec<(Option<String>, u32, BreakerAction)> {
    let opened = world.events.iter().filter_map(|event| match event {
        EventBody::ToolBreakerOpened { name, failures, action } => Some((name.clone(), *failures, *action)),
        _ => None,
    });
    opened.collect()
}

#[test]
fn breaker_of_a_tool_leaves_an_event() {
    for action in [BreakerAction::DropTool, BreakerAction::ForceFinal] {
        let profile = AgentProfile { breaker_failures: 2, breaker_action: action, ..AgentProfile::default() };
        let mut world = World::started(profile);
        for n in 0..2 {
            assert!(breaker_events(&world).is_empty());
            world.calls(&[call("write", &json!({ "n": n }))]);
            world.tool_fails(0);
        }
        assert_eq!(breaker_events(&world), [(Some("write".to_owned()), 2, action)]);
    }
}

#[test]
fn unknown_tool_names_are_counted_by_the_breaker() {
    for action in [BreakerAction::DropTool, BreakerAction::ForceFinal] {
        let mut world = World::started(AgentProfile { breaker_action: action, error_rounds: 0, ..AgentProfile::default() });
        for name in ["search", "browse", "look"] {
            assert!(!world.asked.as_ref().unwrap().tools.is_empty());
            world.calls(&[call(name, &json!({}))]);
        }
        assert_eq!(breaker_events(&world), [(None, 3, BreakerAction::ForceFinal)]);
        assert!(world.asked.as_ref().unwrap().tools.is_empty(), "the next answer is forced");
        world.says_text("I have no such tool.");
        assert_eq!(world.ended().status, RunStatus::Completed);
    }
}

#[test]
fn model_that_calls_after_the_breaker_is_asked_for_words() {
    let profile = AgentProfile { breaker_failures: 1, breaker_action: BreakerAction::ForceFinal, ..AgentProfile::default() };
    let mut world = World::started(profile.clone());
    world.calls(&[call("write", &json!({}))]);
    world.tool_fails(0);
    world.calls(&[call("write", &json!({"n": 1}))]);
    assert_eq!(world.hints().last().unwrap(), prompts::NO_TOOLS);
    world.says_text("It could not be written.");
    assert_eq!((world.ended().status, world.executions.len()), (RunStatus::Completed, 1));
    world.followed();

    let mut world = World::started(profile);
    world.calls(&[call("write", &json!({}))]);
    world.tool_fails(0);
    for n in 1..=3 {
        world.calls(&[call("write", &json!({ "n": n }))]);
    }
    assert_eq!(world.error_code(), "provider_empty_response");
    assert!(world.ended().error.as_ref().unwrap().detail.contains("called tools after the last of them was withdrawn"));
}
